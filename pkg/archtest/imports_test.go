package archtest

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const module = "github.com/imdhq/imd"

// pkg is what `go list` tells of a package.
type pkg struct {
	ImportPath   string
	Dir          string
	Imports      []string
	TestImports  []string
	XTestImports []string
	GoFiles      []string
}

// list runs `go list` for patterns in the folder dir of the repository.
func list(t *testing.T, dir string, patterns ...string) []pkg {
	t.Helper()
	cmd := exec.Command("go", append([]string{"list", "-json=ImportPath,Dir,Imports,TestImports,XTestImports,GoFiles"}, patterns...)...)
	cmd.Dir = filepath.Join(root(t), dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var all []pkg
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p pkg
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
}

// root is the folder of go.mod.
func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// rel is an import path inside the module, or the path itself.
func rel(path string) string { return strings.TrimPrefix(path, module+"/") }

// rule forbids imports.
type rule struct {
	name   string
	why    string
	from   func(path string) bool // importing packages it is about, relative to the module
	forbid func(from, to string) bool
}

func under(prefixes ...string) func(string) bool {
	return func(p string) bool {
		for _, pre := range prefixes {
			if p == pre || strings.HasPrefix(p, pre+"/") {
				return true
			}
		}
		return false
	}
}

func either(a, b func(string) bool) func(string) bool {
	return func(p string) bool { return a(p) || b(p) }
}

func not(f func(string) bool) func(string) bool { return func(p string) bool { return !f(p) } }

// fence lets only the named packages import a library.
func fence(library string, allowed ...string) rule {
	return rule{
		name: "only " + strings.Join(allowed, ", ") + " import " + library,
		why:  "one place builds, configures and bounds each outside library; replacing or upgrading it touches one folder",
		from: not(under(allowed...)),
		forbid: func(_, to string) bool {
			return to == library || strings.HasPrefix(to, library+"/")
		},
	}
}

// whole may see everything: they compose the program or drive it from outside.
var whole = either(under("cmd", "test", "pkg/testenv", "pkg/archtest"), func(p string) bool { return p == "modules" || p == module })

var drivers = under("pkg/store/sqlite", "pkg/store/memory", "pkg/store/postgres", "pkg/store/redis", "pkg/store/etcd", "pkg/control/etcd", "pkg/control/embedded", "pkg/dedup/memory", "pkg/dedup/redis")

var rules = []rule{
	{
		name: "a module never imports another module",
		why:  "modules meet in proto and pkg/im, so that any split of the roles over processes works",
		from: func(p string) bool { return strings.HasPrefix(p, "modules/") },
		forbid: func(from, to string) bool {
			return strings.HasPrefix(to, "modules/") && strings.Split(from, "/")[1] != strings.Split(to, "/")[1]
		},
	},
	{
		name:   "a module never imports a driver",
		why:    "the command decides which drivers there are",
		from:   under("modules"),
		forbid: func(_, to string) bool { return drivers(to) },
	},
	{
		name: "nothing below imports modules or cmd",
		why:  "packages in pkg are parts, not the whole",
		from: not(either(whole, under("modules"))),
		forbid: func(_, to string) bool {
			return under("modules", "cmd")(to)
		},
	},
	{
		name: "only the whole imports cmd",
		why:  "commands are the outermost layer",
		from: not(whole),
		forbid: func(_, to string) bool {
			return under("cmd")(to)
		},
	},
	{
		name: "pkg/im stays the vocabulary",
		why:  "everything imports it, so it may import almost nothing",
		from: func(p string) bool { return p == "pkg/im" },
		forbid: func(_, to string) bool {
			return under("pkg", "modules", "proto", "cmd")(to)
		},
	},
	{
		name: "pure packages open nothing",
		why:  "they are simulated by seed; a socket or a file would make that a lie",
		from: under("pkg/ring", "pkg/balance", "pkg/rate", "pkg/backoff", "pkg/lane", "pkg/run", "pkg/delivery", "pkg/sim", "pkg/segment", "pkg/store/rules"),
		forbid: func(_, to string) bool {
			return to == "net" || to == "net/http" || to == "os" || to == "database/sql"
		},
	},
	fence("go.etcd.io/etcd/client", "pkg/control/etcd", "pkg/control/embedded", "pkg/store/etcd", "pkg/control/controltest", "cmd"),
	fence("go.etcd.io/etcd/server", "pkg/control/embedded"),
	fence("go.opentelemetry.io", "pkg/trace/otlp", "pkg/testenv"),
	fence("modernc.org/sqlite", "pkg/store/sqlite", "test/requirements/stranger"),
	fence("github.com/jackc/pgx", "pkg/store/postgres", "pkg/testenv", "test"),
	fence("github.com/redis/rueidis", "pkg/redis", "pkg/store/redis", "pkg/dedup/redis"),
	fence("github.com/spf13/viper", "pkg/config"),
	fence("github.com/spf13/cobra", "cmd"),
	fence("github.com/sony/sonyflake", "pkg/idgen"),
	fence("github.com/coder/websocket", "modules/gateway", "sdk", "test", "pkg/testenv"),
	fence("github.com/pressly/goose", "pkg/store/sqlite", "pkg/store/postgres"),
}

func TestImports(t *testing.T) {
	pkgs := list(t, ".", "./...")
	for _, r := range rules {
		t.Run(r.name, func(t *testing.T) {
			for _, p := range pkgs {
				from := rel(p.ImportPath)
				if !r.from(from) {
					continue
				}
				for _, to := range p.Imports {
					if r.forbid(from, rel(to)) {
						t.Errorf("%s imports %s: %s", from, rel(to), r.why)
					}
				}
			}
		})
	}
}

// The SDK's dependencies reach every customer's go.mod: only what it cannot do
// without may be there.
func TestTheSDKHasTwoDependencies(t *testing.T) {
	cmd := exec.Command("go", "mod", "graph")
	cmd.Dir = filepath.Join(root(t), "sdk/go")
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	allowed := []string{module + "/sdk/go", "github.com/coder/websocket", "google.golang.org/protobuf", "github.com/google/go-cmp", "github.com/golang/protobuf", "go", "toolchain"}
	for line := range strings.Lines(string(out)) {
		_, to, _ := strings.Cut(strings.TrimSpace(line), " ")
		name, _, _ := strings.Cut(to, "@")
		ok := false
		for _, a := range allowed {
			ok = ok || name == a
		}
		if !ok {
			t.Errorf("the SDK depends on %s", to)
		}
	}
	for _, p := range list(t, "sdk/go", "./...") {
		for _, to := range p.Imports {
			if strings.HasPrefix(to, module) && !strings.HasPrefix(to, module+"/sdk/go") {
				t.Errorf("%s imports %s: the SDK never imports the server", p.ImportPath, to)
			}
			pure := under("sdk/go/timeline", "sdk/go/outbox", "sdk/go/protocol")(rel(p.ImportPath))
			if pure && (to == "net" || to == "net/http" || to == "os" || to == "time/tzdata") {
				t.Errorf("%s imports %s: it is simulated by seed and opens nothing", p.ImportPath, to)
			}
		}
	}
}
