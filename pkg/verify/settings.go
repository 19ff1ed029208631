package verify

import (
	"iter"
	"maps"
	"slices"
)

// How long settings may take to be in force on a node.
const (
	// settle is how long with etcd in good order.
	settle = 2 * aSecond
	// settleLate is how long while a minority of its members ails: a watch at a
	// member that stands still is given up after 15 s.
	settleLate = 22 * aSecond
	// before is how long etcd must have been in order for settle to hold.
	before = 5 * aSecond
)

// settings is I15: a node has a change in force as a whole or not at all, none
// that is wrong, and every change soon. A change is known by its number, which
// two settings of different sections hold.
func (c *check) settings() {
	p := c.plane()
	for _, node := range slices.Sorted(maps.Keys(p.force)) {
		for _, a := range p.force[node] {
			c.inForce(p, a)
		}
	}
	for w := range p.wanted() {
		c.inv.Checked++
		if got := p.last(w.node, w.by); got == nil || got.n < w.put.n {
			c.fail(func() []Ref {
				refs := []Ref{c.actRef(w.put)}
				if got != nil {
					refs = append(refs, c.actRef(got))
				}
				return refs
			}, "change %d was not in force on %s after %.0f s", w.put.n, c.names.text(w.node), float64(w.by-w.put.to)/float64(aSecond))
		}
	}
}

// inForce judges what a node had in force.
func (c *check) inForce(p *plane, a *act) {
	c.inv.Checked++
	refs := func() []Ref {
		if put := p.put[max(a.n, a.to)]; put != nil {
			return []Ref{c.actRef(put), c.actRef(a)}
		}
		return []Ref{c.actRef(a)}
	}
	put := p.put[a.n]
	switch {
	case a.n != a.to:
		c.fail(refs, "a half of change %d and a half of change %d were in force together", a.n, a.to)
	case a.n == 0: // nothing was set yet
	case put == nil:
		c.fail(refs, "change %d was in force, which nobody made", a.n)
	case put.reason == nameBad:
		c.fail(refs, "change %d was in force, which must be refused", a.n)
	}
}

// want is a change that must be in force on a node by some time.
type want struct {
	put  *act
	node name
	by   int64
}

// wanted gives all that must have been in force: for each change that was made
// for sure and each node that told of settings.
func (p *plane) wanted() iter.Seq[want] {
	nodes := slices.Sorted(maps.Keys(p.force))
	return func(yield func(want) bool) {
		for _, put := range p.puts {
			if put.ack != ackOK || put.reason == nameBad {
				continue
			}
			by, ok := p.due(put)
			if !ok || by > p.upTo {
				continue
			}
			for _, node := range nodes {
				if p.awake(node, put.t, by) && !yield(want{put, node, by}) {
					return
				}
			}
		}
	}
}

// due is when a change must be in force; false = that cannot be said.
func (p *plane) due(put *act) (int64, bool) {
	if p.worst(put.t-before, put.to+settle) == 0 {
		return put.to + settle, true
	}
	return put.to + settleLate, p.worst(put.t-before, put.to+settleLate) != nameAway
}

// last is what a node had in force at a time; nil = it did not tell.
func (p *plane) last(node name, at int64) *act {
	var last *act
	for _, a := range p.force[node] {
		if a.t > at {
			break
		}
		last = a
	}
	return last
}
