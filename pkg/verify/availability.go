package verify

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
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

	Classes  []Class      `json:"classes,omitempty"`
	Timeline []Moment     `json:"timeline"`
	Windows  [][2]float64 `json:"fault_windows_s"`

	slow []*send // judged and not in time, the slowest first
}

// Class says how the server answered under one class of faults: sends under its faults,
// or within a second behind them, and under no others that clients may feel. What clients
// must not feel is judged, so there a window of others reaches [Slack] behind them.
type Class struct {
	Name    string  `json:"class"`
	Aside   bool    `json:"aside"` // clients must not feel it: its sends are judged
	Faults  int     `json:"faults"`
	Sends   int     `json:"sends"`  // that were not refused
	Within  int     `json:"within"` // of them, those acknowledged within Prompt
	P99     float64 `json:"p99_ms"`
	Longest float64 `json:"longest_stall_ms"`

	waits []int64
	slow  []*send
}

// Title is the class and whether it is judged.
func (c *Class) Title() string {
	if c.Aside {
		return c.Name + " (must not be felt)"
	}
	return c.Name
}

// Part is the share of prompt answers, for people.
func (c *Class) Part() string {
	if c.Sends == 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f %%", 100*float64(c.Within)/float64(c.Sends))
}

// judged is from how many sends on a class is judged by itself.
const judged = 40

// bad reports whether clients feel what they must not.
func (c *Class) bad(wanted float64) bool {
	return c.Aside && c.Sends >= judged && float64(c.Within) < wanted*float64(c.Sends)
}

// Moment is a part of the run.
type Moment struct {
	Second float64 `json:"second"` // from the beginning, seconds
	Sends  int     `json:"sends"`
	Worst  float64 `json:"worst_ms"`
}

// available is I18: outside fault windows, nearly all sends are acknowledged
// promptly, and so are those under each class of faults that clients must not feel.
func (c *check) available() {
	a := c.availability(c.opt)
	c.inv.Checked = a.Judged
	if a.Judged > 0 && a.Share < a.Wanted {
		c.fail(func() []Ref { return c.slowest(a.slow) }, "%d of %d sends outside fault windows were acknowledged within %v: %.4f, below %.4f", a.Within, a.Judged, Prompt, a.Share, a.Wanted)
	}
	for i := range a.Classes {
		if k := &a.Classes[i]; k.bad(a.Wanted) {
			c.fail(func() []Ref { return c.slowest(k.slow) }, "%d of %d sends under %s, which clients must not feel, were acknowledged within %v; wanted are %.4f of them",
				k.Within, k.Sends, k.Name, Prompt, a.Wanted)
		}
	}
}

// slowest gives the records of the first few sends.
func (x *index) slowest(list []*send) (all []Ref) {
	for _, s := range list[:min(len(list), 3)] {
		all = append(all, x.refsOf(s)...)
	}
	return all
}

// availability measures the waits of all sends.
func (x *index) availability(opt Options) Availability {
	a := Availability{Wanted: opt.Share, Timeline: x.moments()}
	windows := x.faultWindows()
	for _, w := range windows {
		a.Windows = append(a.Windows, [2]float64{seconds(w[0]), seconds(min(w[1], x.Run.Ended))})
	}
	var waits []int64
	classes := x.classes()
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
		for _, k := range classes {
			k.take(s, wait)
		}
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
	a.Classes = x.finished(classes)
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

// faultSpan is one fault from its start to its stop; never = it was not stopped.
type faultSpan struct {
	class    string
	from, to int64
	aside    bool
}

// faultSpans gives the faults in order of their starts.
func (x *index) faultSpans() (all []faultSpan) {
	order := numbers(len(x.faults))
	slices.SortFunc(order, func(i, j uint32) int { return cmp.Or(cmp.Compare(x.faults[i].t, x.faults[j].t), cmp.Compare(i, j)) })
	running := map[name][]int{}
	for _, i := range order {
		f := &x.faults[i]
		begun := running[f.name]
		switch {
		case !f.stop:
			running[f.name] = append(begun, len(all))
			all = append(all, faultSpan{classOf(x.names.text(f.name)), f.t, never, f.aside})
		case len(begun) > 0:
			all[begun[0]].to = f.t
			running[f.name] = begun[1:]
		}
	}
	return all
}

// classOf is a fault's name without the number in front that tells it from others.
func classOf(name string) string {
	number, class, ok := strings.Cut(name, " ")
	if _, err := strconv.Atoi(number); ok && err == nil {
		return class
	}
	return name
}

// until is the fault and some time behind it.
func (f *faultSpan) until(more time.Duration) [2]int64 {
	if f.to == never {
		return [2]int64{f.from, never}
	}
	return [2]int64{f.from, f.to + int64(more)}
}

// faultWindows gives the times under faults that clients may feel, Slack included, in order and
// without overlaps. A fault that was never stopped lasts to the end.
func (x *index) faultWindows() [][2]int64 {
	return x.windowsOf(Slack, func(f *faultSpan) bool { return !f.aside })
}

// windowsOf gives the times under some faults and some time behind each, in order and
// without overlaps.
func (x *index) windowsOf(more time.Duration, keep func(*faultSpan) bool) (all [][2]int64) {
	for _, f := range x.faultSpans() {
		if keep(&f) {
			all = append(all, f.until(more))
		}
	}
	return merge(all)
}

// under is a class with its windows and those of others that clients may feel.
type under struct {
	Class
	own, others [][2]int64
}

// classes are the classes of faults, those that clients must not feel first.
func (x *index) classes() (all []*under) {
	at := map[string]*under{}
	for _, f := range x.faultSpans() {
		k := at[f.class]
		if k == nil {
			k = &under{Class: Class{Name: f.class, Aside: f.aside}}
			behind := time.Second
			if f.aside {
				behind = Slack
			}
			k.own = x.windowsOf(time.Second, func(g *faultSpan) bool { return g.class == f.class })
			k.others = x.windowsOf(behind, func(g *faultSpan) bool { return !g.aside && g.class != f.class })
			at[f.class], all = k, append(all, k)
		}
		k.Faults++
	}
	slices.SortFunc(all, func(a, b *under) int {
		if a.Aside != b.Aside {
			return map[bool]int{true: -1, false: 1}[a.Aside]
		}
		return cmp.Compare(a.Name, b.Name)
	})
	return all
}

// take counts a send if it was made under the class.
func (k *under) take(s *send, wait int64) {
	end := s.invoked + min(wait, int64(Prompt))
	if !touches(k.own, s.invoked, end) || touches(k.others, s.invoked, end) {
		return
	}
	k.Sends++
	k.waits = append(k.waits, wait)
	if s.acked != never && wait <= int64(Prompt) {
		k.Within++
	} else {
		k.slow = append(k.slow, s)
	}
}

// finished are the classes when all sends were taken.
func (x *index) finished(all []*under) (out []Class) {
	for _, k := range all {
		slices.Sort(k.waits)
		k.P99, k.Longest = quantile(k.waits, 0.99), quantile(k.waits, 1)
		slices.SortFunc(k.slow, func(s, t *send) int { return cmp.Compare(x.wait(t), x.wait(s)) })
		out = append(out, k.Class)
	}
	return out
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
