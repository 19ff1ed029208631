package bench

import (
	"github.com/imdhq/imd/pkg/history"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// The files of a recording.
const (
	opsFile  = "client-0.ops"
	viewFile = "client-0.view"
)

// tape writes what devices do and show into a history. A nil tape writes
// nothing. Records carry the loop's time of the round in which something
// happened, so what happened in one round counts as having happened at once.
type tape struct {
	rec   *history.Recorder
	l     *loop
	shift int64            // from the loop's clock to the recorder's
	heads map[string]int64 // of each conversation, the newest entry that was acknowledged to its sender
}

func newTape(rec *history.Recorder, l *loop) *tape {
	if rec == nil {
		return nil
	}
	return &tape{rec: rec, l: l, shift: rec.At(l.base), heads: map[string]int64{}}
}

// now is the time of records; never 0, which would look like none.
func (t *tape) now() int64 { return max(int64(t.l.now)+t.shift, 1) }

// saw takes note of a conversation.
func (t *tape) saw(conv string) {
	if _, ok := t.heads[conv]; !ok {
		t.heads[conv] = 0
	}
}

func (t *tape) head(conv string, seq int64) { t.heads[conv] = max(t.heads[conv], seq) }

func (t *tape) invoke(d *device, p *send) {
	if t == nil {
		return
	}
	t.rec.Add(opsFile, history.Record{T: t.now(), Kind: history.Invoke, User: d.user, Device: d.id, Conv: p.lane.conv, CMID: p.id, N: p.n, Hash: p.hash})
}

// answer records what came back for a send.
func (t *tape) answer(d *device, p *send, a *ackIn) {
	if t == nil {
		return
	}
	r := history.Record{T: t.now(), Kind: history.Return, User: d.user, Device: d.id, Conv: p.lane.conv, CMID: p.id}
	switch a.status {
	case clientv1.Ack_ACK_OK:
		r.Ack, r.MID, r.Seq, r.Prev, r.Dup = history.AckOK, a.mid, a.seq, a.prev, a.duplicate
	case clientv1.Ack_ACK_FAIL:
		r.Ack, r.Reason = history.AckFail, string(a.reason)
	default:
		r.Ack, r.Reason = history.AckRetry, string(a.reason)
	}
	t.rec.Add(opsFile, r)
}

// unknown records that no answer will come on this connection.
func (t *tape) unknown(d *device, p *send) {
	if t == nil {
		return
	}
	t.rec.Add(opsFile, history.Record{T: t.now(), Kind: history.Return, User: d.user, Device: d.id, Conv: p.lane.conv, CMID: p.id, Ack: history.AckUnknown})
}

// show records an entry that a device shows. hash is that of its content, if it
// is known already; in the record, Entry is empty for a message.
func (t *tape) show(d *device, conv string, e *clientv1.Entry, hash string) {
	r := history.Record{T: t.now(), Kind: history.Show, User: d.user, Device: d.id, Conv: conv, Seq: e.Seq, MID: e.MessageId}
	switch {
	case e.Kind != clientv1.EntryKind_ENTRY_KIND_MESSAGE:
		r.Entry = entryName(e.Kind)
	case hash != "":
		r.Hash = hash
	default:
		r.Hash = hashOf(e.Kind, e.TargetSeq, e.Content)
	}
	t.rec.Add(viewFile, r)
}

// leak records what a device was given that it must not see.
func (t *tape) leak(d *device, conv string, e *clientv1.Entry) {
	if t != nil {
		t.show(d, conv, e, "")
	}
}

func (t *tape) open(d *device, conv string, have int64) {
	t.rec.Add(viewFile, history.Record{T: t.now(), Kind: history.Open, User: d.user, Device: d.id, Conv: conv, Seq: have})
}

// have records where a device takes a conversation up again on a new session.
func (t *tape) have(d *device, conv string, have int64) {
	if d.welcomed > 1 {
		t.rec.Add(viewFile, history.Record{T: t.now(), Kind: history.Have, User: d.user, Device: d.id, Conv: conv, Seq: have})
	}
}

func (t *tape) connect(d *device, epoch string) {
	if t != nil {
		t.rec.Add(viewFile, history.Record{T: t.now(), Kind: history.Connect, User: d.user, Device: d.id, Name: epoch})
	}
}

func (t *tape) disconnect(d *device, reason string) {
	if t != nil {
		t.rec.Add(viewFile, history.Record{T: t.now(), Kind: history.Disconnect, User: d.user, Device: d.id, Reason: reason})
	}
}

func (t *tape) resync(d *device, conv, epoch string) {
	if t != nil {
		t.rec.Add(viewFile, history.Record{T: t.now(), Kind: history.Resync, User: d.user, Device: d.id, Conv: conv, Name: epoch})
	}
}

// digest records whether a digest is that of what syncs have told.
func (t *tape) digest(d *device, agrees bool) {
	r := history.Record{T: t.now(), Kind: history.Digest, User: d.user, Device: d.id, Ack: history.AckOK}
	if !agrees {
		r.Ack = history.AckFail
	}
	t.rec.Add(viewFile, r)
}

func (t *tape) settled(d *device) {
	t.rec.Add(viewFile, history.Record{T: t.now(), Kind: history.Settled, User: d.user, Device: d.id})
}

// caughtUp reports whether a device has all that was acknowledged to the
// senders in its conversations.
func (t *tape) caughtUp(d *device) bool {
	for _, cv := range d.in.convs {
		if cv.tl.Have() < t.heads[cv.id] {
			return false
		}
	}
	return d.in.settled()
}
