package docs

import (
	"regexp"
	"strings"
	"testing"
)

var shownRE = regexp.MustCompile("^(?:(?:, )?`(?:cmd|modules|pkg|sdk|web|test|docs)[\\w/-]*`(?:,? `Test\\w+`)+)+$")

// Each line of outages.md says in all its columns what happens, and names the tests
// that show it. That they exist is TestFunctionsAndTests's.
func TestOutages(t *testing.T) {
	rows := 0
	for line := range strings.Lines(pages(t)["docs/outages.md"]) {
		if !strings.HasPrefix(line, "| ") || strings.HasPrefix(line, "| What breaks |") {
			continue
		}
		rows++
		columns := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), " |")
		if len(columns) != 5 {
			t.Errorf("%d columns: %s", len(columns), line)
			continue
		}
		for _, c := range columns {
			if strings.TrimSpace(c) == "" {
				t.Errorf("an empty column: %s", line)
			}
		}
		if shown := strings.TrimSpace(columns[4]); !shownRE.MatchString(shown) {
			t.Errorf("%s: no test, or in another form than the others: %s", strings.TrimSpace(columns[0]), shown)
		}
	}
	if rows < 100 {
		t.Errorf("only %d lines were found: their form has changed", rows)
	}
}
