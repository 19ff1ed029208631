package settings

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"go.uber.org/zap"
)

func TestMain(m *testing.M) {
	// Fail points, where they are built in, look at their rules for ever.
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("github.com/imdhq/imd/pkg/failpoint.begin.func1"))
}

// running runs a Live until the returned function is called.
func running(l *Live) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); l.Run(ctx) }()
	return func() { cancel(); <-done }
}

// Readers at full speed see whole revisions only, whatever changes under them.
func TestReadersSeeWholeRevisions(t *testing.T) {
	l := NewLive(registry(t), self, zap.NewNop())
	l.Feed(Read{Revision: 1})
	type pair struct{ l, r int }
	both := Derive(l, func(s *Snapshot) pair { return pair{left.In(s), right.In(s)} })
	var done atomic.Bool
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			last := int64(0)
			for !done.Load() {
				if p := both.Get(); p.l != p.r {
					t.Errorf("half of a revision: %+v", *p)
					return
				}
				s := l.Current()
				if left.In(s) != right.In(s) || s.Revision < last {
					t.Errorf("revision %d after %d: %d and %d", s.Revision, last, left.In(s), right.In(s))
					return
				}
				last = s.Revision
			}
		})
	}
	for i := range 2000 {
		rev, n := int64(i+2), []string{"left.n", Int("left.n", 0, 0, 1000, "N.").d.text(i % 1000)}
		l.Feed(put(rev, record("left", int64(i+1), rev, n...), record("right", int64(i+1), rev, "right.n", n[1])))
	}
	done.Store(true)
	wg.Wait()
}

// A subscriber that hangs harms nobody else, is named, and gets the newest
// values when it is back.
func TestASlowSubscriberIsAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLive(registry(t), self, zap.NewNop())
		release := make(chan struct{})
		var quick, slowly []int64
		l.Subscribe("slow", func(_ context.Context, _, now *Snapshot) {
			if len(slowly) == 0 {
				<-release
			}
			slowly = append(slowly, now.Revision)
		})
		l.Subscribe("quick", func(_ context.Context, old, now *Snapshot) {
			if old.Revision >= now.Revision && now.Revision > 0 { // 0 after 0: before anything was read
				t.Errorf("%d after %d", now.Revision, old.Revision)
			}
			quick = append(quick, now.Revision)
		})
		l.Subscribe("broken", func(context.Context, *Snapshot, *Snapshot) { panic("no") })
		stop := running(l)
		l.Feed(Read{Revision: 1})
		for i := range int64(3) {
			l.Feed(put(2+i, record("rate", 1+i, 2+i, "rate.factor", "2")))
			synctest.Wait()
			time.Sleep(600 * time.Millisecond)
		}
		if want := []int64{2, 3, 4}; len(quick) == 0 || quick[len(quick)-1] != 4 || len(quick) < len(want) {
			t.Errorf("the quick one saw %v", quick)
		}
		if l.Stats().Late != 1 {
			t.Errorf("%d late calls, want 1", l.Stats().Late)
		}
		close(release)
		synctest.Wait()
		if len(slowly) != 2 || slowly[1] != 4 {
			t.Errorf("the slow one saw %v, want one more call with 4", slowly)
		}
		stop()
	})
}

// Run ends within its time even if a subscriber does not.
func TestRunEndsWithASubscriberThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLive(registry(t), self, zap.NewNop())
		release := make(chan struct{})
		l.Subscribe("hangs", func(context.Context, *Snapshot, *Snapshot) { <-release })
		stop := running(l)
		l.Feed(Read{Revision: 1})
		synctest.Wait()
		start := time.Now()
		stop()
		if took := time.Since(start); took > time.Second {
			t.Errorf("Run took %v to end", took)
		}
		close(release)
		synctest.Wait()
	})
}

func TestAwait(t *testing.T) {
	l := NewLive(registry(t), self, zap.NewNop())
	l.Feed(Read{Revision: 1})
	got := make(chan error, 1)
	go func() { got <- l.Await(context.Background(), 2) }()
	l.Feed(put(2, record("rate", 1, 2, "rate.factor", "0"))) // a refusal counts as well
	if err := <-got; err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	if err := l.Await(ctx, 3); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Await = %v", err)
	}
}

func TestANilSourceHasNothingSet(t *testing.T) {
	d := Derive(nil, func(s *Snapshot) time.Duration { return interval.Or(s, time.Minute) })
	if got := *d.Get(); got != time.Minute {
		t.Errorf("%v", got)
	}
	var l *Live
	if l.Current() != nil {
		t.Error("a nil Live has a snapshot")
	}
}

func TestSaveAndLoad(t *testing.T) {
	path := filepath.Join(t.TempDir(), "settings.json")
	if _, err := Load(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing file: %v", err)
	}
	l := NewLive(registry(t), self, zap.NewNop())
	l.Feed(Read{Revision: 5, Records: []Record{record("beat", 2, 4, "beat.interval", "20s"), record("rate", 1, 5, "rate.factor", "3")}})
	if err := Save(path, l.State().InForce()); err != nil {
		t.Fatal(err)
	}
	r, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	again := NewLive(registry(t), self, zap.NewNop())
	again.Feed(r)
	if d := l.Current().Changes(again.Current()); len(d) != 0 || again.State().Applied() != 5 {
		t.Error(cmp.Diff(nil, d))
	}
	for _, damaged := range []string{"", "{", "[]", `{"sections":{"beat":{"document":7}}}`} {
		if err := os.WriteFile(path, []byte(damaged), 0o600); err != nil {
			t.Fatal(err)
		}
		fresh := NewLive(registry(t), self, zap.NewNop())
		if r, err := Load(path); err == nil {
			fresh.Feed(r)
		}
		if fresh.State().Applied() != 0 {
			t.Errorf("%q is believed", damaged)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(filepath.Dir(path), ".settings-*")); left != nil {
		t.Errorf("left behind: %v", left)
	}
}

func BenchmarkDerived(b *testing.B) {
	l := NewLive(registry(b), self, zap.NewNop())
	d := Derive(l, func(s *Snapshot) time.Duration { return interval.In(s) })
	b.ReportAllocs()
	for b.Loop() {
		_ = d.Get()
	}
}
