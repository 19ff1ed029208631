package state

import (
	"context"
	"strings"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// syncOverhead is what a sync answer takes beside its states.
const syncOverhead = 512

// Sync tells a user which of its conversations changed; see StateService.
func (s *State) Sync(ctx context.Context, req *v1.SyncRequest) (*v1.SyncResponse, error) {
	if err := checkSync(req); err != nil {
		return nil, err
	}
	c, err := s.serving()
	if err != nil {
		return nil, err
	}
	x := c.newSync(req, nil)
	page, err := c.store.Sync(ctx, x.q)
	if err != nil {
		return nil, storeErr("state.Sync", err)
	}
	return &v1.SyncResponse{Result: x.result(&page)}, nil
}

// SyncMany is Sync for many users, in one call to the store; see StateService. Its
// answers share entries, so they are only read.
func (s *State) SyncMany(ctx context.Context, req *v1.SyncManyRequest) (*v1.SyncManyResponse, error) {
	const op = "state.SyncMany"
	if len(req.Requests) > store.MaxSyncs {
		return nil, badRequest(op, "more than %d requests", store.MaxSyncs)
	}
	c, err := s.serving()
	if err != nil {
		return nil, err
	}
	res := &v1.SyncManyResponse{Answers: make([]*v1.SyncAnswer, len(req.Requests))}
	syncs, qs, at := make([]*syncing, 0, len(req.Requests)), make([]store.SyncQuery, 0, len(req.Requests)), make([]int, 0, len(req.Requests))
	made := make(alike)
	for i, r := range req.Requests {
		if err := checkSync(r); err != nil {
			res.Answers[i] = &v1.SyncAnswer{Error: im.Wire(err)}
			continue
		}
		x := c.newSync(r, made)
		syncs, qs, at = append(syncs, x), append(qs, x.q), append(at, i)
	}
	if len(qs) == 0 {
		return res, nil
	}
	pages, err := c.store.SyncMany(ctx, qs)
	if err != nil {
		return nil, storeErr(op, err)
	}
	for i, x := range syncs {
		res.Answers[at[i]] = &v1.SyncAnswer{Result: x.result(&pages[i])}
	}
	return res, nil
}

// syncing is one sync on its way.
type syncing struct {
	*core
	epoch string
	q     store.SyncQuery
	json  bool
	made  alike
}

// newSync makes the query of a request that was checked; made is what others of its
// call share.
func (c *core) newSync(req *v1.SyncRequest, made alike) *syncing {
	x := &syncing{core: c, epoch: c.store.DataEpoch(), json: req.Json, made: made}
	token, same := innerToken(x.epoch, req.SyncToken)
	x.q = store.SyncQuery{
		User: im.UserID(req.UserId), Token: token, Limit: store.MaxSyncPage, Entries: min(int(req.PageLimit), protocol.MaxSyncPage),
		MaxBytes: answerSize(req.MaxBytes) - syncOverhead, Digest: req.Digest,
	}
	if same { // cursors of another history mean other entries
		x.q.Cursors = make(map[im.ConversationID]im.Seq, len(req.Cursors))
		for _, cur := range req.Cursors {
			x.q.Cursors[im.ConversationID(cur.ConversationId)] = im.Seq(cur.Have)
		}
	}
	return x
}

// result is the answer that the store's page makes.
func (x *syncing) result(page *store.SyncPage) *clientv1.SyncResult {
	res := &clientv1.SyncResult{DataEpoch: x.epoch, More: page.More, Full: page.Full, SyncToken: outerToken(x.epoch, page.Token), Digest: page.Digest}
	b := &syncBuilder{core: x.core, cursors: x.q.Cursors, sizer: sizer{x.json}, room: x.q.MaxBytes, made: x.made}
	for i := range page.States {
		w := b.add(&page.States[i], i == 0)
		if w == nil { // no room: go on behind the last one that had it
			res.More, res.SyncToken, res.Digest = true, outerToken(x.epoch, page.TokenAfter[i-1]), 0
			break
		}
		res.Conversations = append(res.Conversations, w)
	}
	return res
}

func checkSync(req *v1.SyncRequest) error {
	const op = "state.Sync"
	switch {
	case !protocol.ValidID(req.UserId):
		return im.Errorf(clientv1.Reason_REASON_INVALID_ID, op, "the user id is malformed")
	case req.PageLimit < 0:
		return badRequest(op, "page_limit is negative")
	case len(req.Cursors) > protocol.MaxSyncCursors:
		return badRequest(op, "more than %d cursors", protocol.MaxSyncCursors)
	}
	for _, cur := range req.Cursors {
		if cur.GetConversationId() == "" || cur.Have < 0 {
			return badRequest(op, "a cursor names no conversation, or its have is negative")
		}
	}
	return nil
}

// outerToken is the token that clients get: the store's, bound to the history
// it belongs to. "" stays "".
func outerToken(epoch, inner string) string {
	if inner == "" {
		return ""
	}
	return epoch + "~" + inner
}

// innerToken takes the store's token out of a client's. Of another history, or
// unreadable, it is void, which is the same as none; then same is false. An
// empty token is of this history.
func innerToken(epoch, outer string) (inner string, same bool) {
	if outer == "" {
		return "", true
	}
	e, inner, ok := strings.Cut(outer, "~")
	if !ok || e != epoch {
		return "", false
	}
	return inner, true
}

// syncBuilder fills one sync answer up to its size.
type syncBuilder struct {
	*core
	cursors map[im.ConversationID]im.Seq
	sizer   sizer
	room    int // bytes left
	made    alike
}

// add makes the next state; nil if there is no room for it. The first always
// has room.
func (b *syncBuilder) add(s *store.ConversationState, first bool) *clientv1.ConversationState {
	if p := s.PeerMember; p != nil {
		p.Delivered = b.positions.overlay(memberKey{s.Conversation, p.User}, p.Delivered)
	}
	w := wireState(s, b.made.of(s))
	size := b.sizer.state(w)
	if size > b.room && !first {
		return nil
	}
	b.room -= size
	if s.Page != nil && b.room > pageOverhead {
		b.addPage(s, w)
	}
	return w
}

// addPage adds the entries the client would ask for next, as far as there is
// room: after its cursor, or the newest.
func (b *syncBuilder) addPage(s *store.ConversationState, w *clientv1.ConversationState) {
	have, known := b.cursors[s.Conversation]
	// The store leaves out cursors whose token it does not know.
	backward := !known || s.Page.CompleteFrom != have+1
	p := wirePage(s.Page, b.room-pageOverhead, backward, b.sizer.entry, b.made.of(s))
	size := pageOverhead
	for _, e := range p.Entries {
		size += b.sizer.entry(e)
	}
	if size <= b.room {
		w.Page = p
		b.room -= size
	}
}
