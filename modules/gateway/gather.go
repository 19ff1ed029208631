package gateway

import (
	"sync"
	"time"
)

// gather lets questions of sessions wait for their turn in a bounded line, and
// asks many of them at a time: while all calls are out, those who come gather for
// the next one. In a wave of reconnects that costs a fraction of a call for each,
// and nobody is refused who can be served in time. Safe for concurrent use.
type gather[T any] struct {
	calls int           // out at once
	most  int           // questions of one call
	room  int           // questions that may wait
	age   time.Duration // how long one may wait
	run   func(func())  // starts a goroutine that the gateway waits for
	now   func() time.Time
	ask   func([]T) // makes one call and answers all
	late  func(T)   // answers one that has waited for too long

	mu    sync.Mutex
	first line[T] // they go before all others
	rest  line[T]
	out   int // calls
}

// line is questions in the order in which they came.
type line[T any] struct{ list []standing[T] }

// standing is a question and when it came.
type standing[T any] struct {
	x  T
	at time.Time
}

// offer takes a question; first puts it before those that may wait longer. false =
// too many wait, and the question is not taken.
func (g *gather[T]) offer(x T, first bool) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.out < g.calls { // nobody waits
		g.out++
		g.rest.list = append(g.rest.list, standing[T]{x, g.now()})
		g.run(g.work)
		return true
	}
	if len(g.first.list)+len(g.rest.list) >= g.room {
		return false
	}
	l := &g.rest
	if first {
		l = &g.first
	}
	l.list = append(l.list, standing[T]{x, g.now()})
	return true
}

// try takes a question only if it need not wait.
func (g *gather[T]) try(x T) bool {
	g.mu.Lock()
	free := g.out < g.calls
	g.mu.Unlock()
	return free && g.offer(x, false)
}

// waits is how many questions wait.
func (g *gather[T]) waits() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.first.list) + len(g.rest.list)
}

// busy is how many calls are out.
func (g *gather[T]) busy() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.out
}

// work makes calls until nothing waits.
func (g *gather[T]) work() {
	for {
		batch, late := g.take()
		for _, x := range late {
			g.late(x)
		}
		if len(batch) > 0 {
			g.ask(batch)
		} else if len(late) == 0 {
			return
		}
	}
}

// take removes what goes into the next call, and what has waited for too long. If
// there is neither the caller is no call any more.
func (g *gather[T]) take() (batch, late []T) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.now()
	for _, l := range []*line[T]{&g.first, &g.rest} {
		for len(l.list) > 0 && (len(batch) < g.most || now.Sub(l.list[0].at) > g.age) {
			w := l.list[0]
			l.list[0] = standing[T]{}
			if l.list = l.list[1:]; len(l.list) == 0 {
				l.list = nil
			}
			if now.Sub(w.at) > g.age {
				late = append(late, w.x)
			} else {
				batch = append(batch, w.x)
			}
		}
	}
	if len(batch)+len(late) == 0 {
		g.out--
	}
	return batch, late
}
