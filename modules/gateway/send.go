package gateway

import (
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/run"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// send takes a send frame. passed = it is not above the connection's rate.
func (s *session) send(now time.Time, id uint32, m *clientv1.Send, passed bool, wait time.Duration) {
	conv, peer, verdict := target(s.user, m)
	it := run.Send{ID: id, Start: m.RunStart, Arrived: now, Size: proto.Size(m)}
	it.Send = &v1.RunSend{ClientMessageId: m.ClientMessageId, Resend: m.Resend, Kind: clientv1.EntryKind_ENTRY_KIND_MESSAGE, Content: m.Content}
	if c, _ := s.g.Trace.Begin(""); c.Sampled() {
		it.Send.Traceparent = c.String()
	}
	if verdict == nil {
		verdict = checkSend(m)
	}
	if !passed {
		verdict = protocol.NewError("rate_limited", "", wait)
	} else if verdict == nil {
		if ok, wait := s.g.limits.Send(s.user, im.ConversationID(conv)); !ok {
			verdict = protocol.NewError("rate_limited", "", wait)
			s.refused(now)
		}
	}
	if verdict == nil {
		hash := protocol.BodyHash(it.Send.Kind, 0, m.Content)
		it.Send.BodyHash = hash[:]
		s.g.typing.sent(conv, s.user)
	} else if verdict.Reason == "rate_limited" {
		s.g.m.limited.WithLabelValues("send").Inc()
	}
	it.Verdict = verdict
	s.mu.Lock()
	if s.phase != online {
		s.mu.Unlock()
		return
	}
	var e run.Effects
	if conv == "" { // it belongs to no conversation, so it waits for none
		e.Answers = []run.Answer{{Send: it, Ack: &clientv1.SendAck{ClientMessageId: m.ClientMessageId, Status: statusOf(verdict), Error: verdict}}}
	} else {
		s.runs.Add(now, conv, peer, it, &e)
	}
	s.answerLocked(now, &e)
	if s.runs.Unanswered() > 0 {
		s.wakeLocked(now.Add(run.AnswerWithin))
	}
	s.mu.Unlock()
	s.submit(e.Submit)
}

func statusOf(e *clientv1.Error) clientv1.Ack {
	if e.Retryable {
		return clientv1.Ack_ACK_RETRY
	}
	return clientv1.Ack_ACK_FAIL
}

// target finds the conversation that a send is for; "" if that cannot be told.
func target(user im.UserID, m *clientv1.Send) (conv, peer string, no *clientv1.Error) {
	switch to := m.To.(type) {
	case *clientv1.Send_ConversationId:
		if !validConversation(to.ConversationId) {
			return "", "", protocol.NewError("invalid_id", "conversation_id is no id of a conversation", 0)
		}
		return to.ConversationId, "", nil
	case *clientv1.Send_ToUser:
		if !protocol.ValidID(to.ToUser) {
			return "", "", protocol.NewError("invalid_id", "to_user is no user id", 0)
		}
		if to.ToUser == string(user) {
			return "", "", protocol.NewError("bad_request", "a direct conversation is between two different users", 0)
		}
		return protocol.DirectID(string(user), to.ToUser), to.ToUser, nil
	}
	return "", "", protocol.NewError("bad_request", "conversation_id or to_user must be set", 0)
}

// validConversation reports whether s can be the id of a conversation.
func validConversation(s string) bool { return len(s) > 2 && s[1] == '_' && protocol.ValidID(s) }

// checkSend finds what can never be stored; nil = nothing.
func checkSend(m *clientv1.Send) *clientv1.Error {
	if !protocol.ValidUUID(m.ClientMessageId) {
		return protocol.NewError("bad_request", "client_message_id must be a UUID of version 4 or 7 in lower case", 0)
	}
	switch m.Kind {
	case clientv1.EntryKind_ENTRY_KIND_EDIT, clientv1.EntryKind_ENTRY_KIND_RECALL, clientv1.EntryKind_ENTRY_KIND_REACTION:
		return protocol.NewError("unsupported", "", 0)
	case clientv1.EntryKind_ENTRY_KIND_MEMBER_CHANGE, clientv1.EntryKind_ENTRY_KIND_CONVERSATION_CHANGE, clientv1.EntryKind_ENTRY_KIND_ANNOUNCEMENT:
		return protocol.NewError("bad_request", "this kind of entry is not made by send", 0)
	}
	if reason := protocol.CheckContent(m.Content); reason != "" {
		return protocol.NewError(reason, contentTexts[reason], 0)
	}
	return nil
}

var contentTexts = map[string]string{
	"bad_request": "content must have a value, a type of at most 64 bytes, at most 16 attributes, UTF-8 and no U+0000",
}

// ackRoom is about how long a send_ack is in each encoding, in bytes.
var ackRoom = [...]int{protocol.Proto: 128, protocol.JSON: 384}

// answerLocked queues the answers of a step. They share their memory: they leave
// together too.
func (s *session) answerLocked(now time.Time, e *run.Effects) {
	if len(e.Answers) == 0 {
		return
	}
	var ack clientv1.ServerFrame_SendAck
	frame := &clientv1.ServerFrame{Kind: &ack}
	buf := make([]byte, 0, len(e.Answers)*ackRoom[s.enc])
	for _, a := range e.Answers {
		s.g.m.send.Observe(now.Sub(a.Send.Arrived).Seconds())
		s.answered(now, a)
		if a.Ack.Status == clientv1.Ack_ACK_OK {
			s.seen.Knows(a.Ack.ConversationId, a.Ack.Seq)
		}
		frame.Id, ack.SendAck = a.Send.ID, a.Ack
		from := len(buf)
		var err error
		buf, err = protocol.AppendFrame(buf, s.enc, frame)
		s.writeLocked(kindSendAck, buf[from:len(buf):len(buf)], err)
	}
	s.look()
}

// submit hands runs over; what does not fit is answered busy.
func (s *session) submit(out []run.Out) {
	for _, o := range out {
		if !s.g.submitter.offer(submission{owner: s, out: o}) {
			s.submitted(o.Run.ConversationId, o.Token, nil, protocol.NewError("busy", "", 0))
		}
	}
}

// submitted takes the result of a run.
func (s *session) submitted(conv string, token run.Token, acks []*clientv1.SendAck, failed *clientv1.Error) {
	s.mu.Lock()
	if s.phase == ended {
		s.mu.Unlock()
		return
	}
	now := time.Now()
	var e run.Effects
	displaced := outranked(acks)
	s.runs.Done(now, conv, token, acks, failed, &e)
	s.answerLocked(now, &e)
	s.mu.Unlock()
	if displaced != "" {
		s.g.m.outranked.Inc()
		s.end(displaced, endTexts[displaced], 0)
		return
	}
	s.submit(e.Submit)
}
