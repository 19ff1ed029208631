package gateway

import (
	"context"
	"net/netip"
	"sync"
	"time"
)

const (
	// newcomersInLine is how many connections may wait to be upgraded, and enterWait
	// how long.
	newcomersInLine = 8192
	enterWait       = 2 * time.Second
	// leftLook is how often it is looked whether one who waits has left.
	leftLook = 500 * time.Millisecond
)

// admission counts connections: in all, and those that have not authenticated,
// in all and by address. Safe for concurrent use.
type admission struct {
	most, mostPending, mostAddress, mostInLine int
	exempt                                     func(netip.Addr) bool

	mu      sync.Mutex
	total   int
	pending int
	byAddr  map[netip.Addr]int // of pending and of those in the line; never 0
	line    []*newcomer        // some may be gone
	inLine  int                // those that are not
}

// admitVerdict is what admission says to a newcomer.
type admitVerdict uint8

const (
	admitted admitVerdict = iota
	nodeFull
	tooManyPending
	addressFull
)

// setMost sets how many connections are taken in all.
func (a *admission) setMost(n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.most = n
}

// count is how many connections there are.
func (a *admission) count() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.total
}

// newcomer waits until one of those before it has authenticated.
type newcomer struct {
	addr netip.Addr
	in   chan struct{} // closed when it was counted
	gone bool          // it does not wait any more
}

// await waits for the turn of one who was put into the line, for limit at most, while
// ctx lives, and until left says that the client has gone; nil = ctx says so. Who waits
// no longer makes room for others in the line and of its address.
func (a *admission) await(ctx context.Context, n *newcomer, limit time.Duration, left func() bool) admitVerdict {
	end := time.Now().Add(limit)
	timer := time.NewTimer(min(limit, leftLook))
	defer timer.Stop()
	for waits := true; waits; {
		select {
		case <-n.in:
			return admitted
		case <-timer.C:
			rest := time.Until(end)
			if waits = rest > 0 && (left == nil || !left()); waits {
				timer.Reset(min(rest, leftLook))
			}
		case <-ctx.Done():
			waits = false
		}
	}
	return a.giveUp(n)
}

// giveUp takes one out of the line whose turn has not come.
func (a *admission) giveUp(n *newcomer) admitVerdict {
	a.mu.Lock()
	defer a.mu.Unlock()
	select {
	case <-n.in: // just now
		return admitted
	default:
	}
	n.gone = true
	a.inLine--
	a.forget(n.addr)
	return tooManyPending
}

// enter counts a newcomer, or refuses it. While too many have not authenticated it
// puts it into a line, whose end is to be awaited: those who come back all at once
// are let in one after the other, as fast as can be, and need not be sent away.
func (a *admission) enter(addr netip.Addr) (admitVerdict, *newcomer) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.total >= a.most:
		return nodeFull, nil
	case a.byAddr[addr] >= a.mostAddress && !a.exempt(addr):
		return addressFull, nil
	case a.pending < a.mostPending:
		a.total++
		a.pending++
		a.byAddr[addr]++
		return admitted, nil
	case a.inLine >= a.mostInLine:
		return tooManyPending, nil
	}
	a.byAddr[addr]++ // who waits counts for its address
	a.inLine++
	n := &newcomer{addr: addr, in: make(chan struct{})}
	a.line = append(a.line, n)
	return tooManyPending, n
}

// callNext lets those in from the line for whom there is room; a.mu is held.
func (a *admission) callNext() {
	for len(a.line) > 0 && a.pending < a.mostPending && a.total < a.most {
		n := a.line[0]
		a.line[0] = nil
		a.line = a.line[1:]
		if !n.gone {
			a.inLine--
			a.total++
			a.pending++
			close(n.in)
		}
	}
	if len(a.line) == 0 {
		a.line = nil
	}
}

// authenticated makes a newcomer a resident.
func (a *admission) authenticated(addr netip.Addr) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.settle(addr)
}

// leave counts one connection less; pending = it never authenticated.
func (a *admission) leave(addr netip.Addr, pending bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.total--
	if pending {
		a.settle(addr)
	}
	a.callNext()
}

// settle counts one fewer that has not authenticated; a.mu is held.
func (a *admission) settle(addr netip.Addr) {
	a.pending--
	a.forget(addr)
	a.callNext()
}

// forget counts one less of an address; a.mu is held.
func (a *admission) forget(addr netip.Addr) {
	if a.byAddr[addr]--; a.byAddr[addr] <= 0 {
		delete(a.byAddr, addr)
	}
}
