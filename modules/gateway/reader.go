package gateway

import (
	"errors"
	"os"
	"sync/atomic"
	"time"

	"github.com/imdhq/imd/pkg/failpoint"
	"github.com/imdhq/imd/pkg/park"
)

// errLeft ends the reading goroutine of a connection that was parked, or that
// another goroutine reads from now on.
var errLeft = errors.New("parked, or read by another goroutine")

// reader is how the next message of a connection is waited for. A goroutine
// waits for its first byte outside of the WebSocket library, where waiting can
// be given up. When the connection has been quiet for a while, the wheel
// interrupts the wait, and the goroutine parks the connection and ends.
type reader struct {
	spot  park.Spot
	state atomic.Uint32 // of the goroutine

	// The goroutine's own.
	woken  bool // it was parked, and nothing but pongs came since
	ponged bool // one came since
	timed  bool // the wheel looks after it
	anew   bool // the next wait is on a new goroutine
}

// States of a reader.
const (
	busy        uint32 = iota // in the library or handling what came
	waits                     // for the first byte of a message
	interrupted               // the wheel has made it look up from waiting
)

// await waits for the first byte of a message; true = the connection was parked, or
// another goroutine goes on with it, and nothing of it may be touched any more. Errors
// of the socket are left for the library to find.
func (s *session) await() (parked bool) {
	r := &s.reader
	if failpoint.Bad(failpoint.ParkBuffered) && r.spot.Can() && s.phaseNow() == online {
		return s.parkNow() // in the known-bad build with whatever is buffered
	}
	if s.wire.side.in.Buffered() > 0 || !r.spot.Can() || s.pending || !s.live() {
		return false
	}
	if r.woken && r.ponged && s.q.raw != nil && s.parkNow() { // after a heartbeat it is quiet for long
		return true
	}
	if r.anew { // thousands who wait need not keep the stack that a login took
		r.anew = false
		go s.serve()
		return true
	}
	s.watch()
	r.state.Store(waits)
	_, err := s.wire.side.in.Peek(1)
	if r.state.CompareAndSwap(waits, busy) {
		return false
	}
	s.resumeReading()
	return errors.Is(err, os.ErrDeadlineExceeded) && s.live() && s.parkNow()
}

// watch has the wheel look after the reader.
func (s *session) watch() {
	if s.reader.timed {
		return
	}
	s.reader.timed = true
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wakeLocked(time.Now().Add(s.g.quietTime))
}

// quiet interrupts the reader if nothing came for long, and tells when to look
// again; zero = not by itself. s.mu is held.
func (s *session) quiet(now time.Time) (again time.Time) {
	r := &s.reader
	if !r.spot.Can() || r.spot.Parked() {
		return again
	}
	last := time.Unix(0, s.wire.lastByte.Load())
	if now.Sub(last) >= s.g.quietTime {
		if r.state.CompareAndSwap(waits, interrupted) {
			_ = s.q.conn.SetReadDeadline(now)
			return again
		}
		last = now
	}
	return last.Add(s.g.quietTime)
}

// resumeReading takes the deadline of an interruption back.
func (s *session) resumeReading() {
	s.mu.Lock() // the interruption is over then
	defer s.mu.Unlock()
	s.reader.timed = false
	s.reader.state.Store(busy)
	until := time.Time{}
	if s.phase == ended { // the queue may have set its own before
		until = time.Now().Add(lastWrites + closeWait)
	}
	_ = s.q.conn.SetReadDeadline(until)
}

// equip gives the connection a side, if it has none.
func (s *session) equip() {
	if s.wire.side == nil {
		s.wire.side = s.g.sides.lend(s)
	}
}

// parkNow parks the connection; false = it cannot be, or the session has ended.
func (s *session) parkNow() bool {
	s.reader.timed = false
	if !failpoint.Bad(failpoint.ParkBuffered) {
		s.g.sides.giveBack(s.wire.side)
		s.wire.side = nil
	}
	if !s.reader.spot.Park() {
		s.equip()
		return false
	}
	if !s.live() { // it may have ended just before, and woken nobody
		s.reader.spot.Wake()
	}
	return true
}
