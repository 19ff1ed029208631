package gateway

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"
)

// gathering is a gather whose calls the test ends.
type gathering struct {
	gather[string]
	wg    sync.WaitGroup
	asked chan []string
	free  chan struct{}
	mu    sync.Mutex
	late  []string
	clock time.Time
}

func newGathering(calls, most, room int) *gathering {
	x := &gathering{asked: make(chan []string, 100), free: make(chan struct{}), clock: time.Unix(1000, 0)}
	x.gather = gather[string]{calls: calls, most: most, room: room, age: time.Second, run: x.wg.Go,
		now: func() time.Time { x.mu.Lock(); defer x.mu.Unlock(); return x.clock },
		ask: func(batch []string) { x.asked <- slices.Clone(batch); <-x.free },
		late: func(s string) {
			x.mu.Lock()
			defer x.mu.Unlock()
			x.late = append(x.late, s)
		}}
	return x
}

func (x *gathering) pass(d time.Duration) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.clock = x.clock.Add(d)
}

// While all calls are out those who come wait for the next one together, those
// of the first line before the others, and no more of them than there is room for.
func TestGatherCollectsWhoWaits(t *testing.T) {
	x := newGathering(1, 3, 5)
	if !x.offer("a", false) {
		t.Fatal("the first was refused")
	}
	want := func(batch ...string) {
		t.Helper()
		if got := <-x.asked; !slices.Equal(got, batch) {
			t.Fatalf("asked %v, want %v", got, batch)
		}
	}
	want("a")
	if x.try("b") {
		t.Error("one who must not wait was taken while the call is out")
	}
	for i, s := range []string{"b", "C", "d", "E", "f"} {
		if !x.offer(s, s < "a") { // capitals first
			t.Fatalf("%d wait, and the next one was refused", i)
		}
	}
	if x.offer("g", true) {
		t.Error("more wait than there is room for")
	}
	if x.waits() != 5 || x.busy() != 1 {
		t.Errorf("%d wait, %d calls", x.waits(), x.busy())
	}
	x.free <- struct{}{}
	want("C", "E", "b")
	x.pass(2 * time.Second) // the rest has waited for too long
	x.offer("h", false)
	x.free <- struct{}{}
	want("h")
	x.free <- struct{}{}
	x.wg.Wait()
	if fmt.Sprint(x.late) != "[d f]" || x.waits() != 0 || x.busy() != 0 {
		t.Errorf("late %v, %d wait, %d calls", x.late, x.waits(), x.busy())
	}
	if !x.try("z") {
		t.Error("nothing is out, and one who need not wait was not taken")
	}
	want("z")
	x.free <- struct{}{}
	x.wg.Wait()
}

// Nobody is lost and nobody is asked twice, however they come.
func TestGatherAnswersEverybody(t *testing.T) {
	var wg, workers sync.WaitGroup
	var mu sync.Mutex
	seen := map[int]int{}
	g := gather[int]{calls: 3, most: 7, room: 10_000, age: time.Hour, run: workers.Go, now: time.Now,
		ask: func(batch []int) {
			mu.Lock()
			defer mu.Unlock()
			for _, x := range batch {
				seen[x]++
			}
		}, late: func(int) { t.Error("late") }}
	for i := range 8 {
		wg.Go(func() {
			for n := range 500 {
				if !g.offer(1000*i+n, n%3 == 0) {
					t.Error("refused")
				}
			}
		})
	}
	wg.Wait()
	workers.Wait()
	if len(seen) != 4000 {
		t.Fatalf("%d of 4000 were asked", len(seen))
	}
	for x, n := range seen {
		if n != 1 {
			t.Fatalf("%d was asked %d times", x, n)
		}
	}
}

// Those of the second line are told that they are late though the first line
// never ends.
func TestALateOneIsToldBehindAFullFirstLine(t *testing.T) {
	x := newGathering(1, 1, 5)
	x.offer("a", false)
	<-x.asked
	for _, s := range []string{"b", "C", "D"} {
		x.offer(s, s < "a")
	}
	x.pass(900 * time.Millisecond)
	x.offer("E", true)
	x.free <- struct{}{}
	<-x.asked // C
	x.pass(200 * time.Millisecond)
	x.offer("F", true)
	x.free <- struct{}{}
	if got := <-x.asked; !slices.Equal(got, []string{"E"}) {
		t.Errorf("asked %v", got)
	}
	x.mu.Lock()
	if fmt.Sprint(x.late) != "[D b]" {
		t.Errorf("late: %v", x.late)
	}
	x.mu.Unlock()
	x.free <- struct{}{}
	<-x.asked
	x.free <- struct{}{}
	x.wg.Wait()
}
