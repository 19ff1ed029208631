package bench

import (
	"bytes"
	"cmp"
	"slices"
	"time"

	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
	"github.com/imdhq/imd/sdk/go/timeline"
)

// inbox is what a device has of its conversations. While recording, each has
// the timeline of the SDK; else just the numbers that decide what is missing.
type inbox struct {
	d       *device
	convs   map[string]*conv
	epoch   string
	token   string // of the last sync
	full    bool   // the pages of a full list come
	repair  bool   // it was asked for because of a digest
	doubt   bool   // no digest has agreed since
	syncing bool
	tries   int // syncs refused in a row
	due     int // deliveries since the last ack frame
	ackSet  bool
	acks    int // frames so far
	toAck   []*conv
	large   bool                   // all conversations have more members than receipts are shown for
	pace    time.Duration          // over which the members of its group spread what they read because of one hint
	again   bool                   // another sync is due
	reads   bool                   // only what the scenario asks for: it takes no hints
	backlog func(have int64) int64 // the cursor to resume from
}

// conv is one conversation on one device.
type conv struct {
	id     string
	known  bool
	have   int64
	acked  int64 // what has been acknowledged on this connection
	head   int64 // newest entry heard of
	asking bool  // history after have
	queued bool  // in toAck
	gapSet bool
	aside  []asideEntry // above a gap, rising seq; at most protocol.MaxAside

	term   uint64             // of the digest, by what syncs told; 0 = no member. Only if recorded
	tl     *timeline.Timeline // nil = not recorded
	wake   time.Duration      // when tl.Tick is due; 0 = not set
	last   string             // the sender of the entry before
	opened bool
	from   int64 // of the last Open record
	held   int64 // newest entry that it is recorded to have
}

// asideEntry is one that came above a gap. Own messages are often such ones: their
// answer comes before the entries of others that were stored before them.
type asideEntry struct {
	seq, prev int64
	own       bool
	text      []byte // of another's
}

// seen is the newest entry that is here.
func (cv *conv) seen() int64 {
	if cv.tl != nil {
		return cv.tl.Have()
	}
	return cv.have
}

// conv finds or makes a conversation.
func (b *inbox) conv(id []byte) *conv {
	if cv := b.convs[string(id)]; cv != nil {
		return cv
	}
	cv := &conv{id: string(id)}
	if b.convs == nil {
		b.convs = map[string]*conv{}
	}
	b.convs[cv.id] = cv
	if rec := b.d.h.rec; rec != nil {
		cv.tl = timeline.New(b.d.user, 1)
		cv.tl.Pace(b.wait().Milliseconds())
		rec.saw(cv.id)
	}
	return cv
}

// expect makes a conversation known before the first entry: the device has
// nothing of it, and everything is to come.
func (b *inbox) expect(id string) {
	cv := b.conv([]byte(id))
	cv.known = true
	if cv.tl != nil {
		cv.tl.Restore(0, 0, 0)
		if b.d.cur == nil {
			cv.tl.Disconnected()
		}
		b.open(cv)
	}
}

func (b *inbox) ms() int64 { return int64(b.d.h.l.now / time.Millisecond) }

// delivered takes one entry of a deliver frame.
func (b *inbox) delivered(cv *conv, e *entryIn) {
	b.d.out.stored(cv, e)
	if cv.tl != nil {
		b.offer(cv, e)
		return
	}
	if !cv.known {
		cv.known, cv.have, cv.acked = true, e.prev, e.prev
	}
	switch {
	case e.seq <= cv.have:
		cv.acked = min(cv.acked, e.seq-1)
		b.ackLater(cv)
	case e.prev <= cv.have:
		b.next(cv, e)
		b.takeAside(cv)
	default:
		own := string(e.sender) == b.d.user
		x := asideEntry{seq: e.seq, prev: e.prev, own: own}
		if !own {
			x.text = bytes.Clone(e.text)
		}
		b.putAside(cv, x)
	}
}

// putAside keeps an entry above a gap, as the SDK does, and asks for what is
// missing if it does not come.
func (b *inbox) putAside(cv *conv, e asideEntry) {
	i, have := slices.BinarySearchFunc(cv.aside, e.seq, func(x asideEntry, seq int64) int { return cmp.Compare(x.seq, seq) })
	if !have && len(cv.aside) < protocol.MaxAside {
		cv.aside = slices.Insert(cv.aside, i, e)
	}
	b.gap(cv, e.seq)
}

// takeAside takes what was aside and is above a gap no more.
func (b *inbox) takeAside(cv *conv) {
	n := 0
	for _, e := range cv.aside {
		if e.prev > cv.have {
			break
		}
		n++
		if e.seq <= cv.have {
			continue
		}
		cv.have = e.seq
		if !e.own {
			b.d.h.shown(b.d, e.text)
		}
	}
	cv.aside = slices.Delete(cv.aside, 0, n)
}

// offer gives an entry to the timeline. One that it will show at once, the usual
// case, goes without its content: the record is made from what arrived.
func (b *inbox) offer(cv *conv, e *entryIn) {
	h := b.d.h
	var m *clientv1.Entry
	if e.kind == clientv1.EntryKind_ENTRY_KIND_MESSAGE && e.plain && e.raw != nil && cv.tl.Known() && e.prev <= cv.tl.Have() && !b.d.stranger {
		m = &clientv1.Entry{Seq: e.seq, PrevSeq: e.prev, Kind: e.kind, MessageId: e.mid, Sender: cv.sender(e.sender), Countable: true}
		if m.Sender == b.d.user {
			m.ClientMessageId = string(e.cmid)
		}
		h.lean = lean{m, e.text, ""}
	} else if m = e.entry(); m == nil {
		return
	}
	if b.d.stranger {
		h.rec.show(b.d, cv.id, m, "")
	}
	h.one[0] = m
	b.effects(cv, cv.tl.Deliver(b.ms(), h.one[:]))
	h.lean = lean{}
}

// lean is an entry without content, and the text that belongs to it.
type lean struct {
	entry *clientv1.Entry
	text  []byte
	hash  string // of the text; empty = not known yet
}

// sender is s as a string; mostly it is the one of the entry before.
func (cv *conv) sender(s []byte) string {
	if string(s) != cv.last {
		cv.last = string(s)
	}
	return cv.last
}

// next takes an entry that follows what is here.
func (b *inbox) next(cv *conv, e *entryIn) {
	cv.have = e.seq
	b.ackLater(cv)
	if string(e.sender) != b.d.user && !b.d.aside {
		b.d.h.shown(b.d, e.text)
	}
}

// acked takes note of an own message that is stored.
func (b *inbox) acked(id string, p *send, a *ackIn) {
	if b.d.h.rec == nil {
		cv := b.conv([]byte(id))
		if !cv.known {
			cv.known, cv.have, cv.acked = true, a.prev, a.prev
		}
		switch {
		case a.seq <= cv.have:
		case a.prev <= cv.have:
			cv.have = a.seq
			b.takeAside(cv)
			b.ackLater(cv)
		default:
			b.putAside(cv, asideEntry{seq: a.seq, prev: a.prev, own: true})
		}
		return
	}
	// The answer stands for the entry: the timeline takes it like any other.
	cv, h := b.conv([]byte(id)), b.d.h
	h.rec.head(id, a.seq)
	m := &clientv1.Entry{Seq: a.seq, PrevSeq: a.prev, Kind: clientv1.EntryKind_ENTRY_KIND_MESSAGE, MessageId: a.mid, Sender: b.d.user}
	if cv.tl.Known() && a.prev <= cv.tl.Have() {
		h.lean = lean{m, nil, p.hash}
	} else {
		m.Content = &clientv1.Content{Value: &clientv1.Content_Text{Text: string(b.d.out.text(p))}}
	}
	h.one[0] = m
	b.effects(cv, cv.tl.Deliver(b.ms(), h.one[:]))
	h.lean = lean{}
}

// head takes a hint that there is more.
func (b *inbox) head(h *clientv1.Head) {
	if b.reads {
		return
	}
	cv := b.conv([]byte(h.ConversationId))
	switch {
	case cv.tl != nil:
		b.effects(cv, cv.tl.Head(b.ms(), h.Seq))
	case !cv.known:
		cv.known = true // from the beginning
		fallthrough
	case h.Seq > cv.have:
		cv.head = max(cv.head, h.Seq)
		b.askIn(cv, b.wait())
	}
}

// wait is how long this device waits before it reads because of a hint.
func (b *inbox) wait() time.Duration { return time.Duration(b.place() * float64(b.pace)) }

// gap waits a little for what is missing, and then reads it.
func (b *inbox) gap(cv *conv, seq int64) {
	cv.head = max(cv.head, seq)
	b.askIn(cv, protocol.GapTimeout+b.wait())
}

// askIn asks after a time for what is missing then.
func (b *inbox) askIn(cv *conv, after time.Duration) {
	switch {
	case cv.gapSet || cv.asking:
		return
	case after == 0:
		b.ask(cv)
		return
	}
	cv.gapSet = true
	b.d.h.l.after(after, func() {
		cv.gapSet = false
		b.ask(cv)
	})
}

// ask reads what is missing after have, page by page.
func (b *inbox) ask(cv *conv) {
	s := b.d.cur
	if s == nil || cv.asking || b.syncing || cv.head <= cv.have {
		return
	}
	cv.asking = true
	s.request(historyFrame(cv.id, cv.have, 0, false, protocol.MaxHistoryLimit), func(f *clientv1.ServerFrame) {
		cv.asking = false
		switch p := f.GetHistoryResult().GetPage(); {
		case p != nil:
			b.page(cv, p)
			if p.End && cv.have < cv.head {
				cv.head = cv.have // what was promised is not for this user
			}
			b.ask(cv)
		case f != nil:
			b.gap(cv, cv.head)
		}
	})
}

// page takes a page that begins at or below have+1.
func (b *inbox) page(cv *conv, p *clientv1.Page) {
	for _, m := range p.Entries {
		if m.Seq > cv.have {
			e := &entryIn{}
			e.from(m)
			b.d.out.stored(cv, e)
			b.next(cv, e)
		}
	}
	cv.have = max(cv.have, p.CompleteTo)
	b.takeAside(cv)
}

func historyFrame(conv string, after, before int64, backward bool, limit int) *clientv1.ClientFrame {
	return &clientv1.ClientFrame{Kind: &clientv1.ClientFrame_History{History: &clientv1.History{
		ConversationId: conv, AfterSeq: after, BeforeSeq: before, Backward: backward, Limit: int32(limit)}}}
}

// connected takes note of a new session; syncing tells that its sync runs.
func (b *inbox) connected(epoch string, syncing bool) {
	if b.epoch != "" && b.epoch != epoch {
		b.resync(epoch)
	}
	b.epoch, b.syncing = epoch, syncing
	b.due, b.ackSet, b.toAck, b.again = 0, false, nil, false
	for _, cv := range b.convs {
		cv.asking, cv.queued = false, false
		if cv.tl == nil {
			b.ackLater(cv)
			continue
		}
		if cv.opened {
			cv.held = cv.tl.Have()
			b.d.h.rec.have(b.d, cv.id, cv.held)
		}
		cv.tl.Connected()
		if !syncing {
			b.effects(cv, cv.tl.Synced(b.ms()))
		}
	}
}

// resync forgets everything: the store has another history now.
func (b *inbox) resync(epoch string) {
	b.token, b.full, b.repair, b.doubt = "", false, false, false
	b.d.h.rec.resync(b.d, "", epoch)
	for _, cv := range b.convs {
		cv.term = 0
		cv.known, cv.have, cv.acked, cv.head, cv.aside = false, 0, 0, 0, nil
		if cv.tl != nil {
			cv.tl.Resync()
			cv.opened = false
		}
	}
}

func (b *inbox) lost() {
	b.syncing = false
	for _, cv := range b.convs {
		cv.asking = false
		if cv.tl != nil {
			cv.tl.Disconnected()
		}
	}
}

// settled reports whether the device waits for nothing.
func (b *inbox) settled() bool {
	if b.d.cur == nil || b.syncing || b.again || b.d.out.count > 0 {
		return false
	}
	for _, cv := range b.convs {
		if cv.tl == nil {
			if cv.asking || cv.head > cv.have {
				return false
			}
			continue
		}
		if _, waits := cv.tl.WakeAt(); waits || !cv.tl.Known() || len(cv.tl.Aside()) > 0 {
			return false
		}
	}
	return true
}
