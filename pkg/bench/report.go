package bench

import (
	"fmt"
	"html/template"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
)

// HTML writes a run as one HTML file that needs nothing else: tables and
// plots, for light and dark screens, without scripts.
func (r *Result) HTML(w io.Writer) error {
	p50, p99 := r.lines()
	data := struct {
		*Result
		Names      []string
		Facts      [][2]string
		Reasons    []string
		Time, Dist template.HTML
		Rate       template.HTML
		MaxShare   float64
	}{Result: r, Names: r.LatencyNames(), Facts: r.facts(), Reasons: slices.Sorted(maps.Keys(r.Errors)), MaxShare: MaxShare}
	if len(r.Series) > 1 {
		n := float64(r.Series[len(r.Series)-1].Second)
		x := axis{ticks: seconds(n), place: func(v float64) float64 { return v / max(n, 1) }, name: "seconds"}
		data.Time = chart("Latency of "+r.Primary+" over time, ms", x, seconds2x(r), Line{Name: "p99", Y: p99}, Line{Name: "p50", Y: p50})
		var ops, del []float64
		for _, s := range r.Series {
			ops, del = append(ops, float64(s.Ops)), append(del, float64(s.Deliveries))
		}
		lines := []Line{{Name: "operations", Y: ops}}
		if r.Deliveries > 0 {
			lines = append(lines, Line{Name: "deliveries", Y: del})
		}
		data.Rate = chart("Operations a second", x, seconds2x(r), lines...)
	}
	data.Dist = r.distributionChart()
	return page.Execute(w, data)
}

// facts are what identifies a run.
func (r *Result) facts() [][2]string {
	f := [][2]string{
		{"began", r.Began}, {"server", r.Server}, {"client", r.Client}, {"encoding", r.Encoding}, {"seed", fmt.Sprint(r.Seed)},
		{"machine", fmt.Sprintf("%d × %s, %.1f GiB, Linux %s, %s", r.Machine.CPUs, r.Machine.Model, float64(r.Machine.Memory)/(1<<30), r.Machine.Kernel, r.Machine.Go)},
	}
	for _, name := range slices.Sorted(maps.Keys(r.Options)) {
		f = append(f, [2]string{name, fmt.Sprint(r.Options[name])})
	}
	return slices.DeleteFunc(f, func(f [2]string) bool { return f[1] == "" })
}

func (r *Result) distributionChart() template.HTML {
	var lines []Line
	for _, name := range r.LatencyNames() {
		lines = append(lines, Line{Name: name, Y: r.Latency[name].spread(200)})
	}
	if len(lines) == 0 {
		return ""
	}
	x := axis{place: func(v float64) float64 { return rarity(v) / rarity(99.99) }, name: "percentile"}
	for _, q := range []float64{0, 50, 90, 99, 99.9, 99.99} {
		x.ticks = append(x.ticks, tick{q, fmt.Sprintf("%g%%", q)})
	}
	xs := make([]float64, 200)
	for i := range xs {
		xs[i] = float64(i) / 199
	}
	return chart("Latency by percentile, ms", x, xs, lines...)
}

// axis is a horizontal axis.
type axis struct {
	ticks []tick
	place func(v float64) float64 // 0 to 1
	name  string
}

type tick struct {
	v    float64
	text string
}

// seconds are round ticks from 0 to n.
func seconds(n float64) (ticks []tick) {
	step := 1.0
	for i := 0; n/step > 10; i++ {
		step *= []float64{2, 2.5, 2}[i%3]
	}
	for v := 0.0; v <= n; v += step {
		ticks = append(ticks, tick{v, fmt.Sprintf("%g", v)})
	}
	return ticks
}

// seconds2x places each sample of a run.
func seconds2x(r *Result) (xs []float64) {
	n := float64(max(r.Series[len(r.Series)-1].Second, 1))
	for _, s := range r.Series {
		xs = append(xs, float64(s.Second)/n)
	}
	return xs
}

// The size of a chart in its own units, and the room around its plot.
const (
	chartW, chartH = 760.0, 260.0
	padL, padR     = 64.0, 24.0
	padT, padB     = 34.0, 36.0
)

// chart draws lines as SVG; xs places their points, from 0 to 1.
func chart(title string, x axis, xs []float64, lines ...Line) template.HTML {
	lo, hi := bounds(lines)
	if math.IsInf(lo, 1) {
		return ""
	}
	s := newScale(lo, hi)
	px := func(v float64) float64 { return padL + v*(chartW-padL-padR) }
	py := func(v float64) float64 { return chartH - padB - s.place(v)*(chartH-padT-padB) }
	var b strings.Builder
	title = template.HTMLEscapeString(title)
	fmt.Fprintf(&b, `<svg viewBox="0 0 %g %g" role="img" aria-label="%s"><text class="title" x="%g" y="16">%s</text>`, chartW, chartH, title, padL, title)
	for i := range 5 {
		v := s.value(float64(i) / 4)
		fmt.Fprintf(&b, `<path class="grid" d="M%g %.1fH%g"/><text class="y" x="%g" y="%.1f">%s</text>`, padL, py(v), chartW-padR, padL-8, py(v)+4, short(v))
	}
	for _, t := range x.ticks {
		fmt.Fprintf(&b, `<text class="x" x="%.1f" y="%g">%s</text>`, px(x.place(t.v)), chartH-padB+16, t.text)
	}
	fmt.Fprintf(&b, `<text class="x" x="%g" y="%g">%s</text>`, px(0.5), chartH-4, x.name)
	for i, l := range lines {
		class := i%6 + 1
		keyX := chartW - padR - 66*float64(len(lines)-1-i)
		fmt.Fprintf(&b, `<path class="l%d" d="%s"/><text class="key k%d" x="%.1f" y="16">%s</text>`, class, path(xs, l.Y, px, py), class, keyX, template.HTMLEscapeString(l.Name))
	}
	b.WriteString("</svg>")
	return template.HTML(b.String())
}

// path is a line through the points; it is broken where a value is missing.
func path(xs, ys []float64, px, py func(float64) float64) string {
	var b strings.Builder
	op := 'M'
	for i, y := range ys {
		if math.IsNaN(y) {
			op = 'M'
			continue
		}
		fmt.Fprintf(&b, "%c%.1f %.1f", op, px(xs[i]), py(y))
		op = 'L'
	}
	return b.String()
}

var page = template.Must(template.New("report").Funcs(template.FuncMap{
	"ms":    func(v float64) string { return fmt.Sprintf("%.2f", v) },
	"int":   func(v float64) string { return fmt.Sprintf("%.0f", v) },
	"mib":   func(v int64) string { return fmt.Sprintf("%.1f", float64(v)/(1<<20)) },
	"share": func(v float64) string { return fmt.Sprintf("%.2f", v) },
}).Parse(`<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>imd bench {{.Scenario}}</title><style>
:root{color-scheme:light dark;--bg:#fff;--fg:#1b1f24;--dim:#667;--grid:#dde1e6;--c1:#0b6bcb;--c2:#d1571c;--c3:#1a7f4b;--c4:#8a3ffc;--c5:#b8860b;--c6:#c2185b}
@media(prefers-color-scheme:dark){:root{--bg:#14171b;--fg:#e6e8eb;--dim:#9aa4b0;--grid:#2c323a;--c1:#63a9ff;--c2:#ff9a5c;--c3:#5bd18f;--c4:#bb9aff;--c5:#e6c04d;--c6:#ff7aa8}}
body{background:var(--bg);color:var(--fg);font:15px/1.5 system-ui,sans-serif;max-width:820px;margin:2rem auto;padding:0 1rem}
h1{font-size:1.4rem;margin:0}h2{font-size:1.05rem;margin:1.6rem 0 .4rem}.big{font-size:1.15rem;margin:.3rem 0 1rem}.warn{color:var(--c2)}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}th,td{text-align:right;padding:.2rem .5rem;border-bottom:1px solid var(--grid)}
th{color:var(--dim);font-weight:500}th:first-child,td:first-child{text-align:left}.facts td{text-align:left}
svg{width:100%;height:auto;margin:.8rem 0}svg text{fill:var(--dim);font-size:11px}svg .title{fill:var(--fg);font-size:13px}svg .y{text-anchor:end}svg .x{text-anchor:middle}svg .key{text-anchor:end;font-size:12px}
path{fill:none;stroke-width:1.8}path.grid{stroke:var(--grid);stroke-width:1}
.l1{stroke:var(--c1)}.l2{stroke:var(--c2)}.l3{stroke:var(--c3)}.l4{stroke:var(--c4)}.l5{stroke:var(--c5)}.l6{stroke:var(--c6)}
svg .k1{fill:var(--c1)}svg .k2{fill:var(--c2)}svg .k3{fill:var(--c3)}svg .k4{fill:var(--c4)}svg .k5{fill:var(--c5)}svg .k6{fill:var(--c6)}
</style></head><body>
<h1>imd bench {{.Scenario}}</h1>
<p class="big">{{.Operations}} operations in {{printf "%.1f" .Seconds}} s: {{int .Achieved}}/s{{if .Offered}} of {{int .Offered}}/s offered{{end}}{{if .Deliveries}}, {{int .Delivered}} deliveries/s{{end}}</p>
{{with .Ended}}<p class="warn">Ended early: {{.}}</p>{{end}}
{{if gt .Share .MaxShare}}<p class="warn">The client took {{share .Share}} of the processor time of client and server: the figures say much about the client.</p>{{end}}
{{.Time}}{{.Rate}}{{.Dist}}
<h2>Latency, ms</h2><table><tr><th>of</th><th>count</th><th>mean</th><th>p50</th><th>p90</th><th>p99</th><th>p99.9</th><th>max</th></tr>
{{range .Names}}{{$l := index $.Latency .}}<tr><td>{{.}}</td><td>{{$l.Count}}</td><td>{{ms $l.Mean}}</td><td>{{ms $l.P50}}</td><td>{{ms $l.P90}}</td><td>{{ms $l.P99}}</td><td>{{ms $l.P999}}</td><td>{{ms $l.Max}}</td></tr>{{end}}</table>
{{if .Processes}}<h2>Processor and memory</h2><table><tr><th>process</th><th>CPU s</th><th>CPU each, µs</th><th>MiB before</th><th>MiB after</th></tr>
{{range .Processes}}<tr><td>{{.Name}}</td><td>{{ms .CPU}}</td><td>{{ms .PerOp}}</td><td>{{mib .RSSBefore}}</td><td>{{mib .RSSAfter}}</td></tr>{{end}}
<tr><td>client, {{share .Share}} of all</td><td>{{ms .ClientCPU}}</td><td>{{ms .ClientEach}}</td><td></td><td></td></tr></table>{{end}}
{{if .Reasons}}<h2>Errors</h2><table>{{range .Reasons}}<tr><td>{{.}}</td><td>{{index $.Errors .}}</td></tr>{{end}}</table>{{end}}
<h2>Run</h2><table class="facts">{{range .Facts}}<tr><td>{{index . 0}}</td><td>{{index . 1}}</td></tr>{{end}}
<tr><td>rate limits</td><td>{{if .LimitsOff}}lifted{{else}}in force{{end}}</td></tr></table>
</body></html>
`))
