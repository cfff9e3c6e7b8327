package auth

import (
	"bytes"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
)

// files are those of [Keys] or [Certificates]. They are read again while they are in use. If they are wrong, their former texts stay
// in use. Each error is logged once, and so is its end.
type files struct {
	what  string   // their content for the log, as "keys"
	names []string // "": this file is not used
	// take puts the texts of the files into use, and returns attributes for the log. It is called by one goroutine at a time.
	take func(texts [][]byte) (attrs []any, err error)

	mu   sync.Mutex // held while they are read
	used [][]byte   // the texts in use
	seen [][]byte   // other texts that the last look found; nil: none
	bad  string     // the error of reading them at the last look, or ""
	told string     // the error that was logged last, and lasts, or ""
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

// Reload reads the files, and puts changed texts into use. On an error nothing changes; it is logged once. asked says that the
// operator means the files as they are now. Without it, a text or an error counts when the next look finds it again: the files may
// be about to be replaced, one by one or in place, and half a file of keys is a valid file with fewer keys. Reload reports whether
// the texts in use have changed.
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

// warn logs an error, unless it was the last one logged.
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
