package bench

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
)

// Comparison is two runs side by side.
type Comparison struct {
	Rows  []CompareRow `json:"rows"`
	Notes []string     `json:"notes"` // why the two may not be comparable
}

// CompareRow is one figure of both runs.
type CompareRow struct {
	Name  string  `json:"name"`
	Unit  string  `json:"unit"`
	A     float64 `json:"a"`
	B     float64 `json:"b"`
	Ratio float64 `json:"ratio"` // b / a; 0 if a is 0
}

// Compare puts two runs side by side. Figures that neither has are left out.
func Compare(a, b *Result) Comparison {
	var c Comparison
	row := func(name, unit string, va, vb float64) {
		if va == 0 && vb == 0 {
			return
		}
		r := CompareRow{Name: name, Unit: unit, A: va, B: vb}
		if va != 0 {
			r.Ratio = vb / va
		}
		c.Rows = append(c.Rows, r)
	}
	row("throughput", "/s", a.Achieved, b.Achieved)
	row("deliveries", "/s", a.Delivered, b.Delivered)
	for _, name := range union(a.Latency, b.Latency) {
		la, lb := a.Latency[name], b.Latency[name]
		row(name+" p50", "ms", la.P50, lb.P50)
		row(name+" p99", "ms", la.P99, lb.P99)
	}
	row("server CPU each", "us", a.PerOp, b.PerOp)
	pa, pb := processes(a), processes(b)
	if len(pa) > 1 || len(pb) > 1 {
		for _, name := range union(pa, pb) {
			row("CPU each of "+name, "us", pa[name].PerOp, pb[name].PerOp)
		}
	}
	row("client CPU each", "us", a.ClientEach, b.ClientEach)
	row("client share", "", a.Share, b.Share)
	row("failed", "", float64(a.Failed), float64(b.Failed))
	c.Notes = differences(a, b)
	return c
}

func processes(r *Result) map[string]Process {
	m := map[string]Process{}
	for _, p := range r.Processes {
		m[p.Name] = p
	}
	return m
}

func union[V any](a, b map[string]V) []string {
	all := maps.Clone(a)
	if all == nil {
		all = map[string]V{}
	}
	maps.Copy(all, b)
	return slices.Sorted(maps.Keys(all))
}

// differences tells what else differs between two runs.
func differences(a, b *Result) (notes []string) {
	differ := func(what string, va, vb any) {
		if !reflect.DeepEqual(va, vb) {
			notes = append(notes, fmt.Sprintf("%s differs: %v and %v", what, orNone(va), orNone(vb)))
		}
	}
	differ("scenario", a.Scenario, b.Scenario)
	differ("machine", a.Machine, b.Machine)
	differ("encoding", a.Encoding, b.Encoding)
	differ("seed", a.Seed, b.Seed)
	differ("server version", a.Server, b.Server)
	differ("client version", a.Client, b.Client)
	differ("lifting of the rate limits", a.LimitsOff, b.LimitsOff)
	for _, name := range union(a.Options, b.Options) {
		differ("option "+name, a.Options[name], b.Options[name])
	}
	for i, r := range []*Result{a, b} {
		if r.Ended != "" {
			notes = append(notes, fmt.Sprintf("%c ended early: %s", 'A'+i, r.Ended))
		}
		if r.Share > MaxShare {
			notes = append(notes, fmt.Sprintf("in %c the client took %.2f of the processor time: the figures say much about the client", 'A'+i, r.Share))
		}
	}
	return notes
}

func orNone(v any) any {
	if v == nil || v == "" {
		return "none"
	}
	return v
}

// MaxShare is the client's share of the processor time above which a run says
// more about the client than about the server.
const MaxShare = 0.40
