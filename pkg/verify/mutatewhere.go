package verify

import (
	"cmp"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/imdhq/imd/pkg/history"
)

// swapAcross lets two sends of a device change places between which the ring changed.
func (m *mutant) swapAcross() string {
	rings := m.good.plane().rings
	pair, ok := choose(m.rng, func(yield func([2]*send) bool) {
		for lane := range m.devices() {
			for i := 1; i < len(lane); i++ {
				if spans(rings, lane[i-1], lane[i]) && !yield([2]*send{lane[i-1], lane[i]}) {
					return
				}
			}
		}
	})
	if !ok {
		return ""
	}
	m.exchange(pair[0], pair[1])
	return m.name(pair[0]) + " and " + m.name(pair[1])
}

// feltAside breaks as many prompt answers under one class of faults that clients must
// not feel as are needed to be told.
func (m *mutant) feltAside() string {
	wanted := m.opt.Share
	k, ok := choose(m.rng, func(yield func(*under) bool) {
		sends := m.good.sends()
		for _, k := range m.good.classes() {
			for i := range sends {
				if s := &sends[i]; s.acked != never && s.invoked != never {
					k.take(s, m.good.wait(s))
				}
			}
			if k.Aside && k.Sends >= judged+5 && !yield(k) { // some that are late may touch other windows
				return
			}
		}
	})
	if !ok {
		return ""
	}
	var prompt []*send
	for s := range m.stored() {
		end := s.invoked + int64(Prompt)
		if s.acked <= end && end+int64(Prompt) < m.Run.Ended && touches(k.own, s.invoked, s.acked) && !touches(k.others, s.invoked, end) {
			prompt = append(prompt, s)
		}
	}
	need := int((1-wanted)*float64(k.Sends)) + 2
	if need > len(prompt) {
		return ""
	}
	slices.SortFunc(prompt, func(a, b *send) int { return cmp.Compare(a.invoked, b.invoked) })
	from := m.rng.IntN(len(prompt) - need + 1)
	ops := own(&m.ops)
	for _, s := range prompt[from : from+need] {
		for _, i := range m.answersOf(s, ackOK) {
			ops[i].t += int64(Prompt) + 1
		}
	}
	return fmt.Sprintf("%d sends under %s", need, k.Name)
}

// quietCalls gives the places of calls to the route store that nothing else about their
// user overlaps, and whose users had an answer to each call.
func (m *mutant) quietCalls() iter.Seq[int] {
	return func(yield func(int) bool) {
		_, by := m.good.calls()
		for i := range m.acts {
			a := &m.acts[i]
			if a.kind != history.Route || a.name == nameForget {
				continue
			}
			alone := !slices.ContainsFunc(by[a.user], func(o *act) bool {
				return o.ended() == never || o != &m.good.acts[i] && o.t <= a.to && o.to >= a.t
			})
			if alone && !yield(i) {
				return
			}
		}
	}
}

// changeCall changes the answer to a call to the route store.
func changeCall(of name, fits func(*act) bool, change func(*act)) func(*mutant) string {
	return func(m *mutant) string {
		i, ok := choose(m.rng, func(yield func(int) bool) {
			for i := range m.quietCalls() {
				if a := &m.acts[i]; a.name == of && fits(a) && !yield(i) {
					return
				}
			}
		})
		if !ok {
			return ""
		}
		a := &own(&m.acts)[i]
		change(a)
		return fmt.Sprintf("%s of %s", m.names.text(a.name), m.names.text(a.user))
	}
}

func (m *mutant) visit(v *visit) string {
	return fmt.Sprintf("session %s of %s", m.names.text(v.session), m.names.text(v.user))
}

// staysIn takes the end of a session away that was ended for another one, which stayed
// in long enough.
func (m *mutant) staysIn() string {
	users, by := m.good.visits()
	faults := m.good.windowsOf(0, func(*faultSpan) bool { return true })
	v, ok := choose(m.rng, func(yield func(*visit) bool) {
		for _, user := range users {
			for i, v := range by[user] {
				if v.in == never || v.went == nil {
					continue
				}
				long := slices.ContainsFunc(by[user][i+1:], func(w *visit) bool {
					end := m.good.end(w)
					return w.in != never && (w.login != v.login || w.device == v.device) && end-w.in-within(faults, w.in, end) > int64(Together)
				})
				if long && !yield(v) {
					return
				}
			}
		}
	})
	if !ok {
		return ""
	}
	without(&m.acts, m.placeOf(v.went))
	return m.visit(v)
}

// placeOf is where an act of the good history is.
func (m *mutant) placeOf(a *act) int {
	return slices.IndexFunc(m.good.acts, func(o act) bool { return o.at == a.at && o.kind == a.kind && o.t == a.t && o.entry == a.entry })
}

// endedForNobody ends the session that asked last as if another had come.
func (m *mutant) endedForNobody() string {
	users, by := m.good.visits()
	v, ok := choose(m.rng, func(yield func(*visit) bool) {
		for _, user := range users {
			for _, v := range by[user] {
				other := slices.ContainsFunc(by[user], func(w *visit) bool { return w != v && w.settled > v.asked })
				if v.in != never && !other && !yield(v) {
					return
				}
			}
		}
	})
	if !ok {
		return ""
	}
	out := act{t: m.good.end(v), kind: history.Logout, user: v.user, device: v.device, entry: v.session, name: v.login, reason: nameReplaced}
	if v.went != nil {
		without(&m.acts, m.placeOf(v.went))
	}
	m.acts = append(slices.Clip(m.acts), out)
	return m.visit(v)
}

// looked is a time in which a user was online or was not, and who looked.
type looked struct {
	observer, user name
	from, to       int64
}

// looks gives the times of one state that are longer than a limit, outside faults of
// which the judge knows.
func (m *mutant) looks(state turnState, slow bool, limit time.Duration) iter.Seq[looked] {
	faults := m.good.windowsOf(0, func(f *faultSpan) bool { return f.class != "kill" && f.class != "gateway-kill" })
	return func(yield func(looked) bool) {
		_, by := m.good.visits()
		keys, _ := m.good.watchers()
		for _, k := range keys {
			truth := online(by[k[1]], m.Run.Ended)
			for i, t := range truth {
				l := looked{observer: k[0], user: k[1], from: t.t, to: m.Run.Ended}
				if i+1 < len(truth) {
					l.to = truth[i+1].t
				}
				if i > 0 && t.state == state && t.slow == slow && l.to-l.from-within(faults, l.from, l.to) > int64(limit) && !yield(l) {
					return
				}
			}
		}
	}
}

// blind lets an observer see nothing of a user for a time but one state from its
// beginning.
func (m *mutant) blind(l looked, online bool) string {
	m.acts = slices.DeleteFunc(slices.Clone(m.acts), func(a act) bool {
		return a.kind == history.Sight && a.device == l.observer && a.user == l.user && a.t >= l.from && a.t < l.to
	})
	m.acts = append(m.acts, act{t: l.from, kind: history.Sight, user: l.user, device: l.observer, stop: !online})
	return fmt.Sprintf("%s by %s", m.names.text(l.user), m.names.text(l.observer))
}

func (m *mutant) seenOn() string {
	l, ok := choose(m.rng, m.looks(away, true, SeenKilled))
	if !ok {
		return ""
	}
	return m.blind(l, true)
}

func (m *mutant) notSeen() string {
	l, ok := choose(m.rng, m.looks(there, false, SeenLate))
	if !ok {
		return ""
	}
	return m.blind(l, false)
}
