package idgen

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/control"
)

// numbers is the leases of a message store.
type numbers struct {
	site
	holders map[int]string
}

func (n *numbers) TakeWorker(_ context.Context, w int, holder string, _ time.Duration) (bool, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.away {
		return false, errAway
	}
	if n.holders[w] != "" {
		return false, nil
	}
	n.holders[w] = holder
	return true, nil
}

func (n *numbers) RenewWorker(_ context.Context, w int, holder string, _ time.Duration) (bool, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.away {
		return false, errAway
	}
	return n.holders[w] == holder, nil
}

func (n *numbers) FreeWorker(_ context.Context, w int, holder string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.away {
		return errAway
	}
	if n.holders[w] == holder {
		delete(n.holders, w)
	}
	return nil
}

func newNumbers() *numbers {
	return &numbers{site: *newSite(0), holders: map[int]string{}}
}

func anyWorker(context.Context, int) (bool, error) { return true, nil }

func TestStoreLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNumbers()
		s := StoreLeaser{Numbers: n, Node: "n1", Log: zap.NewNop()}
		seen := map[int]control.WorkerLease{}
		for range 64 {
			l, err := s.Lease(t.Context(), anyWorker)
			if err != nil || seen[l.Worker()] != nil || l.Worker() < 0 || l.Worker() > 63 {
				t.Fatalf("%v, %v", l, err)
			}
			seen[l.Worker()] = l
		}
		if _, err := s.Lease(t.Context(), anyWorker); !errors.Is(err, control.ErrNoWorker) {
			t.Errorf("a 65th lease: %v", err)
		}
		time.Sleep(10 * time.Minute)
		for w, l := range seen {
			if !l.Valid() {
				t.Errorf("number %d is not held after ten minutes", w)
			}
		}
		n.set(func() { n.holders[7] = "another" })
		time.Sleep(storeRenew + time.Millisecond)
		synctest.Wait()
		if seen[7].Valid() || !seen[8].Valid() {
			t.Error("a number that another took is lost, and only that")
		}
		n.set(func() { n.away = true })
		time.Sleep(storeTTL - storeMargin - storeRenew - time.Second)
		if !seen[8].Valid() {
			t.Error("a short absence of the store ends leases")
		}
		time.Sleep(storeRenew + 2*time.Second)
		if seen[8].Valid() {
			t.Error("a lease outlives its time")
		}
		n.set(func() { n.away = false })
		time.Sleep(2 * storeRetry)
		if !seen[8].Valid() {
			t.Error("a lease that nobody took does not come back")
		}
		for _, l := range seen {
			if err := l.Release(t.Context()); err != nil || l.Valid() {
				t.Errorf("release: %v", err)
			}
		}
		if len(n.holders) != 1 {
			t.Errorf("left: %v", n.holders)
		}
	})
}

func TestStoreLeaseFails(t *testing.T) {
	n := newNumbers()
	n.away = true
	if _, err := (StoreLeaser{Numbers: n, Log: zap.NewNop()}).Lease(t.Context(), anyWorker); !errors.Is(err, errAway) {
		t.Errorf("with the store away: %v", err)
	}
}

// broken is a leaser that cannot be reached.
type broken struct{ err error }

func (b broken) Lease(ctx context.Context, usable func(context.Context, int) (bool, error)) (control.WorkerLease, error) {
	if _, err := usable(ctx, 64); err != nil {
		return nil, err
	}
	return nil, b.err
}

func TestFallback(t *testing.T) {
	mark := errors.New("the mark cannot be read")
	tests := []struct {
		name   string
		first  error
		usable error
		want   error // nil = a number of the store
	}{
		{name: "etcd away", first: errors.New("no etcd")},
		{name: "no number is free in etcd", first: control.ErrNoWorker, want: control.ErrNoWorker},
		{name: "the store is away", first: errors.New("no etcd"), usable: mark, want: mark},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := Fallback{First: broken{tt.first}, Then: StoreLeaser{Numbers: newNumbers(), Log: zap.NewNop()}, Log: zap.NewNop()}
			l, err := f.Lease(t.Context(), func(context.Context, int) (bool, error) { return tt.usable == nil, tt.usable })
			if !errors.Is(err, tt.want) {
				t.Fatalf("got %v", err)
			}
			if tt.want == nil {
				if l.Worker() > 63 {
					t.Errorf("number %d", l.Worker())
				}
				if err := l.Release(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
	}
}
