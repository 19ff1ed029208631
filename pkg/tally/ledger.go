package tally

import (
	"cmp"
	"maps"
	"slices"
	"time"

	v1 "github.com/imdhq/imd/proto/gen/internalv1"
)

// Answer is what one node told in a round, or why it told nothing.
type Answer struct {
	Node    string
	Gateway bool              // it has one
	Told    *v1.TallyResponse // nil = it is silent
	Silent  string            // why
}

// Round is what a leader learnt at one time.
type Round struct {
	At      time.Time
	Answers []Answer
	Users   int64 // shown as online; below 0 = not known
}

// Ledger is what a leader knows of the minutes. It has no clock, and is not safe
// for concurrent use.
type Ledger struct {
	totals    map[int64]*v1.TallyTotal     // of leaders before, and what was seen of who is connected
	processes map[string]map[int64]tallied // by boot id: what a process said of its minutes
}

type tallied struct{ stored, delivered int64 }

// NewLedger makes a Ledger that knows nothing.
func NewLedger() *Ledger {
	return &Ledger{totals: map[int64]*v1.TallyTotal{}, processes: map[string]map[int64]tallied{}}
}

// Step takes a round in and tells what is known then. Of a minute that a leader
// before counted too, the higher count holds: the one who asked later knew of
// more, but not of processes that had ended.
func (l *Ledger) Step(r Round) *v1.Tally {
	var before *v1.Tally
	for _, a := range r.Answers {
		if kept := a.Told.GetCluster(); older(before, kept) {
			before = kept
		}
	}
	l.inherit(before)
	present := minuteOf(r.At)
	out := &v1.Tally{AtMs: r.At.UnixMilli()}
	now := l.total(present)
	now.Counted, now.Sessions, now.Users = true, map[string]int64{}, nil
	if r.Users >= 0 {
		now.Users = &r.Users
	}
	for _, a := range r.Answers {
		n := &v1.TallyNode{NodeId: a.Node, Gateway: a.Gateway, Silent: a.Silent}
		out.Nodes = append(out.Nodes, n)
		if a.Told == nil {
			continue
		}
		n.Gateway, n.Sessions, n.Users = a.Told.Gateway, a.Told.Sessions, a.Told.Users
		for class, c := range a.Told.Sessions {
			now.Sessions[class] += c
		}
		l.take(a.Told)
	}
	slices.SortFunc(out.Nodes, func(x, y *v1.TallyNode) int { return cmp.Compare(x.NodeId, y.NodeId) })
	l.forget(present)
	out.Minutes = l.minutes(present)
	return out
}

// inherit takes over what a leader before knew.
func (l *Ledger) inherit(t *v1.Tally) {
	for _, m := range t.GetMinutes() {
		have := l.total(m.Minute)
		have.Stored, have.Delivered = max(have.Stored, m.Stored), max(have.Delivered, m.Delivered)
		if !have.Counted {
			have.Counted, have.Sessions, have.Users = m.Counted, maps.Clone(m.Sessions), m.Users
		}
	}
}

// take takes in what a process said. Its counts never fall, so the newest is
// right.
func (l *Ledger) take(told *v1.TallyResponse) {
	p := l.processes[told.BootId]
	if p == nil {
		p = map[int64]tallied{}
		l.processes[told.BootId] = p
	}
	for _, m := range told.Minutes {
		p[m.Minute] = tallied{m.Stored, m.Delivered}
		l.total(m.Minute)
	}
}

func (l *Ledger) total(minute int64) *v1.TallyTotal {
	t := l.totals[minute]
	if t == nil {
		t = &v1.TallyTotal{Minute: minute}
		l.totals[minute] = t
	}
	return t
}

// forget drops what is too old, or of a clock that is ahead.
func (l *Ledger) forget(present int64) {
	gone := func(m int64) bool { return m < present-Minutes || m > present }
	maps.DeleteFunc(l.totals, func(m int64, _ *v1.TallyTotal) bool { return gone(m) })
	maps.DeleteFunc(l.processes, func(_ string, p map[int64]tallied) bool {
		maps.DeleteFunc(p, func(m int64, _ tallied) bool { return gone(m) })
		return len(p) == 0
	})
}

// minutes are all minutes from the first that anything is known of.
func (l *Ledger) minutes(present int64) []*v1.TallyTotal {
	first := present
	for m := range l.totals {
		first = min(first, m)
	}
	var out []*v1.TallyTotal
	for m := first; m <= present; m++ {
		t := &v1.TallyTotal{Minute: m}
		if had := l.totals[m]; had != nil {
			t.Stored, t.Delivered, t.Counted, t.Sessions, t.Users = had.Stored, had.Delivered, had.Counted, maps.Clone(had.Sessions), had.Users
		}
		var seen tallied
		for _, p := range l.processes {
			seen.stored += p[m].stored
			seen.delivered += p[m].delivered
		}
		t.Stored, t.Delivered = max(t.Stored, seen.stored), max(t.Delivered, seen.delivered)
		out = append(out, t)
	}
	return out
}
