package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// goPackages are the packages that the Go blocks of documents may use without an import, by their names. The paths that begin with .
// are in this repository.
var goPackages = map[string]string{
	"context": "context", "fmt": "fmt", "log": "log", "slog": "log/slog", "net": "net", "http": "net/http", "httptest": "net/http/httptest", "os": "os",
	"signal": "os/signal", "syscall": "syscall", "testing": "testing", "time": "time", "prometheus": "github.com/prometheus/client_golang/prometheus",
	"mcp": "github.com/modelcontextprotocol/go-sdk/mcp", "auth": "github.com/modelcontextprotocol/go-sdk/auth",
	"holdfast": ".", "engine": "./engine", "message": "./backend/message", "webhook": "./webhook", "metrics": "./metrics", "traces": "./traces",
}

// goNames are the variables that the Go blocks may use without a declaration.
const goNames = `
var (
	ctx       context.Context
	url       string
	server    *mcp.Server
	getServer func(*http.Request) *mcp.Server
	handler   *holdfast.Handler
	client    *mcp.Client
	search, setTitle, sendMail mcp.ToolHandlerFor[any, any]
	t         *testing.T
)
`

// A library has the packages that documents may import.
type library struct {
	module  string            // the path of this module
	exports map[string]string // the files with the packages' exports, by the packages' paths
}

// path returns the path of a package in goPackages.
func (l *library) path(name string) string {
	if in, ok := strings.CutPrefix(goPackages[name], "."); ok {
		return l.module + in
	}
	return goPackages[name]
}

func readLibrary() (*library, error) {
	list := func(args ...string) (string, error) {
		cmd := exec.Command("go", append([]string{"list"}, args...)...)
		cmd.Dir, cmd.Stderr = repository, os.Stderr
		out, err := cmd.Output()
		if err != nil {
			err = fmt.Errorf("go list: %w", err)
		}
		return string(out), err
	}
	module, err := list("-m")
	if err != nil {
		return nil, err
	}
	args := []string{"-export", "-deps", "-json=ImportPath,Export", "./engine/...", "./backend/...", "./client"}
	out, err := list(append(args, slices.Sorted(maps.Values(goPackages))...)...)
	if err != nil {
		return nil, err
	}
	l := &library{strings.TrimSpace(module), make(map[string]string)}
	for d := json.NewDecoder(strings.NewReader(out)); ; {
		var p struct{ ImportPath, Export string }
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return l, nil
		} else if err != nil {
			return nil, err
		}
		l.exports[p.ImportPath] = p.Export
	}
}

// goes compiles a program, or a part of one: declarations, or statements. An unused name in a part is no error.
func (s *stage) goes(text string) {
	s.Helper()
	lib, err := s.world.library()
	if err != nil {
		s.Fatal(err)
	}
	fset := token.NewFileSet()
	imports, rest := ownImports(text)
	var file *ast.File
	if regexp.MustCompile(`(?m)^package `).MatchString(text) {
		file, err = parser.ParseFile(fset, "block.go", text, parser.SkipObjectResolution)
	} else {
		file, err = parser.ParseFile(fset, "block.go", lib.withImports(imports, rest), parser.SkipObjectResolution)
		if err != nil {
			file, err = parser.ParseFile(fset, "block.go", lib.withImports(imports, "func _() {\n"+rest+"\n}\n"), parser.SkipObjectResolution)
		}
	}
	if err != nil {
		s.Fatalf("%v\n%s", err, text)
	}
	config := types.Config{
		Importer: importer.ForCompiler(fset, "gc", func(path string) (io.ReadCloser, error) {
			if lib.exports[path] == "" {
				return nil, fmt.Errorf("%s is no package that a document may import: see goPackages", path)
			}
			return os.Open(lib.exports[path])
		}),
		Error: func(err error) {
			if soft := new(types.Error); !errors.As(err, soft) || !soft.Soft {
				s.Errorf("%v\n%s", err, text)
			}
		},
	}
	_, _ = config.Check("main", fset, []*ast.File{file}, nil)
}

// ownImports returns the imports in a part of a program, and the rest of it.
func ownImports(text string) (imports, rest string) {
	own := regexp.MustCompile(`(?ms)^import (\(.*?^\)|[^(\n]+)$`)
	return strings.Join(own.FindAllString(text, -1), "\n"), own.ReplaceAllString(text, "")
}

// withImports makes a file of declarations. It imports the packages that they name, besides their own imports.
func (l *library) withImports(imports, text string) string {
	text = goNames + text
	used := imports
	for _, name := range slices.Sorted(maps.Keys(goPackages)) {
		if regexp.MustCompile(`\b`+name+`\.[A-Z]`).MatchString(text) && !strings.Contains(imports, strconv.Quote(l.path(name))) {
			used += "\nimport " + strconv.Quote(l.path(name))
		}
	}
	return "package main\n" + used + "\n" + text
}

// diff compiles the Go program before and after a change.
func (s *stage) diff(text string) {
	s.Helper()
	imports := regexp.MustCompile(`^(\s*"[^"]*"\n)*\s*$`)
	for _, side := range both(sides(text)) {
		if imports.MatchString(side) {
			side = "import (\n" + side + "\n)"
		}
		s.goes(strings.ReplaceAll(side, "{…}", "{}"))
	}
}

func both(a, b string) []string { return []string{a, b} }

// sides returns the text before a change, and the text after it.
func sides(text string) (before, after string) {
	for line := range strings.Lines(text) {
		if line[0] != '+' {
			before += line[1:]
		}
		if line[0] != '-' {
			after += line[1:]
		}
	}
	return before, after
}
