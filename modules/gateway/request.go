package gateway

import (
	"context"
	"time"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/trace"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

const (
	// resultBytes is the room for the result of a sync or history in its frame.
	resultBytes = protocol.ServerEnvelope - 256
	// maxRequests is how many requests of all sessions are in work at once.
	maxRequests = 1024
)

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
	case *clientv1.ClientFrame_Typing, *clientv1.ClientFrame_WatchPresence:
		s.reply(errorFrame(f.Id, protocol.NewError("unsupported", "", 0)))
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
	select {
	case s.g.requests <- struct{}{}:
	default:
		s.reply(errorFrame(id, protocol.NewError("busy", "", 0)))
		return
	}
	s.mu.Lock()
	s.requests++
	s.mu.Unlock()
	s.g.goroutine(func() {
		began, reason := time.Now(), ""
		c, _ := s.g.Trace.Begin("")
		f, err := do(trace.With(s.g.ctx, c))
		<-s.g.requests
		if err != nil {
			reason = im.Wire(err).GetReason()
		}
		s.g.Trace.Span(trace.Span{Context: c, Name: kind, Kind: trace.Server, Begin: began, End: time.Now(), Failed: reason})
		if err != nil {
			f = errorFrame(id, im.Wire(err))
		}
		s.mu.Lock()
		s.requests--
		if f != nil {
			f.Id = id
			s.replyLocked(f)
		}
		s.mu.Unlock()
		s.look()
	})
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
	req := &v1.SyncRequest{UserId: string(s.user), SyncToken: q.SyncToken, Cursors: q.Cursors,
		PageLimit: min(q.PageLimit, protocol.MaxSyncPage), MaxBytes: resultBytes, Json: s.enc == protocol.JSON}
	s.ask(id, "sync", func(ctx context.Context) (*clientv1.ServerFrame, error) {
		res, err := s.g.State.Sync(ctx, req)
		if err != nil {
			return nil, err
		}
		return &clientv1.ServerFrame{Kind: &clientv1.ServerFrame_SyncResult{SyncResult: res.Result}}, nil
	})
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
	s.ask(id, "history", func(ctx context.Context) (*clientv1.ServerFrame, error) {
		res, err := s.g.State.History(ctx, req)
		if err != nil {
			return nil, err
		}
		return &clientv1.ServerFrame{Kind: &clientv1.ServerFrame_HistoryResult{HistoryResult: res.Result}}, nil
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
