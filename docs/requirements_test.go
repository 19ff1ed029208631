package docs

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const lastRequirement = 54

var requirementRE = regexp.MustCompile(`(?m)^\| R-(\d\d) \| ([^|]+) \| ([^|]+) \|$`)

// Each requirement has its row, in order, with a test or the reason why there
// is none yet, and each test of test/requirements stands in its row. That the
// named tests exist is TestFunctionsAndTests's.
func TestRequirements(t *testing.T) {
	rows := requirementRE.FindAllStringSubmatch(pages(t)["docs/requirements.md"], -1)
	if len(rows) != lastRequirement {
		t.Fatalf("requirements.md has %d rows, want %d", len(rows), lastRequirement)
	}
	files, err := filepath.Glob(filepath.Join(top, "test/requirements/*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	tests := declared(t, files...)
	for i, row := range rows {
		number := fmt.Sprintf("%02d", i+1)
		if row[1] != number {
			t.Errorf("row %s is in the place of %s", row[1], number)
		}
		if !testsRE.MatchString(row[3]) && !strings.Contains(row[3], "*to come*") {
			t.Errorf("R-%s names no test and no reason", number)
		}
		for name := range tests {
			if strings.HasPrefix(name, "TestR"+number) && !strings.Contains(row[3], "`"+name+"`") {
				t.Errorf("R-%s does not name %s", number, name)
			}
		}
	}
}
