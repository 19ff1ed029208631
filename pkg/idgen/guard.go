package idgen

import "time"

const (
	waitBack   = 50 * time.Millisecond // a clock this far back is waited for
	rideBack   = 5 * time.Second       // a clock this far back is ridden out
	markBeyond = time.Second           // a jump this far beyond the mark ends the number
	sleptFor   = 5 * time.Second       // a jump this far ends it anyway
)

// move is what to do about the next id.
type move int

const (
	moveFresh  move = iota // a millisecond without ids: the library makes one
	moveSame               // the millisecond of the last id: the library, if it made that one
	moveRide               // the last millisecond although the clock is behind it
	moveWait               // try again a little later
	moveRefuse             // not now: nothing is wrong with the number
	moveRetire             // never again with this number
)

// guard stands between the clock and the library. It is not safe for concurrent
// use.
type guard struct {
	worker int
	lib    source
	remake func(worker int) (source, error)

	last   int64 // the newest id; at first the end of the mark that was found
	synced bool  // the library made last
	mark   int64 // ms; no id passes it
	issued bool  // an id was made since the mark was looked at
	dead   bool  // retired
}

// newGuard starts behind floor, the mark of the number in ms: no id at or
// before it is made.
func newGuard(worker int, floor, mark int64, remake func(int) (source, error)) (*guard, error) {
	lib, err := remake(worker)
	if err != nil {
		return nil, err
	}
	floor = max(floor, epochMs-1)
	return &guard{worker: worker, lib: lib, remake: remake, mark: mark, last: compose(floor, maxSequence, worker)}, nil
}

// decide looks at the clock, in ms. wait is how long for moveWait, and a hint
// for moveRefuse.
func (g *guard) decide(now int64) (m move, wait time.Duration) {
	last := msOf(g.last)
	back := time.Duration(last-now) * time.Millisecond
	used := sequenceOf(g.last) == maxSequence
	switch {
	case g.dead, back > rideBack:
		return moveRetire, 0
	case back > waitBack && !used:
		return moveRide, 0
	case back > waitBack:
		return moveRefuse, back
	case back > 0:
		return moveWait, back
	case now > g.mark:
		return moveRefuse, waitBack
	case now > last:
		return moveFresh, 0
	case used:
		return moveWait, time.Millisecond / 2
	}
	return moveSame, 0
}

// next makes an id if the clock allows.
func (g *guard) next(now int64) (id int64, m move, wait time.Duration) {
	m, wait = g.decide(now)
	switch {
	case m == moveRetire:
		g.dead = true
		return 0, m, 0
	case m == moveRide, m == moveSame && !g.synced:
		id, g.synced = g.last+1<<workerBits, false
	case m == moveFresh, m == moveSame:
		var ok bool
		if id, ok = g.ask(); !ok {
			return 0, moveWait, time.Millisecond / 2
		}
	default:
		return 0, m, wait
	}
	g.last, g.issued = id, true
	return id, m, 0
}

// ask lets the library make an id. The library looks at the clock itself, a
// moment later than we did; should the clock have jumped in that moment, the id
// is thrown away and the library with it, because it would go on from there.
func (g *guard) ask() (int64, bool) {
	id, err := g.lib.NextID()
	if err == nil && id > g.last && msOf(id) <= g.mark {
		g.synced = true
		return id, true
	}
	g.synced = false
	lib, err := g.remake(g.worker)
	if err != nil {
		g.dead = true // the clock is before the epoch
		return 0, false
	}
	g.lib = lib
	return 0, false
}

// leapt reports whether the clock, now in ms, jumped or the machine slept since
// the last look: passed is how much of the time the monotonic clock has seen,
// of so much by the clock. The lease may have ended meanwhile without a sign,
// so the mark must not be moved. A mark that is late because the store is away
// is no jump.
func (g *guard) leapt(now int64, clock, passed time.Duration) bool {
	jump := clock - passed
	return jump > sleptFor || jump > markBeyond && time.Duration(now-g.mark)*time.Millisecond > markBeyond
}

// extend says what the mark should become at a look at the clock. It reaches
// shortly ahead while ids are made, and far ahead while none are, so that an
// idle node seldom writes and yet can answer at once.
func (g *guard) extend(now int64) (mark int64, due bool) {
	if left := time.Duration(g.mark-now) * time.Millisecond; left >= markAhead-upkeepEvery {
		return 0, false
	}
	ahead := idleAhead
	if g.issued {
		ahead = markAhead
	}
	return now + ahead.Milliseconds(), true
}
