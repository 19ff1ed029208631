package state

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/lane"
	"github.com/imdhq/imd/pkg/ring"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/pkg/trace"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

const (
	// patience is how long a caller waits for its answers.
	patience = 1200 * time.Millisecond
	// headroom is how much earlier than its deadline a caller is answered, so
	// that the answer arrives.
	headroom = 30 * time.Millisecond
	// maxCallSends is the most sends one call may carry.
	maxCallSends = 1024
	// idPause is how long those wait who come behind a send for which no message
	// id could be made.
	idPause = 500 * time.Millisecond
	// rowOverhead is what a row takes beside its content.
	rowOverhead = 160
)

// Submit commits runs of sends and answers each send; see StateService.
func (s *State) Submit(ctx context.Context, req *v1.SubmitRequest) (*v1.SubmitResponse, error) {
	sends := 0
	for _, r := range req.Runs {
		sends += len(r.Sends)
	}
	if sends > maxCallSends {
		return nil, im.Errorf(clientv1.Reason_REASON_BAD_REQUEST, "state.Submit", "more than %d sends in a call", maxCallSends)
	}
	c, err := s.serving()
	if err != nil {
		return nil, err
	}
	if s.leaving.Load() {
		return nil, im.Errorf(clientv1.Reason_REASON_UNAVAILABLE, "state.Submit", "this node is leaving; another one has its conversations")
	}
	call := newCall(req, s.m)
	defer func() { s.Tally.Stored(call.count()) }()
	runs := c.begin(ctx, call)
	wait(ctx, call.done, func() {
		for _, run := range runs {
			c.laneOf(run.Conv).do(lane.Expire{Run: run})
		}
	})
	return call.res, nil
}

// begin brings the runs of a call to their lanes. Those with resends come last:
// what the dedup cache knows of them is answered from it.
func (c *core) begin(ctx context.Context, call *call) (runs []*lane.Run) {
	submit := func(i int, r *v1.Run, asked looked) {
		if run := c.prepare(call, i, r, asked); run != nil {
			runs = append(runs, run)
			c.laneOf(run.Conv).do(lane.Submit{Run: run})
		}
	}
	var again []*v1.Run // one for each; nil = no resend in it
	for i, r := range call.req.Runs {
		if !slices.ContainsFunc(r.Sends, func(s *v1.RunSend) bool { return s.Resend }) {
			submit(i, r, looked{})
			continue
		}
		if again == nil {
			again = make([]*v1.Run, len(call.req.Runs))
		}
		again[i] = r
	}
	if again == nil {
		return runs
	}
	asked := c.repeats.lookUp(ctx, c.store.DataEpoch(), again)
	for i, r := range again {
		if r != nil {
			submit(i, r, asked)
		}
	}
	return runs
}

// repeated answers a send that the dedup cache knows, and lets others look: the
// first copy may have been stored by a node that died before it could tell them.
func (c *core) repeated(call *call, at spot, r *v1.Run, res store.AppendResult) {
	now := time.Now()
	c.m.dedupAnswers.Observe(now.Sub(call.began).Seconds())
	call.answer(at.run, at.send, lane.Verdict{Result: res, Duplicate: true})
	c.Trace.Add(trace.Record{Stage: trace.Repeated, Message: res.MessageID, Conv: trace.Conv(r.ConversationId), Seq: int64(res.Seq), At: now, Took: now.Sub(call.began)})
	if c.hintDue(res, now) {
		c.fanout.add(headItem(im.ConversationID(r.ConversationId), im.SessionID(r.SessionId), res))
	}
}

// wait returns when done is closed, calling expire first if ctx or the caller's
// patience ends before; expire must close done.
func wait(ctx context.Context, done <-chan struct{}, expire func()) {
	t := patience
	if d, ok := ctx.Deadline(); ok {
		t = min(t, time.Until(d))
	}
	timer := time.NewTimer(max(t-headroom, 0))
	defer timer.Stop()
	select {
	case <-done:
		return
	case <-timer.C:
	case <-ctx.Done():
	}
	expire()
	<-done
}

// laneOf is the lane of a conversation, that of its shard.
func (c *core) laneOf(conv im.ConversationID) *driver {
	return c.lanes[ring.Shard(string(conv))%len(c.lanes)]
}

// call collects the answers of one Submit.
type call struct {
	req  *v1.SubmitRequest
	res  *v1.SubmitResponse
	m    *metrics
	left atomic.Int64
	done chan struct{} // closed when every send has its answer

	began time.Time
}

func newCall(req *v1.SubmitRequest, m *metrics) *call {
	c := &call{began: time.Now(), req: req, res: &v1.SubmitResponse{Runs: make([]*v1.RunResult, len(req.Runs))}, m: m, done: make(chan struct{})}
	left := 0
	for i, r := range req.Runs {
		c.res.Runs[i] = &v1.RunResult{Acks: make([]*clientv1.SendAck, len(r.Sends))}
		left += len(r.Sends)
	}
	c.left.Store(int64(left))
	if left == 0 {
		close(c.done)
	}
	return c
}

// answer sets the answer of one send, once. Any goroutine may call it.
func (c *call) answer(run, send int, v lane.Verdict) {
	r := c.req.Runs[run]
	a := &clientv1.SendAck{ClientMessageId: r.Sends[send].ClientMessageId}
	switch {
	case v.Err == nil:
		a.Status, a.ConversationId = clientv1.Ack_ACK_OK, r.ConversationId
		a.MessageId, a.Seq, a.PrevSeq = int64(v.Result.MessageID), int64(v.Result.Seq), int64(v.Result.PrevSeq)
		a.ServerTimeMs, a.Duplicate = v.Result.ServerTime.UnixMilli(), v.Duplicate
	case im.Retryable(v.Err), displaced(v.Err): // of the message nothing is decided
		a.Status, a.Error = clientv1.Ack_ACK_RETRY, im.Wire(v.Err)
	default:
		a.Status, a.Error = clientv1.Ack_ACK_FAIL, im.Wire(v.Err)
	}
	c.res.Runs[run].Acks[send] = a
	if c.left.Add(-1) == 0 {
		close(c.done)
	}
}

// displaced says that the session may not send any more, whatever it is.
func displaced(err *im.Error) bool {
	return err.Reason == clientv1.Reason_REASON_SUPERSEDED || err.Reason == clientv1.Reason_REASON_REPLACED
}

// count counts the answers, and returns how many messages were stored now.
func (c *call) count() (stored int) {
	for _, r := range c.res.Runs {
		for _, a := range r.Acks {
			c.m.ack(a.Status)
			switch {
			case a.Duplicate:
				c.m.duplicates.Inc()
			case a.Status == clientv1.Ack_ACK_OK:
				stored++
			}
		}
	}
	return stored
}

// prepare checks the sends of a run and gives them message ids. What fails a
// check is answered; nil if nothing is left for the lane. A check here fails
// only what can never have been stored.
func (c *core) prepare(call *call, i int, r *v1.Run, asked looked) *lane.Run {
	run := &lane.Run{Conv: im.ConversationID(r.ConversationId), Sends: make([]lane.Send, 0, len(r.Sends))}
	places := make([]int, 0, len(r.Sends)) // in the request, of each send of run
	for j, send := range r.Sends {
		if a, ok := asked.known[spot{i, j}]; ok {
			c.repeated(call, spot{i, j}, r, resultOf(a))
			continue
		}
		row, err := c.row(r, send)
		switch {
		case err == nil:
			run.Sends = append(run.Sends, row)
			places = append(places, j)
			continue
		case !im.Retryable(err):
			call.answer(i, j, lane.Verdict{Err: err})
			continue
		}
		call.answer(i, j, lane.Verdict{Err: err}) // and nothing of the run may overtake it
		for k := j + 1; k < len(r.Sends); k++ {
			call.answer(i, k, lane.Verdict{Err: &im.Error{Reason: clientv1.Reason_REASON_BEHIND, Op: "state.Submit", RetryAfter: idPause}})
		}
		break
	}
	if len(run.Sends) == 0 {
		return nil
	}
	run.Reply = func(at int, v lane.Verdict) {
		if k, ok := asked.mine[spot{i, places[at]}]; ok && v.Err != nil && !im.Retryable(v.Err) {
			c.repeats.cancelled(k)
		}
		call.answer(i, places[at], v)
	}
	return run
}

// row checks one send and makes its row.
func (c *core) row(r *v1.Run, send *v1.RunSend) (lane.Send, *im.Error) {
	if err := checkSend(r, send); err != nil {
		return lane.Send{}, err
	}
	content, err := proto.MarshalOptions{Deterministic: true}.Marshal(send.Content)
	if err != nil {
		return lane.Send{}, badRequest("state.Submit", "content cannot be encoded")
	}
	id, err := c.ids.Next()
	if err != nil {
		return lane.Send{}, &im.Error{Reason: clientv1.Reason_REASON_UNAVAILABLE, Op: "state.Submit", Msg: "no message id can be made now", Err: err}
	}
	row := store.AppendRow{
		Conversation: im.ConversationID(r.ConversationId), Peer: im.UserID(r.PeerId), Sender: im.UserID(r.UserId),
		ClientMessageID: im.ClientMessageID(send.ClientMessageId), MessageID: id,
		Kind: clientv1.EntryKind_ENTRY_KIND_MESSAGE, Content: content, Countable: true,
	}
	copy(row.BodyHash[:], send.BodyHash)
	row.Proof = proofOf(r.Proof)
	return lane.Send{Row: row, Session: im.SessionID(r.SessionId), Size: len(content) + rowOverhead, Traceparent: send.Traceparent}, nil
}

func badRequest(op, format string, args ...any) *im.Error {
	return im.Errorf(clientv1.Reason_REASON_BAD_REQUEST, op, format, args...)
}

// checkSend repeats, cheaply, what the callers have checked.
func checkSend(r *v1.Run, send *v1.RunSend) *im.Error {
	const op = "state.Submit"
	switch send.Kind {
	case clientv1.EntryKind_ENTRY_KIND_UNSPECIFIED, clientv1.EntryKind_ENTRY_KIND_MESSAGE:
	case clientv1.EntryKind_ENTRY_KIND_EDIT, clientv1.EntryKind_ENTRY_KIND_RECALL, clientv1.EntryKind_ENTRY_KIND_REACTION:
		return im.Errorf(clientv1.Reason_REASON_UNSUPPORTED, op, "this kind of entry cannot be sent yet")
	default:
		return badRequest(op, "this kind of entry cannot be sent")
	}
	switch {
	case r.ConversationId == "":
		return badRequest(op, "no conversation is named")
	case !protocol.ValidUUID(send.ClientMessageId):
		return badRequest(op, "client_message_id is not a UUID of version 4 or 7 in lower case")
	case len(send.BodyHash) != 32:
		return badRequest(op, "body_hash is not 32 bytes")
	case send.TargetSeq != 0:
		return badRequest(op, "a message has no target_seq")
	case r.UserId != "" && !protocol.ValidID(r.UserId), r.PeerId != "" && !protocol.ValidID(r.PeerId):
		return im.Errorf(clientv1.Reason_REASON_INVALID_ID, op, "a user id is malformed")
	}
	if reason := protocol.CheckContent(send.Content); reason != "" {
		return im.Errorf(im.ReasonByName(reason), op, "")
	}
	return nil
}
