package cmd

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/imdhq/imd/modules/scheduler"
	"github.com/imdhq/imd/modules/tracing"
	"github.com/imdhq/imd/pkg/datadir"
	"github.com/imdhq/imd/pkg/peer"
	routesetcd "github.com/imdhq/imd/pkg/store/etcd"
	"github.com/imdhq/imd/pkg/trace"
)

var update = flag.Bool("update", false, "write the documents instead of checking them")

// renew is the command that brings the documents up to date.
const renew = "CGO_ENABLED=0 go test -trimpath ./cmd -run Document -update"

// part checks or writes what stands between the marks of a document.
func part(t *testing.T, file, name, want string) {
	t.Helper()
	file = filepath.Join("../docs", file)
	have, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	re := regexp.MustCompile(`(?s)(<!-- generated: ` + name + ` -->\n).*?(<!-- end -->)`)
	place := re.FindSubmatchIndex(have)
	if place == nil {
		t.Fatalf("%s has no place for %q", file, name)
	}
	page := string(have[:place[3]]) + want + string(have[place[4]:])
	switch {
	case page == string(have):
	case *update:
		if err := os.WriteFile(file, []byte(page), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("%s has fallen behind in %q; run: %s", file, name, renew)
	}
}

// docs/cli.md has the help of every command.
func TestDocumentOfCommands(t *testing.T) {
	var b strings.Builder
	root := newRoot(standInApp(nil, nil, nil))
	root.InitDefaultHelpFlag()
	section := func(c *cobra.Command) {
		var out bytes.Buffer
		c.SetOut(&out)
		c.InitDefaultHelpFlag()
		if err := c.Help(); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&b, "## %s\n\n```text\n%s\n```\n\n", c.CommandPath(), strings.TrimSpace(out.String()))
	}
	var all func(*cobra.Command)
	all = func(c *cobra.Command) {
		section(c)
		for _, sub := range c.Commands() {
			if sub.Name() != "help" && sub.Name() != "completion" {
				all(sub)
			}
		}
	}
	all(root)
	part(t, "cli.md", "commands", b.String())
}

// docs/configuration.md has every key.
func TestDocumentOfKeys(t *testing.T) {
	var out, errOut bytes.Buffer
	a := &app{specs: specs(), out: &out, errOut: &errOut}
	if status := a.run(context.Background(), []string{"config", "docs"}); status != exitOK {
		t.Fatal(errOut.String())
	}
	part(t, "configuration.md", "keys", out.String())
}

// docs/architecture.md has the modules in the order of their start.
func TestDocumentOfModules(t *testing.T) {
	var b strings.Builder
	b.WriteString("| Module | Chosen with `--roles` | Starts after | Calls |\n|---|---|---|---|\n")
	for _, s := range specs() {
		role := "-"
		if s.Role {
			role = "yes"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", s.Name, role, orDash(strings.Join(s.Needs, ", ")), orDash(strings.Join(s.Calls, ", ")))
	}
	part(t, "architecture.md", "modules", b.String())
}

// docs/features/split.md has the methods between roles.
func TestDocumentOfMethods(t *testing.T) {
	var b strings.Builder
	b.WriteString("| Method | Picker | By | Repeated | Criticality |\n|---|---|---|---|---|\n")
	for _, m := range peer.NewSet("n", zap.NewNop()).Report().Methods {
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", m.Name, m.Picker, m.By, m.Repeat, m.Class)
	}
	part(t, "features/split.md", "methods", b.String())
}

// docs/features/jobs.md has the table of jobs.
func TestDocumentOfJobs(t *testing.T) {
	var b strings.Builder
	b.WriteString("| Job | When | Where it stands | Effect | Fence | Deadline | Test |\n|---|---|---|---|---|---|---|\n")
	for _, j := range scheduler.Jobs() {
		limit := "the term"
		if j.Limit > 0 {
			limit = j.Limit.String()
		}
		folder, test, _ := strings.Cut(j.Test, " ")
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s | `%s` `%s` |\n", j.Name, j.Trigger, j.Row, j.Effect, j.Fence, limit, folder, test)
	}
	part(t, "features/jobs.md", "jobs", b.String())
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

var descRE = regexp.MustCompile(`^Desc\{fqName: "(imd_[a-z_]+)", help: "([^"]*)".*, variableLabels: \{(.*)\}\}$`)

// docs/operations.md has every metric of a node, used or not yet.
func TestDocumentOfMetrics(t *testing.T) {
	e := assembled(t)
	peer.NewSet("n", zap.NewNop()).Link(peer.Link{Reg: e.reg}) // those of calls to other nodes
	nobody, err := clientv3.New(clientv3.Config{Endpoints: []string{"127.0.0.1:1"}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	routes := routesetcd.Open(nobody, routesetcd.Options{Log: zap.NewNop(), Reg: e.reg})                                                                // those of routes in etcd
	spans := tracing.New(tracing.Config{Endpoint: "http://127.0.0.1:1"}, tracing.Deps{Log: zap.NewNop(), Reg: e.reg, Trace: trace.New(0, 0, time.Now)}) // and of a collector
	if err := spans.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(spans.Close(), routes.Close(), nobody.Close()); err != nil {
		t.Fatal(err)
	}
	kinds := map[string]string{}
	families, err := e.reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		kinds[f.GetName()] = strings.ToLower(f.GetType().String())
	}
	descs := make(chan *prometheus.Desc)
	go func() { defer close(descs); e.reg.Describe(descs) }()
	var rows []string
	for d := range descs {
		m := descRE.FindStringSubmatch(d.String())
		if m == nil {
			continue // of the Go runtime or the process
		}
		kind := kinds[m[1]]
		switch {
		case kind != "":
		case strings.HasSuffix(m[1], "_total"):
			kind = "counter"
		case strings.HasSuffix(m[1], "_seconds") && m[3] != "":
			kind = "histogram" // with labels, and nothing seen yet
		default:
			kind = "gauge" // of the control plane, which has not started
		}
		rows = append(rows, fmt.Sprintf("| `%s` | %s | %s | %s |\n", m[1], kind, orDash(strings.ReplaceAll(m[3], ",", ", ")), m[2]))
	}
	slices.Sort(rows)
	part(t, "operations.md", "metrics", "| Metric | Kind | Labels | What it tells |\n|---|---|---|---|\n"+strings.Join(slices.Compact(rows), ""))
}

// assembled is a node that is put together and never started.
func assembled(t *testing.T) *engine {
	t.Helper()
	a := &app{specs: specs(), errOut: os.Stderr}
	root := newRoot(a)
	serve, _, err := root.Find([]string{"serve"})
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := (&settingFlags{app: a, cmd: serve}).load()
	if err != nil {
		t.Fatal(err)
	}
	e := newEngine(a, cfg)
	if e.dir, err = datadir.Open(filepath.Join(t.TempDir(), "data")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.dir.Close() })
	e.log = zap.NewNop()
	if err := e.assemble(); err != nil {
		t.Fatal(err)
	}
	return e
}

// docs/operations.md tells every exit status.
func TestDocumentOfExitStatuses(t *testing.T) {
	page, err := os.ReadFile("../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	for status := range kinds {
		if !strings.Contains(string(page), fmt.Sprintf("\n| %d | ", status)) {
			t.Errorf("docs/operations.md does not tell exit status %d", status)
		}
	}
}
