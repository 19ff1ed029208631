package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const top = ".." // the folder of go.mod

// pages reads README.md and the documents, by their path below top.
func pages(t *testing.T) map[string]string {
	t.Helper()
	names, err := filepath.Glob("*.md")
	if err != nil {
		t.Fatal(err)
	}
	features, err := filepath.Glob("features/*.md")
	if err != nil {
		t.Fatal(err)
	}
	names = append(names, features...)
	out := map[string]string{}
	for _, n := range append(names, filepath.Join(top, "README.md")) {
		raw, err := os.ReadFile(n)
		if err != nil {
			t.Fatal(err)
		}
		rel, err := filepath.Rel(top, filepath.Join(".", n))
		if err != nil || strings.HasPrefix(rel, "..") {
			rel = filepath.Join("docs", n)
		}
		if filepath.Base(n) == "README.md" {
			rel = "README.md"
		}
		out[rel] = string(raw)
	}
	return out
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

var (
	linkRE = regexp.MustCompile(`\]\(([^)#\s]+)(#[^)]*)?\)`)
	pathRE = regexp.MustCompile("`((?:cmd|modules|pkg|proto|sdk|web|test|docs)/[\\w./-]+)`")
)

// Links lead somewhere, and paths that are named are there.
func TestLinksAndPaths(t *testing.T) {
	for name, page := range pages(t) {
		for _, m := range linkRE.FindAllStringSubmatch(page, -1) {
			if !strings.Contains(m[1], "://") && !exists(filepath.Join(top, filepath.Dir(name), m[1])) {
				t.Errorf("%s: the link to %s leads nowhere", name, m[1])
			}
		}
		for _, m := range pathRE.FindAllStringSubmatch(page, -1) {
			if !exists(filepath.Join(top, m[1])) && !strings.HasPrefix(m[1], "sdk/go/echo/") { // which the reader makes
				t.Errorf("%s: there is no %s", name, m[1])
			}
		}
	}
}

// declared lists the functions of a file or of all test files of a folder:
// "Name", and "type.Name" for methods.
func declared(t *testing.T, files ...string) map[string]bool {
	t.Helper()
	out := map[string]bool{}
	for _, file := range files {
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Error(err)
			continue
		}
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			switch {
			case !ok:
			case fn.Recv == nil:
				out[fn.Name.Name] = true
			default:
				recv := fn.Recv.List[0].Type
				if s, ok := recv.(*ast.StarExpr); ok {
					recv = s.X
				}
				if id, ok := recv.(*ast.Ident); ok {
					out[id.Name+"."+fn.Name.Name] = true
				}
			}
		}
	}
	return out
}

var (
	functionsRE = regexp.MustCompile("`([a-z][\\w/-]*/[\\w-]+\\.go)`((?:,? `[A-Za-z][\\w.]*`)+)")
	testsRE     = regexp.MustCompile("`((?:cmd|modules|pkg|sdk|web|test|docs)[\\w/-]*)`((?:,? `Test\\w+`)+)")
	spanRE      = regexp.MustCompile("`([^`]+)`")
)

// Functions and tests that are named beside their file or package are there.
func TestFunctionsAndTests(t *testing.T) {
	functions, tests := 0, 0
	for name, page := range pages(t) {
		for _, m := range functionsRE.FindAllStringSubmatch(page, -1) {
			have := declared(t, filepath.Join(top, m[1]))
			for _, f := range spanRE.FindAllStringSubmatch(m[2], -1) {
				if functions++; !have[f[1]] {
					t.Errorf("%s: %s has no %s", name, m[1], f[1])
				}
			}
		}
		for _, m := range testsRE.FindAllStringSubmatch(page, -1) {
			files, err := filepath.Glob(filepath.Join(top, m[1], "*_test.go"))
			if err != nil {
				t.Fatal(err)
			}
			have := declared(t, files...)
			for _, f := range spanRE.FindAllStringSubmatch(m[2], -1) {
				if tests++; !have[f[1]] {
					t.Errorf("%s: %s has no %s", name, m[1], f[1])
				}
			}
		}
	}
	if functions < 30 || tests < 20 {
		t.Errorf("only %d functions and %d tests were found in the documents: their form has changed", functions, tests)
	}
}

// sources reads the Go files of the product, without tests and generated code.
func sources(t *testing.T, visit func(path string, text string)) {
	t.Helper()
	err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "gen" || d.Name() == "node_modules" || strings.HasPrefix(d.Name(), ".") && path != top):
			return filepath.SkipDir
		case d.IsDir() || filepath.Ext(path) != ".go":
			return nil
		}
		raw, err := os.ReadFile(path)
		if err == nil {
			visit(path, string(raw))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

var (
	requireRE = regexp.MustCompile(`(?m)^(?:require )?\t?([a-z][\w.-]*\.[\w.-]+/\S+) v`)
	rowRE     = regexp.MustCompile("(?m)^\\| `([a-z][\\w.-]*\\.[\\w.-]+/\\S+)` \\|")
	importRE  = regexp.MustCompile(`(?m)^(?:import )?\s*(?:[\w.]+ )?"([a-z][\w.-]*\.[\w.-]+/[^"]+)"$`)
)

// The table of dependencies in README.md has the modules that the code imports.
func TestDependencies(t *testing.T) {
	mod, err := os.ReadFile(filepath.Join(top, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	var modules []string
	for _, m := range requireRE.FindAllStringSubmatch(string(mod), -1) {
		modules = append(modules, m[1])
	}
	used := map[string]string{}
	sources(t, func(path, text string) {
		for _, m := range importRE.FindAllStringSubmatch(text, -1) {
			found := ""
			for _, mod := range modules {
				if (m[1] == mod || strings.HasPrefix(m[1], mod+"/")) && len(mod) > len(found) {
					found = mod
				}
			}
			if found != "" && !strings.HasPrefix(found, "github.com/imdhq/") {
				used[found] = path
			}
		}
	})
	var rows []string
	for _, m := range rowRE.FindAllStringSubmatch(pages(t)["README.md"], -1) {
		rows = append(rows, m[1])
		if used[m[1]] == "" {
			t.Errorf("README.md lists %s, which nothing imports", m[1])
		}
	}
	for mod, file := range used {
		if !slices.Contains(rows, mod) {
			t.Errorf("README.md gives no reason for %s, which %s imports", mod, file)
		}
	}
}

var fieldRE = regexp.MustCompile(`zap\.\w+\("(\w+)"`)

// operations.md lists the log fields.
func TestLogFields(t *testing.T) {
	raw, err := os.ReadFile(filepath.Join(top, "pkg/obs/fields.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range fieldRE.FindAllStringSubmatch(string(raw), -1) {
		if !strings.Contains(pages(t)["docs/operations.md"], "| `"+m[1]+"` |") {
			t.Errorf("docs/operations.md does not tell the log field %s", m[1])
		}
	}
}

var (
	saysRE   = regexp.MustCompile(`(?m)^\| "([^|]+)" \|`)
	quotesRE = regexp.MustCompile(`"(?:[^"\\\n]|\\.)*"`)
)

// What operations.md says that a failing start prints is what the code prints:
// each piece between the varying parts (…) stands in a string of the source.
func TestStartErrors(t *testing.T) {
	var all strings.Builder
	sources(t, func(path, text string) {
		if !strings.HasSuffix(path, "_test.go") {
			for _, s := range quotesRE.FindAllString(text, -1) {
				all.WriteString(strings.ReplaceAll(s, `\"`, `"`))
			}
		}
	})
	found := saysRE.FindAllStringSubmatch(pages(t)["docs/operations.md"], -1)
	if len(found) < 15 {
		t.Errorf("only %d errors were found: the form of the table has changed", len(found))
	}
	for _, m := range found {
		for piece := range strings.SplitSeq(m[1], "…") {
			if piece = strings.TrimSpace(piece); len(piece) > 3 && !strings.Contains(all.String(), piece) {
				t.Errorf("docs/operations.md: no error says %q", piece)
			}
		}
	}
}
