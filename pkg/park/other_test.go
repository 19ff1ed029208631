//go:build linux

package park

import (
	"go/ast"
	"go/build"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"reflect"
	"testing"
)

// The package can be built for systems without epoll, and has the same names
// there.
func TestOtherSystems(t *testing.T) {
	there := build.Default
	there.GOOS, there.CgoEnabled = "darwin", false
	fset := token.NewFileSet()
	p, err := there.ImportDir(".", 0)
	if err != nil {
		t.Fatal(err)
	}
	var files []*ast.File
	for _, name := range p.GoFiles {
		f, err := parser.ParseFile(fset, name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	pkg, err := (&types.Config{Importer: importer.Default()}).Check("park", fset, files, nil)
	if err != nil {
		t.Fatal(err)
	}
	for of, here := range map[string]any{"Lot": &Lot{}, "Spot": &Spot{}} {
		set := types.NewMethodSet(types.NewPointer(pkg.Scope().Lookup(of).Type()))
		for i := range reflect.TypeOf(here).NumMethod() {
			if name := reflect.TypeOf(here).Method(i).Name; set.Lookup(pkg, name) == nil {
				t.Errorf("%s has no method %s there", of, name)
			}
		}
	}
}
