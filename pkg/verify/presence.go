package verify

import (
	"cmp"
	"slices"
	"time"

	"github.com/imdhq/imd/pkg/history"
)

// How long who is online may be seen otherwise than it is.
const (
	SeenLate   = 45 * time.Second // after a device came or went
	SeenKilled = 15 * time.Second // after the process that held its last session was killed
)

// turn is a change of whether a user is online, or is seen so.
type turn struct {
	t     int64
	state turnState
	slow  bool // offline because the process that held the session was killed
	at    *act
}

type turnState uint8

const (
	away turnState = iota
	there
	untold // nobody can tell
)

// online gives when a user came and went, from visits.
func online(list []*visit, end int64) (all []turn) {
	type edge struct {
		t    int64
		step int
		why  name
		at   *act
	}
	var edges []edge
	for _, v := range list {
		if v.in == never {
			continue
		}
		edges = append(edges, edge{v.in, 1, 0, v.came})
		if v.out < end {
			edges = append(edges, edge{v.out, -1, v.why, v.went})
		}
	}
	slices.SortStableFunc(edges, func(a, b edge) int { return cmp.Compare(a.t, b.t) })
	n := 0
	all = append(all, turn{})
	for _, e := range edges {
		before := n
		n += e.step
		switch {
		case before == 0 && n > 0:
			all = append(all, turn{t: e.t, state: there, at: e.at})
		case before > 0 && n == 0:
			all = append(all, turn{t: e.t, slow: e.why == nameKilled, at: e.at})
		}
	}
	return all
}

// watchers gives what each observer saw of each user, in order of time.
func (x *index) watchers() (keys [][2]name, seen map[[2]name][]turn) {
	seen = map[[2]name][]turn{}
	for i := range x.acts {
		a := &x.acts[i]
		if a.kind != history.Sight {
			continue
		}
		t := turn{t: a.t, state: there, at: a}
		switch {
		case a.ack == ackUnknown:
			t.state = untold
		case a.stop:
			t.state = away
		}
		k := [2]name{a.device, a.user}
		if seen[k] == nil {
			keys = append(keys, k)
		}
		seen[k] = append(seen[k], t)
	}
	for _, list := range seen {
		slices.SortStableFunc(list, func(a, b turn) int { return cmp.Compare(a.t, b.t) })
	}
	return keys, seen
}

// wrong is a time in which an observer saw a user otherwise than it was.
type wrong struct {
	observer, user name
	from, to       int64
	was            turn // what was not seen
	last           *act // what was seen; nil = nothing yet
}

// mistaken gives those times. A time in which nobody can tell is none.
func (x *index) mistaken() (all []wrong, turns int) {
	_, by := x.visits()
	keys, seen := x.watchers()
	for _, k := range keys {
		truth := online(by[k[1]], x.Run.Ended)
		turns += len(truth) - 1
		sights := append([]turn{{state: untold}}, seen[k]...)
		for i, j := 0, 0; i < len(truth); {
			from, to := max(truth[i].t, sights[j].t), x.Run.Ended
			ti, tj := to, to
			if i+1 < len(truth) {
				ti = truth[i+1].t
			}
			if j+1 < len(sights) {
				tj = sights[j+1].t
			}
			to = min(ti, tj)
			if sights[j].state != untold && sights[j].state != truth[i].state && from < to {
				all = append(all, wrong{k[0], k[1], from, to, truth[i], sights[j].at})
			}
			switch {
			case to == x.Run.Ended:
				i = len(truth)
			case ti <= tj:
				i++
				if ti == tj {
					j++
				}
			default:
				j++
			}
		}
	}
	return all, turns
}

// presence is I13: what observers see of a user is what is, within a bound from its
// last change. The time of faults does not count, but for that of killed processes.
func (c *check) presence() {
	all, turns := c.mistaken()
	c.inv.Checked = turns
	faults := c.windowsOf(0, func(f *faultSpan) bool { return f.class != "kill" && f.class != "gateway-kill" })
	for _, w := range all {
		limit := SeenLate
		if w.was.slow {
			limit = SeenKilled
		}
		d := time.Duration(w.to - w.from - within(faults, w.from, w.to))
		if d <= limit {
			continue
		}
		c.fail(func() []Ref {
			var list []Ref
			for _, a := range []*act{w.was.at, w.last} {
				if a != nil {
					list = append(list, c.actRef(a))
				}
			}
			return list
		}, "%s saw %s otherwise than it was for %v, more than %v", c.names.text(w.observer), c.names.text(w.user), d.Round(time.Millisecond), limit)
	}
}
