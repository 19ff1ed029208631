package controltest

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/imdhq/imd/pkg/control"
)

func anyWorker(context.Context, int) (bool, error) { return true, nil }

// workerKey is where the holder of a number stands.
func workerKey(p *process, n int) string {
	return strings.Replace(p.key, "/nodes/"+string(p.node.ID), "/workers/"+strconv.Itoa(n), 1)
}

func workersUnique(t *testing.T, f Fixture) {
	a, b := open(t, f, node("a", "a1", "")), open(t, f, node("b", "b1", ""))
	// Half of the numbers are out, so that leasers meet.
	few := func(_ context.Context, n int) (bool, error) { return n < 64+60, nil }
	var mu sync.Mutex
	held := map[int]int{}
	var wg sync.WaitGroup
	for i := range 50 {
		p := a
		if i%2 == 1 {
			p = b
		}
		wg.Go(func() {
			w, err := p.Lease(t.Context(), few)
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			held[w.Worker()]++
			if !w.Valid() {
				t.Errorf("the fresh lease of %d is not valid", w.Worker())
			}
		})
	}
	wg.Wait()
	if len(held) != 50 {
		t.Errorf("50 leasers hold %d numbers: %v", len(held), held)
	}
}

func workerReleased(t *testing.T, f Fixture) {
	a := open(t, f, node("a", "a1", ""))
	only := func(_ context.Context, n int) (bool, error) { return n == 700, nil }
	first, err := a.Lease(t.Context(), only)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.Lease(t.Context(), only); !errors.Is(err, control.ErrNoWorker) {
		t.Errorf("a second lease of the same number: %v", err)
	}
	if err := first.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if first.Valid() {
		t.Error("a released lease is valid")
	}
	second, err := a.Lease(t.Context(), only)
	if err != nil || second.Worker() != 700 {
		t.Errorf("a released number is not free: %v", err)
	}
}

func workerLost(t *testing.T, f Fixture) {
	a := open(t, f, node("a", "a1", ""))
	w, err := a.Lease(t.Context(), anyWorker)
	if err != nil {
		t.Fatal(err)
	}
	f.Store.Revoke(t, workerKey(a, w.Worker()))
	eventually(t, "the lease is not valid", func() bool { return !w.Valid() })
	if err := w.Release(t.Context()); err != nil {
		t.Errorf("release of a lost lease: %v", err)
	}
	w, err = a.Lease(t.Context(), anyWorker)
	if err != nil {
		t.Fatal(err)
	}
	f.Store.Write(t, workerKey(a, w.Worker()), "somebody else")
	eventually(t, "a number that another took is not valid", func() bool { return !w.Valid() })
}

func workersUnusable(t *testing.T, f Fixture) {
	a := open(t, f, node("a", "a1", ""))
	asked := map[int]bool{}
	_, err := a.Lease(t.Context(), func(_ context.Context, n int) (bool, error) { asked[n] = true; return false, nil })
	if !errors.Is(err, control.ErrNoWorker) || len(asked) != 960 || !asked[64] || !asked[1023] {
		t.Errorf("asked about %d numbers, then %v", len(asked), err)
	}
	broken := errors.New("the store is away")
	_, err = a.Lease(t.Context(), func(context.Context, int) (bool, error) { return false, broken })
	if !errors.Is(err, broken) {
		t.Errorf("an error of usable came as %v", err)
	}
}
