package timeline

import (
	"slices"

	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// Page takes the answer to a history request, one of this package's or one of
// the caller's own, such as a page further back.
func (t *Timeline) Page(now int64, req Request, p *clientv1.Page) (fx Effects) {
	mine := t.asking != nil && *t.asking == req
	if mine {
		t.asking = nil
	}
	if !t.known || p == nil {
		return fx
	}
	before := t.have
	switch {
	case req.Jump:
		t.jump(p, &fx)
	case req.Backward:
		t.fill(p, &fx)
	case p.End && req.Before == 0 && p.CompleteTo < req.After:
		t.replaced(&fx)
	default:
		t.forward(p, &fx)
	}
	if !req.Backward && t.known && !fx.Reset {
		t.concludeForward(req, p, mine)
	}
	t.takeAside(&fx)
	switch {
	case !mine:
	case t.have > before || req.Jump || fx.Reset:
		t.gapAt = now // go on at once
	default:
		t.gapAt = now + t.gapDelay
		t.gapDelay = min(2*t.gapDelay, maxGapDelayMs)
	}
	t.settle(now, &fx)
	return fx
}

// concludeForward learns from a page's end whether there is more.
func (t *Timeline) concludeForward(req Request, p *clientv1.Page, mine bool) {
	if !p.End {
		t.head = max(t.head, p.CompleteTo+1)
		return
	}
	// What was promised above the end is not visible to this user, unless the
	// promise is younger than the request.
	if req.Before == 0 && mine && t.head == t.askedHead {
		t.head = min(t.head, t.have)
	}
}

// forward takes a page that begins at or below have+1, or offers its entries
// one by one if it does not.
func (t *Timeline) forward(p *clientv1.Page, fx *Effects) {
	if p.CompleteFrom > t.have+1 {
		for _, e := range p.Entries {
			t.offer(e, fx)
		}
		return
	}
	for _, e := range p.Entries {
		if e.Seq > t.have {
			t.show(e, fx)
		} else {
			t.takeOwn(e, fx)
			if i, ok := t.find(e.Seq); ok {
				t.refresh(i, e, fx)
			}
		}
	}
	if p.CompleteTo > t.have {
		t.have = p.CompleteTo
		t.stretches[len(t.stretches)-1].hi = t.have
		t.gapDelay = gapDelayMs
	}
}

// fill takes a page of the past; have stays.
func (t *Timeline) fill(p *clientv1.Page, fx *Effects) {
	lo, hi := max(p.CompleteFrom, t.start+1), min(p.CompleteTo, t.have)
	if lo > hi {
		if p.End && p.CompleteFrom <= t.start+1 && p.CompleteTo >= t.floor-1 {
			t.floor = t.start + 1
		}
		return
	}
	if hi >= t.floor-1 {
		t.floor = min(t.floor, lo)
	}
	for _, e := range p.Entries {
		if e.Seq < lo || e.Seq > hi {
			continue
		}
		t.takeOwn(e, fx)
		if e.Seq >= t.floor {
			t.apply(e, fx)
		}
	}
	t.union(stretch{lo, hi})
}

// jump takes the newest page: have becomes its end, and what lies between is a
// gap to be loaded on demand.
func (t *Timeline) jump(p *clientv1.Page, fx *Effects) {
	t.needNewest = false
	if p.CompleteFrom <= t.have+1 || p.CompleteTo <= t.have {
		t.forward(p, fx)
	} else {
		if len(t.items) == 0 {
			t.floor = p.CompleteFrom
			t.stretches = nil
		}
		t.stretches = append(t.stretches, stretch{p.CompleteFrom, p.CompleteFrom - 1})
		t.have = p.CompleteFrom - 1
		t.ackBase, t.ackDone = t.have, t.have
		t.forward(p, fx)
	}
	t.head = max(t.head, t.have)
	t.aside = slices.DeleteFunc(t.aside, func(e *clientv1.Entry) bool { return e.Seq <= t.have })
}

// union adds a complete stretch. If the newest one grows downward, its ack
// begins there.
func (t *Timeline) union(s stretch) {
	from := t.From()
	at := 0
	for at < len(t.stretches) && t.stretches[at].hi+1 < s.lo {
		at++
	}
	end := at
	for end < len(t.stretches) && t.stretches[end].lo <= s.hi+1 {
		s.lo, s.hi = min(s.lo, t.stretches[end].lo), max(s.hi, t.stretches[end].hi)
		end++
	}
	t.stretches = slices.Replace(t.stretches, at, end, s)
	if now := t.From(); now < from {
		t.ackBase, t.ackDone = now, now
	}
}

// replaced begins anew after the log turned out to be another one.
func (t *Timeline) replaced(fx *Effects) {
	start := t.start
	t.void()
	t.begin(start, stretch{start + 1, start})
	t.needNewest = true
	fx.Reset = true
}

// NoCursor says that a state's page was not asked for from a cursor.
const NoCursor = int64(-1)

// State takes what sync tells of the conversation. cursor is the have that the
// sync named, or NoCursor.
func (t *Timeline) State(now int64, cursor int64, st *clientv1.ConversationState) (fx Effects) {
	switch {
	case !t.known:
		t.begin(st.Start, stretch{st.Start + 1, st.Start})
		t.needNewest = st.HeadSeq > st.Start
	case cursor != NoCursor && st.HeadSeq < cursor:
		t.start = st.Start
		t.replaced(&fx)
		t.needNewest = st.HeadSeq > st.Start
	case st.Start > t.start:
		t.raise(st.Start)
	}
	if st.HeadSeq > t.have {
		t.head = max(t.head, st.HeadSeq)
	}
	t.readSeq = max(t.readSeq, st.ReadSeq)
	t.count(st.UnreadCount, st.HeadSeq)
	switch p := st.Page; {
	case p == nil || fx.Reset:
	case t.needNewest:
		t.jump(p, &fx)
	case p.End && cursor != NoCursor && p.CompleteTo < cursor:
		t.replaced(&fx)
	default:
		t.forward(p, &fx)
		if !p.End {
			t.head = max(t.head, p.CompleteTo+1)
		}
	}
	t.settle(now, &fx)
	return fx
}

// raise moves the border below which the user sees nothing.
func (t *Timeline) raise(start int64) {
	t.start = start
	t.items = slices.DeleteFunc(t.items, func(it *Item) bool { return it.Entry.Seq <= start })
	if start > t.have {
		t.have = start
		t.stretches = []stretch{{start + 1, start}}
		t.ackBase, t.ackDone = start, start
	} else {
		t.stretches = slices.DeleteFunc(t.stretches, func(s stretch) bool { return s.hi <= start && s.hi < t.have })
		if s := &t.stretches[0]; s.lo <= start {
			s.lo = start + 1
		}
		t.ackBase, t.ackDone = max(t.ackBase, t.From()), max(t.ackDone, t.From())
	}
	// What was a gap above a part that is gone now is what comes before the items.
	t.floor = max(t.floor, start+1, t.stretches[0].lo)
}

// Receipt takes the user's own receipt.
func (t *Timeline) Receipt(r *clientv1.Receipt) {
	if r.UserId != t.self {
		return
	}
	t.readSeq = max(t.readSeq, r.ReadSeq)
	if r.UnreadCount != nil {
		t.count(*r.UnreadCount, max(t.have, t.head))
	}
}

// count takes the server's number, which includes entries up to seq, and adds
// what was shown above that.
func (t *Timeline) count(n uint32, seq int64) {
	t.unread, t.countedTo = min(n, protocol.MaxUnread), seq
	for i := len(t.items) - 1; i >= 0 && t.items[i].Entry.Seq > max(seq, t.readSeq); i-- {
		if e := t.items[i].Entry; e.Countable && e.Sender != t.self {
			t.unread = min(t.unread+1, protocol.MaxUnread)
		}
	}
}
