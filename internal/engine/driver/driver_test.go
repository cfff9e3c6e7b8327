package driver_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"

	"holdfast/engine"
	"holdfast/internal/engine/driver"
	_ "holdfast/internal/testlong" // the flag -long
	"holdfast/stream"
)

// A program that does not import an engine gets an error with the package to import. (This test imports no engine.)
func TestNotImported(t *testing.T) {
	t.Parallel()
	for url, pkg := range map[string]string{
		"file:" + t.TempDir():                 "holdfast/engine/file",
		"nats://me:hunter2@host":              "holdfast/engine/nats",
		"tls://host":                          "holdfast/engine/nats",
		"redis://me:hunter2@host":             "holdfast/engine/redis",
		"REDISS://host":                       "holdfast/engine/redis",
		"redis+sentinel://host?master=m":      "holdfast/engine/redis",
		"redis+cluster://me:hunter2@host,two": "holdfast/engine/redis",
	} {
		st, err := engine.Open(t.Context(), url, engine.Options{})
		if err == nil {
			_ = st.Close()
			t.Errorf("%s: opened", url)
			continue
		}
		if want := fmt.Sprintf("import _ %q", pkg); !errors.Is(err, engine.ErrNotImported) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v, want %s", url, err, want)
		}
	}
	st, err := engine.Open(t.Context(), "memory:", engine.Options{})
	if err != nil {
		t.Fatalf("memory: is always there: %v", err)
	}
	if err := st.Close(); err != nil {
		t.Error(err)
	}
}

// An error keeps the first kind that it was given, and its text.
func TestKind(t *testing.T) {
	t.Parallel()
	denied := fmt.Errorf("locking: %w", &fs.PathError{Op: "open", Path: "lock", Err: fs.ErrPermission})
	for _, test := range []struct{ err, kind error }{
		{denied, engine.ErrPermission},
		{&fs.PathError{Op: "open", Path: "ca.pem", Err: fs.ErrNotExist}, engine.ErrURL},
		{fmt.Errorf("ping: %w", stream.ErrUnavailable), engine.ErrUnreachable},
		{fmt.Errorf("connecting: %w", context.DeadlineExceeded), engine.ErrUnreachable},
		{driver.As(engine.ErrInUse, denied), engine.ErrInUse},
		{driver.Errorf(engine.ErrIncompatible, "it is old: %w", context.DeadlineExceeded), engine.ErrIncompatible},
	} {
		got := driver.As(engine.ErrScheme, driver.Kind(test.err)) // the kind comes too late
		if !errors.Is(got, test.kind) || errors.Is(got, engine.ErrScheme) || !errors.Is(got, test.err) || got.Error() != test.err.Error() {
			t.Errorf("%v: got %v, want %v", test.err, got, test.kind)
		}
	}
	for _, none := range []error{context.Canceled, stream.ErrFull} {
		if got := driver.Kind(none); errors.Is(got, engine.ErrUnreachable) || got.Error() != none.Error() {
			t.Errorf("%v is %v", none, got)
		}
	}
	if driver.Kind(nil) != nil || driver.As(engine.ErrURL, nil) != nil {
		t.Error("there is no error, and it has a kind")
	}
}
