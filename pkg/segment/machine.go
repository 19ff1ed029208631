package segment

// DefaultStep is how many numbers a segment has unless a call needs more.
const DefaultStep = 1000

// maxBlocks is for how many conversations numbers are kept, roughly 200 bytes
// each. One that is forgotten begins a new segment.
const maxBlocks = 100_000

// Machine is what one process knows of shards and numbers. It is a pure state
// machine: Step takes an event and says what follows from it. It is not safe for
// concurrent use.
//
// A shard is foreign, waiting or owned. Transitions:
//
//	foreign -> owned    Taken
//	foreign -> waiting  Held: a takeover goes on in the background
//	waiting -> owned    Taken
//	waiting -> foreign  Refused, Gone
//	owned -> foreign    Fenced
//
// Invariants: a grant is made under the newest fence that the process was given,
// from numbers that were reserved under that fence. Between two grants for a
// conversation under one fence without an event for it in between, First is the
// same: a call that runs again keeps its numbers.
type Machine struct {
	step   int64
	shards map[int]*shard
	order  []name // of the blocks, oldest first; some are gone
	blocks int
}

type name struct {
	conv  string
	shard int
}

// shard is what is known of one.
type shard struct {
	owned   bool
	waiting bool
	fence   int64
	// refused is the view by which another owner was found; foreign shards are
	// asked for again only by another view.
	refused *Version
	blocks  map[string]*block
}

// block is the numbers of a conversation: next to last, then spare to spareLast.
type block struct {
	next, last       int64
	spare, spareLast int64 // 0, 0 = none
	refilling        bool
	failed           bool // the last reservation was
}

// New makes a Machine that owns nothing. step below 1 = DefaultStep.
func New(step int64) *Machine {
	if step < 1 {
		step = DefaultStep
	}
	return &Machine{step: step, shards: map[int]*shard{}}
}

// Step handles one event. view is the ring as the process sees it now.
func (m *Machine) Step(view View, ev Event) (fx Effects) {
	switch ev := ev.(type) {
	case Want:
		for _, n := range ev.Needs {
			m.want(view, n, &fx)
		}
	case Taken:
		if s := m.shards[ev.Shard]; s != nil && ev.Fence < s.fence {
			break // an old answer
		}
		m.forget(ev.Shard)
		m.shards[ev.Shard] = &shard{owned: true, fence: ev.Fence, blocks: map[string]*block{}}
	case Refused:
		v, s := ev.View, m.lose(ev.Shard)
		s.refused, s.waiting = &v, false
	case Held:
		if s := m.lose(ev.Shard); !s.waiting {
			s.waiting = true
			fx.Wait = append(fx.Wait, ev.Shard)
		}
	case Gone:
		m.shard(ev.Shard).waiting = false
	case Reserved:
		m.reserved(ev)
	case Unreserved:
		if b := m.block(ev.Conv, ev.Shard); b != nil {
			b.refilling, b.failed = false, true
		}
	case Appended:
		m.appended(ev, &fx)
	case Overtaken:
		if b := m.block(ev.Conv, ev.Shard); b != nil {
			b.pass(ev.Head)
		}
	case Fenced:
		if s := m.shard(ev.Shard); s.owned && s.fence == ev.Fence {
			m.lose(ev.Shard)
		}
	}
	return fx
}

// Owned is how many shards the process owns, as far as it knows.
func (m *Machine) Owned() (n int) {
	for _, s := range m.shards {
		if s.owned {
			n++
		}
	}
	return n
}

func (m *Machine) shard(id int) *shard {
	s := m.shards[id]
	if s == nil {
		s = &shard{}
		m.shards[id] = s
	}
	return s
}

// forget drops the numbers of a shard.
func (m *Machine) forget(id int) {
	if s := m.shards[id]; s != nil {
		m.blocks -= len(s.blocks)
		s.blocks = nil
	}
}

// lose makes a shard foreign, or leaves it waiting.
func (m *Machine) lose(id int) *shard {
	m.forget(id)
	s := m.shard(id)
	*s = shard{waiting: s.waiting && !s.owned, fence: s.fence}
	return s
}

func (m *Machine) block(conv string, id int) *block {
	if s := m.shards[id]; s != nil {
		return s.blocks[conv]
	}
	return nil
}

// want says what one conversation needs next.
func (m *Machine) want(view View, n Need, fx *Effects) {
	s := m.shard(n.Shard)
	if !s.owned {
		m.wantShard(view, n, s, fx)
		return
	}
	b := s.blocks[n.Conv]
	if b == nil {
		b = m.add(n, s)
	}
	switch {
	case b.room(n.Rows):
		fx.Grants = append(fx.Grants, Grant{n.Conv, n.Shard, s.fence, b.next})
	case b.failed:
		b.failed = false
		fx.Busy = append(fx.Busy, n.Conv)
	default:
		fx.Reserve = append(fx.Reserve, Reservation{n.Conv, n.Shard, s.fence, max(m.step, n.Rows)})
	}
}

// wantShard says what a conversation of a foreign shard needs.
func (m *Machine) wantShard(view View, n Need, s *shard, fx *Effects) {
	switch {
	case view.Mine == nil || !view.Mine(n.Shard), s.refused != nil && *s.refused == view.Version:
		fx.Elsewhere = append(fx.Elsewhere, n.Conv)
	case s.waiting:
		fx.Busy = append(fx.Busy, n.Conv)
	default:
		for _, id := range fx.Take {
			if id == n.Shard {
				return
			}
		}
		fx.Take = append(fx.Take, n.Shard)
	}
}

// add makes an empty block, and forgets the oldest if there are too many.
func (m *Machine) add(n Need, s *shard) *block {
	b := &block{next: 1}
	s.blocks[n.Conv] = b
	m.blocks++
	m.order = append(m.order, name{n.Conv, n.Shard})
	for m.blocks > maxBlocks || len(m.order) > 2*maxBlocks {
		old := m.order[0]
		m.order = m.order[1:]
		if s := m.shards[old.shard]; s != nil && s.blocks[old.conv] != nil && s.blocks[old.conv] != b {
			delete(s.blocks, old.conv)
			m.blocks--
		}
	}
	return b
}

// room reports whether the block has numbers for rows, going on to the spare
// ones if the rest is too small.
func (b *block) room(rows int64) bool {
	if b.last-b.next+1 >= rows {
		return true
	}
	if b.spare == 0 || b.spareLast-b.spare+1 < rows {
		return false
	}
	b.next, b.last, b.spare, b.spareLast = b.spare, b.spareLast, 0, 0
	return true
}

// pass leaves numbers up to head behind.
func (b *block) pass(head int64) {
	b.next = max(b.next, head+1)
	if b.spare != 0 {
		b.spare = max(b.spare, head+1)
	}
	if b.spare > b.spareLast {
		b.spare, b.spareLast = 0, 0
	}
}

func (m *Machine) reserved(ev Reserved) {
	s := m.shards[ev.Shard]
	if s == nil || !s.owned || s.fence != ev.Fence {
		return
	}
	b := s.blocks[ev.Conv]
	if b == nil {
		return
	}
	b.refilling, b.failed = false, false
	first := ev.After + 1
	switch {
	case b.spare != 0 && b.spareLast == ev.After:
		b.spareLast = ev.Upto
	case b.spare != 0 && first > b.spareLast: // two were under way; the newer holds more
		b.spare, b.spareLast = first, ev.Upto
	case b.last == ev.After && b.last > 0, first > b.last && b.next > b.last:
		if b.next > b.last {
			b.next = max(first, b.next)
		}
		b.last = ev.Upto
	case first > b.last:
		b.spare, b.spareLast = first, ev.Upto
	}
}

func (m *Machine) appended(ev Appended, fx *Effects) {
	s := m.shards[ev.Shard]
	if s == nil || !s.owned {
		return
	}
	b := s.blocks[ev.Conv]
	if b == nil {
		return
	}
	b.pass(ev.Last)
	if left := max(b.last-b.next+1, 0); b.refilling || b.spare != 0 || left > m.step/2 {
		return
	}
	b.refilling = true
	fx.Refill = append(fx.Refill, Reservation{ev.Conv, ev.Shard, s.fence, m.step})
}
