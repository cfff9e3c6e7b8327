package auth

import (
	"bytes"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
)

// files are those of [Keys] or [Certificates]. They are read again while they are in use. What is wrong with them
// changes nothing, and is told once, as is that they are right again.
type files struct {
	what  string   // is in them, as "keys"
	names []string // "": there is no such file
	// take has what is in the files be used, and returns what the log says of it. It is called by one goroutine at
	// a time.
	take func(texts [][]byte) (attrs []any, err error)

	mu   sync.Mutex // held while they are read
	used [][]byte   // what is in use
	bad  string     // what was wrong when they were last read
	told bool       // that was logged
}

// open reads the files for the first time.
func (f *files) open() error {
	texts, err := f.read()
	if err != nil {
		return err
	}
	f.used = texts
	_, err = f.take(texts)
	return err
}

// Reload reads the files again. If they are wrong nothing changes. That is logged once: at once
// if asked is true, or else when the same is wrong the next time, because they may be about to be
// replaced, one by one or in place. It reports whether what is in use has changed.
func (f *files) Reload(asked bool) (changed bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	texts, err := f.read()
	if err == nil && slices.EqualFunc(texts, f.used, bytes.Equal) {
		if f.told {
			slog.Info(f.what+" unchanged: what was wrong with the files is mended", "files", f.shown())
		}
		f.bad, f.told = "", false
		return false
	}
	if err == nil && !asked && f.bad == "" && slices.ContainsFunc(texts, func(text []byte) bool { return text != nil && len(text) == 0 }) {
		f.bad = "a file is empty" // which it may be for a moment
		return false
	}
	var attrs []any
	if err == nil {
		attrs, err = f.take(texts)
	}
	if err != nil {
		again := err.Error() == f.bad
		f.told = f.told && again
		if f.bad = err.Error(); asked || again && !f.told {
			slog.Warn(f.what+" not changed: the files are wrong, those that were read before stay in use", "files", f.shown(), "error", err)
			f.told = true
		}
		return false
	}
	f.used, f.bad, f.told = texts, "", false
	slog.Info(f.what+" read", append([]any{"files", f.shown()}, attrs...)...)
	return true
}

func (f *files) read() ([][]byte, error) {
	texts := make([][]byte, len(f.names))
	for i, name := range f.names {
		if name == "" {
			continue
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		texts[i] = text
	}
	return texts, nil
}

// shown returns the names of the files, for the log.
func (f *files) shown() string {
	return strings.Join(slices.DeleteFunc(slices.Clone(f.names), func(name string) bool { return name == "" }), ", ")
}
