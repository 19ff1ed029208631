package verify

import (
	"cmp"
	"slices"
	"time"

	"github.com/imdhq/imd/pkg/history"
)

// Together is how long two logins of a user may be in together of whom only one may
// be: that is when a kick was lost, and the next refresh of the route finds it.
const Together = 30 * time.Second

// visit is a session that said hello.
type visit struct {
	user, session, login, device name
	asked                        int64
	in                           int64 // when it was let in; never = it was not, or nobody knows
	settled                      int64 // when the answer came; never = it did not
	out                          int64 // when it ended; never = it did not
	why                          name
	own                          bool // its device wanted it to end
	came, went                   *act
}

// visits are the sessions of each user by the time at which they asked.
func (x *index) visits() (users []name, by map[name][]*visit) {
	all := map[name]*visit{}
	by = map[name][]*visit{}
	for i := range x.acts {
		if a := &x.acts[i]; a.kind == history.Login {
			v := &visit{user: a.user, session: a.entry, login: a.name, device: a.device, asked: min(a.to, a.t), in: never, settled: a.t, out: never, came: a}
			switch a.ack {
			case ackOK:
				v.in = a.t
			case ackUnknown:
				v.settled = never
			}
			if by[a.user] == nil {
				users = append(users, a.user)
			}
			all[a.entry], by[a.user] = v, append(by[a.user], v)
		}
	}
	for i := range x.acts {
		if a := &x.acts[i]; a.kind == history.Logout && all[a.entry] != nil {
			v := all[a.entry]
			v.out, v.why, v.own, v.went = a.t, a.reason, a.stop, a
		}
	}
	for _, list := range by {
		slices.SortStableFunc(list, func(a, b *visit) int { return cmp.Compare(a.asked, b.asked) })
	}
	return users, by
}

// end is when a session was surely over, as far as was recorded.
func (x *index) end(v *visit) int64 { return min(v.out, x.Run.Ended) }

// logins is I12: where a new login ends the others, two are in together only for as
// long as it may take to tell the older one, not counting the time of faults; and a
// session is ended for another one only if there is another one.
func (c *check) logins() {
	users, by := c.visits()
	faults := c.windowsOf(0, func(*faultSpan) bool { return true })
	for _, user := range users {
		list := by[user]
		for i, v := range list {
			if v.in == never {
				continue
			}
			c.inv.Checked++
			c.endedForAnother(list, v)
			for _, w := range list[i+1:] {
				if w.in == never || w.login == v.login && w.device != v.device {
					continue
				}
				from, to := max(v.in, w.in), min(c.end(v), c.end(w))
				if d := time.Duration(to - from - within(faults, from, to)); to > from && d > Together {
					c.fail(func() []Ref { return c.visitRefs(v, w) }, "two sessions of %s were in together for %v outside faults", c.names.text(user), d.Round(time.Millisecond))
				}
			}
		}
	}
}

// endedForAnother judges the end of a session.
func (c *check) endedForAnother(list []*visit, v *visit) {
	if v.why != nameReplaced && v.why != nameSuperseded {
		return
	}
	for _, w := range list {
		same := w.login == v.login && w.device == v.device
		if w != v && w.asked < v.out && w.settled > v.asked && same == (v.why == nameSuperseded) {
			return
		}
	}
	c.fail(func() []Ref { return c.visitRefs(v) }, "a session of %s ended as %s, but there was no other", c.names.text(v.user), c.names.text(v.why))
}

func (x *index) visitRefs(list ...*visit) (refs []Ref) {
	for _, v := range list {
		refs = append(refs, x.actRef(v.came))
		if v.went != nil {
			refs = append(refs, x.actRef(v.went))
		}
	}
	return refs
}

// within is how much of [from, to] lies in windows that do not overlap.
func within(windows [][2]int64, from, to int64) (sum int64) {
	for _, w := range windows {
		if lo, hi := max(from, w[0]), min(to, w[1]); lo < hi {
			sum += hi - lo
		}
	}
	return sum
}
