package gateway

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
)

// However much bulk work comes at once, one piece for each processor is done at a
// time, all of it is done, and who waits for the network goes on among the pieces; other
// programs may keep it from that once, not every time.
func TestBulkLeavesRoomForOthers(t *testing.T) {
	const pieces = 3000
	var let int64
	for range 5 {
		if let = goesOnAmong(t, pieces); let >= pieces/100 {
			return
		}
	}
	t.Errorf("another one went on %d times during %d pieces", let, pieces)
}

// goesOnAmong does pieces of bulk work, and returns how often another one went on.
func goesOnAmong(t *testing.T, pieces int64) (let int64) {
	t.Helper()
	b := newBulk()
	if err := b.open(); err != nil {
		t.Fatal(err)
	}
	defer b.close()
	var at, most, done atomic.Int64
	var wg sync.WaitGroup
	y, err := newYielder()
	if err != nil {
		t.Fatal(err)
	}
	defer y.close()
	for range pieces {
		wg.Go(func() {
			b.do(func() {
				n := at.Add(1)
				for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
				}
				done.Add(1)
				at.Add(-1)
			})
		})
	}
	for ; done.Load() < pieces; let++ {
		y.yield()
	}
	wg.Wait()
	if n := int64(min(runtime.GOMAXPROCS(0), maxShards)); most.Load() > n {
		t.Errorf("%d pieces were done at once", most.Load())
	}
	return let
}
