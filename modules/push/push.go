package push

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

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
	Log     *zap.Logger
	Reg     prometheus.Registerer
	State   stateClient
	Gateway func(nodeID) gatewayClient
	Routes  func() (routes, error)
}

// Push is the push role of one node. It implements PushService.
type Push struct {
	cfg Config
	Deps
	m       *metrics
	members *memberCache
	queue   *queue
	senders *senders
}

// New makes the role; nothing runs yet.
func New(cfg Config, d Deps) *Push {
	m := newMetrics(d.Reg)
	return &Push{
		cfg: cfg, Deps: d, m: m,
		members: newMemberCache(d.State, m),
		queue:   newQueue(cfg.Queue),
		senders: newSenders(d, m),
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
	wg.Wait()
	return nil
}

// Drain waits until everything queued has left, or ctx is done.
func (p *Push) Drain(ctx context.Context) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for p.queue.len() > 0 || p.senders.pending() > 0 {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
	return nil
}

// Close has nothing to free.
func (p *Push) Close() error { return nil }

// Fanout queues the items. Errors: busy if they do not fit; then none is queued.
func (p *Push) Fanout(_ context.Context, r *v1.FanoutRequest) (*v1.FanoutResponse, error) {
	if !p.queue.put(r.Items) {
		return nil, im.Errorf(clientv1.Reason_REASON_BUSY, "push.Fanout", "the fan-out queue is full")
	}
	p.m.queued.Add(float64(len(r.Items)))
	return &v1.FanoutResponse{}, nil
}
