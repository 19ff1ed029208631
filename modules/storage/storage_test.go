package storage

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"

	"github.com/imdhq/imd/pkg/config"
	"github.com/imdhq/imd/pkg/dedup"
	"github.com/imdhq/imd/pkg/dedup/memory"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/module"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeMessages is a message store that only opens, answers and closes.
type fakeMessages struct {
	store.MessageStore
	newest time.Time
	lost   error // what the next Newest says
	ping   func(context.Context) error
	closed bool
}

func (f *fakeMessages) DataEpoch() string              { return "e" }
func (f *fakeMessages) Ping(ctx context.Context) error { return f.ping(ctx) }
func (f *fakeMessages) Close() error                   { f.closed = true; return nil }

func (f *fakeMessages) Newest(context.Context) (time.Time, error) {
	err := f.lost
	f.lost = nil
	return f.newest, err
}

type fakeRoutes struct {
	store.RouteStore
	closed bool
}

func (f *fakeRoutes) Close() error { f.closed = true; return nil }

// rig is a Storage over fakes.
type rig struct {
	*Storage
	messages *fakeMessages
	routes   *fakeRoutes
	handle   *store.Handle
	dsn      string // as the driver got it
	fail     error  // what the driver of messages says
	failR    error  // what the driver of routes says
	failD    error  // what the driver of the dedup cache says
}

func newRig(t *testing.T, cfg Config) *rig {
	r := &rig{messages: &fakeMessages{ping: func(context.Context) error { return nil }}, routes: &fakeRoutes{}, handle: &store.Handle{}}
	r.Storage = New(cfg, Deps{
		Log: zaptest.NewLogger(t), Reg: prometheus.NewRegistry(), DataDir: "/data", Handle: r.handle,
		Drivers: Drivers{
			Messages: store.Drivers[store.MessageStore]{"sqlite": func(_ context.Context, u *url.URL, _ *zap.Logger) (store.MessageStore, error) {
				if r.dsn = u.String(); r.fail != nil {
					return nil, r.fail
				}
				return r.messages, nil
			}},
			Dedup: map[string]DedupOpener{"memory": func(_ RedisConfig, o dedup.Options, _ *zap.Logger) (dedup.Cache, error) {
				if r.failD != nil {
					return (*memory.Cache)(nil), r.failD
				}
				return memory.New(o), nil
			}},
			Routes: map[string]RouteOpener{"memory": func(context.Context, RouteOptions, *zap.Logger) (store.RouteStore, error) {
				if r.failR != nil {
					return nil, r.failR
				}
				return r.routes, nil
			}},
		},
	})
	return r
}

// away is what imd_storage_away says.
func (r *rig) away(t *testing.T) bool {
	t.Helper()
	all, err := r.deps.Reg.(*prometheus.Registry).Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range all {
		if m.GetName() == "imd_storage_away" {
			return m.Metric[0].Gauge.GetValue() == 1
		}
	}
	t.Fatal("no metric imd_storage_away")
	return false
}

// The metric follows the store also if nobody asks whether the node is ready.
func TestAStoreIsLookedAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, DefaultConfig())
		if err := r.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		var full atomic.Bool
		r.messages.ping = func(context.Context) error {
			if full.Load() {
				return store.ErrFull
			}
			return nil
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- r.Run(ctx) }()
		for _, want := range []bool{false, true, false} {
			full.Store(want)
			time.Sleep(lookPause + time.Second)
			if r.away(t) != want {
				t.Errorf("imd_storage_away says %v, want %v", r.away(t), want)
			}
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestLife(t *testing.T) {
	r := newRig(t, DefaultConfig())
	if s := r.Ready(t.Context()); s.Ready {
		t.Error("ready before the start")
	}
	if err := r.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	m, err := r.handle.Messages()
	if err != nil || m != store.MessageStore(r.messages) || r.dsn != "sqlite:///data/imd.db" {
		t.Errorf("published %v, %v, opened %s", m, err, r.dsn)
	}
	if c, err := r.handle.Dedup(); err != nil || c.Open() {
		t.Errorf("published %v, %v", c, err)
	}
	if routes, err := r.handle.Routes(); err != nil || routes != store.RouteStore(r.routes) {
		t.Errorf("published %v, %v", routes, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := errors.Join(r.Run(ctx), r.Drain(t.Context())); err != nil {
		t.Error(err)
	}
	if s := r.Ready(t.Context()); !s.Ready {
		t.Errorf("not ready: %+v", s)
	}
	if err := r.Close(); err != nil || !r.messages.closed || !r.routes.closed {
		t.Errorf("close: %v", err)
	}
	if _, err := r.handle.Messages(); im.ReasonOf(err) != clientv1.Reason_REASON_UNAVAILABLE {
		t.Errorf("after close: %v", err)
	}
}

func TestStartFails(t *testing.T) {
	other := errors.New("refused")
	tests := []struct {
		name   string
		cfg    Config
		change func(*rig)
		want   error
		config bool // exit status 78
		words  string
	}{
		{name: "no such driver", cfg: Config{DSN: "oracle://db", Routes: "memory"}, want: store.ErrDSN, config: true, words: "oracle"},
		{name: "no such route store", cfg: Config{DSN: "sqlite:", Routes: "redis"}, config: true, words: "storage.routes: no driver"},
		{name: "a newer schema", change: func(r *rig) { r.fail = store.ErrSchema }, want: store.ErrSchema, config: true},
		{name: "damage", change: func(r *rig) { r.fail = store.ErrCorrupt }, want: store.ErrCorrupt},
		{name: "another fault", change: func(r *rig) { r.fail = other }, want: other},
		{name: "routes fail", change: func(r *rig) { r.failR = other }, want: other, config: true, words: "storage.routes"},
		{name: "no dedup cache can be made", change: func(r *rig) { r.failD = other }, want: other, config: true, words: "storage.dedup"},
		{
			name: "a clock far behind", change: func(r *rig) { r.messages.newest = time.Now().Add(6 * time.Minute) },
			want: store.ErrClock, config: true, words: "set the clock",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if tt.cfg == (Config{}) {
				tt.cfg = DefaultConfig()
			}
			r := newRig(t, tt.cfg)
			if tt.change != nil {
				tt.change(r)
			}
			err := r.Start(t.Context())
			var ce *module.ConfigError
			if tt.want != nil && !errors.Is(err, tt.want) || err == nil || errors.As(err, &ce) != tt.config || !strings.Contains(err.Error(), tt.words) || strings.Contains(err.Error(), "\n") {
				t.Errorf("start: %v", err)
			}
			if _, err := r.handle.Messages(); err == nil {
				t.Error("published although the start failed")
			}
			if r.fail == nil && tt.cfg.DSN == "sqlite:" && !r.messages.closed {
				t.Error("the message store was left open")
			}
		})
	}
}

// A message store that is away is awaited, with pauses that stay short, until it is
// there, shows that it can never be used, or the node is told to stop.
func TestAStoreThatIsAwayIsAwaited(t *testing.T) {
	away := fmt.Errorf("the database db at db:5432 cannot be reached: %w", store.ErrAway)
	for name, tt := range map[string]struct {
		then error // what the driver says after a minute; nil = it opens
		stop bool  // the node is told to stop instead
		want error
	}{
		"it comes":             {},
		"it refuses the user":  {then: store.ErrDSN, want: store.ErrDSN},
		"the node has to stop": {then: away, stop: true, want: context.Canceled},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, DefaultConfig())
				var says atomic.Pointer[error]
				says.Store(&away)
				open := r.deps.Drivers.Messages["sqlite"]
				r.deps.Drivers.Messages["sqlite"] = func(ctx context.Context, u *url.URL, log *zap.Logger) (store.MessageStore, error) {
					if err := *says.Load(); err != nil {
						return nil, err
					}
					return open(ctx, u, log)
				}
				ctx, stop := context.WithCancel(t.Context())
				defer stop()
				done := make(chan error, 1)
				go func() { done <- r.Start(ctx) }()
				time.Sleep(time.Minute)
				synctest.Wait()
				if !r.away(t) {
					t.Error("meanwhile imd_storage_away says that it is there")
				}
				if s := r.Ready(ctx); s.Ready || s.Reason != "the message store is away" {
					t.Errorf("meanwhile the check says %+v", s)
				}
				changed := time.Now()
				if says.Store(&tt.then); tt.stop {
					stop()
				}
				err := <-done
				if !errors.Is(err, tt.want) || tt.want == nil && err != nil {
					t.Errorf("the start ends with %v, want %v", err, tt.want)
				}
				if took := time.Since(changed); took > awaitMost {
					t.Errorf("it took %v", took)
				}
				if s := r.Ready(t.Context()); s.Ready != (tt.want == nil) {
					t.Errorf("then the check says %+v", s)
				}
				if err := r.Close(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// A server that goes away after it was opened is awaited too; a file is not, nor is
// what waiting does not heal.
func TestAStoreThatGoesAwayWhileItIsOpenedIsAwaited(t *testing.T) {
	lost := &im.Error{Reason: clientv1.Reason_REASON_UNAVAILABLE, Op: "store.Newest", Err: io.ErrUnexpectedEOF}
	full := &im.Error{Reason: clientv1.Reason_REASON_UNAVAILABLE, Op: "store.Newest", Err: store.ErrFull}
	for name, tt := range map[string]struct {
		newest, occupy error // once
		file, stop     bool
		want           error
	}{
		"as it is read":         {newest: lost},
		"without an answer":     {newest: context.DeadlineExceeded},
		"as it is occupied":     {occupy: lost},
		"a file":                {newest: lost, file: true, want: lost},
		"a full one":            {newest: full, want: store.ErrFull},
		"a fault":               {newest: io.ErrShortWrite, want: io.ErrShortWrite},
		"the node has to stop":  {newest: lost, stop: true, want: lost},
		"another server has it": {occupy: store.ErrOtherServer, want: store.ErrOtherServer},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, DefaultConfig())
				r.deps.Server = "node a"
				r.messages.lost = tt.newest
				opened, h := 0, &house{fails: tt.occupy}
				ctx, stop := context.WithCancel(t.Context())
				defer stop()
				r.deps.Drivers.Messages["sqlite"] = func(context.Context, *url.URL, *zap.Logger) (store.MessageStore, error) {
					if opened++; opened == 2 {
						h.fail(nil)
					}
					if tt.stop {
						stop()
					}
					if tt.file {
						return r.messages, nil
					}
					return sharedMessages{r.messages, h}, nil
				}
				began := time.Now()
				err := r.Start(ctx)
				if !errors.Is(err, tt.want) || tt.want == nil && err != nil || errors.Is(err, store.ErrAway) {
					t.Errorf("the start ends with %v, want %v", err, tt.want)
				}
				if took := time.Since(began); took > awaitMost {
					t.Errorf("it took %v", took)
				}
				if again := opened == 2; again != (tt.want == nil) || !r.messages.closed {
					t.Errorf("it was opened %d times, closed %v", opened, r.messages.closed)
				}
				if s := r.Ready(t.Context()); s.Ready != (tt.want == nil) {
					t.Errorf("then the check says %+v", s)
				}
				h.fail(nil)
				if err := r.Close(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// sharedMessages is a store that several servers reach.
type sharedMessages struct {
	*fakeMessages
	*house
}

func TestClockWithinBounds(t *testing.T) {
	r := newRig(t, DefaultConfig())
	r.messages.newest = time.Now().Add(4 * time.Minute)
	if err := r.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}

// The check answers in time whatever the store does, and names the cause.
func TestReady(t *testing.T) {
	tests := []struct {
		name string
		ping func(context.Context) error
		want string
	}{
		{"a full disk", func(context.Context) error { return store.ErrFull }, "no space"},
		{"a stalled store", func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }, "in time"},
		{"read-only", func(context.Context) error { return store.ErrReadOnly }, "cannot be written"},
		{"damage", func(context.Context) error { return store.ErrCorrupt }, "damaged"},
		{"anything else", func(context.Context) error { return errors.New("secret") }, "does not take writes"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, DefaultConfig())
				if err := r.Start(t.Context()); err != nil {
					t.Fatal(err)
				}
				defer r.Close()
				r.messages.ping = tt.ping
				began := time.Now()
				s := r.Ready(t.Context())
				if s.Ready || !strings.Contains(s.Reason, tt.want) || time.Since(began) > pingTime {
					t.Errorf("status %+v after %v", s, time.Since(began))
				}
			})
		})
	}
}

func TestPlace(t *testing.T) {
	for dsn, want := range map[string]string{
		"sqlite:":                "sqlite:///data%20dir/imd.db",
		"sqlite:sub/x.db":        "sqlite:///data%20dir/sub/x.db",
		"sqlite:/var/x.db":       "sqlite:/var/x.db",
		"sqlite:///var/x.db":     "sqlite:///var/x.db",
		"postgres://u:p@host/db": "postgres://u:p@host/db",
	} {
		if got := place(dsn, "/data dir"); got != want {
			t.Errorf("place(%q) = %q, want %q", dsn, got, want)
		}
	}
}

func TestValidate(t *testing.T) {
	if err := DefaultConfig().Validate(); err != nil {
		t.Error(err)
	}
	err := Config{DSN: "no scheme", Routes: ""}.Validate()
	if err == nil || !strings.Contains(err.Error(), "storage.dsn") || !strings.Contains(err.Error(), "storage.routes") {
		t.Errorf("validate: %v", err)
	}
}

// The declaration says what the node must know.
func TestSpec(t *testing.T) {
	s := Spec(Drivers{})
	if s.Name != "storage" || s.Role || len(s.Needs) != 0 {
		t.Errorf("spec: %+v", s)
	}
	if c, ok := s.Config().(*Config); !ok || *c != DefaultConfig() {
		t.Errorf("config: %+v", s.Config())
	}
	ready := module.NewReady()
	m, err := s.New(&module.Env{
		Log: zaptest.NewLogger(t), Reg: prometheus.NewRegistry(), Ready: ready, Store: &store.Handle{},
		Config: func(string, any) error { return nil },
	})
	if err != nil || m == nil {
		t.Fatal(err)
	}
	if all, ok := ready.Check(t.Context()); ok || len(all) != 1 || all[0].Name != "storage" {
		t.Errorf("checks: %+v", all)
	}
}

// The name of a Postgres has a key of its own, which is a secret's.
func TestPostgresName(t *testing.T) {
	for _, tt := range []struct {
		dsn, postgres string
		want          string // part of the error; "" = good
	}{
		{"sqlite:", "postgres://u:hunter2@h/d", ""},
		{"sqlite:", "postgresql://h/d", ""},
		{"sqlite:", "mysql://u:hunter2@h/d", "storage.postgres"},
		{"sqlite:", "host=h password=hunter2", "storage.postgres"},
		{"postgres://u:hunter2@h/d", "", "storage.postgres_file"},
	} {
		cfg := DefaultConfig()
		cfg.DSN, cfg.Postgres = tt.dsn, config.Secret(tt.postgres)
		err := cfg.Validate()
		if (err == nil) != (tt.want == "") || err != nil && (!strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "hunter2")) {
			t.Errorf("%s, %s: %v, want %q", tt.dsn, tt.postgres, err, tt.want)
		}
	}
	if dsn, key := (Config{DSN: "sqlite:", Postgres: "postgres://h/d"}).Messages("/data"); dsn != "postgres://h/d" || key != "storage.postgres" {
		t.Errorf("with a Postgres: %s of %s", dsn, key)
	}
	if dsn, key := DefaultConfig().Messages("/data"); dsn != "sqlite:///data/imd.db" || key != "storage.dsn" {
		t.Errorf("without: %s of %s", dsn, key)
	}
}

// pooledMessages is a message store with connections.
type pooledMessages struct{ *fakeMessages }

func (pooledMessages) Pools() []store.Pool {
	return []store.Pool{{Name: "read", Most: 8, Open: 5, InUse: 2, Waits: 7, Waited: 1500 * time.Millisecond, GivenUp: 3}}
}

// loggedMessages is a message store with a log.
type loggedMessages struct{ *fakeMessages }

func (loggedMessages) LogBytes() int64 { return 4096 }

func TestPoolsAreShown(t *testing.T) {
	reg, handle := prometheus.NewRegistry(), &store.Handle{}
	New(DefaultConfig(), Deps{Log: zaptest.NewLogger(t), Reg: reg, Handle: handle})
	values := func() map[string]float64 {
		got := map[string]float64{}
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			for _, m := range f.Metric {
				name := strings.TrimPrefix(f.GetName(), "imd_storage_")
				for _, l := range m.Label {
					name += " " + l.GetValue()
				}
				got[name] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
			}
		}
		return got
	}
	closed := len(values())
	handle.SetMessages(&fakeMessages{})
	if n := len(values()); n != closed {
		t.Errorf("a store without pools shows %d values more", n-closed)
	}
	handle.SetMessages(loggedMessages{&fakeMessages{}})
	if got := values()["log_bytes"]; got != 4096 {
		t.Errorf("log_bytes is %v", got)
	}
	handle.SetMessages(pooledMessages{&fakeMessages{}})
	got := values()
	for name, want := range map[string]float64{
		"pool_connections read in_use": 2, "pool_connections read idle": 3, "pool_connections_limit read": 8,
		"pool_waits_total read": 7, "pool_wait_seconds_total read": 1.5, "pool_given_up_total read": 3,
	} {
		if got[name] != want {
			t.Errorf("%s is %v, want %v", name, got[name], want)
		}
	}
}
