package cmd

import (
	"bytes"
	"strings"
	"testing"

	"github.com/imdhq/imd/pkg/bench"
)

func TestLiveLine(t *testing.T) {
	got := liveLine(bench.Progress{Phase: "measure", Done: 0.5, Up: 7, Last: bench.Sample{Ops: 12, Deliveries: 11, P50: 1.5, P99: 20}, Fails: 3})
	for _, want := range []string{"measure", strings.Repeat("█", 12) + strings.Repeat("·", 12), " 50%", "7 online", "12/s", "11 delivered/s", "p50 1.50 ms", "p99 20.00 ms", "3 failed"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q has no %q", got, want)
		}
	}
	if got := liveLine(bench.Progress{Phase: "settle", Done: -1}); strings.Contains(got, "%") {
		t.Errorf("%q has a bar", got)
	}
}

// A shorter line covers the longer one before it.
func TestLiveLineCovers(t *testing.T) {
	var out bytes.Buffer
	l := &live{w: &out}
	l.show(bench.Progress{Phase: "measure", Done: 1, Up: 1000, Fails: 5})
	long := out.Len()
	l.show(bench.Progress{Phase: "settle", Done: -1})
	if out.Len() < 2*long-2*len("█")*barWidth {
		t.Errorf("%q", out.String())
	}
	l.clear()
	if s := out.String(); !strings.HasSuffix(s, "\r") {
		t.Errorf("%q", s)
	}
}

func TestParseMix(t *testing.T) {
	m, err := parseMix("direct=3,sync=1")
	if err != nil || m != (bench.Mix{Direct: 3, Sync: 1}) {
		t.Errorf("%+v, %v", m, err)
	}
	if m, err := parseMix(""); err != nil || m != bench.DefaultMix {
		t.Errorf("%+v, %v", m, err)
	}
	for _, bad := range []string{"direct", "direct=x", "direct=-1", "direct=1001", "what=1", "direct=0,group=0", ","} {
		if _, err := parseMix(bad); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}

// With a node of the data folder gone early, a partial result still prints.
func TestPrintBench(t *testing.T) {
	var out bytes.Buffer
	printBench(&out, &bench.Result{Scenario: "send", Ended: "the server went away", Errors: map[string]int64{"busy": 2}, Share: 0.5,
		Processes: []bench.Process{{Name: "imd"}}})
	for _, want := range []string{"send: 0 operations", "ended early: the server went away", "errors: busy 2", "above 0.40"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q has no %q", out.String(), want)
		}
	}
}
