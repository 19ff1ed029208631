package gateway

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
)

// However much bulk work comes at once, one piece for each processor is done at a
// time, all of it is done, and who waits for the network goes on among the pieces.
func TestBulkLeavesRoomForOthers(t *testing.T) {
	b := newBulk()
	if err := b.open(); err != nil {
		t.Fatal(err)
	}
	defer b.close()
	const pieces = 3000
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
	var let int64 // how often another one went on
	for ; done.Load() < pieces; let++ {
		y.yield()
	}
	wg.Wait()
	if n := int64(min(runtime.GOMAXPROCS(0), maxShards)); most.Load() > n {
		t.Errorf("%d pieces were done at once", most.Load())
	}
	if let < pieces/100 {
		t.Errorf("another one went on %d times during %d pieces", let, pieces)
	}
}
