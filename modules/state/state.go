package state

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/control"
	"github.com/imdhq/imd/pkg/dedup"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/lane"
	"github.com/imdhq/imd/pkg/module"
	"github.com/imdhq/imd/pkg/obs"
	"github.com/imdhq/imd/pkg/settings"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/pkg/tally"
	"github.com/imdhq/imd/pkg/trace"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// Times of the role's life.
const (
	// drainNews is how long a draining node goes on taking sends, until the
	// others know that it leaves.
	drainNews = time.Second
	// drainLanes bounds how long the lanes may take to finish then.
	drainLanes = 2 * time.Second
	// probeTimeout is how long a no-op may take through every lane.
	probeTimeout = 300 * time.Millisecond
	// closeTimeout bounds what Close does.
	closeTimeout = 2 * time.Second
)

// ids makes message ids. The right to make them is held from Start of the
// source on; Run keeps it until its context is done, Close gives it back.
type ids interface {
	// Next makes one. An error means: not now.
	Next() (im.MessageID, error)
	Run(ctx context.Context) error
	Close(ctx context.Context) error
}

// Deps is what the state role works with.
type Deps struct {
	Log   *zap.Logger
	Reg   prometheus.Registerer
	Node  im.NodeID
	Store func() (store.MessageStore, error)
	Dedup func() (dedup.Cache, error)
	IDs   func(ctx context.Context, marks store.Workers) (ids, error)
	Push  pushClient
	// PushHome names the push node of a conversation; nil = there is only one.
	PushHome func(conv string) im.NodeID
	Gateway  func(im.NodeID) gatewayClient
	View     func() *control.View
	Points   func() int // of a node on the ring; nil = the default
	// Trace remembers what became of messages; nil = nothing does.
	Trace *trace.Log
	// Tally counts what is stored; nil = nothing does.
	Tally *tally.Book
	// Settings may change while the role runs; nil = none are set.
	Settings settings.Source
}

// current is the settings in force.
func (d Deps) current() *settings.Snapshot {
	if d.Settings == nil {
		return nil
	}
	return d.Settings.Current()
}

// State is the state role of one node. It implements StateService; its
// Directory implements DirectoryService. Both answer unavailable until Start
// has returned.
type State struct {
	cfg Config
	Deps
	m       *metrics
	core    atomic.Pointer[core]
	leaving atomic.Bool // other state nodes take over; calls go to them
}

// core is what the role has once it has started.
type core struct {
	Deps
	m         *metrics
	store     store.MessageStore
	ids       ids
	lanes     []*driver
	shards    *shards // of this node; nil = conversations need no owner
	fanout    *fanout
	hints     *cache[im.MessageID, struct{}]
	repeats   *repeats
	positions *positions
	receipts  *receipts
	tails     *tails
	logins    *logins
	scheduled *scheduled
	keys      *cache[string, []store.Key]
}

// New makes the role; nothing runs yet.
func New(cfg Config, d Deps) *State {
	s := &State{cfg: cfg, Deps: d}
	s.m = newMetrics(d.Reg, func() bool {
		c := s.core.Load()
		return c != nil && c.repeats.cache.Open()
	})
	return s
}

// serving is the started core.
func (s *State) serving() (*core, error) {
	if c := s.core.Load(); c != nil {
		return c, nil
	}
	return nil, im.Errorf(clientv1.Reason_REASON_UNAVAILABLE, "state", "the state role is not serving")
}

// Start takes the right to make message ids and makes the lanes.
func (s *State) Start(ctx context.Context) error {
	st, err := s.Store()
	if err != nil {
		return fmt.Errorf("state: %w", err)
	}
	known, err := s.Dedup()
	if err != nil {
		return fmt.Errorf("state: %w", err)
	}
	source, err := s.IDs(ctx, st)
	if err != nil {
		return fmt.Errorf("state: message ids: %w", err)
	}
	c := &core{
		Deps: s.Deps, m: s.m, store: st, ids: source,
		fanout:    newFanout(s.Push, s.PushHome, s.Log, s.m),
		hints:     newCache[im.MessageID, struct{}](hintEvery, maxHints),
		repeats:   newRepeats(known, s.Node, s.m, s.Log),
		positions: newPositions(st, s.m, s.Log),
		tails:     newTails(st, s.m),
		logins:    newLogins(st),
		scheduled: &scheduled{},
		keys:      newCache[string, []store.Key](keyTTL, maxKeys),
	}
	c.fanout.kept = s.Trace
	c.receipts = newReceipts(st, func() int { return receiptMembers.In(s.current()) }, c.fanout.add)
	if owned, ok := st.(store.Sharded); ok && owned.Segmented() {
		c.shards = &shards{node: s.Node, view: s.View, points: s.Points}
		owned.Follow(c.shards.current)
	}
	n := s.cfg.Lanes
	if n == 0 {
		n = max(st.Writers(), 1)
	}
	for range n {
		c.lanes = append(c.lanes, newDriver(st, s.m, s.Log, c.committed))
	}
	s.core.Store(c)
	return nil
}

// Run works until ctx is done; then who still waits for an answer gets
// ACK_RETRY.
func (s *State) Run(ctx context.Context) error {
	c := s.core.Load()
	var wg sync.WaitGroup
	var failed error
	for _, l := range c.lanes {
		wg.Go(func() { l.run(ctx) })
	}
	wg.Go(func() { c.fanout.run(ctx) })
	wg.Go(func() { c.repeats.run(ctx) })
	wg.Go(func() { c.positions.run(ctx) })
	wg.Go(func() { c.receipts.run(ctx) })
	wg.Go(func() { failed = c.ids.Run(ctx) })
	wg.Wait()
	c.tails.wait()
	return failed
}

// Drain goes on for a moment if there are other nodes that must learn of it,
// then refuses sends, finishes the lanes and the fan-out, and writes the
// positions. With other state nodes a call is refused as a whole, so that the
// caller makes it there; without, each send is, so that its client repeats it.
func (s *State) Drain(ctx context.Context) error {
	c := s.core.Load()
	if len(s.View().Nodes) > 1 {
		pause(ctx, drainNews)
	}
	s.leaving.Store(s.View().Others("state", s.Node))
	for _, l := range c.lanes {
		l.do(lane.Drain{})
	}
	dctx, cancel := context.WithTimeout(ctx, drainLanes)
	defer cancel()
	for !c.idle() && pause(dctx, 5*time.Millisecond) {
	}
	c.positions.flush(ctx, true)
	return nil
}

func (c *core) idle() bool {
	for _, l := range c.lanes {
		if !l.idle() {
			return false
		}
	}
	return c.fanout.idle()
}

// Close writes what positions are left and gives the right to make ids back.
func (s *State) Close() error {
	c := s.core.Swap(nil)
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	c.positions.flush(ctx, true)
	if err := c.ids.Close(ctx); err != nil { // as when etcd is away
		s.Log.Warn("the right to make message ids was not given back in order; it will expire", obs.Err(err))
	}
	return nil
}

// Health passes a no-op through every lane; see StateService. Errors:
// unavailable if one of them did not answer in time.
func (s *State) Health(ctx context.Context, _ *v1.HealthRequest) (*v1.HealthResponse, error) {
	c, err := s.serving()
	if err != nil {
		return nil, err
	}
	if err := c.probe(ctx); err != nil {
		return nil, err
	}
	return &v1.HealthResponse{DataEpoch: c.store.DataEpoch()}, nil
}

func (c *core) probe(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	answers := make([]chan struct{}, len(c.lanes))
	for i, l := range c.lanes {
		answers[i] = make(chan struct{})
		l.do(lane.Probe{Ch: answers[i]})
	}
	for i, a := range answers {
		select {
		case <-a:
		case <-ctx.Done():
			return im.Errorf(clientv1.Reason_REASON_UNAVAILABLE, "state.Health", "lane %d did not answer in time", i)
		}
	}
	return nil
}

// ready is the readiness check of the lanes.
func (s *State) ready(ctx context.Context) module.Status {
	if _, err := s.Health(ctx, nil); err != nil {
		return module.Status{Reason: im.Wire(err).Message}
	}
	return module.Status{Ready: true}
}
