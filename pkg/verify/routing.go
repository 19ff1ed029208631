package verify

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/imdhq/imd/pkg/history"
)

// calls are the calls to the route store about each user, in order of time, with
// everything that the store lost in between.
func (x *index) calls() (users []name, by map[name][]*act) {
	by = map[name][]*act{}
	var lost []*act
	for i := range x.acts {
		switch a := &x.acts[i]; {
		case a.kind != history.Route:
		case a.name == nameForget:
			lost = append(lost, a)
		default:
			by[a.user] = append(by[a.user], a)
		}
	}
	for user, list := range by {
		slices.SortStableFunc(list, func(a, b *act) int { return cmp.Compare(a.t, b.t) })
		first, last := list[0].t, int64(0)
		for _, a := range list {
			last = max(last, a.ended())
		}
		for _, a := range lost {
			if a.ended() >= first && a.t <= last {
				list = append(list, a)
			}
		}
		by[user] = list
	}
	return slices.Sorted(maps.Keys(by)), by
}

// ended is when a call was answered; never = nobody knows.
func (a *act) ended() int64 {
	if a.to == 0 || a.ack == ackUnknown {
		return never
	}
	return a.to
}

// routing is I11: for the calls about each user there is an order, in real time,
// in which every answer is right.
func (c *check) routing() {
	users, by := c.calls()
	model := routeModel(c.names)
	for _, user := range users {
		list := by[user]
		ops := make([]porcupine.Operation, len(list))
		for i, a := range list {
			ops[i] = porcupine.Operation{ClientId: i, Input: a, Output: a, Call: a.t, Return: max(a.ended(), a.t)}
			if a.name != nameForget {
				c.inv.Checked++
			}
		}
		c.windows++
		switch porcupine.CheckOperationsTimeout(model, ops, max(c.opt.SearchFor, time.Nanosecond)) {
		case porcupine.Illegal:
			c.fail(func() []Ref { return c.actRefs(list) }, "no order explains the answers to %d calls about %s", len(list), c.names.text(user))
		case porcupine.Unknown:
			c.undecided++
		}
	}
}

// actRefs gives the records of a few acts.
func (x *index) actRefs(list []*act) (refs []Ref) {
	for _, a := range list[:min(len(list), 50)] {
		refs = append(refs, x.actRef(a))
	}
	return refs
}

// stand is one route; epoch 0 = nobody knows which.
type stand struct {
	session, login, device name
	epoch                  int64
}

// stands is what the store knows of one user.
type stands struct {
	live  []stand
	ended map[name]name // sessions that lost their route, and why
	top   int64         // the highest epoch since the store lost everything
	ever  int64         // the highest of all
	slow  bool          // its clock has gone back, so that epochs need not be above ever
}

// routeModel is one user's part of a store that does one call after the other, under
// the policy that a new login ends all others.
func routeModel(names *names) porcupine.Model {
	return porcupine.Model{
		Init: func() any { return stands{} },
		Step: func(state, in, _ any) (bool, any) {
			ok, next := state.(stands).step(names, in.(*act))
			return ok, next
		},
		Equal: func(a, b any) bool { return a.(stands).key() == b.(stands).key() },
	}
}

func (s stands) key() string {
	var parts []string
	for _, r := range s.live {
		parts = append(parts, fmt.Sprint(r))
	}
	for id, why := range s.ended {
		parts = append(parts, fmt.Sprint(id, ":", why))
	}
	slices.Sort(parts)
	return fmt.Sprint(s.top, s.ever, s.slow, parts)
}

func (s stands) step(names *names, a *act) (bool, stands) {
	switch a.name {
	case nameForget:
		return true, stands{ever: s.ever, slow: s.slow || a.reason == nameSlow}
	case nameClaim:
		return s.claim(names, a)
	case nameRefresh:
		return s.refresh(a)
	case nameRelease:
		keep := slices.DeleteFunc(slices.Clone(s.live), func(r stand) bool { return r.session == a.entry && (r.epoch == a.n || r.epoch == 0) })
		ok := a.ack == ackUnknown || a.was == (len(keep) < len(s.live))
		s.live = keep
		return ok, s
	default:
		var found []string
		for _, r := range s.live {
			found = append(found, names.text(r.session))
		}
		return a.ack == ackUnknown || names.text(a.list) == list(found), s
	}
}

// list is sessions as records have them.
func list(sessions []string) string {
	slices.Sort(sessions)
	return strings.Join(sessions, " ")
}

// claim is a new session. One whose outcome nobody knows may have happened.
func (s stands) claim(names *names, a *act) (bool, stands) {
	next := stands{ended: maps.Clone(s.ended), top: s.top, ever: s.ever, slow: s.slow}
	if next.ended == nil {
		next.ended = map[name]name{}
	}
	var superseded, replaced []string
	for _, r := range s.live {
		switch {
		case r.session == a.entry:
		case r.login != a.login:
			replaced = append(replaced, names.text(r.session))
			next.ended[r.session] = nameReplaced
		case r.device == a.device:
			superseded = append(superseded, names.text(r.session))
			next.ended[r.session] = nameSuperseded
		default:
			next.live = append(next.live, r)
		}
	}
	mine := stand{a.entry, a.login, a.device, a.seq}
	if a.ack == ackUnknown {
		mine.epoch = 0
		next.live = append(next.live, mine)
		return true, next
	}
	if a.seq <= s.top || a.seq <= a.prev || !s.slow && a.seq <= s.ever || names.text(a.list) != list(superseded)+"|"+list(replaced) {
		return false, s
	}
	next.live = append(next.live, mine)
	next.top, next.ever = a.seq, max(a.seq, s.ever)
	return true, next
}

// refresh keeps a route, or puts back what was lost.
func (s stands) refresh(a *act) (bool, stands) {
	is := func(r stand) bool { return r.session == a.entry && (r.epoch == a.n || r.epoch == 0) }
	answer := func(want name) bool { return a.ack == ackUnknown || a.reason == want }
	if slices.ContainsFunc(s.live, is) {
		return answer(nameKept), s
	}
	if why, ok := s.ended[a.entry]; ok {
		return answer(why), s
	}
	next := s
	next.live, next.ended = nil, maps.Clone(s.ended)
	if next.ended == nil {
		next.ended = map[name]name{}
	}
	for _, r := range s.live {
		if r.login != a.login || r.device != a.device {
			next.live = append(next.live, r)
			continue
		}
		if r.epoch > a.n || r.epoch == 0 && a.reason == nameSuperseded {
			return answer(nameSuperseded), s
		}
		next.ended[r.session] = nameSuperseded
	}
	next.live = append(next.live, stand{a.entry, a.login, a.device, a.n})
	next.top = max(s.top, a.n)
	return answer(nameRestored), next
}
