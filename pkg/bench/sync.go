package bench

import (
	"time"

	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
	"github.com/imdhq/imd/sdk/go/timeline"
)

// syncPage is how many entries a sync brings for each conversation.
const syncPage = 20

// sync asks what has changed, until there is no more.
func (b *inbox) sync(s *session) {
	f := &clientv1.Sync{SyncToken: b.token}
	if !b.repair {
		f.PageLimit = syncPage
	}
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
		b.began(r)
		for _, st := range r.Conversations {
			b.state(cursors, st)
		}
		b.token = r.SyncToken
		if r.More {
			b.sync(s)
			return
		}
		if b.repair && r.Full { // not before: the answer may be lost with its session
			b.doubt = true
		}
		if b.repair = b.differs(r); b.repair {
			b.token = ""
			b.sync(s)
			return
		}
		b.synced(s)
	})
}

// began lets go of what syncs have told before a full list.
func (b *inbox) began(r *clientv1.SyncResult) {
	if r.Full && !b.full {
		for _, cv := range b.convs {
			cv.term = 0
		}
	}
	b.full = r.Full && r.More
}

// differs compares the digest of an answer with what syncs have told, while
// recording, and reports whether the full list is to be asked for, as the SDK does.
func (b *inbox) differs(r *clientv1.SyncResult) bool {
	rec := b.d.h.rec
	if rec == nil || r.Digest == 0 {
		return false
	}
	sum := uint64(0)
	for _, cv := range b.convs {
		sum += cv.term
	}
	rec.digest(b.d, sum == r.Digest)
	if sum == r.Digest {
		b.doubt = false
		return false
	}
	again := !b.doubt && !r.Full
	b.doubt = b.doubt || r.Full
	return again
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
		cv.term = 0
		if st.Role != clientv1.Role_ROLE_UNSPECIFIED {
			cv.term = protocol.DigestTerm(cv.id, st.HeadSeq)
		}
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
