package holdfast_test

import (
	"fmt"
	"go/token"
	"go/types"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"holdfast"
	"holdfast/internal/mcptest"
	"holdfast/internal/server"
	"holdfast/internal/testlong"
)

// mostExported bounds the API: the exported types, functions and methods of the public packages, and
// the methods of interfaces. (The aim is about 130. There were 538 before packages became internal.)
const mostExported = 147

// notAPI are folders with packages that are no API, although Go lets other modules import them.
var notAPI = []string{"bench", "conformance", "e2e", "examples", "cmd"}

// api returns the public packages of the module, by path, as the compiler sees them.
var api = sync.OnceValues(func() (map[string]*types.Package, error) {
	all, err := compiledOf()
	if err != nil {
		return nil, err
	}
	imports := importerOf(token.NewFileSet(), all)
	pkgs := make(map[string]*types.Package)
	for _, p := range all {
		if isOurs(p.path) && p.name != "main" && isPublic(p.path) {
			if pkgs[p.path], err = imports.Import(p.path); err != nil {
				return nil, err
			}
		}
	}
	return pkgs, nil
})

// isPublic reports whether a package of the module is part of its API.
func isPublic(pkg string) bool {
	parts := strings.Split(strings.TrimPrefix(pkg, module), "/") // the first part is empty
	return !slices.Contains(parts, "internal") && (len(parts) == 1 || !slices.Contains(notAPI, parts[1]))
}

// exported calls visit for every exported name of a package: types, functions, constants
// and variables, and the methods of types, also promoted ones.
func exported(pkg *types.Package, visit func(name string, obj types.Object)) {
	scope := pkg.Scope()
	for _, name := range scope.Names() {
		obj := scope.Lookup(name)
		if !obj.Exported() {
			continue
		}
		full := pkg.Name() + "." + name
		visit(full, obj)
		if _, ok := obj.(*types.TypeName); !ok {
			continue
		}
		typ := obj.Type()
		if !types.IsInterface(typ) {
			typ = types.NewPointer(typ)
		}
		for method := range types.NewMethodSet(typ).Methods() {
			if method.Obj().Exported() {
				visit(full+"."+method.Obj().Name(), method.Obj())
			}
		}
	}
}

// The server gets a Response as its number.
func TestResponses(t *testing.T) {
	t.Parallel()
	for public, internal := range map[holdfast.Response]server.Response{
		holdfast.ResponseAuto: server.ResponseAuto, holdfast.ResponseJSON: server.ResponseJSON, holdfast.ResponseSSE: server.ResponseSSE,
	} {
		if int(public) != int(internal) {
			t.Errorf("%d is %d to the server", public, internal)
		}
	}
}

// The API is small. Each type, function and method that a user can reach is counted once,
// under whatever name. Methods from an embedded type of another module are not counted.
func TestAPISize(t *testing.T) {
	t.Parallel()
	testlong.OneGoroutine(t)
	counted := make(map[types.Object]bool)
	total := 0
	pkgs := mcptest.Must(api())(t)
	for _, name := range slices.Sorted(maps.Keys(pkgs)) {
		var names []string
		exported(pkgs[name], func(name string, obj types.Object) {
			switch obj.(type) {
			case *types.TypeName, *types.Func:
			default:
				return
			}
			if !isOurs(obj.Pkg().Path()) || counted[obj] {
				return
			}
			counted[obj] = true
			names = append(names, name)
		})
		total += len(names)
		t.Logf("%-27s %3d %s", name, len(names), strings.Join(names, " "))
	}
	t.Logf("%d exported types, functions and methods", total)
	if total > mostExported {
		t.Errorf("%d exported types, functions and methods, of which %d may be: see -v", total, mostExported)
	}
}

// docs/versions.md names the packages of the API: all public packages, and no others.
func TestVersionsNameThePackages(t *testing.T) {
	t.Parallel()
	testlong.OneGoroutine(t)
	pkgs := mcptest.Must(api())(t)
	text := mcptest.Must(os.ReadFile("docs/versions.md"))(t)
	_, table, _ := strings.Cut(string(text), "## What is API")
	table, _, _ = strings.Cut(table, "A struct of options")
	named := map[string]bool{module: true}
	for i, name := range strings.Split(table, "`") {
		if i%2 == 1 {
			named[module+"/"+name] = true
		}
	}
	for name := range pkgs {
		if !named[name] {
			t.Errorf("docs/versions.md does not name %s", name)
		}
	}
	for name := range named {
		if pkgs[name] == nil {
			t.Errorf("docs/versions.md names %s, which is no public package", name)
		}
	}
}

// A user can name every type of the API: no type is internal or unexported.
func TestAPINamesItsTypes(t *testing.T) {
	t.Parallel()
	testlong.OneGoroutine(t)
	pkgs := mcptest.Must(api())(t)
	for _, pkg := range pkgs {
		exported(pkg, func(name string, obj types.Object) {
			seen := make(map[types.Type]bool)
			typ := obj.Type()
			if _, ok := obj.(*types.TypeName); ok {
				named, ok := types.Unalias(typ).(*types.Named)
				if ok && !isPublic(named.Obj().Pkg().Path()) {
					t.Errorf("%s is %v, which is internal", name, named)
				}
				typ = typ.Underlying()
			}
			if hidden := unnameable(typ, seen); hidden != "" {
				t.Errorf("%s uses %s, which its user cannot name", name, hidden)
			}
		})
	}
}

// unnameable returns a type that is a part of typ and that a user of the module cannot name, or "".
func unnameable(typ types.Type, seen map[types.Type]bool) string {
	if seen[typ] {
		return ""
	}
	seen[typ] = true
	several := func(all ...types.Type) string {
		for _, one := range all {
			if hidden := unnameable(one, seen); hidden != "" {
				return hidden
			}
		}
		return ""
	}
	switch typ := types.Unalias(typ).(type) {
	case *types.Named:
		pkg := typ.Obj().Pkg()
		if pkg == nil { // error
			return ""
		}
		if isOurs(pkg.Path()) && (!typ.Obj().Exported() || !isPublic(pkg.Path())) {
			return fmt.Sprint(typ)
		}
	case interface{ Elem() types.Type }: // pointers, slices, arrays, channels
		if m, ok := typ.(*types.Map); ok {
			return several(m.Key(), m.Elem())
		}
		return unnameable(typ.Elem(), seen)
	case *types.Signature:
		return several(typ.Params(), typ.Results())
	case *types.Tuple:
		for v := range typ.Variables() {
			if hidden := unnameable(v.Type(), seen); hidden != "" {
				return hidden
			}
		}
	case *types.Struct:
		for f := range typ.Fields() {
			of := f.Type()
			switch {
			case f.Exported():
			case f.Embedded(): // its promoted fields count here, and its methods in exported
				of = of.Underlying()
			default:
				continue
			}
			if hidden := unnameable(of, seen); hidden != "" {
				return hidden
			}
		}
	case *types.Interface:
		for m := range typ.Methods() {
			if hidden := unnameable(m.Type(), seen); m.Exported() && hidden != "" {
				return hidden
			}
		}
	}
	return ""
}
