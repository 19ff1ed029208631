package verify

import (
	"iter"
	"maps"
	"slices"

	"github.com/imdhq/imd/pkg/history"
)

// How soon nodes must see each other come and go.
const (
	// missing is how long a living node may be out of use once it was in.
	missing = aSecond
	// arrival is how long a node may take, with etcd in good order, from being
	// ready until it is in use; after a pause it may have to register again.
	arrival = 6 * aSecond
	// recovery is how long, after etcd has come back.
	recovery = 15 * aSecond
	// killed and paused are how long a node that has ended, or stands still, may
	// stay in use with etcd in good order.
	killed = 12 * aSecond
	paused = 15 * aSecond
)

// discovery is I16: who lives and was in use stays in use, whatever etcd does; who
// comes is in use soon, and who is dead is not for long. It is judged for each
// process that told what it saw and each node.
func (c *check) discovery() {
	p := c.plane()
	for s := range p.sights() {
		for _, gap := range s.absences() {
			c.inv.Checked++
			if gap.long() {
				c.fail(gap.refs(c), "%s lived, and %s did not use it for %.1f s", c.names.text(s.node), c.names.text(s.observer), gap.seconds())
			}
		}
		if s.died != 0 && p.worst(s.died-before, s.died+s.bound) == 0 {
			c.inv.Checked++
			if ghost := s.at(s.died + s.bound); ghost != nil {
				c.fail(func() []Ref { return []Ref{c.actRef(s.life.ended), c.actRef(ghost)} }, "%s was dead, and %s used it %.0f s later",
					c.names.text(s.node), c.names.text(s.observer), float64(s.bound)/float64(aSecond))
			}
		}
	}
}

// sight is how one process saw one life of a node.
type sight struct {
	p              *plane
	observer, node name
	life           *tenure
	seen           []*act // of the node, while the observer was awake, in order
	from, to       int64  // the observer was awake
	died, bound    int64  // when the node died, if it stayed dead within the observer's sight, and how long it may be in use; 0 = it did not
}

// sights gives all pairs of a process that told and a life of another node that
// overlap.
func (p *plane) sights() iter.Seq[*sight] {
	observers, subjects := slices.Sorted(maps.Keys(p.eyes)), slices.Sorted(maps.Keys(p.lives))
	return func(yield func(*sight) bool) {
		for _, o := range observers {
			for _, looks := range p.lives[o] {
				for _, node := range subjects {
					if node == o {
						continue
					}
					for i := range p.lives[node] {
						if s := p.sight(o, &looks, node, i); s != nil && !yield(s) {
							return
						}
					}
				}
			}
		}
	}
}

// sight is nil if the two never lived together.
func (p *plane) sight(o name, looks *tenure, node name, i int) *sight {
	lives := p.lives[node]
	l := &lives[i]
	s := &sight{p: p, observer: o, node: node, life: l, from: looks.from, to: looks.to}
	if looks.began.reason == nameResumed { // it has to hear first what it has missed
		s.from += deaf
	}
	if s.from >= s.to || l.from >= s.to {
		return nil
	}
	for _, a := range p.eyes[o] {
		switch {
		case a.t >= s.to:
		case a.kind == history.Began:
			s.seen = s.seen[:0] // a new process begins at nothing
		case a.device == node && a.entry == l.boot:
			s.seen = append(s.seen, a)
		}
	}
	if l.end == nameDown || l.end == namePaused {
		s.bound = killed
		if l.end == namePaused {
			s.bound = paused
		}
		stays := i+1 == len(lives) || lives[i+1].from > l.to+s.bound
		if stays && s.from <= l.to && l.to+s.bound <= min(s.to, p.upTo) {
			s.died = l.to
		}
	}
	return s
}

// at is why the node is in use at a time; nil = it is not.
func (s *sight) at(t int64) *act {
	var last *act
	for _, a := range s.seen {
		if a.t > t {
			break
		}
		last = a
	}
	if last == nil || last.stop {
		return nil
	}
	return last
}

// absence is a time in which a living node was not in use.
type absence struct {
	from, to int64
	why      *act // what ended its use; nil = it never was
	life     *tenure
}

func (a absence) seconds() float64 { return float64(a.to-a.from) / float64(aSecond) }

// long reports whether it lasted too long.
func (a absence) long() bool { return a.to-a.from > missing }

func (a absence) refs(c *check) func() []Ref {
	return func() []Ref {
		refs := []Ref{c.actRef(a.life.began)}
		if a.why != nil {
			refs = append(refs, c.actRef(a.why))
		}
		return refs
	}
}

// absences are the times in which the node lived and was not in use, and one of
// no length for having looked.
func (s *sight) absences() []absence {
	out := []absence{{life: s.life}}
	lo, hi := max(s.life.from, s.from), min(s.life.to, s.to)
	if lo >= hi {
		return out
	}
	from, why := int64(0), (*act)(nil)
	if s.at(lo) == nil { // it may take its time to come
		from = s.expected(lo)
	}
	used := s.at(lo) != nil
	for _, a := range s.seen {
		if a.t <= lo || a.t >= hi || a.stop != used {
			continue
		}
		if used = !a.stop; used {
			out = append(out, absence{from, a.t, why, s.life})
		} else {
			from, why = a.t, a
			if s.life.began.reason == nameResumed { // its record may have vanished while it stood still
				from = max(from, s.life.from+arrival)
			}
		}
	}
	if !used {
		out = append(out, absence{from, hi, why, s.life})
	}
	return out
}

// expected is when a node that is not in use at the time t must be.
func (s *sight) expected(t int64) int64 {
	due := t + arrival
	if since := s.p.good(due); s.p.worst(t-before, due) != 0 {
		if since == never {
			return never
		}
		due = max(due, since+recovery)
		if s.p.worst(since, due) != 0 {
			return never
		}
	}
	return due
}
