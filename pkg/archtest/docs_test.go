package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"
)

// Every package says what it is for, and every exported name what it does.
func TestEverythingExportedIsDocumented(t *testing.T) {
	for _, dir := range []string{".", "sdk/go"} {
		for _, p := range list(t, dir, "./...") {
			if strings.Contains(p.ImportPath, "/gen/") || len(p.GoFiles) == 0 {
				continue
			}
			fset, documented := token.NewFileSet(), false
			for _, name := range p.GoFiles {
				f, err := parser.ParseFile(fset, filepath.Join(p.Dir, name), nil, parser.ParseComments|parser.SkipObjectResolution)
				if err != nil {
					t.Fatal(err)
				}
				documented = documented || f.Doc != nil
				for _, d := range f.Decls {
					undocumented(d, func(pos token.Pos, what string) {
						t.Errorf("%s: %s has no comment", fset.Position(pos), what)
					})
				}
			}
			if !documented {
				t.Errorf("%s has no package comment", p.ImportPath)
			}
		}
	}
}

// undocumented reports exported names of d without a comment.
func undocumented(d ast.Decl, report func(token.Pos, string)) {
	switch d := d.(type) {
	case *ast.FuncDecl:
		if d.Doc == nil && d.Name.IsExported() && exportedReceiver(d) && !wellKnown[d.Name.Name] {
			report(d.Pos(), d.Name.Name)
		}
	case *ast.GenDecl:
		for _, s := range d.Specs {
			switch s := s.(type) {
			case *ast.TypeSpec:
				if s.Name.IsExported() && d.Doc == nil && s.Doc == nil && s.Comment == nil {
					report(s.Pos(), s.Name.Name)
				}
			case *ast.ValueSpec:
				if s.Names[0].IsExported() && d.Doc == nil && s.Doc == nil && s.Comment == nil {
					report(s.Pos(), s.Names[0].Name)
				}
			}
		}
	}
}

// wellKnown methods mean what the interface of the same name says.
var wellKnown = map[string]bool{
	"Error": true, "String": true, "Unwrap": true, "Is": true, "Len": true, "Less": true, "Swap": true, "Push": true, "Pop": true,
	"Read": true, "Write": true, "Close": true, "ServeHTTP": true, "MarshalJSON": true, "UnmarshalJSON": true, "MarshalText": true,
	"UnmarshalText": true, "RoundTrip": true, "Value": true, "Hijack": true, "Flush": true,
}

// exportedReceiver reports whether d is a function, or a method that callers
// outside can name.
func exportedReceiver(d *ast.FuncDecl) bool {
	if d.Recv == nil {
		return true
	}
	t := d.Recv.List[0].Type
	for {
		switch x := t.(type) {
		case *ast.StarExpr:
			t = x.X
		case *ast.IndexExpr:
			t = x.X
		case *ast.IndexListExpr:
			t = x.X
		case *ast.Ident:
			return x.IsExported()
		default:
			return false
		}
	}
}
