package cmd

import (
	"bytes"
	"context"
	"testing"

	"github.com/imdhq/imd/pkg/config"
)

// docs/features/settings.md has every setting.
func TestDocumentOfSettings(t *testing.T) {
	var out, errOut bytes.Buffer
	a := &app{specs: specs(), out: &out, errOut: &errOut}
	if status := a.run(context.Background(), []string{"settings", "docs"}); status != exitOK {
		t.Fatal(errOut.String())
	}
	part(t, "features/settings.md", "settings", out.String())
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
