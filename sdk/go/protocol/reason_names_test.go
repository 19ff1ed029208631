package protocol

import (
	"os"
	"regexp"
	"testing"
)

// Every reason has a constant, and every constant a reason.
func TestReasonNames(t *testing.T) {
	src, err := os.ReadFile("reason_names.go")
	if err != nil {
		t.Fatal(err)
	}
	named := map[string]bool{}
	for _, m := range regexp.MustCompile(`= "([a-z_]+)"`).FindAllStringSubmatch(string(src), -1) {
		named[m[1]] = true
		if _, ok := Lookup(m[1]); !ok {
			t.Errorf("%s is in no row of the table", m[1])
		}
	}
	for _, r := range Reasons() {
		if !named[r.Reason] {
			t.Errorf("%s has no constant", r.Reason)
		}
	}
}
