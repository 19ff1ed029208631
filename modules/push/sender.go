package push

import (
	"context"
	"sync"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/obs"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/pkg/trace"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
)

// Bounds of what waits for one gateway.
const (
	// shards is how many Deliver calls one gateway gets at once, and as many again
	// with what goes to large groups; a conversation belongs to one shard.
	shards = 4
	// maxCall is the most frames in one call, and maxCallBytes where a call ends.
	maxCall      = 256
	maxCallBytes = 1 << 20
	// maxWaiting is how many frames may wait for one (shard, gateway), and
	// maxWaitingBytes how many bytes; the oldest are dropped beyond it.
	maxWaiting      = 8192
	maxWaitingBytes = 32 << 20
)

// senders hands deliveries to gateways: one call in flight per (shard,
// gateway), and what waits goes in the next. Safe for concurrent use.
type senders struct {
	d    Deps
	m    *metrics
	work chan *outlet // outlets that got their first delivery
	// heard is told how many sessions of a large group a gateway has.
	heard func(conv string, node im.NodeID, sessions int)

	mu      sync.Mutex
	outlets map[outletKey]*outlet
	waiting int
}

type outletKey struct {
	node  im.NodeID
	shard uint64
	bulk  bool // of large groups, which never hold up what goes to a few
}

// outlet is what waits for one (shard, gateway).
type outlet struct {
	key     outletKey
	waiting []parcel
	frames  int  // of those that wait
	bytes   int  // likewise
	busy    bool // a goroutine sends for it
}

// parcel is a delivery and the routes that it goes to.
type parcel struct {
	*v1.Delivery
	routes []store.Route
	frames int
	bytes  int
}

// newParcel addresses the frames of a delivery without sessions, which several
// parcels may share.
func newParcel(d *v1.Delivery, ids []string, routes []store.Route) parcel {
	p := parcel{
		Delivery: &v1.Delivery{ConversationId: d.ConversationId, Seq: d.Seq, Frame: d.Frame, SessionIds: ids, Acked: d.Acked,
			CommitNs: d.CommitNs, ExcludeSessionId: d.ExcludeSessionId, Following: d.Following, Traceparent: d.Traceparent, Audience: d.Audience},
		routes: routes, frames: 1 + len(d.Following), bytes: len(d.Frame) + 32*len(ids),
	}
	for _, f := range d.Following {
		p.bytes += len(f.Frame) + 32
	}
	return p
}

// gone counts parcels that wait no more.
func (o *outlet) gone(list ...parcel) {
	for _, d := range list {
		o.frames -= d.frames
		o.bytes -= d.bytes
	}
}

func newSenders(d Deps, m *metrics, heard func(string, im.NodeID, int)) *senders {
	return &senders{d: d, m: m, heard: heard, work: make(chan *outlet), outlets: map[outletKey]*outlet{}}
}

// add queues one delivery behind those of its conversation. After ctx has ended
// it drops it.
func (s *senders) add(ctx context.Context, node im.NodeID, d parcel) {
	s.mu.Lock()
	k := outletKey{node, xxhash.Sum64String(d.ConversationId) % shards, d.Audience != nil}
	o := s.outlets[k]
	if o == nil {
		o = &outlet{key: k}
		s.outlets[k] = o
	}
	for len(o.waiting) > 0 && (o.frames+d.frames > maxWaiting || o.bytes+d.bytes > maxWaitingBytes) {
		s.m.dropped.WithLabelValues("gateway").Add(float64(o.waiting[0].frames))
		o.gone(o.waiting[0])
		o.waiting[0] = parcel{} // the array may live for long
		o.waiting = o.waiting[1:]
		s.waiting--
	}
	o.waiting = append(o.waiting, d)
	o.frames += d.frames
	o.bytes += d.bytes
	s.waiting++
	start := !o.busy
	o.busy = true
	s.mu.Unlock()
	if !start {
		return
	}
	select {
	case s.work <- o:
	case <-ctx.Done():
	}
}

func (s *senders) pending() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.waiting
}

// run starts a goroutine for each outlet that has something to send, and waits
// for all of them when ctx is done.
func (s *senders) run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		select {
		case <-ctx.Done():
			return
		case o := <-s.work:
			wg.Go(func() { s.empty(ctx, o) })
		}
	}
}

// empty sends until nothing waits.
func (s *senders) empty(ctx context.Context, o *outlet) {
	for {
		s.mu.Lock()
		n := callSize(o.waiting)
		if n == 0 || ctx.Err() != nil {
			s.waiting -= len(o.waiting)
			delete(s.outlets, o.key)
			s.mu.Unlock()
			return
		}
		call := o.waiting[:n:n]
		o.waiting = o.waiting[n:]
		o.gone(call...)
		s.mu.Unlock()
		s.deliver(ctx, o.key.node, call)
		s.mu.Lock()
		s.waiting -= n
		s.mu.Unlock()
	}
}

// delivered remembers that entries were given to a gateway.
func (s *senders) delivered(node im.NodeID, ds []*v1.Delivery, sessions []int32, began time.Time, err error) {
	if s.d.Trace == nil {
		return
	}
	now, records := time.Now(), make([]trace.Record, 0, len(ds))
	for i, d := range ds {
		conv, count := trace.Conv(d.ConversationId), int32(len(d.SessionIds))
		if d.Audience != nil && i < len(sessions) {
			count = max(sessions[i], 0)
		}
		note := func(f *v1.Delivery) {
			if f.Acked {
				from := trace.Carried(f.Traceparent)
				records = append(records, trace.Record{Stage: trace.Delivered, Conv: conv, Seq: f.Seq, At: now, Took: now.Sub(began),
					Note: string(node), Count: count, Failed: err != nil, Trace: from.Child(), Parent: from})
			}
		}
		note(d)
		for _, f := range d.Following {
			note(f)
		}
	}
	s.d.Trace.Add(records...)
}

// callSize is how many of the waiting deliveries go into one call.
func callSize(waiting []parcel) (n int) {
	bytes, frames := 0, 0
	for _, d := range waiting {
		bytes += d.bytes
		if n > 0 && (frames+d.frames > maxCall || bytes > maxCallBytes) {
			break
		}
		n++
		frames += d.frames
	}
	return n
}

func (s *senders) deliver(ctx context.Context, node im.NodeID, ds []parcel) {
	req, began := &v1.DeliverRequest{Deliveries: make([]*v1.Delivery, len(ds))}, time.Now()
	for i, d := range ds {
		req.Deliveries[i] = d.Delivery
	}
	res, err := s.d.Gateway(node).Deliver(ctx, req)
	for wait := pause; wait <= maxPause && err != nil && im.Retryable(err) && ctx.Err() == nil; wait *= 2 {
		select {
		case <-ctx.Done():
		case <-time.After(wait):
			res, err = s.d.Gateway(node).Deliver(ctx, req)
		}
	}
	s.delivered(node, req.Deliveries, res.GetSessions(), began, err)
	if err != nil {
		frames := 0
		for _, d := range ds {
			frames += d.frames
		}
		s.m.dropped.WithLabelValues("gateway").Add(float64(frames))
		s.d.Log.Warn("a gateway did not take deliveries; its clients find them by their cursor",
			obs.Peer(string(node)), obs.Err(err))
		return
	}
	for i, n := range res.Sessions {
		waits := n < 0 || i < len(res.Waiting) && res.Waiting[i] // nobody knows yet how many they are
		if !waits && i < len(ds) && ds[i].Audience != nil {
			s.m.deliveries.Add(float64(int(n) * ds[i].frames))
			s.heard(ds[i].ConversationId, node, int(n))
		}
	}
	if len(res.NotHere) > 0 {
		s.m.notHere.Add(float64(len(res.NotHere)))
		s.repair(ctx, ds, res.NotHere)
	}
}

// repair removes the routes to sessions that their gateway does not have. A
// gateway has a session before it claims, so what it does not have has ended.
func (s *senders) repair(ctx context.Context, ds []parcel, ids []string) {
	gone := make(map[im.SessionID]bool, len(ids))
	for _, id := range ids {
		gone[im.SessionID(id)] = true
	}
	routes, err := s.d.Routes()
	if err != nil {
		return // whatever comes next finds them again
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	for _, d := range ds {
		for _, r := range d.routes {
			if !gone[r.Session] {
				continue
			}
			delete(gone, r.Session)
			if _, err := routes.Release(ctx, r.User, r.Session, r.Epoch); err != nil {
				s.d.Log.Warn("a stale route was not removed; it ends by itself", obs.Session(r.Session), obs.Err(err))
				return
			}
		}
	}
}
