package cmd

import (
	"bytes"
	"context"
	"os"
	"strings"
	"testing"

	"github.com/imdhq/imd/pkg/config"
)

// The table in the documentation is what the modules declare. With
// IMD_TEST_UPDATE=1 the test writes it anew.
func TestSettingsTableIsCurrent(t *testing.T) {
	const file, begin, end = "../docs/features/settings.md", "<!-- settings -->\n", "<!-- end of settings -->"
	var out, errOut bytes.Buffer
	a := &app{specs: specs(), out: &out, errOut: &errOut}
	if status := a.run(context.Background(), []string{"settings", "docs"}); status != exitOK {
		t.Fatal(errOut.String())
	}
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, ok := strings.Cut(string(raw), begin)
	have, tail, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatal("the marks around the table are missing")
	}
	if have == out.String() {
		return
	}
	if os.Getenv("IMD_TEST_UPDATE") == "" {
		t.Fatal("the table is not current; run: IMD_TEST_UPDATE=1 go test -run SettingsTable ./cmd")
	}
	if err := os.WriteFile(file, []byte(head+begin+out.String()+end+tail), 0o644); err != nil {
		t.Fatal(err)
	}
}

// A configuration key and the setting of the same name have the same default,
// which is a possible value of both.
func TestStartValuesArePossibleSettings(t *testing.T) {
	reg, err := hotSettings(specs())
	if err != nil {
		t.Fatal(err)
	}
	sch, err := schema(specs())
	if err != nil {
		t.Fatal(err)
	}
	both := 0
	for _, d := range reg.All() {
		leaf := sch.Leaf(d.Key)
		if leaf == nil {
			continue
		}
		both++
		if c, err := d.Canonical(config.Text(leaf.Default)); err != nil || c != d.Default {
			t.Errorf("%s: the configuration begins with %v, the setting with %s (%v)", d.Key, leaf.Default, d.Default, err)
		}
	}
	if both < 10 {
		t.Errorf("only %d settings have a place in the configuration", both)
	}
}
