package api

import (
	"context"
	"time"

	"connectrpc.com/connect/v2"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/trace"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/gen/imdv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// answerBytes bounds the page of an answer. There is no frame limit here, so it
// is larger than on the socket.
const answerBytes = 256 << 10

// messages is the MessageService.
type messages struct{ a *API }

// Send stores one message and answers after the commit.
func (s messages) Send(ctx context.Context, r *imdv1.SendRequest) (*imdv1.SendResponse, error) {
	run, err := sendRun(actor(ctx), r)
	if err != nil {
		return nil, err
	}
	if err := s.limit(im.UserID(run.UserId), im.ConversationID(run.ConversationId)); err != nil {
		return nil, err
	}
	run.Sends[0].Traceparent = trace.From(ctx).String()
	began := s.a.Now()
	res, err := s.a.State.Submit(ctx, &v1.SubmitRequest{Runs: []*v1.Run{run}})
	if err != nil {
		return nil, err
	}
	if len(res.Runs) != 1 || len(res.Runs[0].Acks) != 1 {
		return nil, im.Errorf(clientv1.Reason_REASON_INTERNAL, "api.Send", "")
	}
	s.answered(began, res.Runs[0].Acks[0])
	return sendResponse(res.Runs[0].Acks[0])
}

// answered remembers that a caller was told that its message is stored.
func (s messages) answered(began time.Time, a *clientv1.SendAck) {
	if a.Status != clientv1.Ack_ACK_OK {
		return
	}
	now := s.a.Now()
	s.a.Trace.Add(trace.Record{Stage: trace.Answered, Message: im.MessageID(a.MessageId), Conv: trace.Conv(a.ConversationId), Seq: a.Seq,
		At: now, Took: now.Sub(began), Note: "http"})
}

// recipient is the conversation that a request writes to, and the other user of a
// direct one that need not exist yet. Exactly one of both is given.
func recipient(from im.UserID, r interface {
	GetConversationId() string
	GetToUser() string
}) (conv, peer string, err error) {
	switch conv, peer = r.GetConversationId(), r.GetToUser(); {
	case peer != "":
		if err := checkID("to_user", peer); err != nil {
			return "", "", err
		}
		if from == "" || peer == string(from) {
			return "", "", badRequest("to_user needs two different users: the system writes to a conversation_id, or names as_user")
		}
		return protocol.DirectID(string(from), peer), peer, nil
	case conv == "":
		return "", "", badRequest("one of conversation_id and to_user is needed")
	}
	return conv, "", checkID("conversation_id", conv)
}

// sendRun checks a send and makes a run of it.
func sendRun(from im.UserID, r *imdv1.SendRequest) (*v1.Run, error) {
	conv, peer, err := recipient(from, r)
	if err != nil {
		return nil, err
	}
	run := &v1.Run{UserId: string(from), ConversationId: conv, PeerId: peer}
	if err := first(checkUUID("client_message_id", r.ClientMessageId), checkContent(r.Content)); err != nil {
		return nil, err
	}
	const kind = clientv1.EntryKind_ENTRY_KIND_MESSAGE
	hash := protocol.BodyHash(kind, 0, r.Content)
	// A caller over HTTP rarely says whether it tries again, so each call is
	// taken for a possible repeat.
	run.Sends = []*v1.RunSend{{ClientMessageId: r.ClientMessageId, Resend: true, Kind: kind, Content: r.Content, BodyHash: hash[:]}}
	return run, nil
}

func checkContent(c *clientv1.Content) error {
	switch reason := protocol.CheckContent(c); reason {
	case "":
		return nil
	case "too_large":
		return tooLarge("content is larger than %d bytes", protocol.MaxContent)
	default:
		return im.Errorf(im.ReasonByName(reason), op, "content is absent or malformed: text or data, a type of up to %d bytes, up to %d attributes, no U+0000",
			protocol.MaxContentType, protocol.MaxAttributes)
	}
}

// limit takes the message from the rates.
func (s messages) limit(user im.UserID, conv im.ConversationID) error {
	if s.a.Limiter == nil {
		return nil
	}
	ok, wait := s.a.Limiter.Send(user, conv)
	if ok {
		return nil
	}
	return &im.Error{Reason: clientv1.Reason_REASON_RATE_LIMITED, Op: "api.Send", RetryAfter: wait}
}

// sendResponse turns the answer to a send into that of the call. What is not
// known to be stored is an error that says: send it again.
func sendResponse(ack *clientv1.SendAck) (*imdv1.SendResponse, error) {
	if ack.GetStatus() == clientv1.Ack_ACK_OK {
		return &imdv1.SendResponse{
			ConversationId: ack.ConversationId, MessageId: ack.MessageId, Seq: ack.Seq, PrevSeq: ack.PrevSeq,
			ServerTimeMs: ack.ServerTimeMs, Duplicate: ack.Duplicate,
		}, nil
	}
	if err := im.FromWire("api.Send", ack.GetError()); err != nil {
		return nil, err
	}
	return nil, &im.Error{Reason: clientv1.Reason_REASON_UNAVAILABLE, Op: "api.Send"}
}

// History reads entries of an interval.
func (s messages) History(ctx context.Context, r *imdv1.HistoryRequest) (*imdv1.HistoryResponse, error) {
	err := first(checkID("conversation_id", r.ConversationId), checkSeq("after_seq", r.AfterSeq), checkSeq("before_seq", r.BeforeSeq),
		notNegative("limit", int64(r.Limit)))
	if err != nil {
		return nil, err
	}
	res, err := s.a.State.History(ctx, &v1.HistoryRequest{
		UserId: string(actor(ctx)), MaxBytes: answerBytes, Json: inJSON(ctx),
		History: &clientv1.History{
			ConversationId: r.ConversationId, AfterSeq: r.AfterSeq, BeforeSeq: r.BeforeSeq, Limit: pageLimit(r.Limit), Backward: r.Backward,
		},
	})
	if err != nil {
		return nil, err
	}
	return &imdv1.HistoryResponse{ConversationId: res.Result.GetConversationId(), Page: res.Result.GetPage()}, nil
}

// inJSON reports whether the answer will be JSON.
func inJSON(ctx context.Context) bool {
	info, ok := connect.CallInfoForServerContext(ctx)
	return ok && info.Codec == connect.CodecNameJSON
}
