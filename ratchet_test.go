package holdfast_test

import (
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"holdfast/internal/mcptest"
	"holdfast/internal/testlong"
)

// ratchets measure the walls inside the module. Each figure may only fall. A change that would raise a figure is to be
// made in another way, and a change that lowers it writes the new figure down here.
var ratchets = []struct {
	name string
	most int
	of   func(h *house) (figure int, where string)
}{
	{"functions that one package uses of another", 43, (*house).widestSeam},
	{"methods on one type", 95, (*house).mostMethods},
	{"files that take a lock of a type declared elsewhere, for one lock", 22, (*house).mostLockers},
	{"declarations of the core that name a feature", 0, (*house).featuresNamed},
	{"functions with one caller, in percent", 43, (*house).oneCaller},
	{"sentences in comments with a pronoun in the place of a noun", 59, (*house).nounless},
}

// core are the packages that are to know no feature. features matches the words for features in names, as they are
// spelled there: errNotAsked names no task, and a Handler handles no calls that are handed off.
var (
	core     = []string{"internal/session", "internal/server", "internal/placement"}
	features = regexp.MustCompile(`[Tt]ask|[Hh]and[Oo]ff|[Hh]andle(s|[A-Z]|$)|[Ww]ebhook|[Ii]dempoten|[Cc]laim|[Qq]uestion|[Ii]nputRequired|[Rr]etrySafe|[Cc]ompletion`)
)

// A house is the product code of the module, with types.
type house struct {
	files    *token.FileSet
	packages []*typed
}

// typed is a package.
type typed struct {
	name  string // as in layers
	files []*ast.File
	types.Info
}

// A compiled is a package as the go command has compiled it.
type compiled struct{ path, export, name, dir, files, module, deps string }

// compiledOf returns the packages of the module, and those that they import.
var compiledOf = sync.OnceValues(func() (all []compiled, err error) {
	const format = "{{.ImportPath}}\t{{.Export}}\t{{.Name}}\t{{.Dir}}\t{{join .GoFiles \" \"}}\t{{with .Module}}{{.Path}}{{end}}\t{{join .Deps \" \"}}"
	out, err := exec.Command("go", "list", "-export", "-deps", "-f", format, "./...").Output()
	if err != nil {
		return nil, fmt.Errorf("list the packages: %w", err)
	}
	for line := range strings.Lines(string(out)) {
		f := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		all = append(all, compiled{f[0], f[1], f[2], f[3], f[4], f[5], f[6]})
	}
	return all, nil
})

// importerOf returns an importer of the packages in all.
func importerOf(files *token.FileSet, all []compiled) types.Importer {
	exports := make(map[string]string)
	for _, p := range all {
		exports[p.path] = p.export
	}
	return importer.ForCompiler(files, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
}

// newHouse reads the module. It reads other packages as the go command has compiled them.
func newHouse() (*house, error) {
	all, err := compiledOf()
	if err != nil {
		return nil, err
	}
	h := &house{files: token.NewFileSet()}
	conf := types.Config{Importer: importerOf(h.files, all)}
	for _, c := range all {
		if !isOurs(c.path) {
			continue
		}
		p := &typed{name: short(c.path), Info: types.Info{
			Uses: make(map[*ast.Ident]types.Object), Defs: make(map[*ast.Ident]types.Object), Selections: make(map[*ast.SelectorExpr]*types.Selection),
		}}
		for _, name := range strings.Fields(c.files) {
			file, err := parser.ParseFile(h.files, filepath.Join(c.dir, name), nil, parser.SkipObjectResolution|parser.ParseComments)
			if err != nil {
				return nil, err
			}
			p.files = append(p.files, file)
		}
		if _, err := conf.Check(c.path, h.files, p.files, &p.Info); err != nil {
			return nil, err
		}
		h.packages = append(h.packages, p)
	}
	return h, nil
}

func isOurs(path string) bool { return path == module || strings.HasPrefix(path, module+"/") }

// short returns the name of a package of ours in layers.
func short(path string) string {
	if path == module {
		return "."
	}
	return strings.TrimPrefix(path, module+"/")
}

// uses calls do for each place at which a package names a function or a method of ours.
func (h *house) uses(do func(by *typed, f *types.Func)) {
	for _, p := range h.packages {
		for _, o := range p.Uses {
			if f, ok := o.(*types.Func); ok && f.Pkg() != nil && isOurs(f.Pkg().Path()) {
				do(p, f.Origin())
			}
		}
	}
}

// widest returns the biggest set of names.
func widest(sets map[string]map[string]bool) (n int, name string) {
	for key, set := range sets {
		if len(set) > n || len(set) == n && key < name {
			n, name = len(set), key
		}
	}
	return n, name
}

// add puts a name into the set of a key.
func add(sets map[string]map[string]bool, key, name string) {
	if sets[key] == nil {
		sets[key] = make(map[string]bool)
	}
	sets[key][name] = true
}

func (h *house) widestSeam() (int, string) {
	seams := make(map[string]map[string]bool)
	h.uses(func(by *typed, f *types.Func) {
		if of := short(f.Pkg().Path()); of != by.name {
			add(seams, by.name+" of "+of, f.FullName())
		}
	})
	return widest(seams)
}

func (h *house) mostMethods() (int, string) {
	methods := make(map[string]map[string]bool)
	for _, p := range h.packages {
		for _, o := range p.Defs {
			if f, ok := o.(*types.Func); ok && f.Signature().Recv() != nil {
				if named := namedOf(f.Signature().Recv().Type()); named != nil && !types.IsInterface(named) {
					add(methods, p.name+"."+named.Obj().Name(), f.Name())
				}
			}
		}
	}
	return widest(methods)
}

// namedOf returns the named type of a value or a pointer, or nil.
func namedOf(t types.Type) *types.Named {
	if p, ok := t.(*types.Pointer); ok {
		t = p.Elem()
	}
	named, _ := t.(*types.Named)
	return named
}

func (h *house) mostLockers() (int, string) {
	lockers := make(map[string]map[string]bool)
	for _, p := range h.packages {
		for _, file := range p.files {
			name := h.files.Position(file.Pos()).Filename
			ast.Inspect(file, func(n ast.Node) bool {
				if owner, lock := p.locked(n); owner != nil && h.files.Position(owner.Obj().Pos()).Filename != name {
					add(lockers, p.name+"."+owner.Obj().Name()+"."+lock, name)
				}
				return true
			})
		}
	}
	return widest(lockers)
}

// locked returns the type and the name of the lock that x.lock.Lock() takes. owner is nil if n is not such a call.
func (p *typed) locked(n ast.Node) (owner *types.Named, lock string) {
	call, _ := n.(*ast.CallExpr)
	if call == nil {
		return nil, ""
	}
	method, _ := call.Fun.(*ast.SelectorExpr)
	if method == nil || method.Sel.Name != "Lock" && method.Sel.Name != "RLock" {
		return nil, ""
	}
	field, _ := method.X.(*ast.SelectorExpr)
	if field == nil || p.Selections[field] == nil {
		return nil, ""
	}
	return namedOf(p.Selections[field].Recv()), field.Sel.Name
}

func (h *house) featuresNamed() (n int, where string) {
	byPackage := make(map[string]map[string]bool)
	for _, p := range h.packages {
		for _, name := range core {
			if p.name != name {
				continue
			}
			for id, o := range p.Defs {
				if o != nil && features.MatchString(id.Name) {
					n++
					add(byPackage, p.name, h.files.Position(id.Pos()).Filename)
				}
			}
		}
	}
	files, pkg := widest(byPackage)
	return n, fmt.Sprintf("%d files of %s", files, pkg)
}

func (h *house) oneCaller() (int, string) {
	callers := make(map[string]int)
	for _, p := range h.packages {
		for _, o := range p.Defs {
			if f, ok := o.(*types.Func); ok {
				callers[f.FullName()] = 0
			}
		}
	}
	h.uses(func(_ *typed, f *types.Func) { callers[f.FullName()]++ })
	one := 0
	for _, n := range callers {
		if n == 1 {
			one++
		}
	}
	return one * 100 / len(callers), fmt.Sprintf("%d of %d", one, len(callers))
}

// pronouns are words that often stand where a sentence should name its noun, as in "write what was held".
var (
	pronouns  = regexp.MustCompile(`(?i)\b(nobody|somebody|anybody|whoever|whose)\b|\bwhat \pL`)
	sentences = regexp.MustCompile(`[.!?:]\s+`)
)

func (h *house) nounless() (n int, where string) {
	byPackage := make(map[string]map[string]bool)
	for _, p := range h.packages {
		for _, file := range p.files {
			for _, group := range file.Comments {
				for _, sentence := range sentences.Split(group.Text(), -1) {
					if pronouns.MatchString(sentence) {
						n++
						add(byPackage, p.name, sentence)
					}
				}
			}
		}
	}
	most, pkg := widest(byPackage)
	return n, fmt.Sprintf("%d of them in %s", most, pkg)
}

// The walls inside the module do not become thinner.
func TestRatchets(t *testing.T) {
	t.Parallel()
	testlong.OneGoroutine(t)
	h := mcptest.Must(newHouse())(t)
	for _, r := range ratchets {
		figure, where := r.of(h)
		t.Logf("%s: %d (%s)", r.name, figure, where)
		switch {
		case figure > r.most:
			t.Errorf("%s: %d (%s), where %d was the most", r.name, figure, where, r.most)
		case figure < r.most:
			t.Errorf("%s: %d (%s), fewer than %d: write the new figure down in ratchet_test.go", r.name, figure, where, r.most)
		}
	}
}
