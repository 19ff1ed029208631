package verify

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"math"
)

//go:embed report.html
var reportHTML string

var page = template.Must(template.New("report").Parse(reportHTML))

// HTML writes the report as one file that needs no other.
func (r *Report) HTML(w io.Writer) error {
	return page.Execute(w, htmlReport{r, r.plot()})
}

// htmlReport is what the template sees.
type htmlReport struct {
	*Report
	Plot plot
}

// Percent is a share for people.
func (htmlReport) Percent(v float64) string { return fmt.Sprintf("%.2f %%", 100*v) }

// MS is a number of milliseconds for people.
func (htmlReport) MS(v float64) string { return ms(v) }

// State is the last column of the invariants' table.
func (htmlReport) State(inv Invariant) string { return inv.state() }

// Size of the plot, in the units of its view box.
const (
	plotWidth  = 960.0
	plotHeight = 120.0
)

// plot is the longest wait of each part of the run, on a logarithmic scale from
// 1 ms, over the faults.
type plot struct {
	Bars    []bar
	Faults  []bar
	Top     float64 // ms
	Seconds float64
}

type bar struct {
	X, Y, W, H float64
	Title      string
}

func (r *Report) plot() plot {
	a := &r.Availability
	p := plot{Top: 10, Seconds: r.Run.Seconds}
	for _, m := range a.Timeline {
		p.Top = max(p.Top, m.Worst)
	}
	total := max(r.Run.Seconds, 1)
	x := func(second float64) float64 { return math.Round(1000*plotWidth*min(second/total, 1)) / 1000 }
	for i, m := range a.Timeline {
		end := total
		if i+1 < len(a.Timeline) {
			end = a.Timeline[i+1].Second
		}
		h := 0.0
		if m.Sends > 0 {
			h = max(1, plotHeight*math.Log10(max(m.Worst, 1))/math.Log10(p.Top))
		}
		p.Bars = append(p.Bars, bar{x(m.Second), plotHeight - h, max(x(end)-x(m.Second)-0.5, 0.5), h,
			fmt.Sprintf("from %.0f s: %d sends, longest wait %s", m.Second, m.Sends, ms(m.Worst))})
	}
	for _, w := range a.Windows {
		p.Faults = append(p.Faults, bar{x(w[0]), 0, max(x(w[1])-x(w[0]), 1), plotHeight, fmt.Sprintf("faults, %.1f s to %.1f s", w[0], w[1])})
	}
	return p
}
