package storage

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/backoff"
	"github.com/imdhq/imd/pkg/dedup"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/module"
	"github.com/imdhq/imd/pkg/obs"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

const (
	// maxBehind is how far the clock may be behind the newest stored entry.
	maxBehind = 5 * time.Minute
	// openTime bounds one try to open the message store, and the opening of the
	// others. It covers the check of a database after an unclean stop.
	openTime = 30 * time.Second
	// awaitBase and awaitMost bound the pauses between tries to open a message store
	// that is away; awaitLog is how often the log says that it is awaited.
	awaitBase = 200 * time.Millisecond
	awaitMost = 2 * time.Second
	awaitLog  = 30 * time.Second
	// pingTime bounds the readiness check, and lookPause is how often one is made if
	// nobody asks for it, so that the metrics tell the truth.
	pingTime  = 300 * time.Millisecond
	lookPause = 5 * time.Second
)

// Drivers are the stores that can be opened, by the scheme of their data
// source names.
type Drivers struct {
	Messages store.Drivers[store.MessageStore]
	Routes   map[string]RouteOpener // by the values of storage.routes
	Dedup    map[string]DedupOpener // by the values of storage.dedup
}

// RouteOpener makes a route store. It need not reach what it depends on; an
// error is one of the configuration.
type RouteOpener func(context.Context, RouteOptions, *zap.Logger) (store.RouteStore, error)

// RouteOptions are what a route store may depend on.
type RouteOptions struct {
	Redis   RedisConfig
	Reg     prometheus.Registerer
	Section func(section string, into any) error // reads another section of the configuration
}

// DedupOpener makes a dedup cache. It need not reach what it depends on; an
// error is one of the configuration.
type DedupOpener func(RedisConfig, dedup.Options, *zap.Logger) (dedup.Cache, error)

// Deps are what a Storage uses.
type Deps struct {
	Log     *zap.Logger
	Reg     prometheus.Registerer
	Drivers Drivers
	Redis   RedisConfig
	Seq     SeqConfig
	Section func(section string, into any) error // reads another section; nil = there is none
	DataDir string                               // for the default database and relative paths
	Server  string                               // which server the node is of, for databases that several may reach; "" = it is not told
	Plane   func() string                        // what the nodes of its control plane share, "" = not known; nil = it has its own
	Handle  *store.Handle                        // where the open stores are published
	// NoMessages and NoRoutes leave a store closed that no role of this node uses.
	NoMessages, NoRoutes bool
}

// Storage owns the stores of a node.
type Storage struct {
	cfg      Config
	deps     Deps
	now      func() time.Time
	pings    prometheus.Histogram
	failures prometheus.Counter
	sick     atomic.Bool // the last readiness check failed
	awaited  atomic.Bool // Start waits for a message store that is away
	looked   atomic.Bool // a readiness check was made since the last look

	messages store.MessageStore // set by Start
	routes   store.RouteStore
	dedup    dedup.Cache
	tenancy  *tenancy // of messages; nil = nobody else could open them
}

// New wires a Storage; nothing is opened before Start.
func New(cfg Config, deps Deps) *Storage {
	s := &Storage{
		cfg: cfg, deps: deps, now: time.Now,
		pings: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: "imd", Subsystem: "storage", Name: "ping_seconds",
			Help:    "How long the message store took to answer a readiness check.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .3},
		}),
		failures: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: "imd", Subsystem: "storage", Name: "ping_failures_total",
			Help: "Readiness checks that the message store failed.",
		}),
	}
	away := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: "imd", Subsystem: "storage", Name: "away",
		Help: "1 while the message store takes no writes of this node, or is awaited by its start.",
	}, func() float64 {
		if s.sick.Load() || s.awaited.Load() {
			return 1
		}
		return 0
	})
	deps.Reg.MustRegister(s.pings, s.failures, away, pools{deps.Handle})
	return s
}

// Start opens the stores that the roles of this node use, and the dedup cache,
// checks the clock and publishes them. It waits for a message store that is away.
func (s *Storage) Start(ctx context.Context) (err error) {
	defer func() {
		if err != nil {
			err = errors.Join(marked(err), s.Close())
		}
	}()
	if !s.deps.NoMessages {
		if err := s.await(ctx); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, openTime)
	defer cancel()
	if !s.deps.NoRoutes {
		if err := s.openRoutes(ctx); err != nil {
			return err
		}
	}
	if s.deps.NoMessages {
		return nil
	}
	if err := s.openDedup(); err != nil {
		return err
	}
	s.deps.Handle.SetDedup(s.dedup)
	return nil
}

// openRoutes makes the route store. One that is away does not keep the node from
// starting: what needs it copes.
func (s *Storage) openRoutes(ctx context.Context) error {
	open, ok := s.deps.Drivers.Routes[s.cfg.Routes]
	if !ok {
		return &module.ConfigError{Err: fmt.Errorf("storage.routes: no driver for %q", s.cfg.Routes)}
	}
	routes, err := open(ctx, RouteOptions{Redis: s.deps.Redis, Reg: s.deps.Reg, Section: s.deps.Section}, s.deps.Log)
	if err != nil {
		return &module.ConfigError{Err: fmt.Errorf("storage.routes: %w", err)}
	}
	s.routes = routes
	s.deps.Handle.SetRoutes(routes)
	return nil
}

// await opens the message store, and tries again for as long as it is away: after
// a power cut its server may be the last to come, and a node that ended would have to
// be started by somebody.
func (s *Storage) await(ctx context.Context) error {
	pause := backoff.Policy{Base: awaitBase, Max: awaitMost}
	defer s.awaited.Store(false)
	var since, said time.Time
	for attempt := 0; ; attempt++ {
		err := s.openMessages(ctx)
		switch {
		case err == nil && attempt > 0:
			s.deps.Log.Info("the message store is there", obs.Took(s.now().Sub(since)))
			return nil
		case !errors.Is(err, store.ErrAway):
			return err
		}
		now := s.now()
		if attempt == 0 {
			since = now
		}
		if said.IsZero() || now.Sub(said) >= awaitLog {
			said = now
			s.deps.Log.Warn("the message store is away; the node waits for it and is not ready", zap.Duration("since", now.Sub(since)), obs.Err(err))
		}
		s.awaited.Store(true)
		if err := pause.Sleep(ctx, attempt); err != nil {
			return err
		}
	}
}

// openMessages opens the message store and publishes it. After an error nothing is
// left open; it is store.ErrAway also where a server went away after it was reached.
func (s *Storage) openMessages(outer context.Context) (err error) {
	ctx, cancel := context.WithTimeout(outer, openTime)
	defer cancel()
	defer func() {
		if err == nil || s.messages == nil {
			return
		}
		if _, shared := s.messages.(store.Occupiable); shared && outer.Err() == nil && passing(err) {
			err = fmt.Errorf("%w: %w", store.ErrAway, err)
		}
		err = errors.Join(err, s.messages.Close())
		s.messages, s.tenancy = nil, nil
	}()
	dsn, key := s.cfg.Messages(s.deps.DataDir)
	if dsn, err = s.deps.Seq.numbered(dsn); err != nil {
		return err
	}
	if s.messages, err = s.deps.Drivers.Messages.Open(ctx, dsn, s.deps.Log); err != nil {
		return fmt.Errorf("%s: %w", key, err)
	}
	if err := s.checkClock(ctx); err != nil {
		return err
	}
	if o, ok := s.messages.(store.Occupiable); ok && s.deps.Server != "" {
		t := &tenancy{store: o, server: s.deps.Server, log: s.deps.Log}
		if s.deps.Plane != nil {
			t.plane = func() string { return planeOf(s.deps.Plane()) }
		}
		if err := t.begin(ctx); err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
		s.tenancy = t
	}
	s.deps.Handle.SetMessages(s.messages)
	s.deps.Log.Info("storage is open", zap.String("data_epoch", s.messages.DataEpoch()))
	return nil
}

// passing reports whether a store that was open failed in a way that the next try to
// open it may not meet, or tells better.
func passing(err error) bool {
	if errors.Is(err, store.ErrFull) || errors.Is(err, store.ErrReadOnly) || errors.Is(err, store.ErrCorrupt) {
		return false
	}
	return im.ReasonOf(err) == clientv1.Reason_REASON_UNAVAILABLE || errors.Is(err, context.DeadlineExceeded)
}

// openDedup makes the cache of acknowledged sends. One that is away does not
// keep the node from starting.
func (s *Storage) openDedup() error {
	open, ok := s.deps.Drivers.Dedup[s.cfg.Dedup]
	if !ok {
		return &module.ConfigError{Err: fmt.Errorf("storage.dedup: no driver for %q", s.cfg.Dedup)}
	}
	c, err := open(s.deps.Redis, dedup.Options{TTL: s.cfg.DedupTTL}, s.deps.Log)
	if err != nil {
		return &module.ConfigError{Err: fmt.Errorf("storage.dedup: %w", err)}
	}
	s.dedup = c
	return nil
}

// marked marks errors that a new start does not heal.
func marked(err error) error {
	for _, lasting := range []error{store.ErrDSN, store.ErrSchema, store.ErrClock, store.ErrUnsafe, store.ErrUnfinished, store.ErrAllocator, store.ErrOtherServer} {
		if errors.Is(err, lasting) {
			return &module.ConfigError{Err: err}
		}
	}
	return err
}

// checkClock refuses a clock that is far behind what is stored.
func (s *Storage) checkClock(ctx context.Context) error {
	newest, err := s.messages.Newest(ctx)
	if err != nil {
		return fmt.Errorf("read the time of the newest entry: %w", err)
	}
	now := s.now()
	if newest.Sub(now) <= maxBehind {
		return nil
	}
	return fmt.Errorf("the clock of this machine says %s, but the newest stored message is from %s; set the clock, or, if it is right now and was ahead before, start after %s: %w",
		now.UTC().Format(time.RFC3339), newest.UTC().Format(time.RFC3339), newest.Add(-maxBehind).Add(time.Second).UTC().Format(time.RFC3339), store.ErrClock)
}

// Run looks after the message store and keeps other servers out of it; apart from
// that, stores work when they are called.
func (s *Storage) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	if s.messages != nil {
		wg.Go(func() { s.look(ctx) })
	}
	if s.tenancy != nil {
		return marked(s.tenancy.keep(ctx))
	}
	<-ctx.Done()
	return nil
}

// look makes a readiness check now and then, if nobody else did.
func (s *Storage) look(ctx context.Context) {
	tick := time.NewTicker(lookPause)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if !s.looked.Swap(false) {
			s.check(context.WithoutCancel(ctx)) // a stop is no fault of the store
		}
	}
}

// Drain does nothing: others still need the stores.
func (s *Storage) Drain(context.Context) error { return nil }

// Close takes the stores back and closes them.
func (s *Storage) Close() error {
	s.deps.Handle.SetMessages(nil)
	s.deps.Handle.SetRoutes(nil)
	s.deps.Handle.SetDedup(nil)
	var errs []error
	if s.dedup != nil {
		errs = append(errs, s.dedup.Close())
	}
	if s.routes != nil {
		errs = append(errs, s.routes.Close())
	}
	if s.tenancy != nil {
		s.tenancy.end()
	}
	if s.messages != nil {
		errs = append(errs, s.messages.Close())
	}
	s.routes, s.messages, s.dedup, s.tenancy = nil, nil, nil, nil
	return errors.Join(errs...)
}

// Ready is the readiness check: the message store takes writes.
func (s *Storage) Ready(ctx context.Context) module.Status {
	s.looked.Store(true)
	return s.check(ctx)
}

func (s *Storage) check(ctx context.Context) module.Status {
	if s.deps.NoMessages {
		return module.Status{Ready: true}
	}
	m, err := s.deps.Handle.Messages()
	switch {
	case err != nil && s.awaited.Load():
		return module.Status{Reason: "the message store is away"}
	case err != nil:
		return module.Status{Reason: "the message store is not open"}
	}
	ctx, cancel := context.WithTimeout(ctx, pingTime)
	defer cancel()
	began := time.Now()
	err = m.Ping(ctx)
	s.pings.Observe(time.Since(began).Seconds())
	if err == nil {
		if s.sick.Swap(false) {
			s.deps.Log.Info("message store ready again")
		}
		return module.Status{Ready: true}
	}
	s.failures.Inc()
	if !s.sick.Swap(true) { // checks come every few seconds: only the change is worth a line
		s.deps.Log.Warn("message store not ready", obs.Took(time.Since(began)), obs.Err(err))
	}
	return module.Status{Reason: reason(err)}
}

// reason is a clause about why the store does not take writes.
func reason(err error) string {
	switch {
	case errors.Is(err, store.ErrFull):
		return "no space left for the message store"
	case errors.Is(err, store.ErrReadOnly):
		return "the message store cannot be written"
	case errors.Is(err, store.ErrCorrupt):
		return "the message store is damaged"
	case errors.Is(err, context.DeadlineExceeded):
		return "the message store did not answer in time"
	}
	return "the message store does not take writes"
}

// place completes the data source name of a file: the default name, and
// relative paths, are below the data folder. Others stay as they are.
func place(dsn, dataDir string) string {
	u, err := url.Parse(dsn)
	if err != nil || u.Scheme != "sqlite" || u.Host != "" || filepath.IsAbs(u.Path) {
		return dsn
	}
	path, err := url.PathUnescape(u.Opaque)
	if err != nil {
		return dsn
	}
	if path == "" {
		path = "imd.db"
	}
	return (&url.URL{Scheme: u.Scheme, Path: filepath.Join(dataDir, path)}).String()
}
