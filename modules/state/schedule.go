package state

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/settings"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/pkg/store/rules"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/gen/imdv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

const opSchedule = "state.Schedule"

const (
	// scheduleLate is how far back a time may be at which a message is to be sent:
	// clocks differ. It is sent at once then.
	scheduleLate = time.Minute
	// scheduleCount is how long it is remembered how many messages are scheduled, and
	// scheduleShare how many times as long as counting them took, if that is longer,
	// but no longer than scheduleOld.
	scheduleCount = time.Second
	scheduleShare = 50
	scheduleOld   = 15 * time.Second
	// schedulePage is how many a page has if nobody says it.
	schedulePage = 100
)

// What may change while the role runs.
var (
	scheduleUser = settings.Int("schedule.max_per_user", 100, 0, 100_000,
		"Messages that a user may have scheduled at once; 0 = users cannot schedule messages.", settings.Unit("messages"))
	scheduleTotal = settings.Int("schedule.max_total", 100_000, 0, 10_000_000,
		"Messages that may be scheduled at once in all; more are refused until some were sent.", settings.Unit("messages"))
	scheduleHorizon = settings.Duration("schedule.horizon", 366*24*time.Hour, time.Minute, 10*366*24*time.Hour,
		"How far ahead a message may be scheduled.")
)

// scheduled remembers for a moment how many messages are scheduled, and holds the
// places of those that are on their way to the store. What this node stores never
// passes the limit; what others have stored is known from the last count. Safe for
// concurrent use.
type scheduled struct {
	mu     sync.Mutex
	open   int // those that are held included
	held   int
	stored int // since the start
	asked  time.Time
	took   time.Duration // to count them

	counting chan struct{} // closed when they are counted; nil = nobody counts
}

// hold takes a place for one more message, until it is settled; false = no more may
// be scheduled.
func (n *scheduled) hold(ctx context.Context, st store.Schedules, most int) (bool, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.count(ctx, st); err != nil {
		return false, err
	}
	if n.open >= most {
		return false, nil
	}
	n.open++
	n.held++
	return true, nil
}

// count counts what is scheduled, if the last number is old. All callers wait for the
// first count; during later ones others go by the last number. It is locked.
func (n *scheduled) count(ctx context.Context, st store.Schedules) error {
	for n.asked.IsZero() && n.counting != nil {
		first := n.counting
		n.mu.Unlock()
		select {
		case <-first:
		case <-ctx.Done():
		}
		n.mu.Lock()
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	now, stored := time.Now(), n.stored
	if n.counting != nil || now.Sub(n.asked) <= min(max(scheduleCount, scheduleShare*n.took), scheduleOld) {
		return nil
	}
	n.counting = make(chan struct{})
	n.mu.Unlock()
	counts, err := st.ScheduledCounts(ctx)
	n.mu.Lock()
	close(n.counting)
	n.counting = nil
	if err != nil {
		return err
	}
	// What was stored or held meanwhile may be counted twice, until the next count.
	n.asked, n.open, n.took = now, counts.Open+n.held+n.stored-stored, time.Since(now)
	return nil
}

// settle ends the hold of one that is stored now, or is not.
func (n *scheduled) settle(isStored bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.held--
	if isStored {
		n.stored++
	} else {
		n.open--
	}
}

// Schedule keeps a message that is to be sent later; see StateService.
func (s *State) Schedule(ctx context.Context, req *v1.ScheduleRequest) (*v1.ScheduleResponse, error) {
	m, err := scheduledOf(req)
	if err != nil {
		return nil, err
	}
	c, err := s.serving()
	if err != nil {
		return nil, err
	}
	now := time.Now()
	m.Created = now.Truncate(time.Millisecond)
	if refused := s.refuseSchedule(&m, now); refused != nil {
		return scheduledBefore(ctx, c, &m, refused)
	}
	room, err := c.scheduled.hold(ctx, c.store, scheduleTotal.In(s.current()))
	if err != nil {
		return nil, storeErr(opSchedule, err)
	}
	if !room {
		return scheduledBefore(ctx, c, &m, im.Errorf(clientv1.Reason_REASON_RATE_LIMITED, opSchedule, "as many messages are scheduled as this site takes"))
	}
	isStored := false
	defer func() { c.scheduled.settle(isStored) }()
	id, err := c.ids.Next()
	if err != nil {
		return nil, &im.Error{Reason: clientv1.Reason_REASON_UNAVAILABLE, Op: opSchedule, Msg: "no id can be made now", Err: err}
	}
	m.ID, m.ClientMessageID = int64(id), scheduledMessageID(int64(id))
	var got store.Scheduled // not m, which each run needs
	var before, unsure bool
	err = settleCall(ctx, func() (err error) {
		got, before, err = c.store.PutScheduled(ctx, m, scheduleUser.In(s.current()))
		unsure = unsure || errors.Is(err, store.ErrUnknownOutcome)
		return err
	})
	isStored = unsure || err == nil && !before // if it is not after all, the next count corrects that
	if err != nil {
		return nil, storeErr(opSchedule, err)
	}
	return &v1.ScheduleResponse{Scheduled: wireScheduled(&got), Duplicate: before}, nil
}

// refuseSchedule is why nothing can be scheduled for when m is due, whoever asks; nil
// if it can.
func (s *State) refuseSchedule(m *store.Scheduled, now time.Time) *im.Error {
	horizon := scheduleHorizon.In(s.current())
	switch {
	case m.Due.Before(now.Add(-scheduleLate)):
		return badRequest(opSchedule, "send_at_ms is in the past")
	case m.Due.After(now.Add(horizon)):
		return badRequest(opSchedule, "send_at_ms is more than %v ahead", horizon)
	}
	return nil
}

// scheduledBefore answers a call that would be refused: as at first if its request
// was there before.
func scheduledBefore(ctx context.Context, c *core, m *store.Scheduled, refused *im.Error) (*v1.ScheduleResponse, error) {
	list, err := c.store.Scheduled(ctx, store.ScheduledQuery{User: m.Sender, Request: m.RequestID, Limit: 1})
	if err != nil {
		return nil, storeErr(opSchedule, err)
	}
	if len(list) == 0 {
		return nil, refused
	}
	if err := rules.SameScheduled(opSchedule, &list[0], m); err != nil {
		return nil, err
	}
	return &v1.ScheduleResponse{Scheduled: wireScheduled(&list[0]), Duplicate: true}, nil
}

// scheduledMessageID is the client message id of the message that was scheduled
// under an id: whoever sends it, sends the same message.
func scheduledMessageID(id int64) im.ClientMessageID {
	h := sha256.Sum256(binary.BigEndian.AppendUint64([]byte("imd scheduled message\n"), uint64(id)))
	h[6], h[8] = h[6]&0x0f|0x40, h[8]&0x3f|0x80
	return im.ClientMessageID(fmt.Sprintf("%x-%x-%x-%x-%x", h[:4], h[4:6], h[6:8], h[8:10], h[10:16]))
}

// scheduledOf checks a request and makes the store's form of it.
func scheduledOf(r *v1.ScheduleRequest) (m store.Scheduled, err error) {
	switch {
	case r.ConversationId == "":
		return m, badRequest(opSchedule, "no conversation is named")
	case !protocol.ValidUUID(r.RequestId):
		return m, badRequest(opSchedule, "request_id is not a UUID of version 4 or 7 in lower case")
	case len(r.BodyHash) != len(m.BodyHash):
		return m, badRequest(opSchedule, "body_hash is not 32 bytes")
	case r.UserId != "" && !protocol.ValidID(r.UserId), r.PeerId != "" && !protocol.ValidID(r.PeerId):
		return m, im.Errorf(clientv1.Reason_REASON_INVALID_ID, opSchedule, "a user id is malformed")
	}
	if reason := protocol.CheckContent(r.Content); reason != "" {
		return m, im.Errorf(im.ReasonByName(reason), opSchedule, "")
	}
	content, err := proto.MarshalOptions{Deterministic: true}.Marshal(r.Content)
	if err != nil {
		return m, badRequest(opSchedule, "content cannot be encoded")
	}
	m = store.Scheduled{
		Conversation: im.ConversationID(r.ConversationId), Sender: im.UserID(r.UserId), Peer: im.UserID(r.PeerId),
		RequestID: im.ClientMessageID(r.RequestId), Content: content, Due: time.UnixMilli(r.SendAtMs),
	}
	copy(m.BodyHash[:], r.BodyHash)
	return m, nil
}

// ListScheduled lists messages that are to be sent later; see StateService.
func (s *State) ListScheduled(ctx context.Context, req *v1.ListScheduledRequest) (*v1.ListScheduledResponse, error) {
	const op = "state.ListScheduled"
	if req.UserId != "" && !protocol.ValidID(req.UserId) || req.Limit < 0 {
		return nil, badRequest(op, "the user id is malformed, or the limit negative")
	}
	c, err := s.serving()
	if err != nil {
		return nil, err
	}
	q := store.ScheduledQuery{User: im.UserID(req.UserId), Ended: req.Ended, ID: req.AfterId, Limit: min(int(req.Limit), store.MaxScheduledPage)}
	if q.Limit == 0 {
		q.Limit = schedulePage
	}
	if req.AfterMs > 0 {
		q.After = time.UnixMilli(req.AfterMs)
	}
	list, err := c.store.Scheduled(ctx, q)
	if err != nil {
		return nil, storeErr(op, err)
	}
	res := &v1.ListScheduledResponse{End: len(list) < q.Limit}
	for i := range list {
		res.Scheduled = append(res.Scheduled, wireScheduled(&list[i]))
	}
	return res, nil
}

// CancelScheduled cancels one, unless its sending has begun; see StateService.
func (s *State) CancelScheduled(ctx context.Context, req *v1.CancelScheduledRequest) (*v1.CancelScheduledResponse, error) {
	const op = "state.CancelScheduled"
	if req.UserId != "" && !protocol.ValidID(req.UserId) {
		return nil, im.Errorf(clientv1.Reason_REASON_INVALID_ID, op, "the user id is malformed")
	}
	c, err := s.serving()
	if err != nil {
		return nil, err
	}
	var m store.Scheduled
	err = settleCall(ctx, func() (err error) {
		m, err = c.store.CancelScheduled(ctx, req.ScheduledId, im.UserID(req.UserId))
		return err
	})
	if errors.Is(err, store.ErrNotFound) {
		return nil, im.Errorf(clientv1.Reason_REASON_NOT_FOUND, op, "there is no such scheduled message")
	}
	if err != nil {
		return nil, storeErr(op, err)
	}
	return &v1.CancelScheduledResponse{Scheduled: wireScheduled(&m)}, nil
}

func wireScheduled(m *store.Scheduled) *imdv1.ScheduledMessage {
	w := &imdv1.ScheduledMessage{
		ScheduledId: m.ID, ConversationId: string(m.Conversation), Sender: string(m.Sender), Content: &clientv1.Content{}, SendAtMs: m.Due.UnixMilli(),
		CreatedMs: m.Created.UnixMilli(), State: imdv1.ScheduledState(m.State), MessageId: int64(m.MessageID), Seq: int64(m.Seq), EndedMs: toMilli(m.Ended),
		ClientMessageId: string(m.ClientMessageID),
	}
	if m.State == store.ScheduledDropped {
		w.Reason = im.ReasonName(m.Reason)
	}
	if proto.Unmarshal(m.Content, w.Content) != nil { // only of a row that is damaged
		w.Content = nil
	}
	return w
}
