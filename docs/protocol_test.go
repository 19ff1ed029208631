// Package docs keeps the documents true: tables in them are generated from the
// schema, and the test fails when one has fallen behind.
package docs

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"sort"
	"strings"
	"testing"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

var update = flag.Bool("update", false, "write the tables instead of checking them")

// reasons lists all reasons by number.
func reasons() []im.Reason {
	var all []im.Reason
	for n := range clientv1.Reason_name {
		if n != 0 {
			all = append(all, im.Reason(n))
		}
	}
	sort.Slice(all, func(i, j int) bool { return all[i] < all[j] })
	return all
}

func closeCodes() string {
	var b strings.Builder
	b.WriteString("| Code | Reason | Then | Meaning |\n|---|---|---|---|\n")
	for _, r := range reasons() {
		if i := im.Info(r); i.CloseCode != 0 {
			then := "reconnect"
			if i.CloseCode >= 4500 {
				then = "stop"
			}
			fmt.Fprintf(&b, "| %d | %s | %s | %s |\n", i.CloseCode, im.ReasonName(r), then, i.Meaning)
		}
	}
	return b.String()
}

func reasonTable() string {
	var b strings.Builder
	b.WriteString("| Reason | Code word | Retry? | Meaning |\n|---|---|---|---|\n")
	for _, r := range reasons() {
		i := im.Info(r)
		if i.Code == "" {
			continue
		}
		retry := "no"
		switch {
		case i.Retryable && i.RetryAfterMs > 0:
			retry = fmt.Sprintf("yes, usually after %d ms", i.RetryAfterMs)
		case i.Retryable:
			retry = "yes"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", im.ReasonName(r), i.Code, retry, i.Meaning)
	}
	return b.String()
}

// exchanges are the vectors that the codec's test checks.
func exchanges(t *testing.T) string {
	t.Helper()
	raw, err := os.ReadFile("../sdk/go/protocol/testdata/vectors.txt")
	if err != nil {
		t.Fatal(err)
	}
	_, body, ok := strings.Cut(string(raw), "\n\n")
	if !ok {
		t.Fatal("the vectors have another form")
	}
	return "```text\n" + strings.TrimSpace(body) + "\n```\n"
}

func TestProtocolTables(t *testing.T) {
	raw, err := os.ReadFile("protocol.md")
	if err != nil {
		t.Fatal(err)
	}
	page := string(raw)
	for name, table := range map[string]string{"close codes": closeCodes(), "reasons": reasonTable(), "exchanges": exchanges(t)} {
		re := regexp.MustCompile(`(?s)(<!-- generated: ` + name + ` -->\n).*?(<!-- end -->)`)
		if !re.MatchString(page) {
			t.Fatalf("no place for the table %q", name)
		}
		page = re.ReplaceAllString(page, "${1}"+table+"${2}")
	}
	if page == string(raw) {
		return
	}
	if !*update {
		t.Fatal("the tables of docs/protocol.md have fallen behind: go test ./docs -update")
	}
	if err := os.WriteFile("protocol.md", []byte(page), 0o644); err != nil {
		t.Fatal(err)
	}
}
