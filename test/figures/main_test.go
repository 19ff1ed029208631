package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/imdhq/imd/pkg/bench"
)

func put(t *testing.T, dir, row string, run int, load string, r bench.Result) {
	t.Helper()
	raw, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"json": string(raw), "load": load + "\n"} {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%s-%d.%s", row, run, name)), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func TestTable(t *testing.T) {
	dir := t.TempDir()
	for i, rate := range []float64{13000, 9000.4, 14000} {
		r := bench.Result{Achieved: rate, PerOp: 100, LimitsOff: true, Processes: []bench.Process{{Name: "imd", PerOp: 44.26}, {Name: "postgres", PerOp: 60}}}
		if i == 1 {
			r.Errors = map[string]int64{"refused: busy": 3}
		}
		put(t, dir, "send8", i+1, fmt.Sprint(i), r)
	}
	for i, p := range []float64{1.25, 2} {
		put(t, dir, "open", i+1, "0.5", bench.Result{LimitsOff: true, Latency: map[string]bench.Latency{"ack": {P50: p, P99: 10 * p}, "deliver": {P99: 21}}})
	}
	var out strings.Builder
	if err := table(&out, dir, "postgres", "segment"); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"(postgres, allocator segment)",
		"| 200 pairs, 8 outstanding | acknowledged | at least 13000/s | 13000/s | 13000, 9000, 14000 | 0, 1, 2 |",
		"|  | of it imd | at most 45 us | 44.3 us | 44.3, 44.3, 44.3 |  |",
		"| 200 pairs, 2,000/s | ack p50 | at most 2 ms | 1.62 ms | 1.25, 2 | 0.5, 0.5 |",
		"|  | delivery p99 | at most 20 ms | 21 ms | 21, 21 |  |",
		"200 pairs, 8 outstanding, run 2: refused: busy 3 times.",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
	out.Reset()
	if err := table(&out, dir, "sqlite", "transaction"); err != nil || !strings.Contains(out.String(), "at least 9500/s") {
		t.Errorf("%v\n%s", err, out.String())
	}
	if err := table(&out, t.TempDir(), "sqlite", "transaction"); err == nil {
		t.Error("a table of nothing")
	}
}
