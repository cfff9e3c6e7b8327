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
	seen [][]byte   // what else was in them at the last look; nil: nothing
	bad  string     // why they could not be read at the last look
	told string     // what is wrong, as it was logged last; "": nothing
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

// Reload looks at the files. If they are wrong nothing changes, and that is logged once. asked says that what is in them now is
// meant. Otherwise it is taken, or what is wrong logged, when the next look finds the same: they may be about to be replaced, one by
// one or in place, and half a file of keys is one with fewer keys. It reports whether what is in use has changed.
func (f *files) Reload(asked bool) (changed bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	texts, err := f.read()
	switch {
	case err != nil:
		again := err.Error() == f.bad
		f.seen, f.bad = nil, err.Error()
		if asked || again {
			f.warn(err)
		}
		return false
	case slices.EqualFunc(texts, f.used, bytes.Equal):
		if f.told != "" {
			slog.Info(f.what+" unchanged: what was wrong with the files is mended", "files", f.shown())
		}
		f.seen, f.bad, f.told = nil, "", ""
		return false
	case !asked && !slices.EqualFunc(texts, f.seen, bytes.Equal):
		f.seen, f.bad = texts, ""
		return false
	}
	f.seen, f.bad = texts, ""
	attrs, err := f.take(texts)
	if err != nil {
		f.warn(err)
		return false
	}
	f.used, f.seen, f.told = texts, nil, ""
	slog.Info(f.what+" read", append([]any{"files", f.shown()}, attrs...)...)
	return true
}

// warn logs what is wrong, unless that was the last that was logged.
func (f *files) warn(err error) {
	if err.Error() != f.told {
		slog.Warn(f.what+" not changed: the files are wrong, those that were read before stay in use", "files", f.shown(), "error", err)
	}
	f.told = err.Error()
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
