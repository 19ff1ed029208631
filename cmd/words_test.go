package cmd

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

var (
	jsonTagRE = regexp.MustCompile("(?m)^\\t+(\\w+) +([^ `]+) +`json:\"(\\w+)(,[\\w,]+)?\"`")
	bareIDRE  = regexp.MustCompile(`^(node|user|login|device|session)$`)
	wideRE    = regexp.MustCompile(`^(seq|prev_seq|\w*message_id|scheduled_id|route_epoch)$`)
)

// One thing has one name in all that commands print as JSON, ids end in _id, and
// numbers that JavaScript would round are strings.
func TestWordsOfJSON(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	fields := 0
	for _, file := range append(files, "../pkg/status/trace.go", "../pkg/status/stored.go", "../pkg/status/stats.go") {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range jsonTagRE.FindAllStringSubmatch(string(raw), -1) {
			fields++
			kind, name, options := m[2], m[3], m[4]
			if bareIDRE.MatchString(name) && kind == "string" {
				t.Errorf("%s: %s: an id is called %s_id", file, m[1], name)
			}
			if wideRE.MatchString(name) && kind != "string" && !regexp.MustCompile(`,string\b`).MatchString(options) {
				t.Errorf("%s: %s: %s is printed as a number, which JavaScript rounds", file, m[1], name)
			}
		}
	}
	if fields < 100 {
		t.Errorf("only %d fields were found: the form of the code has changed", fields)
	}
}
