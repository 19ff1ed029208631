package testenv

import (
	"slices"
	"testing"
	"time"
)

// ReportTimes makes the middle, the 99th percentile and the worst of what was
// measured, one for each turn, the result of a benchmark, in milliseconds.
func ReportTimes(b *testing.B, took []time.Duration) {
	b.Helper()
	if len(took) == 0 {
		b.Fatal("nothing was measured")
	}
	slices.Sort(took)
	at := func(percent int) time.Duration { return took[min(len(took)-1, len(took)*percent/100)] }
	for name, d := range map[string]time.Duration{"p50-ms": at(50), "p99-ms": at(99), "max-ms": at(100)} {
		b.ReportMetric(float64(d.Microseconds())/1000, name)
	}
	b.ReportMetric(float64(len(took)), "runs")
	b.ReportMetric(0, "ns/op") // the turns need more time than is measured
}
