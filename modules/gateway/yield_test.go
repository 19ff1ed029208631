package gateway

import (
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
)

// Whoever waits for the network goes on after a few yields of others who keep all
// processors at work, each of them; on a nil yielder thousands of yields go by.
func TestYieldersLetTheNetworkIn(t *testing.T) {
	const rounds, most = 20, 40
	var yields atomic.Int64
	var over atomic.Bool
	var workers sync.WaitGroup
	busy := runtime.GOMAXPROCS(0)
	for range busy {
		y, err := newYielder()
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := y.close(); err != nil {
				t.Error(err)
			}
			y.yield() // who is late does not wait for ever
		}()
		workers.Go(func() {
			for !over.Load() {
				y.yield()
				yields.Add(1)
			}
		})
	}
	in, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	defer out.Close()
	var quick int
	came := make(chan int64)
	for range rounds {
		go func() {
			if _, err := in.Read(make([]byte, 1)); err != nil {
				t.Error(err)
			}
			came <- yields.Load()
		}()
		(*yielder)(nil).yield() // it waits for the byte by now, as a rule
		before := yields.Load()
		if _, err := out.Write([]byte{1}); err != nil {
			t.Fatal(err)
		}
		if n := <-came - before; n <= most*int64(busy) {
			quick++
		} else {
			t.Logf("%d yields went by", n)
		}
	}
	over.Store(true)
	workers.Wait()
	if quick < rounds*3/4 {
		t.Errorf("%d of %d who waited for the network were let in at once", quick, rounds)
	}
}
