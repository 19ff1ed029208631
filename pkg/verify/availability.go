package verify

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Prompt is how soon a send should be acknowledged; Slack is how long after a
// fault it may still be felt.
const (
	Prompt = 2 * time.Second
	Slack  = 5 * time.Second
)

// Availability says how the server answered. Times are milliseconds from a
// send's first invoke to its ACK_OK, or to the end of the run. Outside means:
// not touching a fault's window, which reaches [Slack] behind the fault.
type Availability struct {
	Share       float64 `json:"share"`  // of the judged sends, those acknowledged within Prompt
	Wanted      float64 `json:"wanted"` // the share below which I18 is violated
	Judged      int     `json:"judged"` // sends outside fault windows that were not refused
	Within      int     `json:"within"` // of them, those acknowledged within Prompt
	Excused     int     `json:"excused"`
	P50         float64 `json:"p50_ms"` // of all
	P99         float64 `json:"p99_ms"`
	Longest     float64 `json:"longest_stall_ms"`
	LongestFree float64 `json:"longest_stall_outside_ms"`
	Unknown     int     `json:"unknown"`  // answers that never came on their connection
	GivenUp     int     `json:"given_up"` // sends without a definite answer

	Timeline []Moment     `json:"timeline"`
	Windows  [][2]float64 `json:"fault_windows_s"`

	slow []*send // judged and not in time, the slowest first
}

// Moment is a part of the run.
type Moment struct {
	Second float64 `json:"second"` // from the beginning, seconds
	Sends  int     `json:"sends"`
	Worst  float64 `json:"worst_ms"`
}

// available is I18: outside fault windows, nearly all sends are acknowledged
// promptly.
func (c *check) available() {
	a := c.availability(c.opt)
	c.inv.Checked = a.Judged
	if a.Judged > 0 && a.Share < a.Wanted {
		c.fail(func() []Ref {
			var list []Ref
			for _, s := range a.slow[:min(len(a.slow), 3)] {
				list = append(list, c.refsOf(s)...)
			}
			return list
		}, "%d of %d sends outside fault windows were acknowledged within %v: %.4f, below %.4f", a.Within, a.Judged, Prompt, a.Share, a.Wanted)
	}
}

// availability measures the waits of all sends.
func (x *index) availability(opt Options) Availability {
	a := Availability{Wanted: opt.Share, Timeline: x.moments()}
	windows := x.faultWindows()
	for _, w := range windows {
		a.Windows = append(a.Windows, [2]float64{seconds(w[0]), seconds(min(w[1], x.Run.Ended))})
	}
	var waits []int64
	sends := x.sends()
	for i := range sends {
		s := &sends[i]
		last := x.last(s)
		if last == nil {
			a.GivenUp++
		}
		if s.invoked == never || s.acked == never && last != nil { // refused
			continue
		}
		wait := max(min(s.acked, x.Run.Ended)-s.invoked, 0)
		waits = append(waits, wait)
		x.note(&a, s, wait)
		if touches(windows, s.invoked, s.invoked+min(wait, int64(Prompt))) {
			a.Excused++
			continue
		}
		a.Judged++
		a.LongestFree = max(a.LongestFree, millis(wait))
		if s.acked != never && wait <= int64(Prompt) {
			a.Within++
		} else {
			a.slow = append(a.slow, s)
		}
	}
	for i := range x.ops {
		if x.ops[i].ack == ackUnknown {
			a.Unknown++
		}
	}
	if a.Judged > 0 {
		a.Share = float64(a.Within) / float64(a.Judged)
	}
	slices.SortFunc(a.slow, func(s, t *send) int { return cmp.Compare(x.wait(t), x.wait(s)) })
	slices.Sort(waits)
	a.P50, a.P99, a.Longest = quantile(waits, 0.5), quantile(waits, 0.99), quantile(waits, 1)
	return a
}

func (x *index) wait(s *send) int64 { return min(s.acked, x.Run.Ended) - s.invoked }

// quantile reads sorted waits, in milliseconds.
func quantile(sorted []int64, q float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	return millis(sorted[min(int(q*float64(len(sorted))), len(sorted)-1)])
}

// millis turns nanoseconds into milliseconds, to the microsecond.
func millis(ns int64) float64 { return float64(ns/1e3) / 1e3 }

// maxMoments is how many parts the timeline has at most.
const maxMoments = 120

// moments cuts the run into equal parts of whole seconds.
func (x *index) moments() []Moment {
	step := x.step()
	all := make([]Moment, x.Run.Ended/step+1)
	for i := range all {
		all[i].Second = seconds(int64(i) * step)
	}
	return all
}

func (x *index) step() int64 {
	const second = int64(time.Second)
	return (x.Run.Ended/maxMoments/second + 1) * second
}

// note adds a send to the timeline.
func (x *index) note(a *Availability, s *send, wait int64) {
	m := &a.Timeline[min(max(s.invoked, 0)/x.step(), int64(len(a.Timeline)-1))]
	m.Sends++
	m.Worst = max(m.Worst, millis(wait))
}

// faultWindows gives the times under faults that clients may feel, Slack included, in order and
// without overlaps. A fault that was never stopped lasts to the end.
func (x *index) faultWindows() [][2]int64 {
	order := numbers(len(x.faults))
	slices.SortFunc(order, func(i, j uint32) int { return cmp.Or(cmp.Compare(x.faults[i].t, x.faults[j].t), cmp.Compare(i, j)) })
	running := map[name][]int64{}
	var all [][2]int64
	for _, i := range order {
		f := &x.faults[i]
		if f.aside {
			continue
		}
		begun := running[f.name]
		switch {
		case !f.stop:
			running[f.name] = append(begun, f.t)
		case len(begun) > 0:
			all = append(all, [2]int64{begun[0], f.t + int64(Slack)})
			running[f.name] = begun[1:]
		}
	}
	for _, begun := range running {
		for _, t := range begun {
			all = append(all, [2]int64{t, never})
		}
	}
	return merge(all)
}

// merge joins windows that overlap.
func merge(all [][2]int64) [][2]int64 {
	slices.SortFunc(all, func(a, b [2]int64) int { return cmp.Compare(a[0], b[0]) })
	var out [][2]int64
	for _, w := range all {
		if n := len(out); n > 0 && w[0] <= out[n-1][1] {
			out[n-1][1] = max(out[n-1][1], w[1])
			continue
		}
		out = append(out, w)
	}
	return out
}

// touches reports whether [from, to] overlaps a window.
func touches(windows [][2]int64, from, to int64) bool {
	i, _ := slices.BinarySearchFunc(windows, from, func(w [2]int64, t int64) int { return cmp.Compare(w[1], t) })
	return i < len(windows) && windows[i][0] <= to
}

// ms is a number of milliseconds for people.
func ms(v float64) string {
	if v >= 1000 {
		return fmt.Sprintf("%.2f s", v/1000)
	}
	return fmt.Sprintf("%.1f ms", v)
}
