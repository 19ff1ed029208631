package push

import (
	"context"
	"math"
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
	// bundleBytes ends a delivery of several frames.
	bundleBytes = 64 << 10
)

// fanout delivers items of one conversation, in order. Entries that came together
// leave together: a conversation that is written to a lot looks for its audience
// once for many of them.
func (p *Push) fanout(ctx context.Context, items []*v1.FanoutItem) {
	for len(items) > 0 {
		items = items[p.fanoutTogether(ctx, items[:alike(items)]):]
	}
}

// alike is how many of the items, from the first on, are entries for the members
// of one version of the membership, and so for the same audience but for who
// wrote them and who came in between. At least 1.
func alike(items []*v1.FanoutItem) int {
	common := func(it *v1.FanoutItem) bool {
		return it.GetEntry() != nil && it.MemberVersion == items[0].MemberVersion && len(it.AlsoUserIds)+len(it.OnlyUserIds) == 0
	}
	n := 0
	for n < len(items) && common(items[n]) {
		n++
	}
	return max(n, 1)
}

// fanoutTogether delivers the first of items that are alike and returns how many
// of them it was; those behind are for more users.
func (p *Push) fanoutTogether(ctx context.Context, items []*v1.FanoutItem) int {
	began := time.Now()
	to, n, cause, err := p.target(ctx, items)
	items = items[:n]
	for _, it := range items {
		p.fanned(it, began, len(to.found), err)
	}
	if err != nil {
		if ctx.Err() != nil {
			cause = "stopped"
		}
		p.m.dropped.WithLabelValues(cause).Add(float64(n))
		p.Log.Warn("items were not fanned out; clients find them by their cursor",
			obs.Conv(im.ConversationID(items[0].ConversationId)), zap.Int("items", n), zap.String("cause", cause), obs.Err(err))
		return n
	}
	if to.members > 0 {
		p.handToGroup(ctx, items, to)
		return n
	}
	p.hand(ctx, items, to.found)
	return n
}

// target is who gets items.
type target struct {
	found   []store.Route // sessions
	members int           // of a large group, whose sessions the gateways find; 0 = found is all
	nodes   []im.NodeID   // the gateways then
}

// fanned counts an item and remembers that the sessions of an entry were looked
// for.
func (p *Push) fanned(it *v1.FanoutItem, began time.Time, sessions int, err error) {
	p.m.items.WithLabelValues(kindOf(it)).Inc()
	e := it.GetEntry()
	if e == nil || p.Trace == nil {
		return
	}
	now, from := time.Now(), trace.Carried(it.Traceparent)
	p.Trace.Add(trace.Record{Stage: trace.Fanned, Message: im.MessageID(e.MessageId), Conv: trace.Conv(it.ConversationId), Seq: e.Seq, At: now, Took: now.Sub(began),
		Count: int32(sessions), Failed: err != nil, Trace: from.Child(), Parent: from})
}

// hand gives each gateway its part of the sessions.
func (p *Push) hand(ctx context.Context, items []*v1.FanoutItem, found []store.Route) {
	wrote := map[string]int{} // by session: how many of the items
	for _, it := range items {
		if it.ExcludeSession != "" {
			wrote[it.ExcludeSession]++
		}
	}
	byNode := map[im.NodeID][]store.Route{}
	deliveries := 0
	for _, r := range found {
		if n := len(items) - wrote[string(r.Session)]; n > 0 {
			byNode[r.Node] = append(byNode[r.Node], r)
			deliveries += n
		}
	}
	if deliveries == 0 {
		return
	}
	p.m.deliveries.Add(float64(deliveries))
	bundles := p.bundles(items)
	for node, routes := range byNode {
		for part := range slices.Chunk(routes, chunk) {
			ids := make([]string, len(part))
			for i, r := range part {
				ids[i] = string(r.Session)
			}
			for _, b := range bundles {
				p.senders.add(ctx, node, newParcel(b, ids, part))
			}
		}
	}
}

// bundles makes deliveries without sessions of the items, each of as many frames
// as go together.
func (p *Push) bundles(items []*v1.FanoutItem) (out []*v1.Delivery) {
	size := 0
	for _, it := range items {
		frame, seq := frameOf(it)
		bytes, err := proto.Marshal(frame)
		if err != nil {
			p.Log.Error("a frame cannot be encoded", obs.Conv(im.ConversationID(it.ConversationId)), obs.Err(err))
			continue
		}
		d := &v1.Delivery{Seq: seq, Frame: bytes, Acked: it.GetEntry() != nil, CommitNs: it.CommitNs, ExcludeSessionId: it.ExcludeSession, Traceparent: it.Traceparent}
		if size += len(bytes); len(out) > 0 && size <= bundleBytes {
			first := out[len(out)-1]
			first.Following = append(first.Following, d)
			continue
		}
		d.ConversationId, size = it.ConversationId, len(bytes)
		out = append(out, d)
	}
	return out
}

// kindOf names what an item is about, for the metrics.
func kindOf(it *v1.FanoutItem) string {
	switch it.What.(type) {
	case *v1.FanoutItem_Entry:
		return "entry"
	case *v1.FanoutItem_Receipt:
		return "receipt"
	default:
		return "head"
	}
}

// frameOf builds the frame of an item; seq is 0 for receipts.
func frameOf(it *v1.FanoutItem) (frame *clientv1.ServerFrame, seq int64) {
	switch w := it.What.(type) {
	case *v1.FanoutItem_Entry:
		return &clientv1.ServerFrame{Kind: &clientv1.ServerFrame_Deliver{Deliver: &clientv1.Deliver{
			ConversationId: it.ConversationId, Entries: []*clientv1.Entry{w.Entry}}}}, w.Entry.Seq
	case *v1.FanoutItem_Receipt:
		return &clientv1.ServerFrame{Kind: &clientv1.ServerFrame_Receipt{Receipt: w.Receipt}}, 0
	default:
		return &clientv1.ServerFrame{Kind: &clientv1.ServerFrame_Head{Head: it.GetHead()}}, it.GetHead().GetSeq()
	}
}

// seqOf is the seq of what an item is about; 0 for receipts.
func seqOf(it *v1.FanoutItem) int64 {
	if e := it.GetEntry(); e != nil {
		return e.Seq
	}
	return it.GetHead().GetSeq()
}

// target finds where items go that are alike. They have one audience up to the
// n-th. cause names what failed.
func (p *Push) target(ctx context.Context, items []*v1.FanoutItem) (to target, n int, cause string, err error) {
	wait := pause
	for try := 1; ; try++ {
		to, n, cause, err = p.lookup(ctx, items)
		if err == nil || try == tries || !im.Retryable(err) {
			return to, n, cause, err
		}
		select {
		case <-ctx.Done():
			return target{}, n, cause, ctx.Err()
		case <-time.After(wait):
			wait *= 2
		}
	}
}

func (p *Push) lookup(ctx context.Context, items []*v1.FanoutItem) (to target, n int, cause string, err error) {
	var users []im.UserID
	it, n := items[0], len(items)
	if len(it.OnlyUserIds) > 0 {
		for _, u := range it.OnlyUserIds {
			users = append(users, im.UserID(u))
		}
	} else {
		nodes := p.gateways()
		large := 0
		if len(nodes) > 0 {
			large = max(p.tuned.Get().groupMembers, membersPerGateway*len(nodes))
		}
		l, err := p.members.at(ctx, it.ConversationId, it.MemberVersion, large)
		if err != nil {
			return target{}, n, "members", err
		}
		if l.large > 0 {
			return target{members: l.large, nodes: nodes}, n, "", nil
		}
		users, n = recipients(l, items)
	}
	r, err := p.Routes()
	if err != nil {
		return target{}, n, "routes", err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	found, err := r.Recent(ctx, users)
	return target{found: found}, n, "routes", err
}

// recipients are the members who may see the first item, and those removed by
// it. No others may see those behind it, up to the n-th.
func recipients(l *memberList, items []*v1.FanoutItem) (users []im.UserID, n int) {
	first := seqOf(items[0])
	newcomer := int64(math.MaxInt64) // sees the entries above it
	users = make([]im.UserID, 0, len(l.users)+len(items[0].AlsoUserIds))
	for i, u := range l.users {
		if first == 0 || l.starts[i] < first {
			users = append(users, u)
		} else {
			newcomer = min(newcomer, l.starts[i])
		}
	}
	for _, u := range items[0].AlsoUserIds {
		users = append(users, im.UserID(u))
	}
	for n = 1; n < len(items) && seqOf(items[n]) <= newcomer; n++ {
	}
	return users, n
}
