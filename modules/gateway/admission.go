package gateway

import (
	"net/netip"
	"sync"
)

// admission counts connections: in all, and those that have not authenticated,
// in all and by address. Safe for concurrent use.
type admission struct {
	most, mostPending, mostAddress int
	exempt                         func(netip.Addr) bool

	mu      sync.Mutex
	total   int
	pending int
	byAddr  map[netip.Addr]int // of pending; never 0
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

// enter counts a newcomer if there is room.
func (a *admission) enter(addr netip.Addr) admitVerdict {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.total >= a.most:
		return nodeFull
	case a.pending >= a.mostPending:
		return tooManyPending
	case a.byAddr[addr] >= a.mostAddress && !a.exempt(addr):
		return addressFull
	}
	a.total++
	a.pending++
	a.byAddr[addr]++
	return admitted
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
}

func (a *admission) settle(addr netip.Addr) {
	a.pending--
	if a.byAddr[addr]--; a.byAddr[addr] <= 0 {
		delete(a.byAddr, addr)
	}
}
