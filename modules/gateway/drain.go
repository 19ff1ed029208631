package gateway

import (
	"context"
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
)

// drainSpread is the time over which n clients are told to move.
func drainSpread(c DrainConfig, n int) time.Duration {
	return min(max(time.Duration(n)*time.Second/drainRate, c.MinSpread), c.MaxSpread)
}

// Drain refuses newcomers after a moment, asks all clients to move, and serves
// them until they have or their time is over. The listener stays open, so that
// newcomers are told when to come back and calls in flight finish.
func (g *Gateway) Drain(ctx context.Context) error {
	if !pause(ctx, g.cfg.Drain.Delay) {
		return nil
	}
	g.draining.Store(true)
	conns := g.hub.all()
	if len(conns) > 0 {
		spread := drainSpread(g.cfg.Drain, len(conns))
		end := time.Now().Add(spread + g.cfg.Drain.Grace)
		if d, ok := ctx.Deadline(); ok && end.After(d.Add(-flushTime)) {
			end = d.Add(-flushTime)
			spread = min(spread, max(0, time.Until(end)/2))
		}
		g.Log.Info("clients are asked to move", zap.Int("connections", len(conns)), zap.Duration("spread", spread))
		g.sendAway(ctx, conns, spread, end)
		g.waitEmpty(ctx, end)
	}
	g.closing.Store(true)
	for _, s := range g.hub.all() {
		s.end("drain", "the node stops", 0)
	}
	g.waitEmpty(ctx, time.Now().Add(flushTime))
	return nil
}

// sendAway tells the connections in random order, spread over the time.
func (g *Gateway) sendAway(ctx context.Context, conns []*session, spread time.Duration, end time.Time) {
	rand.Shuffle(len(conns), func(i, j int) { conns[i], conns[j] = conns[j], conns[i] })
	begin, total := time.Now(), len(conns)
	for len(conns) > 0 {
		now := time.Now()
		due := total
		if spread > 0 {
			due = 1 + int(float64(total)*float64(now.Sub(begin))/float64(spread))
		}
		n := min(len(conns), due-(total-len(conns)))
		for _, s := range conns[:max(0, n)] {
			s.sendAway(now, begin.Add(spread), end)
		}
		conns = conns[max(0, n):]
		if len(conns) > 0 && !pause(ctx, drainStep) {
			return
		}
	}
}

// sendAway asks the client to move between now and by; the session ends at end.
func (s *session) sendAway(now, by, end time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.phase != online {
		return
	}
	wait := time.Duration(rand.Float64() * float64(max(0, by.Sub(now))))
	s.replyLocked(&clientv1.ServerFrame{Kind: &clientv1.ServerFrame_Drain{Drain: &clientv1.Drain{
		ReconnectAfterMs: millis(wait), CloseAfterMs: millis(max(0, end.Sub(now)))}}})
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
