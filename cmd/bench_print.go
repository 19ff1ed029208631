package cmd

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/imdhq/imd/pkg/bench"
)

// live is the line on a terminal that says how far a run is.
type live struct {
	w    io.Writer // nil = no terminal
	long int       // what the last line covered
}

func newLive(a *app) *live {
	if f, ok := a.errOut.(*os.File); ok {
		if _, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS); err == nil {
			return &live{w: f}
		}
	}
	return &live{}
}

const barWidth = 24

// show replaces the line.
func (l *live) show(p bench.Progress) {
	if l.w == nil {
		return
	}
	l.put(liveLine(p))
}

// put replaces the line with another one.
func (l *live) put(line string) {
	if l.w == nil {
		return
	}
	n := len([]rune(line))
	fmt.Fprintf(l.w, "\r%s%s", line, strings.Repeat(" ", max(l.long-n, 0)))
	l.long = n
}

func liveLine(p bench.Progress) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%-8s ", p.Phase)
	if p.Done >= 0 {
		full := int(p.Done * barWidth)
		fmt.Fprintf(&b, "[%s%s] %3.0f%%  ", strings.Repeat("█", full), strings.Repeat("·", barWidth-full), p.Done*100)
	}
	fmt.Fprintf(&b, "%d online  %d/s", p.Up, p.Last.Ops)
	if p.Last.Deliveries > 0 {
		fmt.Fprintf(&b, "  %d delivered/s", p.Last.Deliveries)
	}
	if p.Last.P99 > 0 {
		fmt.Fprintf(&b, "  p50 %.2f ms  p99 %.2f ms", p.Last.P50, p.Last.P99)
	}
	if p.Fails > 0 {
		fmt.Fprintf(&b, "  %d failed", p.Fails)
	}
	return b.String()
}

func (l *live) clear() {
	if l.w != nil && l.long > 0 {
		fmt.Fprintf(l.w, "\r%s\r", strings.Repeat(" ", l.long))
	}
}

// The size of plots on a terminal.
const plotWidth, plotHeight = 64, 10

func printBench(w io.Writer, r *bench.Result) {
	fmt.Fprintf(w, "%s: %d operations in %.1f s, %.0f/s", r.Scenario, r.Operations, r.Seconds, r.Achieved)
	if r.Offered > 0 {
		fmt.Fprintf(w, " of %.0f/s offered", r.Offered)
	}
	if r.Deliveries > 0 {
		fmt.Fprintf(w, ", %d deliveries, %.0f/s", r.Deliveries, r.Delivered)
	}
	fmt.Fprintln(w)
	if r.Ended != "" {
		fmt.Fprintf(w, "ended early: %s\n", r.Ended)
	}
	var rows [][]string
	for _, name := range r.LatencyNames() {
		l := r.Latency[name]
		row := []string{name, fmt.Sprint(l.Count)}
		for _, v := range []float64{l.P50, l.P90, l.P99, l.P999, l.Max} {
			row = append(row, fmt.Sprintf("%.2f", v))
		}
		rows = append(rows, row)
	}
	if len(rows) > 0 {
		table(w, "MS COUNT P50 P90 P99 P99.9 MAX", rows)
	}
	if r.MostEvents > 0 {
		fmt.Fprintf(w, "a watcher got at most %d events in a round\n", r.MostEvents)
	}
	if h := r.Handover; h != nil {
		if h.Seconds > 0 {
			fmt.Fprintf(w, "all devices of the node had moved after %.1f s\n", h.Seconds)
		}
		fmt.Fprintf(w, "%d messages stored, %d of them not shown, %d shown twice or out of order\n", h.Messages, h.Lost, h.Repeated)
	}
	if r.StallP50 > 0 {
		fmt.Fprintf(w, "deliveries while one client does not read: p50 %.2f and p95 %.2f times what they are while it does\n", r.StallP50, r.StallP95)
	}
	if r.IdleCores > 0 {
		fmt.Fprintf(w, "while all were idle the server used %.3f of a processor\n", r.IdleCores)
	}
	if r.Beside > 0 {
		fmt.Fprintf(w, "ack p99 of the other conversations: %.2f ms, %.2f ms beside the hot one, %.2f times\n", r.Latency["calm"].P99, r.Latency["beside"].P99, r.Beside)
	}
	printProcesses(w, r)
	for _, reason := range slices.Sorted(maps.Keys(r.Errors)) {
		fmt.Fprintf(w, "errors: %s %d\n", reason, r.Errors[reason])
	}
	for _, plot := range []string{r.OverTime(plotWidth, plotHeight), r.Distribution(plotWidth, plotHeight)} {
		if plot != "" {
			fmt.Fprintf(w, "\n%s", plot)
		}
	}
	if r.Recorded != "" {
		fmt.Fprintf(w, "\nthe history is in %s\n", r.Recorded)
	}
}

func printProcesses(w io.Writer, r *bench.Result) {
	if len(r.Processes) == 0 {
		fmt.Fprintf(w, "client: %.2f s of CPU, %.1f us each; the server's is not known\n", r.ClientCPU, r.ClientEach)
		return
	}
	var rows [][]string
	for _, p := range r.Processes {
		row := []string{p.Name, fmt.Sprintf("%.2f", p.CPU), fmt.Sprintf("%.1f", p.PerOp), fmt.Sprintf("%.1f", float64(p.RSSBefore)/(1<<20)), fmt.Sprintf("%.1f", float64(p.RSSAfter)/(1<<20)), ""}
		if p.BytesPerCon > 0 {
			row[5] = fmt.Sprintf("%.0f", p.BytesPerCon)
		}
		rows = append(rows, row)
	}
	table(w, "SERVER CPU_S US_EACH MIB_BEFORE MIB_AFTER BYTES_EACH", rows)
	fmt.Fprintf(w, "client: %.2f s of CPU, %.1f us each, %.2f of client + server", r.ClientCPU, r.ClientEach, r.Share)
	if r.Share > bench.MaxShare {
		fmt.Fprintf(w, ": above %.2f, the figures say much about the client", bench.MaxShare)
	}
	fmt.Fprintln(w)
}

func newBenchCompare(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "compare A.json B.json",
		Short:   "Put two results side by side",
		Long:    "Compare reads two results that bench wrote with -o json and prints their figures\nwith the ratio B / A, and what else differs between the two runs.",
		Example: "  imd bench compare before.json after.json",
		Args:    cobra.ExactArgs(2),
		RunE: func(_ *cobra.Command, args []string) error {
			var runs [2]bench.Result
			for i, name := range args {
				raw, err := os.ReadFile(name)
				if err != nil {
					return err
				}
				if err := json.Unmarshal(raw, &runs[i]); err != nil || runs[i].Scenario == "" {
					return newFailure(exitFailed, "no_result", name+" holds no result of bench", "write one with imd bench ... -o json")
				}
			}
			c := bench.Compare(&runs[0], &runs[1])
			return a.printer().data(c, func(w io.Writer) { printComparison(w, c) })
		},
	}
}

func printComparison(w io.Writer, c bench.Comparison) {
	var rows [][]string
	for _, r := range c.Rows {
		ratio := ""
		if r.Ratio != 0 {
			ratio = fmt.Sprintf("%.2f", r.Ratio)
		}
		rows = append(rows, []string{strings.ReplaceAll(r.Name, " ", "_"), fmt.Sprintf("%.2f", r.A), fmt.Sprintf("%.2f", r.B), r.Unit, ratio})
	}
	table(w, "FIGURE A B UNIT B/A", rows)
	for _, note := range c.Notes {
		fmt.Fprintf(w, "note: %s\n", note)
	}
}
