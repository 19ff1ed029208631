package timeline

import (
	"math"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// Bounds of the pause before a gap is asked for, in milliseconds. It doubles
// while answers bring no progress.
const (
	gapDelayMs    = int64(protocol.GapTimeout / 1e6)
	maxGapDelayMs = 64 * gapDelayMs
)

// never is the time of what is not waited for.
const never = int64(math.MaxInt64)

// Request is one history request, as the frame of that name; both bounds are
// excluded.
type Request struct {
	After    int64 // forward: have
	Before   int64 // 0 = to the head
	Backward bool  // begin at the upper end
	Jump     bool  // with Backward: the newest page, which moves have
}

// Range is a stretch (After, Seq] that this device holds without a gap.
type Range struct{ After, Seq int64 }

// Gap is an interval, both ends included, that the device has chosen to load
// on demand.
type Gap struct{ From, To int64 }

// Effects is what an event asks for. Its zero value asks for nothing.
type Effects struct {
	// Show holds what became part of the timeline at its end, in order. Kinds
	// that this package does not know are not among it.
	Show []*clientv1.Entry
	// Changed holds the seqs of messages that were edited or recalled.
	Changed []int64
	// Sent holds the client message ids that are known to be stored now.
	Sent []string
	// History, if not nil, must be requested; Page or HistoryFailed answers it.
	History *Request
	// Sync asks for a sync: the conversation is not known.
	Sync bool
	// Reset says that everything shown is void.
	Reset bool
}

// stretch is a complete part of the log, both ends included. It is empty if
// hi is lo-1, which marks a place all the same.
type stretch struct{ lo, hi int64 }

// Timeline is one conversation. The zero value is not usable; see New.
type Timeline struct {
	self string
	keep int

	known     bool // start and have mean something
	start     int64
	have      int64
	head      int64 // newest entry heard of; hints included
	stretches []stretch
	aside     []*clientv1.Entry // above a gap, rising seq

	items []*Item // shown, rising seq
	floor int64   // items is complete from here on, gaps aside
	local []*Item // not stored yet, in the order of sending

	paused     bool // no connection, or a sync runs
	needNewest bool // the newest page has to be read before anything else
	asking     *Request
	askedHead  int64 // head when asking was issued
	gapAt      int64 // when to ask, ms; never = not waiting
	gapDelay   int64
	pace       int64 // on top of the wait for a gap and after a hint, ms

	ackBase  int64 // where the next range begins
	ackDone  int64 // what has been acknowledged
	ackTaken bool  // an ack was taken on this connection
	ackExtra []Range

	readSeq   int64
	unread    uint32
	countedTo int64 // the server's count includes entries up to here
}

// New returns the timeline of one conversation as seen by the user self. keep
// bounds how many shown entries it holds: the newest keep ones, 0 for all. It
// begins online and with nothing known.
func New(self string, keep int) *Timeline {
	return &Timeline{self: self, keep: keep, gapAt: never, gapDelay: gapDelayMs}
}

// Known reports whether the timeline has its first have.
func (t *Timeline) Known() bool { return t.known }

// Have returns the seq up to which everything is here.
func (t *Timeline) Have() int64 { return t.have }

// From returns the seq after which everything up to Have is here: Have's
// unbroken stretch is (From, Have].
func (t *Timeline) From() int64 {
	if n := len(t.stretches); n > 0 {
		return t.stretches[n-1].lo - 1
	}
	return t.have
}

// Start returns the seq after which the user may see the log.
func (t *Timeline) Start() int64 { return t.start }

// Unread returns the count of unread entries, at most protocol.MaxUnread.
func (t *Timeline) Unread() uint32 { return t.unread }

// ReadSeq returns how far the user has read.
func (t *Timeline) ReadSeq() int64 { return t.readSeq }

// Aside returns the seqs that wait above a gap, rising.
func (t *Timeline) Aside() []int64 {
	var seqs []int64
	for _, e := range t.aside {
		seqs = append(seqs, e.Seq)
	}
	return seqs
}

// Restore sets the cursor that a device kept: everything in (from, have] is on
// it. It must come before any other event.
func (t *Timeline) Restore(start, from, have int64) {
	t.begin(start, stretch{from + 1, have})
}

// begin makes the timeline known with one stretch.
func (t *Timeline) begin(start int64, s stretch) {
	t.known = true
	t.start, t.have = start, s.hi
	t.stretches = []stretch{s}
	t.floor = s.hi + 1
	t.ackBase, t.ackDone = s.lo-1, s.lo-1
}

// Deliver takes entries of a deliver frame. now is in milliseconds, of any
// clock that only rises.
func (t *Timeline) Deliver(now int64, entries []*clientv1.Entry) (fx Effects) {
	for _, e := range entries {
		t.offer(e, &fx)
	}
	t.settle(now, &fx)
	return fx
}

// SendAck takes an ACK_OK: the entry stands for what was sent. For an id that
// is not one of this timeline's own it only tells that there is an entry.
func (t *Timeline) SendAck(now int64, a *clientv1.SendAck) (fx Effects) {
	if a.Status != clientv1.Ack_ACK_OK {
		return fx
	}
	i := t.localIndex(a.ClientMessageId)
	if i < 0 {
		return t.Head(now, a.Seq)
	}
	e := proto.CloneOf(t.local[i].Entry)
	e.Seq, e.PrevSeq, e.MessageId, e.ServerTimeMs = a.Seq, a.PrevSeq, a.MessageId, a.ServerTimeMs
	t.local[i].Entry = e
	t.offer(e, &fx)
	t.settle(now, &fx)
	return fx
}

// Pace makes the timeline wait for ms longer than it would before it asks
// because of a head or a gap, so that the many members of a group do not ask all
// at once. What was asked for goes on without a wait.
func (t *Timeline) Pace(ms int64) { t.pace = max(ms, 0) }

// Head takes a head frame.
func (t *Timeline) Head(now, seq int64) (fx Effects) {
	if !t.known {
		t.head = max(t.head, seq) // the state may have been read before it
		fx.Sync = true
		return fx
	}
	if seq > t.have && seq > t.head {
		t.head = seq
		if t.asking == nil && !t.paused {
			t.gapAt = min(t.gapAt, now+t.pace)
		}
	}
	t.settle(now, &fx)
	return fx
}

// Tick tells that time has passed; see WakeAt.
func (t *Timeline) Tick(now int64) (fx Effects) {
	t.settle(now, &fx)
	return fx
}

// WakeAt returns when Tick is wanted, in milliseconds; ok is false if it is not.
func (t *Timeline) WakeAt() (ms int64, ok bool) { return t.gapAt, t.gapAt != never }

// Disconnected tells that there is no connection: nothing is requested until
// Synced, and an open request will not be answered.
func (t *Timeline) Disconnected() {
	t.paused, t.asking, t.gapAt = true, nil, never
}

// Connected tells that a new connection stands and its sync runs. The next ack
// begins where the unbroken stretch begins, and is due again if one was taken
// on the connection before, which may have been lost with it.
func (t *Timeline) Connected() {
	t.Disconnected()
	t.gapDelay = gapDelayMs
	t.ackExtra = nil
	if t.known {
		t.ackBase = t.From()
		if t.ackTaken {
			t.ackDone = t.ackBase
		}
	}
	t.ackTaken = false
}

// Synced tells that the sync has ended.
func (t *Timeline) Synced(now int64) (fx Effects) {
	t.paused = false
	if t.behind() {
		t.gapAt = now
	}
	t.settle(now, &fx)
	return fx
}

// HistoryFailed tells that the open request failed. It is asked again after
// the pause of a gap, which doubles, and not before retryAfter ms.
func (t *Timeline) HistoryFailed(now, retryAfter int64) {
	if t.asking == nil {
		return
	}
	t.asking = nil
	t.gapAt = now + max(t.gapDelay, retryAfter)
	t.gapDelay = min(2*t.gapDelay, maxGapDelayMs)
}

// Resync voids everything that came from the server, because the store has
// another history now. What was not stored stays, except what is about a
// message of the old history; the client message ids of that are returned.
func (t *Timeline) Resync() (dropped []string) {
	t.void()
	t.known, t.start, t.readSeq = false, 0, 0
	t.local = slices.DeleteFunc(t.local, func(it *Item) bool {
		if it.Entry.TargetSeq == 0 {
			return false
		}
		dropped = append(dropped, it.Entry.ClientMessageId)
		return true
	})
	return dropped
}

// void drops what is shown, aside and asked for.
func (t *Timeline) void() {
	t.have, t.head, t.stretches, t.aside, t.items, t.floor = 0, 0, nil, nil, nil, 0
	t.asking, t.gapAt, t.gapDelay, t.needNewest = nil, never, gapDelayMs, false
	t.ackBase, t.ackDone, t.ackExtra = 0, 0, nil
	t.unread, t.countedTo = 0, 0
	// What was stored in the log that is void now, and not shown yet.
	t.local = slices.DeleteFunc(t.local, func(it *Item) bool { return it.Entry.Seq != 0 })
}

// offer applies the rule to one entry.
func (t *Timeline) offer(e *clientv1.Entry, fx *Effects) {
	if !t.known {
		start, added := t.ownAdded(e)
		if !added {
			t.putAside(e)
			fx.Sync = true
			return
		}
		t.begin(start, stretch{start + 1, start})
	}
	switch {
	case e.Seq <= t.have:
		t.seen(e, fx)
	case e.PrevSeq <= t.have:
		t.show(e, fx)
		t.takeAside(fx)
	default:
		t.putAside(e)
	}
}

// ownAdded returns the first have that an entry gives to this user.
func (t *Timeline) ownAdded(e *clientv1.Entry) (start int64, ok bool) {
	mc := e.GetMemberChange()
	if mc.GetAction() != clientv1.MemberAction_MEMBER_ACTION_ADDED || !slices.Contains(mc.UserIds, t.self) {
		return 0, false
	}
	return mc.Start, true
}

// seen takes an entry again: its copy may be newer, its ack may be lost.
func (t *Timeline) seen(e *clientv1.Entry, fx *Effects) {
	t.takeOwn(e, fx)
	if i, ok := t.find(e.Seq); ok {
		t.refresh(i, e, fx)
	}
	from := t.From()
	if e.Seq > from {
		t.ackBase, t.ackDone = min(t.ackBase, e.Seq-1), min(t.ackDone, e.Seq-1)
		return
	}
	for _, s := range t.stretches {
		if e.Seq >= s.lo && e.Seq <= s.hi {
			t.ackExtra = []Range{{s.lo - 1, s.hi}}
		}
	}
}

// show makes an entry the newest one.
func (t *Timeline) show(e *clientv1.Entry, fx *Effects) {
	t.takeOwn(e, fx)
	t.have = e.Seq
	t.stretches[len(t.stretches)-1].hi = e.Seq
	t.gapDelay = gapDelayMs
	if e.Countable && e.Sender != t.self && e.Seq > max(t.readSeq, t.countedTo) {
		t.unread = min(t.unread+1, protocol.MaxUnread)
	}
	if Shows(e.Kind) {
		fx.Show = append(fx.Show, e)
	}
	t.apply(e, fx)
	t.trim()
}

// putAside keeps an entry above a gap, or only its seq if there are too many.
func (t *Timeline) putAside(e *clientv1.Entry) {
	t.head = max(t.head, e.Seq)
	if e.Sender == t.self && e.ClientMessageId != "" {
		if i := t.localIndex(e.ClientMessageId); i >= 0 {
			t.local[i].Entry = e // pending as long as it is above a gap
		}
	}
	i, have := slices.BinarySearchFunc(t.aside, e.Seq, compareSeq)
	if have {
		return
	}
	if len(t.aside) < protocol.MaxAside {
		t.aside = slices.Insert(t.aside, i, e)
	}
}

// takeAside shows what is not above a gap any more.
func (t *Timeline) takeAside(fx *Effects) {
	n := 0
	for ; n < len(t.aside) && t.aside[n].PrevSeq <= t.have; n++ {
		if e := t.aside[n]; e.Seq > t.have {
			t.show(e, fx)
		}
	}
	if n > 0 {
		t.aside = slices.Delete(t.aside, 0, n)
	}
}

func compareSeq(e *clientv1.Entry, seq int64) int {
	switch {
	case e.Seq < seq:
		return -1
	case e.Seq > seq:
		return 1
	}
	return 0
}

func (t *Timeline) behind() bool {
	return t.known && (t.needNewest || len(t.aside) > 0 || t.head > t.have)
}

// settle decides whether to ask for history now or later.
func (t *Timeline) settle(now int64, fx *Effects) {
	if t.known {
		t.takeAside(fx)
		t.takeStored(fx)
	}
	if !t.behind() {
		t.gapAt = never
		return
	}
	if t.paused || t.asking != nil {
		t.gapAt = never
		return
	}
	if t.gapAt == never {
		t.gapAt = now + t.gapDelay + t.pace
	}
	if now < t.gapAt {
		return
	}
	t.gapAt = never
	t.askedHead = t.head
	t.asking = t.next()
	fx.History = t.asking
}

// next returns the request that brings the timeline on.
func (t *Timeline) next() *Request {
	if t.needNewest {
		return &Request{After: t.start, Backward: true, Jump: true}
	}
	r := &Request{After: t.have}
	// The entries aside are here already, if they reach to the newest one.
	if n := len(t.aside); n > 0 && t.aside[n-1].Seq >= t.head {
		r.Before = t.aside[0].Seq
	}
	return r
}

// TakeAcks returns what may be acknowledged now and takes it as acknowledged.
// The caller has what was shown safely on the device.
func (t *Timeline) TakeAcks() []Range {
	ranges := t.ackExtra
	t.ackExtra = nil
	if t.known && t.have > t.ackDone {
		ranges = append(ranges, Range{t.ackBase, t.have})
		t.ackBase, t.ackDone = t.have, t.have
	}
	if len(ranges) > 0 {
		t.ackTaken = true
	}
	return ranges
}

// AckDue reports whether TakeAcks would return something.
func (t *Timeline) AckDue() bool {
	return len(t.ackExtra) > 0 || t.known && t.have > t.ackDone
}
