package verify

import (
	"cmp"
	"slices"
	"time"

	"github.com/imdhq/imd/pkg/history"
)

const aSecond = int64(time.Second)

// plane is what was done to the nodes and to etcd, and what nodes said of it, in
// order of time. It is made once for each index.
type plane struct {
	etcd  []spell           // one behind the other, from the beginning to the end
	lives map[name][]tenure // of each node, in order
	eyes  map[name][]*act   // began and seen of each node that told
	force map[name][]*act   // began and applied of each node that told
	puts  []*act            // by number
	put   map[int64]*act
	rings []int64 // when nodes took another ring into use
	upTo  int64   // the end of the run
}

// spell is a time in which etcd was in one state; 0 = good.
type spell struct {
	from, to int64
	state    name
}

// tenure is a time in which one process of a node ran and could answer.
type tenure struct {
	boot     name
	from, to int64 // ready or going on; ended, paused or told to stop
	end      name  // why; 0 = the run ended
	began    *act
	ended    *act
}

func (x *index) plane() *plane {
	if x.planeMade != nil {
		return x.planeMade
	}
	p := &plane{lives: map[name][]tenure{}, eyes: map[name][]*act{}, force: map[name][]*act{}, put: map[int64]*act{}, upTo: x.Run.Ended}
	x.planeMade = p
	order := numbers(len(x.acts))
	slices.SortStableFunc(order, func(i, j uint32) int { return cmp.Compare(x.acts[i].t, x.acts[j].t) })
	state, ring := spell{}, map[name]int64{}
	for _, i := range order {
		a := &x.acts[i]
		switch a.kind {
		case history.Etcd:
			p.close(state, a.t)
			state = spell{from: a.t}
			if a.reason == nameLimping || a.reason == nameAway || a.reason == nameRestored {
				state.state = a.reason
			}
		case history.Node:
			p.live(a)
		case history.Began, history.Seen:
			p.eyes[a.user] = append(p.eyes[a.user], a)
		case history.Applied:
			p.force[a.user] = append(p.force[a.user], a)
		case history.Ring:
			if last, ok := ring[a.user]; ok && last != a.n {
				p.rings = append(p.rings, a.t)
			}
			ring[a.user] = a.n
		case history.Put:
			p.puts = append(p.puts, a)
			p.put[a.n] = a
		}
	}
	p.close(state, never)
	for node, all := range p.lives {
		if last := &all[len(all)-1]; last.to == never {
			last.to = p.upTo
		}
		p.lives[node] = all
	}
	slices.SortFunc(p.puts, func(a, b *act) int { return cmp.Compare(a.n, b.n) })
	return p
}

// close ends a spell. An etcd that has gone back is like one that limps until
// nodes must have noticed: their watches wait for what is yet to come again, and
// are given up for their silence.
func (p *plane) close(s spell, to int64) {
	s.to = to
	if s.state == nameRestored {
		s.state = nameLimping
		if noticed := s.from + settleLate; noticed < to {
			p.etcd = append(p.etcd, spell{s.from, noticed, s.state})
			s = spell{from: noticed, to: to}
		}
	}
	p.etcd = append(p.etcd, s)
}

// live takes in what became of a process.
func (p *plane) live(a *act) {
	all := p.lives[a.user]
	open := len(all) > 0 && all[len(all)-1].to == never
	if a.reason == nameUp || a.reason == nameResumed {
		if !open {
			p.lives[a.user] = append(all, tenure{boot: a.entry, from: a.t, to: never, began: a})
		}
		return
	}
	if open {
		last := &all[len(all)-1]
		last.to, last.end, last.ended = a.t, a.reason, a
	}
}

// worst is the worst state of etcd in a time.
func (p *plane) worst(from, to int64) name {
	worst := name(0)
	for _, s := range p.etcd {
		if s.from < to && s.to > from && s.state > worst { // away is above limping
			worst = s.state
		}
	}
	return worst
}

// good is since when etcd has been good without a break at the time t; never if
// it is not good then.
func (p *plane) good(t int64) int64 {
	since := int64(never)
	for _, s := range p.etcd {
		switch {
		case s.from > t:
			return since
		case s.state != 0:
			since = never
		case since == never:
			since = s.from
		}
	}
	return since
}

// deaf is how long a node that goes on after a pause may need to hear what it
// has missed.
const deaf = 5 * aSecond

// awake reports whether the node could answer all the time, and had time to get
// there.
func (p *plane) awake(node name, from, to int64) bool {
	return slices.ContainsFunc(p.lives[node], func(l tenure) bool { return l.from+deaf <= from && to <= l.to })
}
