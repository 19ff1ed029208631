package bench

import (
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
	syncing bool
	tries   int // syncs refused in a row
	due     int // deliveries since the last ack frame
	ackSet  bool
	toAck   []*conv
	large   bool                   // all conversations have more members than receipts are shown for
	again   bool                   // another sync is due
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

	tl     *timeline.Timeline // nil = not recorded
	wake   time.Duration      // when tl.Tick is due; 0 = not set
	opened bool
	from   int64 // of the last Open record
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
		if m := e.entry(); m != nil {
			if b.d.stranger {
				b.d.h.rec.show(b.d, cv.id, m)
			}
			b.effects(cv, cv.tl.Deliver(b.ms(), []*clientv1.Entry{m}))
		}
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
	default:
		b.gap(cv, e.seq)
	}
}

// next takes an entry that follows what is here.
func (b *inbox) next(cv *conv, e *entryIn) {
	cv.have = e.seq
	b.ackLater(cv)
	if string(e.sender) != b.d.user {
		b.d.h.shown(e.text)
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
			b.ackLater(cv)
		default:
			b.gap(cv, a.seq)
		}
		return
	}
	cv := b.conv([]byte(id))
	b.d.h.rec.head(id, a.seq)
	b.effects(cv, cv.tl.SendAck(b.ms(), &clientv1.SendAck{ClientMessageId: string(p.cmid[:]), Status: clientv1.Ack_ACK_OK, ConversationId: id,
		MessageId: a.mid, Seq: a.seq, PrevSeq: a.prev, ServerTimeMs: a.at}))
}

// sending shows the timeline what is on its way.
func (b *inbox) sending(id string, p *send, text []byte) {
	cv := b.conv([]byte(id))
	cv.tl.Send(&clientv1.Entry{ClientMessageId: string(p.cmid[:]), Content: &clientv1.Content{Value: &clientv1.Content_Text{Text: string(text)}}})
}

// head takes a hint that there is more.
func (b *inbox) head(h *clientv1.Head) {
	cv := b.conv([]byte(h.ConversationId))
	switch {
	case cv.tl != nil:
		b.effects(cv, cv.tl.Head(b.ms(), h.Seq))
	case !cv.known:
		cv.known = true // from the beginning
		fallthrough
	case h.Seq > cv.have:
		cv.head = max(cv.head, h.Seq)
		b.ask(cv)
	}
}

// gap waits a little for what is missing, and then reads it.
func (b *inbox) gap(cv *conv, seq int64) {
	cv.head = max(cv.head, seq)
	if cv.gapSet || cv.asking {
		return
	}
	cv.gapSet = true
	b.d.h.l.after(protocol.GapTimeout, func() {
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
}

func historyFrame(conv string, after, before int64, backward bool, limit int) *clientv1.ClientFrame {
	return &clientv1.ClientFrame{Kind: &clientv1.ClientFrame_History{History: &clientv1.History{
		ConversationId: conv, AfterSeq: after, BeforeSeq: before, Backward: backward, Limit: int32(limit)}}}
}

// connected takes note of a new session; syncing tells that its sync runs.
func (b *inbox) connected(epoch string, syncing bool) {
	if b.epoch != "" && b.epoch != epoch {
		b.resync()
	}
	b.epoch, b.syncing = epoch, syncing
	b.due, b.ackSet, b.toAck, b.again = 0, false, nil, false
	for _, cv := range b.convs {
		cv.asking, cv.queued = false, false
		if cv.tl == nil {
			b.ackLater(cv)
			continue
		}
		cv.tl.Connected()
		if !syncing {
			b.effects(cv, cv.tl.Synced(b.ms()))
		}
	}
}

// resync forgets everything: the store has another history now.
func (b *inbox) resync() {
	b.token = ""
	b.d.h.rec.resync(b.d, "")
	for _, cv := range b.convs {
		cv.known, cv.have, cv.acked, cv.head = false, 0, 0, 0
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

// syncPage is how many entries a sync brings for each conversation.
const syncPage = 20

// sync asks what has changed, until there is no more.
func (b *inbox) sync(s *session) {
	f := &clientv1.Sync{SyncToken: b.token, PageLimit: syncPage}
	cursors := make(map[string]int64, len(b.convs))
	for _, cv := range b.convs {
		have, known := cv.have, cv.known
		if cv.tl != nil {
			have, known = cv.tl.Have(), cv.tl.Known()
		} else if b.backlog != nil {
			have = b.backlog(have)
		}
		if known && len(f.Cursors) < protocol.MaxSyncCursors {
			cursors[cv.id] = have
			f.Cursors = append(f.Cursors, &clientv1.Cursor{ConversationId: cv.id, Have: have})
		}
	}
	s.syncing, b.again = true, false
	if b.d.cur == s {
		b.syncing = true
	}
	s.request(&clientv1.ClientFrame{Kind: &clientv1.ClientFrame_Sync{Sync: f}}, func(f *clientv1.ServerFrame) {
		if b.d.cur != s {
			return // another session's sync tells it all
		}
		r := f.GetSyncResult()
		if r == nil {
			b.syncFailed(s, f)
			return
		}
		b.tries = 0
		for _, st := range r.Conversations {
			b.state(cursors, st)
		}
		b.token = r.SyncToken
		if r.More {
			b.sync(s)
			return
		}
		b.synced(s)
	})
}

// syncFailed tries again, on the same session, if that may help; without a sync
// there is no session worth having.
func (b *inbox) syncFailed(s *session, f *clientv1.ServerFrame) {
	e := f.GetError()
	if !e.GetRetryable() {
		s.c.drop(&lossError{"sync_" + reasonOf(f), "a sync failed"})
		return
	}
	b.d.h.refused("sync " + e.Reason)
	pause := retryPause(&ackIn{reason: []byte(e.Reason), retryMs: e.RetryAfterMs}, b.tries)
	b.tries++
	b.d.h.l.after(pause, func() {
		if b.d.cur == s {
			b.sync(s)
		}
	})
}

// state takes what a sync tells of one conversation.
func (b *inbox) state(cursors map[string]int64, st *clientv1.ConversationState) {
	cv := b.conv([]byte(st.ConversationId))
	cursor, named := cursors[cv.id]
	if cv.tl != nil {
		for _, m := range st.GetPage().GetEntries() {
			e := &entryIn{}
			e.from(m)
			b.d.out.stored(cv, e)
		}
		if !named {
			cursor = timeline.NoCursor
		}
		b.effects(cv, cv.tl.State(b.ms(), cursor, st))
		return
	}
	if !cv.known {
		cv.known, cv.have, cv.acked = true, st.HeadSeq, st.HeadSeq
	}
	if st.Page != nil && st.Page.CompleteFrom <= cv.have+1 {
		b.page(cv, st.Page)
	}
	cv.head = max(cv.head, st.HeadSeq)
}

func (b *inbox) synced(s *session) {
	s.syncing, b.syncing = false, false
	for _, cv := range b.convs {
		if cv.tl != nil {
			b.effects(cv, cv.tl.Synced(b.ms()))
		} else {
			b.ask(cv)
		}
	}
	if b.d.onSync != nil {
		b.d.onSync()
	}
}

// syncPause is before a sync that an unknown conversation asks for.
const syncPause = 200 * time.Millisecond

// effects does what a timeline asks for.
func (b *inbox) effects(cv *conv, fx timeline.Effects) {
	h := b.d.h
	if fx.Reset {
		h.rec.resync(b.d, cv.id)
		cv.opened = false
	}
	if len(fx.Show) > 0 {
		b.open(cv)
	}
	for _, e := range fx.Show {
		h.rec.show(b.d, cv.id, e)
		if e.Sender != b.d.user {
			h.shown([]byte(e.Content.GetText()))
		}
	}
	if fx.History != nil {
		b.read(cv, *fx.History)
	}
	if fx.Sync && !b.again && b.d.cur != nil {
		b.again = true
		b.syncSoon(b.d.cur)
	}
	if cv.tl.AckDue() {
		b.ackLater(cv)
	}
	b.wakeAt(cv)
}

// syncSoon syncs again after a pause, when no sync runs.
func (b *inbox) syncSoon(s *session) {
	b.d.h.l.after(syncPause, func() {
		switch {
		case b.d.cur != s || !b.again:
		case b.syncing:
			b.syncSoon(s)
		default:
			for _, cv := range b.convs {
				cv.tl.Disconnected() // until the sync has ended
			}
			b.sync(s)
		}
	})
}

// open records where the device begins with a conversation, or begins anew
// after it took a newer page.
func (b *inbox) open(cv *conv) {
	from := cv.tl.From()
	if !cv.tl.Known() || cv.opened && from <= cv.from {
		return
	}
	cv.opened, cv.from = true, from
	b.d.h.rec.open(b.d, cv.id, from)
}

// wakeAt lets the timeline know when the time it waits for has come.
func (b *inbox) wakeAt(cv *conv) {
	ms, ok := cv.tl.WakeAt()
	at := time.Duration(ms)*time.Millisecond + time.Millisecond
	if !ok || cv.wake != 0 && cv.wake <= at {
		return
	}
	cv.wake = at
	b.d.h.l.at(at, func() {
		if cv.wake == at {
			cv.wake = 0
			b.effects(cv, cv.tl.Tick(b.ms()))
		}
	})
}

// read asks for the page that a timeline wants.
func (b *inbox) read(cv *conv, req timeline.Request) {
	s := b.d.cur
	if s == nil {
		return // it asks again after the next sync
	}
	limit := protocol.MaxHistoryLimit
	if req.Jump {
		limit = syncPage
	}
	s.request(historyFrame(cv.id, req.After, req.Before, req.Backward, limit), func(f *clientv1.ServerFrame) {
		switch p := f.GetHistoryResult().GetPage(); {
		case b.d.cur != s:
		case p != nil:
			for _, m := range p.Entries {
				e := &entryIn{}
				e.from(m)
				b.d.out.stored(cv, e)
			}
			b.effects(cv, cv.tl.Page(b.ms(), req, p))
		case f != nil:
			cv.tl.HistoryFailed(b.ms(), int64(f.GetError().GetRetryAfterMs()))
			b.wakeAt(cv)
		}
	})
}

// ackLater counts toward the next ack frame.
func (b *inbox) ackLater(cv *conv) {
	if !cv.queued {
		cv.queued = true
		b.toAck = append(b.toAck, cv)
	}
	b.due++
	switch {
	case b.due >= protocol.AckEntries && !b.large:
		b.ack()
	case !b.ackSet:
		b.ackSet = true
		s, delay := b.d.cur, protocol.AckDelay
		if b.large {
			delay = protocol.AckDelayLarge
		}
		b.d.h.l.after(delay, func() {
			if b.d.cur == s && s != nil {
				b.ack()
			}
		})
	}
}

// maxRanges is how many ranges one ack frame holds.
const maxRanges = 256

// ack acknowledges everything held so far, in one frame.
func (b *inbox) ack() {
	b.due, b.ackSet = 0, false
	h, ranges := b.d.h, b.d.h.ranges[:0]
	if b.d.cur == nil {
		return
	}
	for _, cv := range b.toAck {
		cv.queued = false
		switch {
		case cv.tl != nil:
			for _, r := range cv.tl.TakeAcks() {
				ranges = append(ranges, ackRange{cv.id, r.After, r.Seq})
			}
		case cv.have > cv.acked:
			ranges = append(ranges, ackRange{cv.id, cv.acked, cv.have})
			cv.acked = cv.have
		}
	}
	b.toAck = b.toAck[:0]
	h.ranges = ranges
	for part := range slices.Chunk(ranges, maxRanges) {
		if h.enc == protocol.JSON {
			b.d.cur.write(ackMessage(part))
		} else {
			b.d.cur.c.put(appendAck(b.d.cur.c.envelope(), part))
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
