package cmd

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/imdhq/imd/pkg/datadir"
)

// printsData has a command line for every command that prints data. Each is
// run with -o json; it need not succeed, but what it prints must be JSON.
var printsData = map[string][]string{
	"imd config check": {},
	"imd config show":  {"--origin"},
	"imd config docs":  {"--example"},
	"imd check ready":  {},
	"imd doctor":       {},
	"imd nodes":        {},
	"imd node show":    {"n"},
	"imd ring show":    {}, "imd ring explain": {"g_1"},
	"imd node cordon":   {"n"},
	"imd node uncordon": {"n"},
	"imd node drain":    {"n"},
	"imd leader show":   {}, "imd leader transfer": {"scheduler", "--to", "n"}, "imd leader resign": {"scheduler"}, "imd locks": {},
	"imd settings list": {}, "imd settings get": {"rate.factor", "--applied"}, "imd settings set": {"rate.factor=2"}, "imd settings watch": {},
	"imd settings history": {}, "imd settings rollback": {"gateway", "1"}, "imd settings wait": {}, "imd settings docs": {},
	"imd migrate status": {}, "imd migrate plan": {}, "imd migrate up": {},
	"imd token mint":   {"--user", "alice"},
	"imd token verify": {"garbage"},
	"imd key create":   {"--name", "backend"},
	"imd key list":     {},
	"imd key revoke":   {"k"},
	"imd user devices": {"alice"}, "imd user presence": {"alice", "bob"}, "imd user kick": {"alice", "--login", "l"}, "imd user revoke": {"alice", "--all"},
	"imd send":          {"--as", "alice", "--to", "bob", "text"},
	"imd tail":          {"--as", "alice"},
	"imd version":       {},
	"imd bench compare": {"a.json", "b.json"}, "imd bench overhead": {}, "imd bench connect": {}, "imd bench send": {}, "imd bench hot": {}, "imd bench slow": {}, "imd bench presence": {}, "imd bench repeat": {}, "imd bench fanout": {},
	"imd message schedule": {"--as", "alice", "--to", "bob", "--in", "1h", "text"}, "imd message scheduled": {"--as", "alice"},
	"imd announce send": {"hello"}, "imd announce list": {}, "imd announce withdraw": {"7"},
	"imd message cancel": {"--as", "alice", "7"},
	"imd bench history":  {}, "imd bench sync": {}, "imd bench resume": {}, "imd bench mix": {}, "imd bench drain": {"--node", "n", "--gateway", "127.0.0.1:1,127.0.0.1:2"},
	"imd verify": {"no-such-history"},
	"imd backup": {"--to", "backup.tar"}, "imd restore": {"--from", "no-such-backup.tar"},
	"imd store copy": {"--to", "sqlite:copy.db"}, "imd store new-epoch": {}, "imd bench load": {"--to", "oracle:x"},
	"imd route show": {"alice"}, "imd trace": {"117093590311632897"}, "imd stats": {},
	"imd webhook list": {}, "imd webhook test": {"shop"}, "imd webhook replay": {"shop", "--dead"}, "imd webhook dead": {"shop"}, "imd webhook remove": {"shop"},
	"imd gen systemd": {"--unit", "edge=gateway,push"}, "imd gen prometheus-rules": {},
	"imd drill": {"--layout", "nowhere.yaml"}, "imd drill replay": {"7", "--layout", "nowhere.yaml"}, "imd drill schedule": {"7"},
}

// printsNone are the commands that print no data.
var printsNone = []string{"imd serve", "imd dev", "imd etcd", "imd chat", "imd drill witness"}

func TestEveryCommandObeysOutputJSON(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	d, err := datadir.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	walk(newRoot(standInApp(nil, nil, nil)), func(c *cobra.Command) {
		path := c.CommandPath()
		if slices.Contains(printsNone, path) {
			return
		}
		extra, ok := printsData[path]
		if !ok {
			t.Errorf("%s is neither in printsData nor in printsNone", path)
			return
		}
		args := append(append(strings.Fields(path)[1:], extra...), "-o", "json")
		if c.Flags().Lookup("data-dir") != nil {
			args = append(args, "--data-dir", dir)
		}
		var out, errOut bytes.Buffer
		status := standInApp(&out, &errOut, []string{"HOME=" + dir}).run(context.Background(), args)
		if status == exitUsage && path != "imd check ready" {
			t.Errorf("%s: usage: %s", path, errOut.String())
		}
		if out.Len() > 0 && !json.Valid(out.Bytes()) {
			t.Errorf("%s prints no JSON: %s", path, out.String())
		}
		if status != exitOK && !json.Valid(errOut.Bytes()) {
			t.Errorf("%s fails without JSON: %s", path, errOut.String())
		}
		if status == exitOK && out.Len() == 0 {
			t.Errorf("%s prints nothing", path)
		}
	})
}

// Every command says what it does, and those that need more show it.
func TestEveryCommandIsDocumented(t *testing.T) {
	walk(newRoot(standInApp(nil, nil, nil)), func(c *cobra.Command) {
		if c.Short == "" || strings.HasSuffix(c.Short, ".") {
			t.Errorf("%s: the short text %q is missing or ends in a stop", c.CommandPath(), c.Short)
		}
		if c.Example == "" && c.Parent().Example == "" && c.Name() != "version" {
			t.Errorf("%s has no example", c.CommandPath())
		}
		for _, line := range strings.Split(c.Example, "\n") {
			if line != "" && !strings.HasPrefix(line, "  imd ") {
				t.Errorf("%s: the example %q is no command line", c.CommandPath(), line)
			}
		}
	})
}

// walk visits the commands that do something of their own.
func walk(c *cobra.Command, visit func(*cobra.Command)) {
	for _, sub := range c.Commands() {
		if sub.Name() == "help" || sub.Name() == "completion" {
			continue
		}
		if !sub.HasSubCommands() {
			visit(sub)
		}
		walk(sub, visit)
	}
}

// config.example.yaml is what the structs say. To renew it:
// imd config docs --example > config.example.yaml
func TestExampleFileIsCurrent(t *testing.T) {
	var out, errOut bytes.Buffer
	a := &app{specs: specs(), out: &out, errOut: &errOut}
	if status := a.run(context.Background(), []string{"config", "docs", "--example"}); status != exitOK {
		t.Fatal(errOut.String())
	}
	have, err := os.ReadFile("../config.example.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(have, out.Bytes()) {
		t.Error("config.example.yaml is not current; run: make example")
	}
}
