package bench

import (
	"fmt"
	"time"

	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// What scenarios read of a store that was filled before.

// answerTo waits for the answer to one request outside of the measurement.
func (r *runner) answerTo(d *device, f *clientv1.ClientFrame) (got *clientv1.ServerFrame, err error) {
	if !d.online() {
		return nil, fmt.Errorf("%s is not online%s", d.user, r.why())
	}
	done := false
	d.cur.request(f, func(a *clientv1.ServerFrame) { got, done = a, true })
	_, err = r.wait("look", protocol.ClientTimeout, func() bool { return done })
	switch {
	case err != nil:
		return nil, err
	case got == nil:
		return nil, fmt.Errorf("no answer to %s%s", d.user, r.why())
	case got.GetError() != nil:
		return nil, fmt.Errorf("%s is refused: %s", d.user, reasonOf(got))
	}
	return got, nil
}

// readLarge reads pages of the conversation of Options at random places, as
// devices of its reader.
func (r *runner) readLarge() error {
	r.named, r.o.Users = []string{r.o.Reader}, 1
	if err := r.connectAll(r.o.Conns, nil); err != nil {
		return err
	}
	a, err := r.answerTo(r.devices[0], historyFrame(r.o.Conversation, 0, 0, true, 1))
	if err != nil {
		return fmt.Errorf("read the newest entry of %s: %w", r.o.Conversation, err)
	}
	head := a.GetHistoryResult().GetPage().GetCompleteTo()
	if head < int64(r.o.Page) {
		return fmt.Errorf("%s has %d entries, which make no page", r.o.Conversation, head)
	}
	r.primary = r.recorder("page")
	for _, d := range r.devices {
		d.in.reads = true // else the first comparison of heads makes it read the whole log
		r.readPages(d, r.o.Conversation, head)
	}
	return r.measure()
}

// syncLarge lets the reader of Options sync as it comes back: each time, some of
// its direct conversations have got a message from the other side since its
// token. An operation is such a sync, to its end.
func (r *runner) syncLarge() error {
	r.named, r.o.Users = []string{r.o.Reader}, 1
	if err := r.connectAll(1, nil); err != nil {
		return err
	}
	r.devices[0].in.reads = true
	v := &returner{r: r, d: r.devices[0], heads: map[string]int64{}, missing: map[string]bool{}}
	if err := v.learn(); err != nil {
		return err
	}
	r.o.Users = len(r.named)
	if err := r.connectAll(len(r.named), nil); err != nil {
		return err
	}
	since := r.recorder("since")
	r.primary = since
	r.add(&source{r: r, d: v.d, rec: since, limit: 1, begin: func(s *source, _ time.Duration) { v.round(s, since) }})
	return r.measure()
}

// returner is a device that was away.
type returner struct {
	r       *runner
	d       *device
	token   string
	heads   map[string]int64 // newest entry of each conversation, as last told
	order   []string         // conversations, as they were told of first
	direct  []string         // of these the direct ones; the n-th with the user named n+1
	missing map[string]bool  // changed, and not told of yet
}

// learn reads all conversations of the reader and names the other users.
func (v *returner) learn() error {
	for more := true; more; {
		a, err := v.r.answerTo(v.d, &clientv1.ClientFrame{Kind: &clientv1.ClientFrame_Sync{Sync: &clientv1.Sync{SyncToken: v.token}}})
		if err != nil {
			return fmt.Errorf("read the conversations of %s: %w", v.d.user, err)
		}
		res := a.GetSyncResult()
		for _, c := range res.GetConversations() {
			v.order = append(v.order, c.ConversationId)
			v.heads[c.ConversationId] = c.HeadSeq
			if c.PeerId != "" && c.Role != clientv1.Role_ROLE_UNSPECIFIED {
				v.direct = append(v.direct, c.ConversationId)
				v.r.named = append(v.r.named, c.PeerId)
			}
		}
		v.token, more = res.GetSyncToken(), res.GetMore()
	}
	if n := len(v.direct); n < v.r.o.Changed {
		return fmt.Errorf("%s has %d direct conversations, %d are to change", v.d.user, n, v.r.o.Changed)
	}
	return nil
}

// round changes conversations and syncs.
func (v *returner) round(s *source, since *recorder) {
	r := v.r
	left := r.o.Changed
	for _, n := range r.rng.Perm(len(v.direct))[:r.o.Changed] {
		from, conv := r.devices[1+n], v.direct[n]
		v.missing[conv] = true
		from.out.send(from.out.lane("", r.o.Reader), r.l.now, func(_ *send, a *ackIn) {
			if a.status != clientv1.Ack_ACK_OK {
				r.errors["a change failed: "+string(a.reason)]++
				delete(v.missing, conv)
			}
			if left--; left == 0 {
				v.sync(s, r.l.now, since)
			}
		})
	}
}

// sync asks for what has changed, and knows what must have.
func (v *returner) sync(s *source, at time.Duration, since *recorder) {
	r := v.r
	if !s.d.online() {
		r.fail("not online")
		s.ended()
		return
	}
	f := &clientv1.Sync{SyncToken: v.token, PageLimit: syncPage}
	for _, id := range v.order[:min(len(v.order), protocol.MaxSyncCursors)] {
		f.Cursors = append(f.Cursors, &clientv1.Cursor{ConversationId: id, Have: v.heads[id]})
	}
	r.syncOn(s, at, since, f, func(res *clientv1.SyncResult) {
		v.token = res.SyncToken
		for _, c := range res.Conversations {
			v.heads[c.ConversationId] = max(v.heads[c.ConversationId], c.HeadSeq)
			delete(v.missing, c.ConversationId)
		}
		if !res.More && len(v.missing) > 0 {
			r.errors["a change is missing"] += int64(len(v.missing))
			clear(v.missing)
		}
	})
}
