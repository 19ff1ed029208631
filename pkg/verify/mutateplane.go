package verify

import (
	"fmt"
	"iter"
	"slices"

	"github.com/imdhq/imd/pkg/history"
)

// acting gives the places of the records of one kind in History.acts that were
// answered with ok, or need no answer.
func (m *mutant) acting(kind history.Kind) iter.Seq[int] {
	return func(yield func(int) bool) {
		for i := range m.acts {
			a := &m.acts[i]
			if a.kind == kind && (a.ack == ackOK || a.ack == ackNone) && !yield(i) {
				return
			}
		}
	}
}

// changeAct changes one record of a kind.
func changeAct(kind history.Kind, change func(*act)) func(*mutant) string {
	return func(m *mutant) string {
		i, ok := choose(m.rng, m.acting(kind))
		if !ok {
			return ""
		}
		a := &own(&m.acts)[i]
		change(a)
		return fmt.Sprintf("%s %d of %s", a.kind, a.n, m.names.text(a.user))
	}
}

// addAct adds a changed copy of one record of a kind at the end of the run.
func addAct(kind history.Kind, change func(*act)) func(*mutant) string {
	return func(m *mutant) string {
		i, ok := choose(m.rng, m.acting(kind))
		if !ok {
			return ""
		}
		a := m.acts[i]
		a.at, a.t = at{}, m.Run.Ended
		change(&a)
		m.acts = append(slices.Clip(m.acts), a)
		return fmt.Sprintf("%s %d of %s", a.kind, a.n, m.names.text(a.user))
	}
}

// deposed lets an effect take place after a newer token was given.
func (m *mutant) deposed() string {
	newest := int64(0)
	for i := range m.acting(history.Claim) {
		newest = max(newest, m.acts[i].n)
	}
	i, ok := choose(m.rng, func(yield func(int) bool) {
		for i := range m.acting(history.Effect) {
			if m.acts[i].n < newest && !yield(i) {
				return
			}
		}
	})
	if !ok {
		return ""
	}
	a := m.acts[i]
	a.at, a.t = at{}, m.Run.Ended
	m.acts = append(slices.Clip(m.acts), a)
	return fmt.Sprintf("effect %d of %s", a.n, m.names.text(a.user))
}

// takenAfterAll turns a refusal of an effect of a deposed leader into a success.
func (m *mutant) takenAfterAll() string {
	i, ok := choose(m.rng, func(yield func(int) bool) {
		newest := int64(0)
		for i := range m.acts {
			a := &m.acts[i]
			if a.kind == history.Claim && a.ack == ackOK {
				newest = max(newest, a.n)
			}
			if a.kind == history.Effect && a.ack == ackFail && a.n < newest && !yield(i) {
				return
			}
		}
	})
	if !ok {
		return ""
	}
	a := &own(&m.acts)[i]
	a.ack = ackOK
	return fmt.Sprintf("effect %d of %s", a.n, m.names.text(a.user))
}

// wrongInForce lets a change that must be refused be in force.
func (m *mutant) wrongInForce() string {
	bad, ok := choose(m.rng, func(yield func(int64) bool) {
		for i := range m.acts {
			if a := &m.acts[i]; a.kind == history.Put && a.reason == nameBad && !yield(a.n) {
				return
			}
		}
	})
	if !ok {
		return ""
	}
	return changeAct(history.Applied, func(a *act) { a.n, a.to = bad, bad })(m)
}

// neverInForce keeps a change and all behind it from a node until it was due;
// late lets them come then.
func neverInForce(late bool) func(*mutant) string {
	return func(m *mutant) string {
		w, ok := choose(m.rng, m.good.plane().wanted())
		if !ok {
			return ""
		}
		var drop []int
		acts := own(&m.acts)
		for i := range acts {
			a := &acts[i]
			if a.kind != history.Applied || a.user != w.node || a.t > w.by || a.n < w.put.n {
				continue
			}
			if late {
				a.t = w.by + 1
			} else {
				drop = append(drop, i)
			}
		}
		without(&m.acts, drop...)
		return fmt.Sprintf("change %d on %s", w.put.n, m.names.text(w.node))
	}
}

// living gives the sights of nodes that lived, and were in use, for long enough
// to be left out in between, with the time to do it at.
func (m *mutant) living(away bool) iter.Seq[leftOut] {
	p := m.good.plane()
	return func(yield func(leftOut) bool) {
		for s := range p.sights() {
			lo, hi := max(s.life.from, s.from)+arrival, min(s.life.to, s.to)-4*aSecond
			for t := lo; t < hi; t += aSecond {
				if s.at(t) == nil || away && p.worst(t, t+3*aSecond) != nameAway {
					continue
				}
				if !yield(leftOut{s, t}) {
					return
				}
				break
			}
		}
	}
}

// leftOut is a node that lived, and a time.
type leftOut struct {
	*sight
	t int64
}

// leaveOut lets an observer not use a living node for three seconds; with away
// while etcd is away.
func leaveOut(away bool) func(*mutant) string {
	return func(m *mutant) string {
		s, ok := choose(m.rng, m.living(away))
		if !ok {
			return ""
		}
		a := *s.at(s.t)
		a.at, a.t, a.stop = at{}, s.t, true
		back := a
		back.t, back.stop = s.t+3*aSecond, false
		// What it saw within these three seconds was another process's doing.
		kept := slices.DeleteFunc(slices.Clone(m.acts), func(o act) bool {
			return o.kind == history.Seen && o.user == s.observer && o.device == s.node && o.entry == s.life.boot && o.t >= a.t && o.t <= back.t
		})
		m.acts = append(kept, a, back)
		return fmt.Sprintf("%s by %s", m.names.text(s.node), m.names.text(s.observer))
	}
}

// neverUsed takes a node out of all that an observer ever saw.
func (m *mutant) neverUsed() string {
	s, ok := choose(m.rng, func(yield func(*sight) bool) {
		for s := range m.good.plane().sights() {
			lo, hi := max(s.life.from, s.from), min(s.life.to, s.to)
			if lo < hi && s.expected(lo) < hi-2*missing && !yield(s) {
				return
			}
		}
	})
	if !ok {
		return ""
	}
	m.acts = slices.DeleteFunc(slices.Clone(m.acts), func(a act) bool {
		return a.kind == history.Seen && a.user == s.observer && a.device == s.node
	})
	return fmt.Sprintf("%s by %s", m.names.text(s.node), m.names.text(s.observer))
}

// usedDead keeps a dead node in use.
func (m *mutant) usedDead() string {
	p := m.good.plane()
	s, ok := choose(m.rng, func(yield func(*sight) bool) {
		for s := range p.sights() {
			if s.died != 0 && p.worst(s.died-before, s.died+s.bound) == 0 && s.at(s.died) != nil && !yield(s) {
				return
			}
		}
	})
	if !ok {
		return ""
	}
	m.acts = slices.DeleteFunc(slices.Clone(m.acts), func(a act) bool {
		return a.kind == history.Seen && a.stop && a.user == s.observer && a.device == s.node && a.entry == s.life.boot && a.t >= s.died
	})
	return fmt.Sprintf("%s by %s", m.names.text(s.node), m.names.text(s.observer))
}
