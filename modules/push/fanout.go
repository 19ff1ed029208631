package push

import (
	"context"
	"slices"
	"time"

	"go.uber.org/zap"
	"google.golang.org/protobuf/proto"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/obs"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/pkg/trace"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

const (
	// tries is how often an item's members and routes are looked up.
	tries = 3
	// pause is how long to wait before the second try; then twice as long.
	pause = 50 * time.Millisecond
	// maxPause is the longest pause before another try to deliver. A gateway takes
	// sessions before all nodes have heard of it: 1.5 s of tries outlast the news.
	maxPause = 16 * pause
	// chunk is the most sessions one delivery names.
	chunk = 500
)

// fanout delivers items of one conversation, in order.
func (p *Push) fanout(ctx context.Context, items []*v1.FanoutItem) {
	for _, it := range items {
		frame, seq, kind := frameOf(it)
		p.m.items.WithLabelValues(kind).Inc()
		began := time.Now()
		found, cause, err := p.sessions(ctx, it, seq)
		here := p.fanned(it, began, len(found), err)
		if err != nil {
			if ctx.Err() != nil {
				cause = "stopped"
			}
			p.m.dropped.WithLabelValues(cause).Inc()
			p.Log.Warn("an item was not fanned out; clients find it by their cursor",
				obs.Conv(im.ConversationID(it.ConversationId)), zap.String("cause", cause), obs.Err(err))
			continue
		}
		if len(found) == 0 {
			continue
		}
		bytes, err := proto.Marshal(frame)
		if err != nil {
			p.Log.Error("a frame cannot be encoded", obs.Conv(im.ConversationID(it.ConversationId)), obs.Err(err))
			continue
		}
		p.hand(ctx, it, bytes, seq, found, here)
	}
}

// fanned remembers that the sessions of an entry were looked for. It gives the
// context of that.
func (p *Push) fanned(it *v1.FanoutItem, began time.Time, sessions int, err error) trace.Context {
	e := it.GetEntry()
	if e == nil || p.Trace == nil {
		return trace.Context{}
	}
	now, parent := time.Now(), trace.Carried(it.Traceparent)
	here := parent.Child()
	p.Trace.Add(trace.Record{Stage: trace.Fanned, Message: im.MessageID(e.MessageId), Conv: trace.Conv(it.ConversationId), Seq: e.Seq, At: now, Took: now.Sub(began),
		Count: int32(sessions), Failed: err != nil, Trace: here, Parent: parent})
	return here
}

// hand gives each gateway its part of the sessions. here is the context of the
// look-up.
func (p *Push) hand(ctx context.Context, it *v1.FanoutItem, frame []byte, seq int64, found []store.Route, here trace.Context) {
	byNode := map[im.NodeID][]store.Route{}
	for _, r := range found {
		if string(r.Session) != it.ExcludeSession {
			byNode[r.Node] = append(byNode[r.Node], r)
		}
	}
	for node, routes := range byNode {
		p.m.deliveries.Add(float64(len(routes)))
		for part := range slices.Chunk(routes, chunk) {
			ids := make([]string, len(part))
			for i, r := range part {
				ids[i] = string(r.Session)
			}
			p.senders.add(ctx, node, parcel{&v1.Delivery{
				ConversationId: it.ConversationId, Seq: seq, Frame: frame, SessionIds: ids,
				Acked: it.GetEntry() != nil, CommitNs: it.CommitNs, Traceparent: here.String(),
			}, part})
		}
	}
}

// frameOf builds the frame of an item; seq is 0 for receipts.
func frameOf(it *v1.FanoutItem) (frame *clientv1.ServerFrame, seq int64, kind string) {
	switch w := it.What.(type) {
	case *v1.FanoutItem_Entry:
		return &clientv1.ServerFrame{Kind: &clientv1.ServerFrame_Deliver{Deliver: &clientv1.Deliver{
			ConversationId: it.ConversationId, Entries: []*clientv1.Entry{w.Entry}}}}, w.Entry.Seq, "entry"
	case *v1.FanoutItem_Receipt:
		return &clientv1.ServerFrame{Kind: &clientv1.ServerFrame_Receipt{Receipt: w.Receipt}}, 0, "receipt"
	default:
		return &clientv1.ServerFrame{Kind: &clientv1.ServerFrame_Head{Head: it.GetHead()}}, it.GetHead().GetSeq(), "head"
	}
}

// sessions finds where an item goes. cause names what failed.
func (p *Push) sessions(ctx context.Context, it *v1.FanoutItem, seq int64) (found []store.Route, cause string, err error) {
	wait := pause
	for try := 1; ; try++ {
		found, cause, err = p.lookup(ctx, it, seq)
		if err == nil || try == tries || !im.Retryable(err) {
			return found, cause, err
		}
		select {
		case <-ctx.Done():
			return nil, cause, ctx.Err()
		case <-time.After(wait):
			wait *= 2
		}
	}
}

func (p *Push) lookup(ctx context.Context, it *v1.FanoutItem, seq int64) ([]store.Route, string, error) {
	var users []im.UserID
	if len(it.OnlyUserIds) > 0 {
		for _, u := range it.OnlyUserIds {
			users = append(users, im.UserID(u))
		}
	} else {
		l, err := p.members.at(ctx, it.ConversationId, it.MemberVersion)
		if err != nil {
			return nil, "members", err
		}
		users = recipients(l, it, seq)
	}
	r, err := p.Routes()
	if err != nil {
		return nil, "routes", err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	found, err := r.Recent(ctx, users)
	return found, "routes", err
}

// recipients are the members who may see seq, and those removed by it.
func recipients(l *memberList, it *v1.FanoutItem, seq int64) []im.UserID {
	users := make([]im.UserID, 0, len(l.users)+len(it.AlsoUserIds))
	for i, u := range l.users {
		if seq == 0 || l.starts[i] < seq {
			users = append(users, u)
		}
	}
	for _, u := range it.AlsoUserIds {
		users = append(users, im.UserID(u))
	}
	return users
}
