package park

import (
	"sync/atomic"
	"syscall"
)

// Waker is who goes on with a connection that was parked.
type Waker interface {
	// Wake is called in a goroutine of its own.
	Wake()
}

// Spot is the place of one connection. Init makes it ready. Park and Leave are
// for whoever reads from the connection; Wake is safe for concurrent use.
type Spot struct {
	lot        *Lot
	raw        syscall.RawConn
	who        Waker
	fd         int32
	generation int32 // 0 = not in the set yet
	parked     atomic.Bool
}

// Init makes the spot ready. raw nil = the connection has no descriptor, and is
// never parked.
func (s *Spot) Init(lot *Lot, raw syscall.RawConn, who Waker) {
	s.lot, s.raw, s.who = lot, raw, who
}

// Can reports whether Park may succeed.
func (s *Spot) Can() bool { return s.raw != nil && s.lot != nil && s.lot.works() }

// Park parks the connection. After true the caller must not touch it any more:
// Wake may have been called already. False = it cannot be parked, and the caller
// goes on with it.
func (s *Spot) Park() bool {
	if !s.Can() {
		return false
	}
	s.parked.Store(true)
	s.lot.parked.Add(1)
	if s.lot.arm(s) == nil {
		return true
	}
	return !s.take() // who has woken it goes on with it
}

// Wake ends the parking; false = it was not parked.
func (s *Spot) Wake() bool {
	if !s.take() {
		return false
	}
	go s.who.Wake()
	return true
}

// Parked reports whether the connection is parked.
func (s *Spot) Parked() bool { return s.parked.Load() }

// Leave gives the spot up. It is called before the connection is closed.
func (s *Spot) Leave() {
	if s.generation != 0 {
		s.lot.forget(s)
	}
}

// take ends the parking for the caller, who alone may go on then.
func (s *Spot) take() bool {
	if !s.parked.CompareAndSwap(true, false) {
		return false
	}
	s.lot.parked.Add(-1)
	return true
}
