package bench

import (
	"fmt"
	"math"
	"strings"
)

// Line is one line of a plot. A NaN is left out.
type Line struct {
	Name string
	Mark rune
	Y    []float64
}

// Plot draws lines into a text of the given width and height, without axes'
// margins. The values of a line are spread over the whole width; above is what
// the y axis measures, below the text under the x axis. Values span a wide
// range, so the y axis is logarithmic if the largest is more than 20 times the
// smallest.
func Plot(above, below string, width, height int, lines ...Line) string {
	lo, hi := bounds(lines)
	if math.IsInf(lo, 1) {
		return ""
	}
	scale := newScale(lo, hi)
	grid := make([][]rune, height)
	for y := range grid {
		grid[y] = []rune(strings.Repeat(" ", width))
	}
	for _, l := range lines {
		for x := range width {
			if v := l.at(x, width); !math.IsNaN(v) {
				y := height - 1 - int(math.Round(scale.place(v)*float64(height-1)))
				grid[y][x] = l.Mark
			}
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%10s", above)
	for _, l := range lines {
		fmt.Fprintf(&b, "   %c %s", l.Mark, l.Name)
	}
	b.WriteByte('\n')
	for y, row := range grid {
		label := ""
		if y%3 == 0 || y == height-1 {
			label = short(scale.value(float64(height-1-y) / float64(height-1)))
		}
		fmt.Fprintf(&b, "%10s ┤%s\n", label, strings.TrimRight(string(row), " "))
	}
	fmt.Fprintf(&b, "%10s └%s\n%11s %s\n", "", strings.Repeat("─", width), "", below)
	return b.String()
}

// at is the value at column x: the largest of those that fall into it, so that
// a peak is not lost.
func (l *Line) at(x, width int) float64 {
	n := len(l.Y)
	if n == 0 {
		return math.NaN()
	}
	if n <= width {
		return l.Y[x*n/width]
	}
	best := math.NaN()
	for _, v := range l.Y[x*n/width : max((x+1)*n/width, x*n/width+1)] {
		if !math.IsNaN(v) && !(v <= best) {
			best = v
		}
	}
	return best
}

func bounds(lines []Line) (lo, hi float64) {
	lo, hi = math.Inf(1), math.Inf(-1)
	for _, l := range lines {
		for _, v := range l.Y {
			if !math.IsNaN(v) {
				lo, hi = min(lo, v), max(hi, v)
			}
		}
	}
	return lo, hi
}

// scale maps values onto 0 to 1.
type scale struct {
	lo, hi float64
	log    bool
}

func newScale(lo, hi float64) scale {
	s := scale{lo: 0, hi: hi}
	if lo > 0 && hi > 20*lo {
		s = scale{lo: math.Log10(lo), hi: math.Log10(hi), log: true}
	}
	if s.hi <= s.lo {
		s.hi = s.lo + 1
	}
	return s
}

func (s scale) place(v float64) float64 {
	if s.log {
		v = math.Log10(v)
	}
	return min(max((v-s.lo)/(s.hi-s.lo), 0), 1)
}

func (s scale) value(at float64) float64 {
	v := s.lo + at*(s.hi-s.lo)
	if s.log {
		v = math.Pow(10, v)
	}
	return v
}

// short is a number with as many digits as matter.
func short(v float64) string {
	switch {
	case v >= 1000:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

// OverTime is the latency plot of a run, second by second; "" if it is too
// short for one.
func (r *Result) OverTime(width, height int) string {
	if len(r.Series) < 3 {
		return ""
	}
	p50, p99 := r.lines()
	return Plot("ms", fmt.Sprintf("%s over %d seconds", r.Primary, r.Series[len(r.Series)-1].Second), width, height,
		Line{"p99", '+', p99}, Line{"p50", '•', p50})
}

// lines are the median and the 99th percentile of each second; NaN where
// nothing ended.
func (r *Result) lines() (p50, p99 []float64) {
	for _, s := range r.Series {
		if s.P99 == 0 {
			s.P50, s.P99 = math.NaN(), math.NaN()
		}
		p50, p99 = append(p50, s.P50), append(p99, s.P99)
	}
	return p50, p99
}

// Distribution is the percentile plot of a run: each step to the right is
// rarer by the same factor; "" if nothing was measured.
func (r *Result) Distribution(width, height int) string {
	var lines []Line
	marks := []rune("•+×o#%")
	for i, name := range r.LatencyNames() {
		if i == len(marks) {
			break
		}
		lines = append(lines, Line{name, marks[i], r.Latency[name].spread(width)})
	}
	if len(lines) == 0 {
		return ""
	}
	axis := []rune(strings.Repeat(" ", width+8))
	for _, q := range []float64{0, 90, 99, 99.9} {
		copy(axis[int(rarity(q)/rarity(99.99)*float64(width-1)):], []rune(fmt.Sprintf("%g%%", q)))
	}
	return Plot("ms", strings.TrimRight(string(axis), " ")+" 99.99%", width, height, lines...)
}

// rarity is how rare it is to be above a percentile: 1 for one in ten, 2 for
// one in a hundred.
func rarity(q float64) float64 { return -math.Log10(1 - min(q, 99.99)/100) }

// spread gives the latency at each of n steps from all of it to 99.99 %.
func (l Latency) spread(n int) []float64 {
	var ys []float64
	for i := range n {
		want := float64(i) / float64(max(n-1, 1)) * rarity(99.99)
		at := 0
		for at+1 < len(l.Percentiles) && rarity(l.Percentiles[at+1].Q) <= want {
			at++
		}
		y := math.NaN()
		if len(l.Percentiles) > 0 {
			y = l.Percentiles[at].Ms
		}
		if at+1 < len(l.Percentiles) {
			a, b := l.Percentiles[at], l.Percentiles[at+1]
			if d := rarity(b.Q) - rarity(a.Q); d > 0 {
				y += (b.Ms - a.Ms) * (want - rarity(a.Q)) / d
			}
		}
		ys = append(ys, y)
	}
	return ys
}
