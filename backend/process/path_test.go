package process

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"holdfast/internal/mcptest"
)

// TestPath looks for programs in the PATH of the environment that the process gets.
func TestPath(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, mode := range map[string]os.FileMode{"one/x": 0o700, "two/x": 0o700, "plain/x": 0o600, "two/sub/y": 0o700} {
		mcptest.Check(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700))
		mcptest.Check(t, os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"), mode))
	}
	sep := string(filepath.ListSeparator)
	at := func(name string) string { return filepath.Join(dir, name) }
	for _, c := range []struct {
		name, dir string
		env       []string
		want      string
		err       error
	}{
		{"x", "", []string{"PATH=" + at("one") + sep + at("two")}, at("one/x"), nil},
		{"x", "", []string{"PATH=" + at("one"), "A=b", "PATH=" + at("two")}, at("two/x"), nil},
		{"x", "", []string{"PATH=" + at("plain") + sep + at("two")}, at("two/x"), nil},
		{"x", dir, []string{"PATH=one"}, at("one/x"), nil},
		{"x", at("one"), []string{"PATH=." + sep + sep + at("two")}, at("two/x"), nil},
		{"sub/y", at("two"), []string{"PATH=/nowhere"}, at("two/sub/y"), nil},
		{at("one/x"), "", []string{"PATH=/nowhere"}, at("one/x"), nil},
		{"x", "", []string{"PATH=" + at("plain")}, "", fs.ErrPermission},
		{"x", "", []string{"PATH=/nowhere"}, "", exec.ErrNotFound},
		{"sh", "", []string{"PATH=/nowhere"}, "", exec.ErrNotFound},
		{"sh", "", []string{"PATH="}, "", exec.ErrNotFound},
	} {
		got, err := find(c.name, c.dir, c.env)
		if got != c.want || !errors.Is(err, c.err) {
			t.Errorf("%s in %q: %q %v, want %q %v", c.name, c.env, got, err, c.want, c.err)
		}
	}
	want := mcptest.Must(exec.LookPath("sh"))(t)
	if got, err := find("sh", "", []string{"A=b"}); got != want || err != nil {
		t.Errorf("without a PATH: %q %v", got, err)
	}
}
