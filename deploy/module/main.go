// Command module gives the module another path, so that it can be published under an address:
//
//	go run ./deploy/module github.com/OWNER/holdfast
//
// It rewrites, in the directory from which it is run, the go.mod files, the imports, the paths of packages in other strings,
// comments and documents, and the text of README.md and docs/install.md about getting the module, between <!-- module --> and
// <!-- /module -->. It prints the files that it has changed. A text that only looks like a path, such as the name
// holdfast/webhook in the protocol's _meta, stays.
package main

import (
	"bytes"
	"errors"
	"fmt"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "module: want the new path, as in go run ./deploy/module github.com/OWNER/holdfast")
		os.Exit(2)
	}
	if err := rename(os.Stdout, ".", os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "module:", err)
		os.Exit(1)
	}
}

// address matches the paths of modules that can be fetched.
var address = regexp.MustCompile(`^[a-z0-9][a-z0-9-]*(\.[a-z0-9][a-z0-9-]*)+(/[A-Za-z0-9_~][A-Za-z0-9._~-]*)+$`)

// wrongMajor matches paths that end with a major version before 2, which paths of modules do not have.
var wrongMajor = regexp.MustCompile(`/v[01]$`)

// inProtocol are names below "holdfast/" that are packages, but also in _meta: they are changed in imports only.
var inProtocol = []string{"webhook"}

// A renamer changes files.
type renamer struct {
	from, to string
	// mentions matches the paths of packages in a text.
	mentions *regexp.Regexp
}

// rename gives the module in a directory another path.
func rename(stdout io.Writer, dir, to string) error {
	if !address.MatchString(to) || wrongMajor.MatchString(to) {
		return fmt.Errorf("%q is no address of a module: want one as github.com/OWNER/holdfast", to)
	}
	text, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	if err != nil {
		return fmt.Errorf("run this at the root of the module: %w", err)
	}
	m := regexp.MustCompile(`(?m)^module (\S+)$`).FindSubmatch(text)
	if m == nil {
		return errors.New("go.mod has no line with module")
	}
	files, err := list(dir)
	if err != nil {
		return err
	}
	r := newRenamer(string(m[1]), to, files)
	for _, file := range files {
		name := filepath.Join(dir, file)
		before, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		after, err := r.rewrite(file, before)
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		if bytes.Equal(before, after) {
			continue
		}
		info, err := os.Stat(name)
		if err != nil {
			return err
		}
		if err := os.WriteFile(name, after, info.Mode().Perm()); err != nil {
			return err
		}
		fmt.Fprintln(stdout, file)
	}
	return nil
}

// list returns the text files of the repository that may have paths of the module, with slashes.
func list(dir string) (files []string, err error) {
	err = filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, name)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		if d.IsDir() {
			if d.Name() == ".git" || d.Name() == "node_modules" || rel == ".ci/tmp" || rel == "dist" || rel == "bench/results" {
				return filepath.SkipDir
			}
			return nil
		}
		switch ext := path.Ext(rel); {
		case !d.Type().IsRegular():
		case slices.Contains([]string{".go", ".mod", ".md", ".yml", ".yaml", ".txtar", ".sh"}, ext), strings.HasPrefix(path.Base(rel), "Dockerfile"), rel == ".ci/run":
			files = append(files, rel)
		}
		return nil
	})
	return files, err
}

// newRenamer returns a renamer for the packages of files.
func newRenamer(from, to string, files []string) *renamer {
	var packages []string
	for _, file := range files {
		dir := path.Dir(file)
		if path.Ext(file) == ".go" && dir != "." && !slices.Contains(packages, dir) && !slices.Contains(inProtocol, dir) {
			packages = append(packages, dir)
		}
	}
	slices.Sort(packages)
	slices.Reverse(packages) // the longest first
	for i, p := range packages {
		packages[i] = regexp.QuoteMeta(p)
	}
	return &renamer{from: from, to: to, mentions: regexp.MustCompile(
		`(^|[^\w./-])` + regexp.QuoteMeta(from) + `/(` + strings.Join(packages, "|") + `)($|[^\w/-])`)}
}

// rewrite returns a file with the new path.
func (r *renamer) rewrite(file string, text []byte) ([]byte, error) {
	switch {
	case path.Base(file) == "go.mod":
		return regexp.MustCompile(`(?m)(^|[ \t])`+regexp.QuoteMeta(r.from)+`(/\S*)?([ \t]|$)`).ReplaceAll(text, []byte("${1}"+r.to+"${2}${3}")), nil
	case path.Ext(file) == ".go":
		return r.source(file, text)
	case path.Ext(file) == ".md":
		text = r.imported(r.getting(file, text))
	}
	return r.mentioned(text), nil
}

// imported returns a document with the paths of imports changed: after the word import, and on lines of Go code.
func (r *renamer) imported(text []byte) []byte {
	path := `"` + regexp.QuoteMeta(r.from) + `((?:/[\w./-]+)?)"`
	text = regexp.MustCompile(`(\bimport (?:\w+ )?)`+path).ReplaceAll(text, []byte(`${1}"`+r.to+`${2}"`))
	return regexp.MustCompile(`(?m)^([+ -]?\t(?:\w+ )?)`+path+`( +//.*)?$`).ReplaceAll(text, []byte(`${1}"`+r.to+`${2}"${3}`))
}

// mentioned returns a text with the paths of packages changed. It has two steps, for paths that share the character between
// them.
func (r *renamer) mentioned(text []byte) []byte {
	for range 2 {
		text = r.mentions.ReplaceAll(text, []byte("${1}"+r.to+"/${2}${3}"))
	}
	return text
}

// source returns a Go file with the new path.
func (r *renamer) source(file string, text []byte) ([]byte, error) {
	fset := token.NewFileSet()
	parsed, err := parser.ParseFile(fset, file, text, parser.ImportsOnly)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	at := 0
	replace := func(n ast.Node, with string) {
		start := fset.Position(n.Pos()).Offset
		b.Write(r.mentioned(text[at:start]))
		b.WriteString(with)
		at = fset.Position(n.End()).Offset
	}
	for _, spec := range parsed.Imports {
		imported, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			return nil, err
		}
		if imported == r.from || strings.HasPrefix(imported, r.from+"/") {
			replace(spec.Path, strconv.Quote(r.to+strings.TrimPrefix(imported, r.from)))
		}
	}
	b.Write(r.mentioned(text[at:]))
	after := b.Bytes()
	if bytes.Equal(after, text) {
		return text, nil
	}
	return format.Source(after) // imports must be in the order of their new paths
}

// getting returns a document with the instructions to get the module from its new address.
func (r *renamer) getting(file string, text []byte) []byte {
	said := "Get it with `go get " + r.to + "@latest`."
	if file == "docs/install.md" {
		said = "`go install " + r.to + "/cmd/holdfast@latest`"
	}
	return regexp.MustCompile(`(?s)(<!-- module -->).*?(<!-- /module -->)`).ReplaceAll(text, []byte("${1}"+strings.ReplaceAll(said, "$", "$$")+"${2}"))
}
