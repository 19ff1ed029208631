package idgen

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap"
	"pgregory.net/rapid"

	"github.com/imdhq/imd/pkg/control"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// site is the control plane and the message store of a test: leases of a few
// numbers, and their marks.
type site struct {
	store.Workers // what a test does not need panics
	mu            sync.Mutex
	size          int // numbers from 64 on
	held          map[int]*lease
	marks         map[int]time.Time
	writes        int
	away          bool
	deaf          bool // marks are written, but the answer is lost
	fades         bool // leases are not renewed any more
}

func newSite(size int) *site {
	return &site{size: size, held: map[int]*lease{}, marks: map[int]time.Time{}}
}

type lease struct {
	site   *site
	worker int
	lost   bool
}

var errAway = errors.New("away")

func (s *site) Lease(ctx context.Context, usable func(context.Context, int) (bool, error)) (control.WorkerLease, error) {
	for w := 64; w < 64+s.size; w++ {
		s.mu.Lock()
		_, taken := s.held[w]
		s.mu.Unlock()
		if taken {
			continue
		}
		ok, err := usable(ctx, w)
		if err != nil {
			return nil, err
		}
		if ok {
			s.mu.Lock()
			defer s.mu.Unlock()
			l := &lease{site: s, worker: w}
			s.held[w] = l
			return l, nil
		}
	}
	return nil, control.ErrNoWorker
}

func (s *site) WorkerMark(_ context.Context, w int) (time.Time, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.away {
		return time.Time{}, errAway
	}
	return s.marks[w], nil
}

func (s *site) MoveWorkerMark(_ context.Context, w int, from, to time.Time) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.away {
		return false, errAway
	}
	if !s.marks[w].Equal(from) {
		return false, nil
	}
	s.writes++
	s.marks[w] = to
	if s.deaf {
		return false, errAway
	}
	return true, nil
}

func (s *site) set(to func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	to()
}

func (l *lease) Worker() int { return l.worker }

func (l *lease) Valid() bool {
	l.site.mu.Lock()
	defer l.site.mu.Unlock()
	return !l.lost
}

func (l *lease) Until() time.Time {
	l.site.mu.Lock()
	defer l.site.mu.Unlock()
	if l.site.fades {
		return time.Now().Add(fading - time.Second)
	}
	return time.Now().Add(time.Hour)
}

func (l *lease) Release(context.Context) error {
	l.site.lose(l)
	return nil
}

// lose ends a lease, as if it had expired.
func (s *site) lose(l *lease) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l.lost = true
	if s.held[l.worker] == l {
		delete(s.held, l.worker)
	}
}

// No two ids are equal and none is beyond its mark, whatever the clocks do and
// however nodes start, stop, crash and lose their numbers.
func TestIDsAreUnique(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const nodes = 3
		s := newSite(6)
		clocks := [nodes]int64{noon, noon, noon}
		var passed [nodes]time.Duration // by the monotonic clocks
		var gens [nodes]*Generator
		seen := map[im.MessageID]bool{}
		start := func(i int) {
			clock := func() int64 { return clocks[i] }
			g := New(Deps{Leaser: s, Marks: s, Log: zap.NewNop(), Clock: func() time.Time { return time.UnixMilli(clock()) }})
			g.remake = func(w int) (source, error) { return &lib{t: t, clock: clock, worker: w}, nil }
			g.mono = func() time.Duration { return passed[i] }
			g.sleep = func(d time.Duration) { clocks[i] += max(1, d.Milliseconds()) }
			ctx, cancel := context.WithCancel(context.Background())
			cancel() // do not wait for marks: the clocks stand
			if g.Start(ctx) == nil {
				gens[i] = g
			}
		}
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			i := rapid.IntRange(0, nodes-1).Draw(t, "node")
			g := gens[i]
			op := rapid.IntRange(0, 13).Draw(t, "op")
			switch {
			case op == 0:
				clocks[i] += rapid.Int64Range(-20_000, 20_000).Draw(t, "jump")
			case op == 1:
				step := rapid.Int64Range(0, 4000).Draw(t, "step")
				passed[i] += time.Duration(step) * time.Millisecond
				clocks[i] += step + rapid.Int64Range(-400, 400).Draw(t, "skew")
			case op == 2:
				clocks[i] += rapid.Int64Range(-3_600_000, 3_600_000).Draw(t, "leap")
			case g == nil:
				start(i)
			case op == 3: // killed: the number comes free without a word
				s.lose(g.cur.lease.(*lease))
				gens[i] = nil
			case op == 4:
				if err := g.Close(context.Background()); err != nil && !errors.Is(err, errAway) {
					t.Fatal(err)
				}
				gens[i] = nil
			case op == 5: // cut off: it goes on, but its lease does not
				s.lose(g.cur.lease.(*lease))
			case op == 6, op == 7:
				ctx, cancel := context.WithCancel(context.Background())
				cancel()
				_ = g.upkeep(ctx) // fails if no number is free
			case op == 8: // the machine slept: its number is free, and nothing tells it
				clocks[i] += rapid.Int64Range(40_000, 400_000).Draw(t, "slept")
				if l := g.cur.lease.(*lease); s.held[l.worker] == l {
					delete(s.held, l.worker)
				}
			case op == 9:
				s.away = !s.away
			default:
				for range rapid.SampledFrom([]int{1, 10, 5000}).Draw(t, "ids") {
					id, err := g.Next()
					if err != nil {
						break
					}
					if seen[id] {
						t.Fatalf("%v was made before", id)
					}
					seen[id] = true
					if mark := s.marks[Worker(id)]; Time(id).After(mark) {
						t.Fatalf("an id of %v is beyond the mark %v", Time(id), mark)
					}
				}
			}
		}
	})
}

// running runs a Generator in a bubble of its own time. In it the clocks of the
// test, of the library and of the monotonic kind are one.
func running(t *testing.T, s *site, test func(g *Generator, s *site)) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(30 * 365 * 24 * time.Hour) // the bubble begins in 2000, before the epoch
		g := New(Deps{Leaser: s, Marks: s, Log: zap.NewNop()})
		if err := g.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- g.Run(ctx) }()
		test(g, s)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if err := g.Close(context.Background()); err != nil {
			t.Error(err)
		}
		if _, err := g.Next(); err == nil {
			t.Error("a closed generator makes ids")
		}
	})
}

func TestMarkIsWrittenWhileIDsAreMade(t *testing.T) {
	running(t, newSite(2), func(g *Generator, s *site) {
		for range 600 {
			time.Sleep(100 * time.Millisecond)
			id, err := g.Next()
			if err != nil {
				t.Fatal(err)
			}
			if mark, _ := s.WorkerMark(t.Context(), Worker(id)); mark.Before(Time(id)) || mark.After(time.Now().Add(markAhead)) {
				t.Fatalf("the mark is %v at %v", mark, time.Now())
			}
		}
		if s.writes > 22 {
			t.Errorf("%d writes in a minute", s.writes)
		}
	})
}

func TestIdleGeneratorWritesSeldomAndAnswersAtOnce(t *testing.T) {
	running(t, newSite(2), func(g *Generator, s *site) {
		for range 24 {
			time.Sleep(time.Hour)
			if _, err := g.Next(); err != nil {
				t.Fatal(err)
			}
		}
		if s.writes > 24*14 {
			t.Errorf("%d writes in a day", s.writes)
		}
		if st := g.Stats(); st.Retired != 0 || st.Refused != 0 {
			t.Errorf("counted %+v", st)
		}
	})
}

func TestCleanStopWritesTheExactMark(t *testing.T) {
	s := newSite(1)
	var last time.Time
	running(t, s, func(g *Generator, _ *site) {
		id, err := g.Next()
		if err != nil {
			t.Fatal(err)
		}
		last = Time(id)
	})
	if got := s.marks[64]; !got.Equal(last) {
		t.Errorf("the mark is %v, the last id of %v", got, last)
	}
	if len(s.held) != 0 {
		t.Error("the number was not given back")
	}
}

func TestLostLeaseIsReplaced(t *testing.T) {
	running(t, newSite(2), func(g *Generator, s *site) {
		first, err := g.Next()
		if err != nil {
			t.Fatal(err)
		}
		s.lose(s.held[Worker(first)])
		_, err = g.Next()
		if im.ReasonOf(err) != clientv1.Reason_REASON_UNAVAILABLE || !im.Retryable(err) {
			t.Errorf("without a lease Next says %v", err)
		}
		synctest.Wait()
		second, err := g.Next()
		if err != nil || Worker(second) == Worker(first) {
			t.Errorf("then %v, %v", second, err)
		}
		if st := g.Stats(); st.Retired != 1 || st.Refused != 1 || st.Worker != Worker(second) {
			t.Errorf("counted %+v", st)
		}
	})
}

func TestStoreAwayStopsIDsAtTheMark(t *testing.T) {
	running(t, newSite(1), func(g *Generator, s *site) {
		s.set(func() { s.away = true })
		mark := s.marks[64]
		for {
			id, err := g.Next()
			if err != nil {
				break
			}
			if Time(id).After(mark) {
				t.Fatalf("an id of %v beyond the mark %v", Time(id), mark)
			}
			time.Sleep(100 * time.Millisecond)
		}
		s.set(func() { s.away = false })
		time.Sleep(20 * time.Second)
		if _, err := g.Next(); err != nil {
			t.Errorf("with the store back: %v", err)
		}
	})
}

// A write whose answer was lost is settled, and the number stays.
func TestLostAnswersOfTheStore(t *testing.T) {
	running(t, newSite(1), func(g *Generator, s *site) {
		for range 20 {
			for _, deaf := range []bool{true, false} {
				s.set(func() { s.deaf = deaf })
				for range 50 {
					time.Sleep(100 * time.Millisecond)
					_, _ = g.Next() // may be refused for want of a mark
				}
			}
		}
		if _, err := g.Next(); err != nil || g.Stats().Retired != 0 {
			t.Errorf("at the end: %v, %+v", err, g.Stats())
		}
	})
}

// A number whose mark somebody else moved is given up, whatever the lease says.
func TestMovedMarkEndsTheNumber(t *testing.T) {
	running(t, newSite(2), func(g *Generator, s *site) {
		first, err := g.Next()
		if err != nil {
			t.Fatal(err)
		}
		s.set(func() { s.marks[Worker(first)] = s.marks[Worker(first)].Add(time.Millisecond) })
		time.Sleep(2*upkeepEvery + time.Millisecond)
		synctest.Wait()
		second, err := g.Next()
		if err != nil || Worker(second) == Worker(first) {
			t.Errorf("%v after %v, %v", second, first, err)
		}
	})
}

// A lease that is not renewed is replaced while it still holds: no id is
// refused.
func TestFadingLeaseIsReplacedInTime(t *testing.T) {
	running(t, newSite(2), func(g *Generator, s *site) {
		first, err := g.Next()
		if err != nil {
			t.Fatal(err)
		}
		s.set(func() { s.fades = true })
		time.Sleep(upkeepEvery + time.Millisecond)
		synctest.Wait()
		s.set(func() { s.fades = false })
		second, err := g.Next()
		if err != nil || Worker(second) == Worker(first) {
			t.Errorf("%v after %v, %v", second, first, err)
		}
		if st := g.Stats(); st.Refused != 0 {
			t.Errorf("counted %+v", st)
		}
	})
}

func TestStartWaitsForTheEarliestMark(t *testing.T) {
	s := newSite(3)
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(30 * 365 * 24 * time.Hour)
		began := time.Now()
		for w := 64; w < 67; w++ {
			s.marks[w] = began.Add(time.Duration(w-60) * time.Second) // 4 s and more
		}
		g := New(Deps{Leaser: s, Marks: s, Log: zap.NewNop()})
		if err := g.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took < 4*time.Second || took > 5*time.Second || g.Stats().Worker != 64 {
			t.Errorf("started after %v with %+v", took, g.Stats())
		}
		id, err := g.Next()
		if err != nil || !Time(id).After(began.Add(4*time.Second)) {
			t.Errorf("the first id is of %v, %v", Time(id), err)
		}
		if err := g.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func TestStartFails(t *testing.T) {
	g := New(Deps{Leaser: newSite(0), Marks: newSite(0), Log: zap.NewNop()})
	if err := g.Start(t.Context()); !errors.Is(err, control.ErrNoWorker) {
		t.Errorf("without numbers: %v", err)
	}
	s := newSite(3)
	s.away = true
	g = New(Deps{Leaser: s, Marks: s, Log: zap.NewNop()})
	if err := g.Start(t.Context()); !errors.Is(err, errAway) || len(s.held) != 0 {
		t.Errorf("without a store: %v, held %v", err, s.held)
	}
	if err := g.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestConcurrentNext(t *testing.T) {
	s := newSite(1)
	g := New(Deps{Leaser: s, Marks: s, Log: zap.NewNop()})
	if err := g.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	const callers, each = 8, 5000
	ids := make(chan im.MessageID, callers*each)
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			last := im.MessageID(0)
			for range each {
				id, err := g.Next()
				if err != nil || id <= last {
					t.Errorf("%v after %v, %v", id, last, err)
					return
				}
				last = id
				ids <- id
			}
		})
	}
	wg.Wait()
	close(ids)
	seen := map[im.MessageID]bool{}
	for id := range ids {
		seen[id] = true
	}
	if len(seen) != callers*each {
		t.Errorf("%d different ids of %d", len(seen), callers*each)
	}
	if err := g.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

func BenchmarkNext(b *testing.B) {
	s := newSite(1)
	g := New(Deps{Leaser: s, Marks: s, Log: zap.NewNop()})
	if err := g.Start(b.Context()); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := g.Next(); err != nil {
			b.Fatal(err)
		}
	}
}
