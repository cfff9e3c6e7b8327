package main

import (
	"bytes"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"holdfast/internal/testlong"
)

// write makes a directory with files.
func write(t *testing.T, files map[string]string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for name, text := range files {
		name = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// Each file has its wanted text after the renaming beside it.
func TestRename(t *testing.T) {
	t.Parallel()
	const to = "github.com/acme/old-one"
	files := map[string][2]string{
		"go.mod":             {"module old\n\ngo 1.26.0\n", "module " + to + "\n\ngo 1.26.0\n"},
		"bench/peers/go.mod": {"module old/bench/peers\n\nrequire (\n\told v0.0.0\n\texample.com/old v1.0.0\n)\n\nreplace old => ../..\n", "module " + to + "/bench/peers\n\nrequire (\n\t" + to + " v0.0.0\n\texample.com/old v1.0.0\n)\n\nreplace " + to + " => ../..\n"},
		"bench/peers/a.go":   {"package main\n", "package main\n"},
		"webhook/a.go":       {"package webhook\n", "package webhook\n"},
		"cmd/old/a.go": {
			"package main\n\nimport (\n\t\"fmt\"\n\n\t\"github.com/zed/old/cmd/old\"\n\n\t\"old\"\n\thook \"old/webhook\"\n\t\"older\"\n)\n\n// See [old/cmd/old.Main], old/webhook, ./cmd/old and example.com/old/cmd/old.\nvar x = []string{\"old\", \"old/cmd/old\", \"old/webhook\", \"old/cmd/older\", `\"old/cmd/old\"`, \"old/cmd/old old/cmd/old\"}\n",
			"package main\n\nimport (\n\t\"fmt\"\n\n\t\"github.com/zed/old/cmd/old\"\n\n\t\"" + to + "\"\n\thook \"" + to + "/webhook\"\n\t\"older\"\n)\n\n// See [" + to + "/cmd/old.Main], old/webhook, ./cmd/old and example.com/old/cmd/old.\nvar x = []string{\"old\", \"" + to + "/cmd/old\", \"old/webhook\", \"old/cmd/older\", `\"" + to + "/cmd/old\"`, \"" + to + "/cmd/old " + to + "/cmd/old\"}\n",
		},
		"README.md":       {"Old is a library. <!-- module -->It has\nno address.<!-- /module --> `go run old/cmd/old`, `go run ./cmd/old`, {\"old/webhook\": 1}\n+\t\"old\"\nimport _ \"old/webhook\" // or\nwith `import \"old/webhook\"`\n\t\"old\": {}\n", "Old is a library. <!-- module -->Get it with `go get " + to + "@latest`.<!-- /module --> `go run " + to + "/cmd/old`, `go run ./cmd/old`, {\"old/webhook\": 1}\n+\t\"" + to + "\"\nimport _ \"" + to + "/webhook\" // or\nwith `import \"" + to + "/webhook\"`\n\t\"old\": {}\n"},
		"docs/install.md": {"| Go | <!-- module -->a clone<!-- /module --> |\n", "| Go | <!-- module -->`go install " + to + "/cmd/holdfast@latest`<!-- /module --> |\n"},
		".golangci.yml":   {"prefix: old/cmd/old\n", "prefix: " + to + "/cmd/old\n"},
		"data.json":       {"old/cmd/old", "old/cmd/old"},
		".git/x.md":       {"old/cmd/old", "old/cmd/old"},
	}
	before := make(map[string]string)
	for name, text := range files {
		before[name] = text[0]
	}
	dir := write(t, before)
	var out bytes.Buffer
	if err := rename(&out, dir, to); err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		got, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || string(got) != text[1] {
			t.Errorf("%s: %v, got\n%s\nwant\n%s", name, err, got, text[1])
		}
		if changed := slices.Contains(strings.Fields(out.String()), name); changed != (text[0] != text[1]) {
			t.Errorf("%s is said to be changed: %v", name, changed)
		}
	}
	// From one address to another.
	if err := rename(io.Discard, dir, "example.org/b/v2"); err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		got, err := os.ReadFile(filepath.Join(dir, name))
		if want := strings.ReplaceAll(text[1], to, "example.org/b/v2"); err != nil || string(got) != want {
			t.Errorf("once more: %s: %v, got\n%s\nwant\n%s", name, err, got, want)
		}
	}
}

func TestWrongPath(t *testing.T) {
	t.Parallel()
	dir := write(t, map[string]string{"go.mod": "module old\n"})
	for _, to := range []string{"", "holdfast", "https://github.com/a/b", "github.com", "github.com/a b", "github.com/a/b/v1", "github.com/a/"} {
		if err := rename(io.Discard, dir, to); err == nil || !strings.Contains(err.Error(), "no address of a module") {
			t.Errorf("%q: %v", to, err)
		}
	}
	if err := rename(io.Discard, t.TempDir(), "github.com/a/b"); err == nil || !strings.Contains(err.Error(), "at the root") {
		t.Errorf("no module: %v", err)
	}
}

// Renamed to another path, this repository has all packages, and they compile.
func TestThisRepository(t *testing.T) {
	t.Parallel()
	testlong.Only(t, "it compiles under another path")
	root, dir := filepath.Join("..", ".."), t.TempDir()
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		switch to := filepath.Join(dir, rel); {
		case d.IsDir() && (rel == ".git" || rel == filepath.Join(".ci", "tmp") || d.Name() == "node_modules" || rel == "dist"):
			return filepath.SkipDir
		case d.IsDir():
			return os.MkdirAll(to, 0o700)
		case d.Type().IsRegular():
			text, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			return os.WriteFile(to, text, 0o600)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := rename(io.Discard, dir, "git.example.org/some-one/keep"); err != nil {
		t.Fatal(err)
	}
	old := regexp.MustCompile(`"holdfast(/(internal|backend|client|engine|stream|jsonrpc)[a-z/]*)?"$`)
	for _, args := range [][]string{
		{"list", "-deps", "-test", "-f", "{{.ImportPath}}", "./..."},
		{"test", "-vet=off", "./jsonrpc", "./deploy/notes"},
		{"test", "-vet=off", "-run", "^Test(Imports|ImportRules|Layers|LongFlag)$", "./arch_test.go"},
	} {
		cmd := exec.Command("go", args...)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		if err != nil || bytes.Contains(out, []byte("no required module")) {
			t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, out)
		}
		if found := regexp.MustCompile(`(?m)^holdfast(/.*)?$`).Find(out); args[0] == "list" && found != nil {
			t.Errorf("a package is still %s", found)
		}
	}
	for _, name := range []string{"README.md", "doc.go", filepath.Join("cmd", "holdfast", "main.go")} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || old.Match(text) || bytes.Contains(text, []byte("no public address")) {
			t.Errorf("%s has the old path (%v)", name, err)
		}
	}
}
