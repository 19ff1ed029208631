package push

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/control"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/settings"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/pkg/trace"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// drainNews is how long a draining node goes on taking items, until the others
// know that it leaves.
const drainNews = time.Second

type nodeID = im.NodeID

// stateClient is what push asks of the state role.
type stateClient interface {
	Members(context.Context, *v1.MembersRequest) (*v1.MembersResponse, error)
}

// gatewayClient is what push asks of a gateway.
type gatewayClient interface {
	Deliver(context.Context, *v1.DeliverRequest) (*v1.DeliverResponse, error)
}

// routes is what push asks of the route store.
type routes interface {
	Recent(ctx context.Context, users []im.UserID) ([]store.Route, error)
	Release(ctx context.Context, user im.UserID, session im.SessionID, epoch uint64) (bool, error)
}

// Deps is what the push role works with.
type Deps struct {
	Node im.NodeID
	// View is the latest copy of the cluster; nil = this process is all of it.
	View func() *control.View
	// Trace remembers what became of messages; nil = nothing does.
	Trace *trace.Log
	Log   *zap.Logger
	Reg   prometheus.Registerer
	// Here says that this process is a gateway too.
	Here bool
	// Settings are the hot ones; nil = their defaults hold.
	Settings settings.Source
	State    stateClient
	Gateway  func(nodeID) gatewayClient
	Routes   func() (routes, error)
}

// Push is the push role of one node. It implements PushService.
type Push struct {
	cfg Config
	Deps
	m       *metrics
	members *memberCache
	queue   *queue
	senders *senders
	tuned   *settings.Derived[tuning]
	pulls   *pulls
	leaving atomic.Bool // other push nodes take over; calls go to them
}

// New makes the role; nothing runs yet.
func New(cfg Config, d Deps) *Push {
	pulls, queue := newPulls(), newQueue(cfg.Queue, cfg.QueueBytes)
	m := newMetrics(d.Reg, queue.held)
	return &Push{
		cfg: cfg, Deps: d, m: m,
		members: newMemberCache(d.State, m),
		queue:   queue,
		senders: newSenders(d, m, pulls.heard),
		tuned:   settings.Derive(d.Settings, tune),
		pulls:   pulls,
	}
}

// Start has nothing to open.
func (p *Push) Start(context.Context) error { return nil }

// Run fans out until ctx is done.
func (p *Push) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	for range p.cfg.Workers {
		wg.Go(func() {
			for {
				batch, ok := p.queue.take(ctx)
				if !ok {
					return
				}
				p.m.queued.Sub(float64(len(batch.items)))
				p.fanout(ctx, batch.items)
				p.queue.done(batch)
			}
		})
	}
	wg.Go(func() { p.senders.run(ctx) })
	wg.Go(func() { p.pulls.run(ctx, func(h hint) { p.tell(ctx, h) }) })
	wg.Wait()
	return nil
}

// Drain goes on for a moment if there are other push nodes that take over, then
// refuses what still comes, so that the caller gives it to them, and waits until
// everything queued has left, or ctx is done.
func (p *Push) Drain(ctx context.Context) error {
	if p.others() {
		select {
		case <-time.After(drainNews):
		case <-ctx.Done():
		}
		p.leaving.Store(p.others())
	}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for p.queue.len() > 0 || p.pulls.hurry() > 0 || p.senders.pending() > 0 { // in the order in which they hand on
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
	return nil
}

// others reports whether there are push nodes that may take over.
func (p *Push) others() bool { return p.View != nil && p.View().Others("push", p.Node) }

// Close has nothing to free.
func (p *Push) Close() error { return nil }

// Fanout queues the items. Errors: busy if they do not fit, unavailable if this
// node is leaving; then none is queued.
func (p *Push) Fanout(_ context.Context, r *v1.FanoutRequest) (*v1.FanoutResponse, error) {
	if p.leaving.Load() {
		return nil, im.Errorf(clientv1.Reason_REASON_UNAVAILABLE, "push.Fanout", "this node is leaving; another one has its conversations")
	}
	if why := p.queue.put(r.Items); why != fits {
		p.m.refused.WithLabelValues(string(why)).Inc()
		return nil, im.Errorf(clientv1.Reason_REASON_BUSY, "push.Fanout", "the fan-out queue is full")
	}
	p.m.queued.Add(float64(len(r.Items)))
	return &v1.FanoutResponse{}, nil
}
