package gateway

import (
	"context"
	"math"
	"math/rand/v2"
	"time"

	"go.uber.org/zap"

	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

const (
	// drainRate is how many clients a second are told to move.
	drainRate = 500
	// drainStep is how often some are told.
	drainStep = 50 * time.Millisecond
	// flushTime is what is kept of the time given for the last writes.
	flushTime = 3 * time.Second
	// drainShare is how much of the time for a stop sending the clients away may
	// take. Push and state, which stop behind it, have the rest.
	drainShare = 0.85
	// yieldTime is how long a session that was asked to move may stay beside the one
	// that has taken its place.
	yieldTime = time.Second
)

// drainPlan is the time over which n clients are told to move, and when those end
// who have not. If there is less time left than that takes, the grace is kept as far
// as it is not more than half of it.
func drainPlan(c DrainConfig, n int, left time.Duration) (spread, end time.Duration) {
	spread = min(max(time.Duration(n)*time.Second/drainRate, c.MinSpread), c.MaxSpread)
	end = min(spread+c.Grace, max(left, 0))
	return min(spread, end-min(c.Grace, end/2)), end
}

// Drain refuses newcomers after a moment, asks all clients to move, and serves
// them until they have or their time is over. The listener stays open, so that
// newcomers are told when to come back and calls in flight finish.
func (g *Gateway) Drain(ctx context.Context) error {
	if !pause(ctx, g.cfg.Drain.Delay) {
		return nil
	}
	g.draining.Store(true)
	if n := g.hub.len(); n > 0 {
		left := time.Duration(math.MaxInt64)
		if d, ok := ctx.Deadline(); ok {
			left = time.Until(d) - flushTime
		}
		spread, stay := drainPlan(g.cfg.Drain, n, left)
		end := time.Now().Add(stay)
		g.Log.Info("clients are asked to move", zap.Int("connections", n), zap.Duration("spread", spread))
		g.leaveBy.Store(&end)
		g.sendAway(ctx, spread, end)
		g.waitEmpty(ctx, end)
	}
	g.closing.Store(true)
	for _, s := range g.hub.all() {
		s.end("drain", "the node stops", 0)
	}
	g.waitEmpty(ctx, time.Now().Add(flushTime))
	return nil
}

// sendAway asks all to move, in random order and evenly over the spread.
func (g *Gateway) sendAway(ctx context.Context, spread time.Duration, end time.Time) {
	begin, conns := time.Now(), g.hub.all()
	rand.Shuffle(len(conns), func(i, j int) { conns[i], conns[j] = conns[j], conns[i] })
	for i := 0; i < len(conns); {
		now := time.Now()
		for ; i < len(conns); i++ {
			ask, move := drainTimes(i, len(conns), spread)
			if now.Sub(begin) < ask {
				break
			}
			conns[i].sendAway(now, begin.Add(move), end)
		}
		if i < len(conns) && !pause(ctx, drainStep) {
			return
		}
	}
}

// drainTimes is when the i-th of n clients is asked to move, and when it is to
// move, both counted from the beginning. The moves are spread evenly; half of the
// time before each is the client's to know about it.
func drainTimes(i, n int, spread time.Duration) (ask, move time.Duration) {
	move = time.Duration(float64(spread) * float64(i) / float64(n))
	return move / 2, move
}

// sendAway asks the client to move at a time; the session ends at end. Who is not
// online yet is asked behind its welcome.
func (s *session) sendAway(now, move, end time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.phase == online {
		s.sendAwayLocked(now, move, end)
	}
}

// sendAwayLocked asks once.
func (s *session) sendAwayLocked(now, move, end time.Time) {
	if s.leaving {
		return
	}
	s.leaving = true
	s.replyLocked(&clientv1.ServerFrame{Kind: &clientv1.ServerFrame_Drain{Drain: &clientv1.Drain{
		ReconnectAfterMs: millis(max(0, move.Sub(now))), CloseAfterMs: millis(max(0, end.Sub(now)))}}})
}

// sendAwayLate asks who has just logged in to move at once, if the node stops.
func (s *session) sendAwayLate(now time.Time) {
	if by := s.g.leaveBy.Load(); by != nil {
		s.sendAwayLocked(now, now, *by)
	}
}

// displace ends a session whose place is taken, and reports whether it was there.
// One whose client has moved is left to the client, which ends it when it has the
// welcome of the new one, as it can be written on until then; a client that does
// not is told a little later. One that overtook an older hello of its device may be
// displaced by that: its client is told to come back, as superseded would keep it away.
func (s *session) displace(reason string) bool {
	s.mu.Lock()
	moves := reason == "superseded" && s.leaving && s.phase == online
	s.mu.Unlock()
	if reason == "superseded" && !moves && s.hasOvertaken() {
		reason = "busy"
	}
	return moves && s.g.another(s.yield) || s.end(reason, endTexts[reason], 0)
}

func (s *session) yield() {
	t := time.NewTimer(s.g.yieldTime)
	defer t.Stop()
	select {
	case <-s.done:
	case <-t.C:
		s.end("superseded", endTexts["superseded"], 0)
	}
}

// waitEmpty waits until no connection is left, by a time.
func (g *Gateway) waitEmpty(ctx context.Context, by time.Time) {
	for g.hub.len() > 0 && time.Now().Before(by) {
		if !pause(ctx, drainStep) {
			return
		}
	}
}

// pause waits; false = ctx ended first.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
