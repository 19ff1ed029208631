package verify

import (
	"cmp"
	"iter"
	"math"
	"slices"
)

// never is the time of what did not happen.
const never = math.MaxInt64

// key names a send: the sender's client message id in a conversation.
type key struct{ conv, user, cmid name }

// send is all that is known of one key.
type send struct {
	key
	device name
	hash   name // of the first invoke; 0 = never invoked
	n      int64

	invoked int64 // the first invoke; never = none
	acked   int64 // the first ACK_OK; never = none
	seq     int64 // of that answer; 0 = none
	row     int32 // its place in History.rows; -1 = none

	lo, hi uint32 // its ops: index.ops[lo:hi], in order of time
}

// place is a device's view of one conversation.
type place struct{ user, device, conv name }

// story is what a device recorded about one conversation and about itself:
// places in History.views, in order of time.
type story struct {
	place
	wide []uint32 // of the device as a whole
	own  []uint32 // of this conversation
}

// device is one recorded device.
type device struct{ user, device name }

// extent is a part of an ordered slice.
type extent struct{ lo, hi uint32 }

// index orders a history. Each part is made when first asked for; an index
// belongs to one goroutine.
type index struct {
	*History

	opOrder   []uint32
	sendList  []send
	rowOrder  []uint32 // by conversation and seq
	rowConvs  map[name]extent
	rowKeys   map[key]int32
	rowTwins  [][2]uint32 // rows of one key
	storyList []story
	wideViews map[device][]uint32
	spanMap   map[[2]name][]span
	refusedIn map[[2]name]bool // by user and conversation
	proofs    []int64

	planeMade *plane

	windows, undecided int // of I5's search
}

func newIndex(h *History) *index { return &index{History: h} }

// numbers is 0, 1, ... n-1.
func numbers(n int) []uint32 {
	s := make([]uint32, n)
	for i := range s {
		s[i] = uint32(i)
	}
	return s
}

// sends gives the sends, those of a conversation together.
func (x *index) sends() []send {
	if x.sendList != nil {
		return x.sendList
	}
	x.opOrder = numbers(len(x.ops))
	slices.SortFunc(x.opOrder, func(i, j uint32) int {
		a, b := &x.ops[i], &x.ops[j]
		return cmp.Or(cmp.Compare(a.conv, b.conv), cmp.Compare(a.user, b.user), cmp.Compare(a.cmid, b.cmid), cmp.Compare(a.t, b.t), cmp.Compare(i, j))
	})
	x.rowsByKey()
	for lo := 0; lo < len(x.opOrder); {
		k, hi := keyOf(&x.ops[x.opOrder[lo]]), lo+1
		for hi < len(x.opOrder) && keyOf(&x.ops[x.opOrder[hi]]) == k {
			hi++
		}
		x.sendList = append(x.sendList, x.send(k, uint32(lo), uint32(hi)))
		lo = hi
	}
	return x.sendList
}

func keyOf(o *op) key { return key{o.conv, o.user, o.cmid} }

func (x *index) send(k key, lo, hi uint32) send {
	s := send{key: k, invoked: never, acked: never, row: -1, lo: lo, hi: hi}
	for o := range x.opsOf(&s) {
		switch {
		case o.ack == ackNone && s.invoked == never:
			s.invoked, s.device, s.hash, s.n = o.t, o.device, o.hash, o.n
		case o.ack == ackOK && s.acked == never:
			s.acked, s.seq = o.t, o.seq
		}
	}
	if r, ok := x.rowKeys[k]; ok {
		s.row = r
	}
	return s
}

// opsOf gives the invokes and returns of a send in order of time.
func (x *index) opsOf(s *send) iter.Seq[*op] {
	return func(yield func(*op) bool) {
		for _, i := range x.opOrder[s.lo:s.hi] {
			if !yield(&x.ops[i]) {
				return
			}
		}
	}
}

// last is the last definite answer, or nil. A RETRY or a lost answer that comes
// behind it, on another connection, takes nothing back.
func (x *index) last(s *send) *op {
	for i := s.hi; i > s.lo; i-- {
		if o := &x.ops[x.opOrder[i-1]]; o.ack == ackOK || o.ack == ackFail {
			return o
		}
	}
	return nil
}

// position is the seq at which the log holds the send, or its answer said so;
// 0 = nobody knows.
func (x *index) position(s *send) int64 {
	if s.row >= 0 {
		return x.rows[s.row].seq
	}
	return s.seq
}

// refsOf gives the records of a send, its row last; at most eight.
func (x *index) refsOf(s *send) []Ref {
	var refs []Ref
	for o := range x.opsOf(s) {
		if len(refs) == 7 {
			break
		}
		refs = append(refs, x.opRef(o))
	}
	if s.row >= 0 {
		refs = append(refs, x.rowRef(&x.rows[s.row]))
	}
	return refs
}

// ordered gives places in History.rows by conversation and seq, and where each
// conversation is in it.
func (x *index) ordered() ([]uint32, map[name]extent) {
	if x.rowOrder != nil {
		return x.rowOrder, x.rowConvs
	}
	x.rowOrder = numbers(len(x.rows))
	slices.SortFunc(x.rowOrder, func(i, j uint32) int {
		a, b := &x.rows[i], &x.rows[j]
		return cmp.Or(cmp.Compare(a.conv, b.conv), cmp.Compare(a.seq, b.seq), cmp.Compare(i, j))
	})
	x.rowConvs = map[name]extent{}
	for lo := 0; lo < len(x.rowOrder); {
		conv, hi := x.rows[x.rowOrder[lo]].conv, lo+1
		for hi < len(x.rowOrder) && x.rows[x.rowOrder[hi]].conv == conv {
			hi++
		}
		x.rowConvs[conv] = extent{uint32(lo), uint32(hi)}
		lo = hi
	}
	return x.rowOrder, x.rowConvs
}

// rowsByKey finds the row of each key, and keys with more than one.
func (x *index) rowsByKey() map[key]int32 {
	if x.rowKeys != nil {
		return x.rowKeys
	}
	x.rowKeys = make(map[key]int32, len(x.rows))
	for i := range x.rows {
		r := &x.rows[i]
		if r.entry != nameMessage {
			continue
		}
		k := key{r.conv, r.sender, r.cmid}
		if first, ok := x.rowKeys[k]; ok {
			x.rowTwins = append(x.rowTwins, [2]uint32{uint32(first), uint32(i)})
			continue
		}
		x.rowKeys[k] = int32(i)
	}
	return x.rowKeys
}

// find gives the place in ordered rows of an entry; ok is false if there is none.
func (x *index) find(conv name, seq int64) (int, bool) {
	order, convs := x.ordered()
	e := convs[conv]
	i, ok := slices.BinarySearchFunc(order[e.lo:e.hi], seq, func(i uint32, seq int64) int { return cmp.Compare(x.rows[i].seq, seq) })
	return int(e.lo) + i, ok
}

// recorded are the users whose sends or views were recorded.
func (x *index) recorded() map[name]bool {
	users := map[name]bool{}
	for i := range x.ops {
		users[x.ops[i].user] = true
	}
	for i := range x.views {
		users[x.views[i].user] = true
	}
	return users
}

// stories gives what each device recorded about each conversation, and wide
// what it recorded about itself.
func (x *index) stories() (list []story, wide map[device][]uint32) {
	if x.wideViews != nil {
		return x.storyList, x.wideViews
	}
	order := numbers(len(x.views))
	slices.SortFunc(order, func(i, j uint32) int {
		a, b := &x.views[i], &x.views[j]
		return cmp.Or(cmp.Compare(a.user, b.user), cmp.Compare(a.device, b.device), cmp.Compare(a.conv, b.conv), cmp.Compare(a.t, b.t), cmp.Compare(i, j))
	})
	x.wideViews = map[device][]uint32{}
	for lo := 0; lo < len(order); {
		p, hi := placeOf(&x.views[order[lo]]), lo+1
		for hi < len(order) && placeOf(&x.views[order[hi]]) == p {
			hi++
		}
		d := device{p.user, p.device}
		if p.conv == 0 {
			x.wideViews[d] = order[lo:hi]
		} else {
			if x.wideViews[d] == nil {
				x.wideViews[d] = []uint32{}
			}
			x.storyList = append(x.storyList, story{p, x.wideViews[d], order[lo:hi]})
		}
		lo = hi
	}
	return x.storyList, x.wideViews
}

func placeOf(v *view) place { return place{v.user, v.device, v.conv} }

// told gives a story in order of time.
func (x *index) told(s *story) iter.Seq[*view] {
	return func(yield func(*view) bool) {
		wide, own := s.wide, s.own
		for len(wide)+len(own) > 0 {
			var next uint32
			if len(own) == 0 || len(wide) > 0 && x.before(wide[0], own[0]) {
				next, wide = wide[0], wide[1:]
			} else {
				next, own = own[0], own[1:]
			}
			if !yield(&x.views[next]) {
				return
			}
		}
	}
}

// before orders two views of one device.
func (x *index) before(i, j uint32) bool {
	a, b := x.views[i].t, x.views[j].t
	return a < b || a == b && i < j
}

// visible gives the spans of each user in each conversation.
func (x *index) visible() map[[2]name][]span {
	if x.spanMap == nil {
		x.spanMap = map[[2]name][]span{}
		for _, s := range x.spans {
			k := [2]name{s.user, s.conv}
			x.spanMap[k] = append(x.spanMap[k], s)
		}
	}
	return x.spanMap
}

// maySee reports whether a user may see an entry.
func maySee(spans []span, seq int64) bool {
	for i := range spans {
		if spans[i].holds(seq) {
			return true
		}
	}
	return false
}

// known tells for each ordered row since when it must have been stored: the
// first time that it or an entry above it was acknowledged or shown.
func (x *index) known() []int64 {
	if x.proofs != nil {
		return x.proofs
	}
	order, convs := x.ordered()
	x.proofs = make([]int64, len(order))
	for i := range x.proofs {
		x.proofs[i] = never
	}
	for i := range x.sends() {
		s := &x.sendList[i]
		if s.row < 0 || s.acked == never {
			continue
		}
		if p, ok := x.find(s.conv, x.rows[s.row].seq); ok {
			x.proofs[p] = min(x.proofs[p], s.acked)
		}
	}
	for i := range x.views {
		v := &x.views[i]
		if v.kind != viewShow {
			continue
		}
		if p, ok := x.find(v.conv, v.seq); ok {
			x.proofs[p] = min(x.proofs[p], v.t)
		}
	}
	for _, e := range convs {
		for i := int(e.hi) - 2; i >= int(e.lo); i-- {
			x.proofs[i] = min(x.proofs[i], x.proofs[i+1])
		}
	}
	return x.proofs
}
