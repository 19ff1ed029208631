package state

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/failpoint"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/lane"
	"github.com/imdhq/imd/pkg/obs"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/pkg/trace"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// Limits of the fan-out.
const (
	// fanoutQueueItems and fanoutQueueBytes bound what waits for push.
	fanoutQueueItems = 16384
	fanoutQueueBytes = 32 << 20
	// fanoutCallItems is the most items of one call, and fanoutCallBytes where
	// a call ends.
	fanoutCallItems = 500
	fanoutCallBytes = 1 << 20
	// fanoutTimeout bounds one call.
	fanoutTimeout = time.Second
)

// fanoutPauses are the waits before the second and the third try of a call.
var fanoutPauses = []time.Duration{200 * time.Millisecond, 800 * time.Millisecond}

// pushClient is what state asks of the push role.
type pushClient interface {
	Fanout(context.Context, *v1.FanoutRequest) (*v1.FanoutResponse, error)
}

// fanoutItem is one item that waits. Entries stay encoded until their turn
// comes, which is not on the path of an ack.
type fanoutItem struct {
	item  *v1.FanoutItem
	entry *im.Entry // to become item's entry; nil = item is complete
	bytes int
	trace trace.Context // of the commit
}

// fanout hands to push what happened, in order. It is a hint to those online:
// what is lost here is found again by the clients' cursors.
//
// Push nodes do not wait for each other: each has a pile and at most one call.
// While something of a conversation waits or is on its way, the rest follows it
// to the same pile, so that its order holds also while nodes come and go.
type fanout struct {
	push pushClient
	home func(conv string) im.NodeID
	kept *trace.Log // remembers what was handed on; nil = nothing does
	log  *zap.Logger
	m    *metrics
	wake chan struct{} // capacity 1: some pile may have something and nobody at work

	mu    sync.Mutex
	piles map[im.NodeID]*fanoutPile
	at    map[string]*fanoutStay // by conversation
	items int                    // waiting
	bytes int
}

// fanoutPile is what waits for one push node.
type fanoutPile struct {
	node  im.NodeID
	queue []fanoutItem
	busy  bool // a goroutine is at work
}

// fanoutStay says that items of a conversation are in a pile or in its call.
type fanoutStay struct {
	pile  *fanoutPile
	items int
}

// newFanout makes a queue in front of p. home names the push node of a
// conversation; nil = there is only one.
func newFanout(p pushClient, home func(conv string) im.NodeID, log *zap.Logger, m *metrics) *fanout {
	if home == nil {
		home = func(string) im.NodeID { return "" }
	}
	return &fanout{push: p, home: home, log: log, m: m, wake: make(chan struct{}, 1), piles: map[im.NodeID]*fanoutPile{}, at: map[string]*fanoutStay{}}
}

// add queues items. It never waits; what does not fit is dropped and counted.
func (f *fanout) add(items ...fanoutItem) {
	f.mu.Lock()
	dropped := 0
	for _, it := range items {
		if f.items >= fanoutQueueItems || f.bytes+it.bytes > fanoutQueueBytes {
			dropped++
			continue
		}
		f.items++
		f.bytes += it.bytes
		p := f.pileOf(it.item.ConversationId)
		p.queue = append(p.queue, it)
	}
	f.mu.Unlock()
	if dropped > 0 {
		f.m.fanoutDropped.WithLabelValues("full").Add(float64(dropped))
	}
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// pileOf is where an item of the conversation goes now; it counts the item.
func (f *fanout) pileOf(conv string) *fanoutPile {
	s := f.at[conv]
	if s == nil {
		node := f.home(conv)
		p := f.piles[node]
		if p == nil {
			p = &fanoutPile{node: node}
			f.piles[node] = p
		}
		s = &fanoutStay{pile: p}
		f.at[conv] = s
	}
	s.items++
	return s.pile
}

// run sends until ctx is done.
func (f *fanout) run(ctx context.Context) {
	var senders sync.WaitGroup
	defer senders.Wait()
	for {
		for _, p := range f.unattended() {
			senders.Go(func() { f.empty(ctx, p) })
		}
		select {
		case <-ctx.Done():
			return
		case <-f.wake:
		}
	}
}

// unattended lists the piles with items that nobody works at, and marks them.
func (f *fanout) unattended() []*fanoutPile {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []*fanoutPile
	for _, p := range f.piles {
		if !p.busy && len(p.queue) > 0 {
			p.busy = true
			out = append(out, p)
		}
	}
	return out
}

// empty sends what waits in a pile until nothing does, or ctx is done.
func (f *fanout) empty(ctx context.Context, p *fanoutPile) {
	for {
		items := f.take(p)
		if len(items) == 0 {
			return
		}
		if err := failpoint.Error(failpoint.BeforeFanout); err != nil {
			f.drop(items, 0, err)
		} else {
			f.send(ctx, p.node, items)
		}
		f.sent(items)
		if ctx.Err() != nil {
			return
		}
	}
}

// idle reports whether everything was handed over.
func (f *fanout) idle() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.at) == 0
}

// report tells what waits, and for which nodes.
func (f *fanout) report() (items, bytes int, piles []PileStatus) {
	f.mu.Lock()
	defer f.mu.Unlock()
	piles = []PileStatus{}
	for _, p := range f.piles {
		piles = append(piles, PileStatus{string(p.node), len(p.queue), p.busy})
	}
	slices.SortFunc(piles, func(a, b PileStatus) int { return strings.Compare(a.Node, b.Node) })
	return f.items, f.bytes, piles
}

// take takes the items of the next call off a pile. An empty one is given up.
func (f *fanout) take(p *fanoutPile) []fanoutItem {
	f.mu.Lock()
	defer f.mu.Unlock()
	n, bytes := 0, 0
	for n < len(p.queue) && n < fanoutCallItems && (n == 0 || bytes+p.queue[n].bytes <= fanoutCallBytes) {
		bytes += p.queue[n].bytes
		n++
	}
	if n == 0 {
		delete(f.piles, p.node)
		return nil
	}
	items := p.queue[:n:n]
	p.queue = p.queue[n:]
	if len(p.queue) == 0 {
		p.queue = nil // lets go of the array behind the items that left
	}
	f.items -= n
	f.bytes -= bytes
	return items
}

// sent ends the stay of items whose call is over.
func (f *fanout) sent(items []fanoutItem) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, it := range items {
		conv := it.item.ConversationId
		if s := f.at[conv]; s.items == 1 {
			delete(f.at, conv)
		} else {
			s.items--
		}
	}
}

// send makes one call, with two more tries.
func (f *fanout) send(ctx context.Context, node im.NodeID, items []fanoutItem) {
	began := time.Now()
	req := &v1.FanoutRequest{Items: make([]*v1.FanoutItem, len(items))}
	for i, it := range items {
		if it.entry != nil {
			it.item.What = &v1.FanoutItem_Entry{Entry: im.WireEntry(it.entry)}
		}
		req.Items[i] = it.item
	}
	for try := 0; ; try++ {
		err := f.call(ctx, req)
		if err == nil {
			f.m.fanoutItems.Add(float64(len(items)))
			f.handed(node, items, began, false)
			return
		}
		if try == len(fanoutPauses) || !im.Retryable(err) || !pause(ctx, fanoutPauses[try]) {
			f.drop(items, try+1, err)
			f.handed(node, items, began, true)
			return
		}
	}
}

// handed remembers that entries were given to push, or not.
func (f *fanout) handed(node im.NodeID, items []fanoutItem, began time.Time, failed bool) {
	if f.kept == nil {
		return
	}
	now, records := time.Now(), make([]trace.Record, 0, len(items))
	for _, it := range items {
		if it.entry != nil {
			records = append(records, trace.Record{Stage: trace.HandedOn, Message: it.entry.MessageID, Conv: trace.Conv(it.item.ConversationId), Seq: int64(it.entry.Seq),
				At: now, Took: now.Sub(began), Note: string(node), Failed: failed, Trace: it.trace.Child(), Parent: it.trace})
		}
	}
	f.kept.Add(records...)
}

// drop counts items that are not handed over.
func (f *fanout) drop(items []fanoutItem, tries int, err error) {
	f.m.fanoutDropped.WithLabelValues("push").Add(float64(len(items)))
	f.log.Warn("items were not fanned out; clients find them by their cursors", zap.Int("items", len(items)), obs.Attempt(tries), obs.Err(err))
}

func (f *fanout) call(ctx context.Context, req *v1.FanoutRequest) error {
	ctx, cancel := context.WithTimeout(ctx, fanoutTimeout)
	defer cancel()
	_, err := f.push.Fanout(ctx, req)
	return err
}

// Bounds of the head hints that repeated sends cause.
const (
	hintEvery  = 5 * time.Second  // at most one a message
	hintWithin = 10 * time.Minute // of the commit
	maxHints   = 8192             // messages remembered
)

// committed tells push, the positions and the dedup cache what a lane has stored. It is the
// lanes' after: called in the order of the commits of each conversation.
func (c *core) committed(epoch string, done []lane.Committed) {
	now := time.Now()
	traces := c.remember(now, done)
	items := make([]fanoutItem, 0, len(done))
	for i, d := range done {
		switch {
		case d.Change != nil && d.Own:
			c.positions.changed(d.Change)
			items = append(items, changeItem(d.Change, now))
		case d.Change != nil:
		case d.Own:
			c.positions.committed(d.Send.Row.Conversation, d.Result.Seq)
			it := entryItem(d.Send, d.Result, now)
			if traces != nil && traces[i].Sampled() {
				it.trace, it.item.Traceparent = traces[i], traces[i].String()
			}
			items = append(items, it)
		default:
			if c.hintDue(d.Result, now) {
				items = append(items, headItem(d.Send.Row.Conversation, d.Send.Session, d.Result))
			}
		}
	}
	c.fanout.add(items...)
	c.repeats.confirmed(epoch, done)
}

// remember keeps when sends were stored, or found to be. It gives the contexts of
// those of which spans are made; nil = there are none.
func (c *core) remember(now time.Time, done []lane.Committed) (traces []trace.Context) {
	if c.Trace == nil {
		return nil
	}
	records := make([]trace.Record, 0, len(done))
	for i, d := range done {
		if d.Send == nil {
			if d.Own {
				e := &d.Change.Entry
				records = append(records, trace.Record{Stage: trace.Committed, Message: e.MessageID, Conv: trace.Conv(string(d.Change.Conversation)), Seq: int64(e.Seq), At: now})
			}
			continue
		}
		r := trace.Record{Stage: trace.Committed, Message: d.Result.MessageID, Conv: trace.Conv(string(d.Send.Row.Conversation)), Seq: int64(d.Result.Seq),
			At: now, Took: now.Sub(d.Arrived)}
		if !d.Own {
			r.Stage = trace.Repeated
		}
		if r.Parent = trace.Carried(d.Send.Traceparent); r.Parent.Sampled() {
			if traces == nil {
				traces = make([]trace.Context, len(done))
			}
			r.Trace = r.Parent.Child()
			traces[i] = r.Trace
		}
		records = append(records, r)
	}
	c.Trace.Add(records...)
	return traces
}

// hintDue reports whether a repeated send should make others look.
func (c *core) hintDue(res store.AppendResult, now time.Time) bool {
	if now.Sub(res.ServerTime) > hintWithin {
		return false
	}
	if _, ok := c.hints.get(res.MessageID, now); ok {
		return false
	}
	c.hints.put(res.MessageID, struct{}{}, now)
	return true
}

func entryItem(send *lane.Send, res store.AppendResult, now time.Time) fanoutItem {
	r := &send.Row
	return fanoutItem{
		item: &v1.FanoutItem{
			ConversationId: string(r.Conversation), MemberVersion: res.MemberVersion,
			ExcludeSession: string(send.Session), CommitNs: now.UnixNano(),
		},
		entry: &im.Entry{
			Seq: res.Seq, PrevSeq: res.PrevSeq, Kind: r.Kind, MessageID: res.MessageID, ClientMessageID: r.ClientMessageID,
			Sender: r.Sender, ServerTime: res.ServerTime, Content: r.Content, TargetSeq: r.TargetSeq, Countable: r.Countable,
		},
		bytes: send.Size,
	}
}

func headItem(conv im.ConversationID, session im.SessionID, res store.AppendResult) fanoutItem {
	return fanoutItem{bytes: rowOverhead, item: &v1.FanoutItem{
		ConversationId: string(conv), MemberVersion: res.MemberVersion, ExcludeSession: string(session),
		What: &v1.FanoutItem_Head{Head: &clientv1.Head{ConversationId: string(conv), Seq: int64(res.Seq)}},
	}}
}

func changeItem(res *store.ChangeResult, now time.Time) fanoutItem {
	item := &v1.FanoutItem{ConversationId: string(res.Conversation), MemberVersion: res.MemberVersion, CommitNs: now.UnixNano()}
	for _, u := range res.Removed {
		item.AlsoUserIds = append(item.AlsoUserIds, string(u))
	}
	e := res.Entry
	return fanoutItem{item: item, entry: &e, bytes: len(e.Change) + rowOverhead}
}
