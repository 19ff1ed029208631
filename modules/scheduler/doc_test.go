package scheduler

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// names is a Registerer that notes the names of metrics.
type names struct {
	prometheus.Registerer
	all map[string]bool
}

var fullName = regexp.MustCompile(`fqName: "([a-z_]+)"`)

// MustRegister is prometheus.Registerer's.
func (n names) MustRegister(cs ...prometheus.Collector) {
	for _, c := range cs {
		descs := make(chan *prometheus.Desc, 16)
		c.Describe(descs)
		close(descs)
		for d := range descs {
			n.all[fullName.FindStringSubmatch(d.String())[1]] = true
		}
	}
}

// The package comment lists all metrics of the role.
func TestMetricsAreListed(t *testing.T) {
	doc, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	n := names{all: map[string]bool{}}
	New(Deps{Reg: n})
	if len(n.all) < 30 {
		t.Errorf("only %d metrics", len(n.all))
	}
	for name := range n.all {
		if !strings.Contains(string(doc), name) && !strings.HasPrefix(name, "imd_webhook_") {
			t.Errorf("%s is not listed", name)
		}
	}
}
