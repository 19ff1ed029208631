package gateway

import (
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
)

// Whoever waits for the network goes on after a few yields of others who keep all
// processors at work, each of them; on a nil yielder many times as many go by. Both are
// counted beside the same load, and again if that has changed meanwhile.
func TestYieldersLetTheNetworkIn(t *testing.T) {
	var with, without int64
	for range 5 {
		if with, without = yieldsUntilHeard(t, true), yieldsUntilHeard(t, false); 4*with < without {
			return
		}
	}
	t.Errorf("%d yields go by, and %d without yielders", with, without)
}

// yieldsUntilHeard is how many yields usually go by until one who waits for the network
// is let in.
func yieldsUntilHeard(t *testing.T, with bool) int64 {
	t.Helper()
	const rounds = 15
	var yields atomic.Int64
	var over atomic.Bool
	var workers sync.WaitGroup
	defer workers.Wait()
	defer over.Store(true)
	for range 4 * runtime.GOMAXPROCS(0) { // so that there is always one that can run
		var y *yielder
		if with {
			var err error
			if y, err = newYielder(); err != nil {
				t.Fatal(err)
			}
		}
		workers.Go(func() {
			for !over.Load() {
				y.yield()
				yields.Add(1)
			}
			if y == nil {
				return
			}
			if err := y.close(); err != nil {
				t.Error(err)
			}
			y.yield() // who is late does not wait for ever
		})
	}
	in, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	defer out.Close()
	came, took := make(chan int64), make([]int64, rounds)
	for i := range took {
		go func() {
			if _, err := in.Read(make([]byte, 1)); err != nil {
				t.Error(err)
			}
			came <- yields.Load()
		}()
		for range 100 {
			(*yielder)(nil).yield() // it waits for the byte by then
		}
		before := yields.Load()
		if _, err := out.Write([]byte{1}); err != nil {
			t.Fatal(err)
		}
		took[i] = <-came - before
	}
	slices.Sort(took)
	return took[rounds/2]
}
