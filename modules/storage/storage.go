package storage

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/dedup"
	"github.com/imdhq/imd/pkg/module"
	"github.com/imdhq/imd/pkg/obs"
	"github.com/imdhq/imd/pkg/store"
)

const (
	// maxBehind is how far the clock may be behind the newest stored entry.
	maxBehind = 5 * time.Minute
	// openTime bounds the opening of both stores. It covers the check of a
	// database after an unclean stop.
	openTime = 30 * time.Second
	// pingTime bounds the readiness check.
	pingTime = 300 * time.Millisecond
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
	deps.Reg.MustRegister(s.pings, s.failures, pools{deps.Handle})
	return s
}

// Start opens the stores that the roles of this node use, and the dedup cache,
// checks the clock and publishes them.
func (s *Storage) Start(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(ctx, openTime)
	defer cancel()
	defer func() {
		if err != nil {
			err = errors.Join(marked(err), s.Close())
		}
	}()
	if !s.deps.NoMessages {
		if err := s.openMessages(ctx); err != nil {
			return err
		}
	}
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

func (s *Storage) openMessages(ctx context.Context) (err error) {
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
		if err := t.begin(ctx); err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
		s.tenancy = t
	}
	s.deps.Handle.SetMessages(s.messages)
	s.deps.Log.Info("storage is open", zap.String("data_epoch", s.messages.DataEpoch()))
	return nil
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
	return fmt.Errorf("the clock of this machine says %s, but the newest stored message is from %s; set the clock: %w",
		now.UTC().Format(time.RFC3339), newest.UTC().Format(time.RFC3339), store.ErrClock)
}

// Run keeps other servers out of the message store; apart from that, stores work
// when they are called.
func (s *Storage) Run(ctx context.Context) error {
	if s.tenancy != nil {
		return marked(s.tenancy.keep(ctx))
	}
	<-ctx.Done()
	return nil
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
	if s.deps.NoMessages {
		return module.Status{Ready: true}
	}
	m, err := s.deps.Handle.Messages()
	if err != nil {
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
