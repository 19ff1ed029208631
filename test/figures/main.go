// Command figures prints the results that test/figures/run has written as the
// Markdown table of docs/benchmarks.md: medians of the runs of each row, the
// targets, and the load of the machine.
//
// What a row shows is in the table rows. A result that is missing leaves its row
// out; runs with errors are named below the table.
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/imdhq/imd/pkg/bench"
)

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "usage: figures FOLDER postgres|sqlite transaction|segment")
		os.Exit(2)
	}
	if err := table(os.Stdout, os.Args[1], os.Args[2], os.Args[3]); err != nil {
		fmt.Fprintln(os.Stderr, "figures:", err)
		os.Exit(1)
	}
}

// figure is one number of a row.
type figure struct {
	name string
	unit string
	of   func(r *bench.Result) float64
	// limits by store; above is a least one. 0 = none.
	postgres, sqlite float64
	atLeast          bool
}

// row is what one scenario was run for.
type row struct {
	name    string // of the files
	text    string
	figures []figure
}

func rate(postgres, sqlite float64) figure {
	return figure{"acknowledged", "/s", func(r *bench.Result) float64 { return r.Achieved }, postgres, sqlite, true}
}

func cpu(postgres, sqlite float64) figure {
	return figure{"CPU of all server processes a message", "us", func(r *bench.Result) float64 { return r.PerOp }, postgres, sqlite, false}
}

// own is the processor time of the node alone.
func own(postgres float64) figure {
	return figure{"of it imd", "us", func(r *bench.Result) float64 {
		for _, p := range r.Processes {
			if p.Name == "imd" {
				return p.PerOp
			}
		}
		return 0
	}, postgres, 0, false}
}

func latency(name, of string, q func(bench.Latency) float64, postgres, sqlite float64) figure {
	return figure{name, "ms", func(r *bench.Result) float64 { return q(r.Latency[of]) }, postgres, sqlite, false}
}

func p50(l bench.Latency) float64 { return l.P50 }
func p99(l bench.Latency) float64 { return l.P99 }

var rows = []row{
	{"send1", "200 pairs, 1 outstanding", []figure{rate(8000, 6500), cpu(160, 180), own(0)}},
	{"send8", "200 pairs, 8 outstanding", []figure{rate(13000, 9500), cpu(110, 130), own(45)}},
	{"open", "200 pairs, 2,000/s", []figure{latency("ack p50", "ack", p50, 2, 2), latency("ack p99", "ack", p99, 15, 10),
		latency("delivery p50", "deliver", p50, 0, 0), latency("delivery p99", "deliver", p99, 20, 15), cpu(0, 0)}},
	{"hot", "one hot conversation, 50 senders with 8 outstanding, beside 100 pairs at 500/s", []figure{rate(6000, 6000),
		{"deliveries", "/s", func(r *bench.Result) float64 { return r.Delivered }, 0, 0, true}, cpu(0, 0),
		latency("ack p99 of the others before", "calm", p99, 0, 0), latency("ack p99 of the others beside it", "beside", p99, 0, 0),
		{"ratio", "", func(r *bench.Result) float64 { return r.Beside }, 2, 2, false}}},
	{"repeat", "repeats, 100 a second", []figure{latency("marked p50", "repeat_marked", p50, 1, 1), latency("marked p99", "repeat_marked", p99, 0, 0),
		latency("unmarked p50", "repeat_unmarked", p50, 0, 0), latency("a new message p50", "ack", p50, 0, 0)}},
	{"history", "pages of 50 from the large conversation, 200 a second", []figure{latency("page p50", "page", p50, 0, 0), latency("page p99", "page", p99, 15, 15)}},
	{"sync", "sync of a user with 500 conversations, 50 changed", []figure{latency("p50", "since", p50, 0, 0), latency("p99", "since", p99, 50, 50)}},
}

// table prints the results of a folder.
func table(w io.Writer, dir, store, allocator string) error {
	var notes []string
	var first *bench.Result
	fmt.Fprintf(w, "| Row (%s, allocator %s) | Figure | Target | Median | Runs | Load average before |\n|---|---|---|---|---|---|\n", store, allocator)
	for _, row := range rows {
		results, loads, err := read(dir, row.name)
		if err != nil {
			return err
		}
		if len(results) == 0 {
			continue
		}
		if first == nil {
			first = results[0]
		}
		for i, f := range row.figures {
			text, load := row.text, loads
			if i > 0 {
				text, load = "", ""
			}
			fmt.Fprintf(w, "| %s | %s | %s | %s | %s | %s |\n", text, f.name, f.target(store), f.median(results), f.all(results), load)
		}
		notes = append(notes, troubles(row, results)...)
	}
	if first == nil {
		return fmt.Errorf("no results in %s", dir)
	}
	m := first.Machine
	fmt.Fprintf(w, "\nimd %s; %d CPUs, %s, %.0f GiB, Linux %s.\n", first.Client, m.CPUs, m.Model, float64(m.Memory)/(1<<30), m.Kernel)
	for _, n := range notes {
		fmt.Fprintf(w, "\n%s\n", n)
	}
	return nil
}

// read finds the runs of a row and the load before each.
func read(dir, name string) (all []*bench.Result, loads string, err error) {
	var seen []string
	for run := 1; ; run++ {
		raw, err := os.ReadFile(filepath.Join(dir, fmt.Sprintf("%s-%d.json", name, run)))
		if os.IsNotExist(err) {
			return all, strings.Join(seen, ", "), nil
		}
		r := &bench.Result{}
		if err == nil {
			err = json.Unmarshal(raw, r)
		}
		if err != nil {
			return nil, "", fmt.Errorf("run %d of %s: %w", run, name, err)
		}
		load, err := os.ReadFile(filepath.Join(dir, fmt.Sprintf("%s-%d.load", name, run)))
		if err != nil {
			return nil, "", err
		}
		all, seen = append(all, r), append(seen, strings.TrimSpace(string(load)))
	}
}

// troubles says what else a reader of a row has to know.
func troubles(row row, all []*bench.Result) (notes []string) {
	for i, r := range all {
		if r.Ended != "" {
			notes = append(notes, fmt.Sprintf("%s, run %d ended early: %s.", row.text, i+1, r.Ended))
		}
		for _, reason := range slices.Sorted(maps.Keys(r.Errors)) {
			notes = append(notes, fmt.Sprintf("%s, run %d: %s %d times.", row.text, i+1, reason, r.Errors[reason]))
		}
		if !r.LimitsOff {
			notes = append(notes, fmt.Sprintf("%s, run %d: the server's rate limits held.", row.text, i+1))
		}
	}
	return notes
}

func (f *figure) target(store string) string {
	limit := f.postgres
	if store == "sqlite" {
		limit = f.sqlite
	}
	switch {
	case limit == 0:
		return "-"
	case f.atLeast:
		return "at least " + f.show(limit)
	}
	return "at most " + f.show(limit)
}

func (f *figure) show(v float64) string {
	text := strconv.FormatFloat(v, 'f', 2, 64)
	switch {
	case v >= 100:
		text = strconv.FormatFloat(v, 'f', 0, 64)
	case v >= 10:
		text = strconv.FormatFloat(v, 'f', 1, 64)
	}
	if strings.Contains(text, ".") {
		text = strings.TrimSuffix(strings.TrimRight(text, "0"), ".")
	}
	if f.unit == "" || f.unit == "/s" {
		return text + f.unit
	}
	return text + " " + f.unit
}

func (f *figure) values(all []*bench.Result) []float64 {
	var v []float64
	for _, r := range all {
		v = append(v, f.of(r))
	}
	return v
}

// median is the middle of the runs, or the mean of the two in the middle.
func (f *figure) median(all []*bench.Result) string {
	v := f.values(all)
	slices.Sort(v)
	mid := len(v) / 2
	if len(v)%2 == 0 {
		return f.show((v[mid-1] + v[mid]) / 2)
	}
	return f.show(v[mid])
}

func (f *figure) all(all []*bench.Result) string {
	var text []string
	bare := figure{}
	for _, v := range f.values(all) {
		text = append(text, bare.show(v))
	}
	return strings.Join(text, ", ")
}
