package storage

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/imdhq/imd/pkg/store"
)

// house is a database that several servers reach.
type house struct {
	mu    sync.Mutex
	seats [2]struct {
		by    string
		until time.Time
	}
	fails error
}

func (h *house) Occupy(_ context.Context, seat store.Seat, who string, ttl time.Duration) (string, time.Time, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.fails != nil {
		return "", time.Time{}, h.fails
	}
	s := &h.seats[seat]
	if now := time.Now(); s.by == who || !now.Before(s.until) {
		s.by, s.until = who, now.Add(ttl)
	}
	return s.by, s.until, nil
}

func (h *house) Vacate(_ context.Context, seat store.Seat, who string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if s := &h.seats[seat]; s.by == who {
		s.until = time.Now()
	}
	return h.fails
}

func (h *house) fail(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.fails = err
}

func tenant(h *house, server string) *tenancy {
	return &tenancy{store: h, server: server, log: zap.NewNop()}
}

// lives keeps a tenancy in the background until the returned function is called, which
// gives what came of it.
func lives(t *testing.T, x *tenancy) (stop func() error) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- x.keep(ctx) }()
	return func() error { cancel(); return <-done }
}

// A database has one server. A second is refused while the first is there, and not
// when it has gone in order, was killed, or is the same.
func TestADatabaseHasOneServer(t *testing.T) {
	for name, tt := range map[string]struct {
		first, second string
		kill          bool // the first
		stop          bool // in order
		refused       string
		wait          time.Duration // at most
	}{
		"two by themselves":            {first: "node a", second: "node b", refused: "node a", wait: tenancyStep + tenancyPause},
		"one by itself and a cluster":  {first: "cluster imd", second: "node b", refused: "give this node its controlplane.endpoints", wait: tenancyStep + tenancyPause},
		"a cluster and one by itself":  {first: "node a", second: "cluster imd", refused: "have nodes share it", wait: tenancyStep + tenancyPause},
		"nodes of one cluster":         {first: "cluster imd", second: "cluster imd"},
		"the same, killed":             {first: "node a", second: "node a", kill: true},
		"the first stopped in order":   {first: "node a", second: "node b", stop: true},
		"the first was killed":         {first: "node a", second: "node b", kill: true, wait: tenancyTime},
		"a cluster stopped altogether": {first: "cluster imd", second: "node b", stop: true, wait: tenancyTime},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := &house{}
				one, two := tenant(h, tt.first), tenant(h, tt.second)
				if err := one.begin(t.Context()); err != nil {
					t.Fatal(err)
				}
				stop := lives(t, one)
				time.Sleep(time.Minute)
				if tt.kill || tt.stop {
					if err := stop(); err != nil {
						t.Fatal(err)
					}
				} else {
					defer stop()
				}
				if tt.stop {
					one.end()
				}
				began := time.Now()
				err := two.begin(t.Context())
				if refused := errors.Is(err, store.ErrOtherServer); refused != (tt.refused != "") || refused && !strings.Contains(err.Error(), tt.refused) || !refused && err != nil {
					t.Errorf("the second is told: %v", err)
				}
				if took := time.Since(began); took > tt.wait {
					t.Errorf("it took %v", took)
				}
			})
		})
	}
}

// A server that was silent for so long that another one came ends; a database that
// does not answer for a while ends nobody.
func TestAServerThatWasSilentGivesWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &house{}
		one, two := tenant(h, "node a"), tenant(h, "node b")
		if err := one.begin(t.Context()); err != nil {
			t.Fatal(err)
		}
		stop := lives(t, one)
		h.fail(errors.New("away"))
		time.Sleep(time.Hour + time.Second)
		h.fail(nil)
		time.Sleep(tenancyStep)
		if by, _, _ := h.Occupy(t.Context(), store.SeatServer, "node b", 0); by != "node a" {
			t.Errorf("%s has it", by)
		}
		h.fail(errors.New("away"))
		time.Sleep(time.Hour + time.Second)
		h.fail(nil)
		if err := two.begin(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(tenancyStep)
		synctest.Wait()
		if err := stop(); !errors.Is(err, store.ErrOtherServer) || !strings.Contains(err.Error(), "node b") {
			t.Errorf("the first is told: %v", err)
		}
	})
}

// A server that cannot say for its whole time that it uses the database warns of it,
// once each time.
func TestAServerThatIsSilentWarns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &house{}
		core, logs := observer.New(zap.WarnLevel)
		x := tenant(h, "node a")
		x.log = zap.New(core)
		if err := x.begin(t.Context()); err != nil {
			t.Fatal(err)
		}
		stop := lives(t, x)
		for i, away := range []time.Duration{tenancyTime - time.Second, time.Hour, time.Minute} {
			h.fail(errors.New("away"))
			time.Sleep(away)
			h.fail(nil)
			time.Sleep(tenancyStep + time.Second)
			if n := logs.Len(); n != i {
				t.Errorf("%d warnings when the database was away for the time number %d", n, i)
			}
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// Two clusters of one name are told apart by what the nodes of each share. Who does not
// know it yet is let in, and an etcd that was moved, or came back empty, ends nobody.
func TestTwoClustersOfOneName(t *testing.T) {
	for name, tt := range map[string]struct {
		first, second string
		later         string // what the first reads in etcd 5 s after the second came; "" = what it had
		stop          bool   // the first, before
		refused       bool
		wait          time.Duration // at most
	}{
		"one cluster":                       {first: "a", second: "a"},
		"another one":                       {first: "a", second: "b", refused: true, wait: planePatience + tenancyStep + tenancyPause},
		"one that does not know yet":        {first: "a"},
		"beside one that does not know":     {second: "b"},
		"another etcd, all were stopped":    {first: "a", second: "b", stop: true, wait: tenancyTime},
		"etcd came back empty a second ago": {first: "a", second: "b", later: "b", wait: 5*time.Second + tenancyTime + tenancyStep},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := &house{}
				core, logs := observer.New(zap.ErrorLevel)
				one, two := tenant(h, "cluster imd"), tenant(h, "cluster imd")
				var secret atomic.Pointer[string]
				secret.Store(&tt.first)
				one.log, one.plane = zap.New(core), func() string { return planeOf(*secret.Load()) }
				two.plane = func() string { return planeOf(tt.second) }
				if err := one.begin(t.Context()); err != nil {
					t.Fatal(err)
				}
				stop := lives(t, one)
				time.Sleep(time.Minute)
				if tt.stop {
					if err := stop(); err != nil {
						t.Fatal(err)
					}
					one.end()
				} else {
					defer func() {
						if err := stop(); err != nil {
							t.Errorf("the first is told: %v", err)
						}
					}()
				}
				if tt.later != "" {
					time.AfterFunc(5*time.Second, func() { secret.Store(&tt.later) })
				}
				began := time.Now()
				err := two.begin(t.Context())
				if errors.Is(err, store.ErrOtherServer) != tt.refused || !tt.refused && err != nil {
					t.Errorf("the second is told: %v", err)
				}
				if took := time.Since(began); took > tt.wait {
					t.Errorf("it took %v", took)
				}
				if tt.refused {
					return
				}
				end := lives(t, two)
				time.Sleep(time.Minute)
				if err := end(); err != nil {
					t.Error(err)
				}
				if n := logs.Len(); n != 0 {
					t.Errorf("%d complaints", n)
				}
			})
		})
	}
}

// Two that both run, as each came while the database did not say so, complain once.
func TestClustersThatBothRunComplain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &house{}
		core, logs := observer.New(zap.ErrorLevel)
		var known atomic.Bool
		one, two := tenant(h, "cluster imd"), tenant(h, "cluster imd")
		one.plane = func() string { return planeOf("a") }
		two.log, two.plane = zap.New(core), func() string {
			if known.Load() {
				return planeOf("b")
			}
			return ""
		}
		var ends []func() error
		for _, x := range []*tenancy{one, two} {
			if err := x.begin(t.Context()); err != nil {
				t.Fatal(err)
			}
			ends = append(ends, lives(t, x))
		}
		known.Store(true)
		time.Sleep(time.Hour)
		for _, end := range ends {
			if err := end(); err != nil {
				t.Error(err)
			}
		}
		if n := logs.Len(); n != 1 {
			t.Errorf("%d complaints", n)
		}
	})
}
