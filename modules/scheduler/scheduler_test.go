package scheduler

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/control"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/settings"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/pkg/tally"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// counting is a store that expires three revocations at a time.
type counting struct {
	kept         time.Duration // how long before now Expire was asked for
	store.Fences               // what a test does not need panics
	store.Outbox

	mu    sync.Mutex
	calls []store.Proof
	err   error
	away  bool // the rows of jobs cannot be read
	old   int  // events that are too old
	ended int  // scheduled messages that ended long ago

	slow   atomic.Int64 // how long counting scheduled messages takes
	counts atomic.Int64 // how often they were counted

	announced struct {
		version int64
		list    []store.Announcement
		gone    []store.Announcement // taken back
		between func()               // happens once, after list was read and before gone is
	}
	claims   []bool // of scheduled messages: whether all is claimed that is not settled
	claimErr error
	leads    int64 // the token of the fence
	jobs     map[string]store.JobRow
	homes    []store.Home
	swept    []store.Home
	view     control.View

	gateways map[im.NodeID]*fakeGateway
	attic    attic
	settings settings.Source
	tally    func(context.Context, *v1.TallyRequest) ([]tally.Answer, error)
	seen     map[im.UserID]time.Time
	seenErr  error

	online map[im.UserID]bool // as events say
	events []string
	putErr error
}

func (c *counting) Fence(context.Context, string) (store.Fence, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return store.Fence{Name: Election, Token: c.leads, Holder: "n/b"}, nil
}

func (c *counting) SaveJob(_ context.Context, p store.Proof, j store.JobRow) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.jobs == nil {
		c.jobs = map[string]store.JobRow{}
	}
	j.Token, j.Holder = p.Token, p.Holder
	c.jobs[j.Name] = j
	return nil
}

func (c *counting) Jobs(context.Context) ([]store.JobRow, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.away {
		return nil, errors.New("away")
	}
	return slices.Collect(maps.Values(c.jobs)), nil
}

func (c *counting) Retain(_ context.Context, _ store.Proof, r store.Retain) (store.Retained, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.attic.retain(r)
}

// Nothing is to be sent later, but the claims are noted.
func (c *counting) ClaimScheduled(_ context.Context, _ store.Proof, q store.ScheduledClaim) ([]store.Scheduled, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.claims = append(c.claims, q.First)
	return nil, c.claimErr
}
func (c *counting) SettleScheduled(context.Context, store.Proof, []store.ScheduledResult) error {
	return nil
}
func (c *counting) ScheduledCounts(context.Context) (store.ScheduledCounts, error) {
	c.counts.Add(1)
	time.Sleep(time.Duration(c.slow.Load()))
	return store.ScheduledCounts{Open: 3, Next: time.Now().Add(-time.Minute)}, nil
}

func (c *counting) TrimScheduled(_ context.Context, p store.Proof, before time.Time, most int) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if before.After(time.Now().Add(-7*24*time.Hour)) || p.Token == 0 {
		return 0, errors.New("these are still to be seen")
	}
	n := min(c.ended, most)
	c.ended -= n
	return n, nil
}

func (c *counting) AnnouncementVersion(context.Context) (int64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.announced.version, nil
}

func (c *counting) Announcements(_ context.Context, q store.AnnouncementQuery) ([]store.Announcement, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if q.Withdrawn {
		if happens := c.announced.between; happens != nil {
			c.announced.between = nil
			happens()
		}
		return slices.Clone(c.announced.gone), nil
	}
	return slices.Clone(c.announced.list), nil
}

func (c *counting) TrimAnnouncements(_ context.Context, p store.Proof, before time.Time) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if before.After(time.Now().Add(-announcementKept)) || p.Token == 0 {
		return 0, errors.New("these are still to be seen")
	}
	had := len(c.announced.list)
	c.announced.list = slices.DeleteFunc(c.announced.list, func(a store.Announcement) bool { return !a.Expires.IsZero() && a.Expires.Before(before) })
	return had - len(c.announced.list), nil
}

func (c *counting) DataEpoch() string { return "e" }

// Nobody is told of anything.
func (c *counting) OutboxState(context.Context) (store.OutboxState, error) {
	return store.OutboxState{First: 1}, nil
}
func (c *counting) Receivers(context.Context) ([]store.Receiver, error) { return nil, nil }

func (c *counting) TrimEvents(_ context.Context, p store.Proof, before time.Time, _ int) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := min(c.old, trimMost)
	if before.After(time.Now().Add(-DefaultWebhookConfig().Keep)) || p.Token == 0 {
		n = 0
	}
	c.old -= n
	return n, nil
}

func (c *counting) Entry(context.Context, im.ConversationID, im.Seq) (im.Entry, error) {
	return im.Entry{}, store.ErrNotFound
}

// rounds is how often revocations were expired, or not.
func (c *counting) rounds() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.calls)
}

func (c *counting) row(job string) store.JobRow {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.jobs[job]
}

func (c *counting) Homes(context.Context) ([]store.Home, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.homes), nil
}

func (c *counting) Sweep(_ context.Context, h store.Home) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.swept = append(c.swept, h)
	c.homes = slices.DeleteFunc(c.homes, func(x store.Home) bool { return x == h })
	return 7, nil
}

func (c *counting) set(f func(*counting)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f(c)
}

func (c *counting) now() *control.View {
	c.mu.Lock()
	defer c.mu.Unlock()
	v := c.view
	return &v
}

func (c *counting) Expire(_ context.Context, p store.Proof, before time.Time) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls = append(c.calls, p)
	c.kept = time.Since(before)
	if c.err != nil {
		return 0, c.err
	}
	return 3, nil
}

func (c *counting) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.err = err
}

// term is a term with a token.
type term int64

func (t term) Proof() store.Proof { return store.Proof{Name: Election, Token: int64(t), Holder: "n/b"} }
func (t term) Valid() bool        { return true }

// sole elects its only candidate again and again, two seconds apart.
type sole struct{ terms term }

func (e *sole) Campaign(ctx context.Context, c control.Candidacy) error {
	for c.Name == Election && ctx.Err() == nil {
		e.terms++
		_ = c.Lead(ctx, e.terms)
		select {
		case <-time.After(2 * time.Second):
		case <-ctx.Done():
		}
	}
	return nil
}

// running runs a scheduler around a test of its work, in a bubble of time.
func running(t *testing.T, c *counting, test func(s *Scheduler, e *sole)) {
	synctest.Test(t, func(t *testing.T) { during(t, c, test) })
}

// scheduler works with the store.
func (c *counting) scheduler(e Elector) *Scheduler {
	return New(Deps{Node: "n", Tally: c.tally, Settings: c.settings, Log: zap.NewNop(), Reg: prometheus.NewRegistry(), Elector: func() Elector { return e },
		Store:  func() (Messages, error) { return c, nil },
		Routes: func() (store.Sweeper, error) { return c, nil }, View: c.now,
		Gateway: func(n im.NodeID) GatewayClient { return c.gateways[n] }, Webhooks: DefaultWebhookConfig(), Push: DefaultPushConfig()})
}

// during runs a scheduler around a test of its work.
func during(t *testing.T, c *counting, test func(s *Scheduler, e *sole)) {
	e := &sole{}
	s := c.scheduler(e)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	test(s, e)
	if err := s.Drain(t.Context()); err != nil {
		t.Errorf("Drain: %v", err)
	}
	synctest.Wait()
	select {
	case err := <-done:
		t.Errorf("Run ended with the drain: %v", err)
	default:
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestTheLeaderExpiresRevocationsEveryHour(t *testing.T) {
	c := &counting{}
	running(t, c, func(s *Scheduler, _ *sole) {
		time.Sleep(2*time.Hour + time.Second)
		c.fail(errors.New("away"))
		time.Sleep(time.Hour + 2*time.Second)
		synctest.Wait()
		if n := len(c.calls); n < 5 || n > 7 || c.calls[4] != term(1).Proof() {
			t.Errorf("rounds %v, want 3 and some tries of the first term: a failure does not end it", c.calls)
		}
		if got := testutil.ToFloat64(s.expired); got != 9 {
			t.Errorf("%v counted, want 9: a failed round counts nothing", got)
		}
		if c.kept < expireAfter {
			t.Errorf("what ended %v ago goes: a clock that was ahead takes away what is needed", c.kept)
		}
	})
}

func TestAFencedLeaderStandsDown(t *testing.T) {
	c := &counting{err: fmt.Errorf("token 1: %w", store.ErrFenced)}
	running(t, c, func(s *Scheduler, e *sole) {
		time.Sleep(time.Second)
		c.fail(nil)
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if len(c.calls) != 2 || c.calls[1] != term(2).Proof() || e.terms != 2 {
			t.Errorf("rounds %v in %d terms", c.calls, e.terms)
		}
		if got := testutil.ToFloat64(s.runs.WithLabelValues("expire", "fenced")); got != 1 {
			t.Errorf("%v fenced rounds counted", got)
		}
	})
}

// The routes of a gateway that left the cluster, or that came back as another
// process, go within seconds; those of living ones, and all while the view may be
// old, stay.
func TestTheLeaderSweepsWhatDeadGatewaysLeft(t *testing.T) {
	alive, dead, former := store.Home{Node: "n1", Boot: "b1"}, store.Home{Node: "n2", Boot: "b2"}, store.Home{Node: "n1", Boot: "b0"}
	c := &counting{leads: 1, homes: []store.Home{alive, dead, former}}
	nodes := []control.Node{{ID: "n1", BootID: "b1"}, {ID: "n3", BootID: "b3"}}
	running(t, c, func(s *Scheduler, e *sole) {
		check := func(what string, want ...store.Home) {
			t.Helper()
			time.Sleep(sweepAfter + 2*sweepEvery)
			synctest.Wait()
			c.set(func(c *counting) {
				if !slices.Equal(c.swept, want) {
					t.Errorf("%s: swept %v, want %v", what, c.swept, want)
				}
			})
		}
		check("no view yet")
		c.set(func(c *counting) { c.view = control.View{Revision: 5, Nodes: nodes, Stale: true} })
		check("an old view")
		c.set(func(c *counting) { c.view.Stale = false })
		check("a good view", dead, former)
		if got := testutil.ToFloat64(s.swept); got != 14 {
			t.Errorf("%v routes counted", got)
		}
		c.set(func(c *counting) { c.leads, c.homes = 9, append(c.homes, dead) })
		time.Sleep(sweepAfter + 4*sweepEvery)
		synctest.Wait()
		if e.terms != 2 || len(c.swept) != 2 {
			t.Errorf("a leader that was followed swept %v and had %d terms", c.swept, e.terms)
		}
	})
}

func TestWithoutAControlPlane(t *testing.T) {
	s := New(Deps{Log: zap.NewNop(), Reg: prometheus.NewRegistry(), Elector: func() Elector { return nil }})
	if err := s.Run(t.Context()); err == nil {
		t.Error("Run without an elector works")
	}
}

// Events go when they are too old, as many as there are.
func TestOldEventsGo(t *testing.T) {
	c := &counting{old: 3*trimMost + 7}
	running(t, c, func(s *Scheduler, _ *sole) {
		time.Sleep(time.Second)
		synctest.Wait()
		if got := testutil.ToFloat64(s.trimmed); got != 3*trimMost+7 {
			t.Errorf("%v events went", got)
		}
	})
}
