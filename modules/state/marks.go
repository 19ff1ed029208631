package state

import (
	"context"
	"errors"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/lane"
	"github.com/imdhq/imd/pkg/store"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// maxMarks is the most marks of one call.
const maxMarks = 4096

// Mark moves delivered and read positions up; see StateService.
func (s *State) Mark(ctx context.Context, req *v1.MarkRequest) (*v1.MarkResponse, error) {
	if len(req.Marks) > maxMarks {
		return nil, badRequest("state.Mark", "more than %d marks in a call", maxMarks)
	}
	c, err := s.serving()
	if err != nil {
		return nil, err
	}
	res := &v1.MarkResponse{Results: make([]*v1.MarkResult, len(req.Marks))}
	var reads []int
	for i, m := range req.Marks {
		switch err := checkMark(m); {
		case err != nil:
			res.Results[i] = &v1.MarkResult{Error: im.Wire(err)}
		case m.Read:
			reads = append(reads, i)
		default:
			res.Results[i] = c.markDelivered(ctx, m)
		}
	}
	c.markRead(ctx, req.Marks, reads, res.Results)
	return res, nil
}

func checkMark(m *v1.Mark) error {
	switch {
	case m.ConversationId == "":
		return badRequest("state.Mark", "no conversation is named")
	case !protocol.ValidID(m.UserId):
		return im.Errorf(clientv1.Reason_REASON_INVALID_ID, "state.Mark", "the user id is malformed")
	case m.Seq < 0, m.AfterSeq < 0:
		return badRequest("state.Mark", "a seq is negative")
	}
	return nil
}

// markDelivered moves one delivered position in memory.
func (c *core) markDelivered(ctx context.Context, m *v1.Mark) *v1.MarkResult {
	k := memberKey{im.ConversationID(m.ConversationId), im.UserID(m.UserId)}
	at, moved, err := c.positions.delivered(ctx, k, im.Seq(m.AfterSeq), im.Seq(m.Seq))
	if err != nil {
		return &v1.MarkResult{Error: im.Wire(storeErr("state.Mark", err))}
	}
	if moved {
		c.receipts.moved(k, at)
	}
	return &v1.MarkResult{Receipt: receiptOf(k, at)}
}

// markRead writes read marks through, in one call, and tells the user's other
// sessions the unread count.
func (c *core) markRead(ctx context.Context, marks []*v1.Mark, which []int, results []*v1.MarkResult) {
	for len(which) > 0 {
		n := min(len(which), saveRows)
		c.markReadSome(ctx, marks, which[:n], results)
		which = which[n:]
	}
}

func (c *core) markReadSome(ctx context.Context, marks []*v1.Mark, which []int, results []*v1.MarkResult) {
	rows := make([]store.Position, len(which))
	for i, w := range which {
		m := marks[w]
		rows[i] = store.Position{
			Conversation: im.ConversationID(m.ConversationId), User: im.UserID(m.UserId),
			Delivered: im.Seq(m.Seq), Read: im.Seq(m.Seq),
		}
	}
	got, err := c.positions.read(ctx, rows)
	for i, w := range which {
		at, member := got[memberKey{rows[i].Conversation, rows[i].User}]
		switch {
		case err != nil:
			results[w] = &v1.MarkResult{Error: im.Wire(storeErr("state.Mark", err))}
		case !member:
			results[w] = &v1.MarkResult{Error: im.Wire(im.Errorf(clientv1.Reason_REASON_NOT_MEMBER, "state.Mark", ""))}
		default:
			results[w] = &v1.MarkResult{Receipt: c.readOne(marks[w], at)}
		}
	}
}

// readOne tells others of one read position and returns the user's own receipt.
func (c *core) readOne(m *v1.Mark, at store.Position) *clientv1.Receipt {
	k := memberKey{im.ConversationID(m.ConversationId), im.UserID(m.UserId)}
	own := receiptOf(k, at)
	unread := uint32(at.Unread)
	own.UnreadCount = &unread
	c.fanout.add(receiptItem(own, []im.UserID{k.user}, m.SessionId))
	c.receipts.moved(k, at)
	return own
}

func receiptOf(k memberKey, at store.Position) *clientv1.Receipt {
	return &clientv1.Receipt{
		ConversationId: string(k.conv), UserId: string(k.user), DeliveredSeq: int64(at.Delivered), ReadSeq: int64(at.Read),
	}
}

func receiptItem(r *clientv1.Receipt, only []im.UserID, exclude string) fanoutItem {
	item := &v1.FanoutItem{ConversationId: r.ConversationId, ExcludeSession: exclude, What: &v1.FanoutItem_Receipt{Receipt: r}}
	for _, u := range only {
		item.OnlyUserIds = append(item.OnlyUserIds, string(u))
	}
	return fanoutItem{item: item, bytes: rowOverhead}
}

// storeErr is err for a client: a fault of the store without a reason of its
// own is unavailable.
func storeErr(op string, err error) *im.Error {
	var e *im.Error
	if errors.As(err, &e) {
		return e
	}
	return &im.Error{Reason: clientv1.Reason_REASON_UNAVAILABLE, Op: op, Err: err}
}

// settleCall runs f again while its outcome is unknown, until ctx is done.
func settleCall(ctx context.Context, f func() error) error {
	wait := lane.FirstRerun
	for {
		err := f()
		if err == nil || !errors.Is(err, store.ErrUnknownOutcome) {
			return err
		}
		if !pause(ctx, wait) {
			return err
		}
		wait = min(2*wait, lane.MaxRerun)
	}
}
