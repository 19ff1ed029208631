package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

var alertRE = regexp.MustCompile("(?m)^\\| `((?:Imd|Etcd)\\w+)` \\|")

var metricRE = regexp.MustCompile(`\bimd_[a-z_]+`)

// anchor is what a heading is linked by.
func anchor(heading string) string {
	kept := strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r == '-' || r == '_' || r >= 'a' && r <= 'z' || r >= '0' && r <= '9':
			return r
		}
		return -1
	}, strings.ToLower(heading))
	return kept
}

// The alert rules use metrics that there are, stand in the table that says where
// to begin, and lead to a heading that says what to do.
func TestAlerts(t *testing.T) {
	operations, err := os.ReadFile("operations.md")
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(top, "deploy", "alerts-*.yml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no rules: %v", err)
	}
	told := map[string]bool{}
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var rules struct {
			Groups []struct {
				Rules []struct {
					Alert, Expr         string
					Labels, Annotations map[string]string
				}
			}
		}
		if err := yaml.Unmarshal(raw, &rules); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		seen := map[string]bool{}
		for _, g := range rules.Groups {
			for _, r := range g.Rules {
				if seen[r.Alert] || r.Expr == "" || r.Annotations["summary"] == "" || r.Labels["severity"] == "" {
					t.Errorf("%s: %s is there twice or lacks something", file, r.Alert)
				}
				seen[r.Alert] = true
				if !strings.Contains(string(operations), "\n| `"+r.Alert+"` | ") {
					t.Errorf("%s: operations.md does not say where to begin with %s", file, r.Alert)
				}
				told[r.Alert] = true
				for _, m := range metricRE.FindAllString(r.Expr, -1) {
					base := strings.TrimSuffix(strings.TrimSuffix(m, "_count"), "_bucket")
					if !strings.Contains(string(operations), "`"+base+"`") && !strings.Contains(string(operations), "`"+m+"`") {
						t.Errorf("%s: %s uses %s, which no node has", file, r.Alert, m)
					}
				}
				page, heading, _ := strings.Cut(r.Annotations["runbook"], "#")
				text, err := os.ReadFile(filepath.Join(top, page))
				if err != nil {
					t.Errorf("%s: %s: %v", file, r.Alert, err)
					continue
				}
				found := false
				for line := range strings.Lines(string(text)) {
					if title, ok := strings.CutPrefix(strings.TrimLeft(line, "#"), " "); ok && strings.HasPrefix(line, "#") && anchor(strings.TrimSpace(title)) == heading {
						found = true
					}
				}
				if !found {
					t.Errorf("%s: %s leads to %s, which has no heading %s", file, r.Alert, page, heading)
				}
			}
		}
	}
	for _, m := range alertRE.FindAllStringSubmatch(string(operations), -1) {
		if !told[m[1]] {
			t.Errorf("operations.md has the alert %s, which no rule raises", m[1])
		}
	}
}
