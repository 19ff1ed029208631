package gateway

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/obs"
	"github.com/imdhq/imd/pkg/trace"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

const (
	// syncsAtOnce is how many syncs one call carries.
	syncsAtOnce = 64
	// resultBytes is the room for the result of a sync or history in its frame.
	resultBytes = protocol.ServerEnvelope - 256
	// requestsAtOnce is how many requests of all sessions are in work at once, and
	// requestsWaiting how many others may wait for their turn.
	requestsAtOnce  = 1024
	requestsWaiting = 8192
	// syncCalls is how many calls with syncs are out at once.
	syncCalls = 4
	// syncsWaiting is how many syncs may wait for a call.
	syncsWaiting = 32_768
	// requestAge is how long a request may wait. With the time of the call itself it
	// is answered within 5 s.
	requestAge = 3500 * time.Millisecond
)

// job is work on a request.
type job struct {
	do   func()
	late func() // in place of do, when it has waited for too long
}

// request is one of a session, from its frame to its answer.
type request struct {
	s     *session
	id    uint32
	kind  string // of its frame
	began time.Time
	trace trace.Context
	sync  *v1.SyncRequest // of a sync
}

// desks makes the lines in which requests wait.
func (g *Gateway) desks() {
	g.requests = &gather[job]{calls: requestsAtOnce, most: 1, room: requestsWaiting, age: requestAge, run: g.goroutine, now: time.Now,
		ask: func(batch []job) { batch[0].do() }, late: func(j job) { j.late() }}
	g.syncs = &gather[*request]{calls: syncCalls, most: syncsAtOnce, room: syncsWaiting, age: requestAge, run: g.goroutine, now: time.Now,
		ask: g.syncMany, late: func(r *request) { r.refuse("late") }}
}

// request handles a frame that is neither send nor ack.
func (s *session) request(f *clientv1.ClientFrame) {
	switch k := f.Kind.(type) {
	case *clientv1.ClientFrame_Read:
		s.markRead(f.Id, k.Read)
	case *clientv1.ClientFrame_Sync:
		s.sync(f.Id, k.Sync)
	case *clientv1.ClientFrame_History:
		s.history(f.Id, k.History)
	case *clientv1.ClientFrame_RefreshToken:
		s.refresh(f.Id, k.RefreshToken.Token)
	case *clientv1.ClientFrame_WatchPresence:
		s.watchPresence(f.Id, k.WatchPresence)
	default:
		s.reply(errorFrame(f.Id, protocol.NewError("unknown_kind", "", 0)))
	}
}

// bad answers a request that is wrong in itself.
func (s *session) bad(id uint32, reason, msg string) {
	s.reply(errorFrame(id, protocol.NewError(reason, msg, 0)))
}

// ask makes a call on behalf of the request id and answers it with the frame
// or the error that do returns. kind is that of the request.
func (s *session) ask(id uint32, kind string, do func(context.Context) (*clientv1.ServerFrame, error)) {
	s.offer(s.newRequest(id, kind), func(r *request, ctx context.Context) { r.answer(do(ctx)) })
}

// offer has a request done in its turn.
func (s *session) offer(r *request, do func(*request, context.Context)) {
	j := job{do: func() { do(r, trace.With(s.g.ctx, r.trace)) }, late: func() { r.refuse("late") }}
	if !s.g.requests.offer(j, false) {
		r.refuse("full")
	}
}

// newRequest counts one more request of the session, until it is answered.
func (s *session) newRequest(id uint32, kind string) *request {
	r := &request{s: s, id: id, kind: kind, began: time.Now()}
	r.trace, _ = s.g.Trace.Begin("")
	s.mu.Lock()
	s.requests++
	s.mu.Unlock()
	return r
}

// refuse answers that there was no turn for the request. Those who hear it come
// back at different times.
func (r *request) refuse(why string) {
	r.s.g.m.requestsRefused.WithLabelValues(r.kind, why).Inc()
	r.answer(errorFrame(r.id, protocol.NewError("busy", "", pauses())), nil)
}

// answer writes the answer, a frame or what the error says; nil = nothing is
// written.
func (r *request) answer(f *clientv1.ServerFrame, err error) {
	reason := ""
	if err != nil {
		e := im.Wire(err)
		reason, f = e.GetReason(), errorFrame(r.id, e)
	}
	r.end(reason, func(s *session) {
		if f != nil {
			f.Id = r.id
			s.replyLocked(f)
		}
	})
}

// answerPage writes the answer to a request for history, in its turn.
func (r *request) answerPage(h *clientv1.HistoryResult) {
	g := r.s.g
	g.bulk.do(func() {
		data, err := g.pages.frame(r.s.enc, r.id, h)
		r.end("", func(s *session) { s.writeLocked(kindHistoryResult, data, err) })
	})
}

// end ends the request: write answers, with the session's lock held. failed is a
// reason or empty.
func (r *request) end(failed string, write func(*session)) {
	s := r.s
	s.g.Trace.Span(trace.Span{Context: r.trace, Name: r.kind, Kind: trace.Server, Begin: r.began, End: time.Now(), Failed: failed})
	if r.sync != nil {
		s.q.uncork() // welcome may have waited for this
	}
	s.mu.Lock()
	s.requests--
	write(s)
	s.mu.Unlock()
	s.look()
}

func (s *session) markRead(id uint32, r *clientv1.Read) {
	if !validConversation(r.ConversationId) {
		s.bad(id, "invalid_id", "conversation_id is no id of a conversation")
		return
	}
	if r.Seq < 0 {
		s.bad(id, "bad_request", "seq must not be negative")
		return
	}
	req := &v1.MarkRequest{Marks: []*v1.Mark{{ConversationId: r.ConversationId, UserId: string(s.user), Seq: r.Seq, Read: true, SessionId: string(s.id)}}}
	s.ask(id, "read", func(ctx context.Context) (*clientv1.ServerFrame, error) {
		res, err := s.g.State.Mark(ctx, req)
		if err != nil {
			return nil, err
		}
		if len(res.Results) != 1 {
			return nil, im.Errorf(clientv1.Reason_REASON_INTERNAL, "gateway.read", "")
		}
		if e := res.Results[0].Error; e != nil {
			return errorFrame(id, e), nil
		}
		return receiptFrame(id, res.Results[0].Receipt), nil
	})
}

func (s *session) sync(id uint32, q *clientv1.Sync) {
	if q.PageLimit < 0 || len(q.Cursors) > protocol.MaxSyncCursors {
		s.bad(id, "bad_request", "page_limit must not be negative, and there may be 256 cursors")
		return
	}
	for _, c := range q.Cursors {
		if !validConversation(c.ConversationId) || c.Have < 0 {
			s.bad(id, "bad_request", "a cursor needs a conversation and have >= 0")
			return
		}
	}
	r := s.newRequest(id, "sync")
	r.sync = &v1.SyncRequest{UserId: string(s.user), SyncToken: q.SyncToken, Cursors: q.Cursors,
		PageLimit: min(q.PageLimit, protocol.MaxSyncPage), MaxBytes: resultBytes, Json: s.enc == protocol.JSON, Digest: true}
	first := !s.resumed // who has just come waits for it; others have their entries live
	s.resumed = true
	if !s.g.syncs.offer(r, first) {
		r.refuse("full")
	}
}

// syncMany asks state about many syncs and answers them.
func (g *Gateway) syncMany(batch []*request) {
	failed := askApart(batch, time.Now, g.askSyncs)
	if n := len(failed); n > 0 && n < len(batch) && mayBeAnothers(failed[0].err) {
		g.Log.Warn("state answered other syncs, but not these", zap.Int("syncs", n), obs.User(failed[0].x.s.user), obs.Err(failed[0].err))
	}
	for _, f := range failed {
		f.x.answer(nil, f.err)
	}
}

// askSyncs makes one call, answers whom it can, and returns the others.
func (g *Gateway) askSyncs(batch []*request) (failed []failure[*request]) {
	const op = "gateway.sync"
	req := &v1.SyncManyRequest{Requests: make([]*v1.SyncRequest, len(batch))}
	for i, r := range batch {
		req.Requests[i] = r.sync
	}
	res, err := g.State.SyncMany(trace.With(g.ctx, batch[0].trace), req)
	if err == nil && len(res.Answers) != len(batch) {
		err = im.Errorf(clientv1.Reason_REASON_INTERNAL, op, "")
	}
	if err != nil {
		return allFailed(batch, err)
	}
	for i, r := range batch {
		if a := res.Answers[i]; a.GetResult() == nil {
			failed = append(failed, failure[*request]{r, unanswered(op, a.GetError())})
			continue
		}
		r.answer(&clientv1.ServerFrame{Kind: &clientv1.ServerFrame_SyncResult{SyncResult: res.Answers[i].Result}}, nil)
	}
	return failed
}

func (s *session) history(id uint32, h *clientv1.History) {
	switch {
	case !validConversation(h.ConversationId):
		s.bad(id, "invalid_id", "conversation_id is no id of a conversation")
		return
	case h.Limit < 0 || h.AfterSeq < 0 || h.BeforeSeq < 0:
		s.bad(id, "bad_request", "limit, after_seq and before_seq must not be negative")
		return
	case h.Limit == 0:
		h.Limit = protocol.HistoryLimit
	}
	h.Limit = min(h.Limit, protocol.MaxHistoryLimit)
	req := &v1.HistoryRequest{UserId: string(s.user), History: h, MaxBytes: resultBytes, Json: s.enc == protocol.JSON}
	s.offer(s.newRequest(id, "history"), func(r *request, ctx context.Context) {
		if res, err := s.g.State.History(ctx, req); err != nil {
			r.answer(nil, err)
		} else {
			r.answerPage(res.Result)
		}
	})
}

// refresh lets the session go on with another token of the same login.
func (s *session) refresh(id uint32, token string) {
	c, err := s.g.Verifier.Verify(token, time.Now())
	if err != nil {
		s.bad(id, "bad_token", im.Wire(err).Message)
		return
	}
	if c.User != s.user || c.Login != s.login {
		s.bad(id, "bad_token", "the token is of another user or login")
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expires = c.Expires
	s.wakeLocked(s.expires)
	s.replyLocked(&clientv1.ServerFrame{Id: id, Kind: &clientv1.ServerFrame_RefreshResult{
		RefreshResult: &clientv1.RefreshResult{TokenExpireMs: c.Expires.UnixMilli()}}})
}
