package state

import (
	"context"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/failpoint"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/obs"
	"github.com/imdhq/imd/pkg/store"
)

// appendTimeout bounds one call to the store. A call that it cuts off has an
// unknown outcome.
const appendTimeout = 3 * time.Second

// appender is what a lane asks of the message store.
type appender interface {
	Append(ctx context.Context, rows []store.AppendRow) ([]store.AppendResult, error)
	Change(ctx context.Context, c store.Change) (store.ChangeResult, error)
}

// driver runs one lane: events come from the goroutines of the callers, calls
// to the store are made by its own.
type driver struct {
	store appender
	m     *metrics
	log   *zap.Logger
	// after is told, in order, what was committed. It must not block.
	after func([]committed)

	work chan *work // capacity 1: one call is out at a time

	mu     sync.Mutex
	lane   *lane
	queued int       // as the gauge was told
	warned time.Time // of the last warning about the store; only for the goroutine of run
}

func newDriver(s appender, m *metrics, log *zap.Logger, after func([]committed)) *driver {
	return &driver{store: s, m: m, log: log, after: after, work: make(chan *work, 1), lane: newLane()}
}

// do hands an event to the lane and carries out what follows from it, but for
// what was committed, which it returns.
func (d *driver) do(ev any) []committed {
	d.mu.Lock()
	defer d.mu.Unlock()
	fx := d.lane.step(time.Now(), ev)
	for _, a := range fx.answers {
		a.run.reply(a.at, a.verdict)
	}
	for _, s := range fx.settled {
		s.run.settled(s.res, s.err)
	}
	for _, ch := range fx.probed {
		close(ch)
	}
	if fx.work != nil {
		d.work <- fx.work
	}
	d.m.queued.Add(float64(d.lane.rows - d.queued))
	d.queued = d.lane.rows
	return append([]committed(nil), fx.committed...)
}

// idle reports whether the lane has nothing to do.
func (d *driver) idle() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.lane.idle()
}

// run makes the calls to the store until ctx is done; then it answers everyone
// who still waits.
func (d *driver) run(ctx context.Context) {
	defer d.do(evStop{})
	for {
		select {
		case <-ctx.Done():
			return
		case w := <-d.work:
			if !pause(ctx, w.after) {
				return
			}
			done := d.do(d.call(ctx, w))
			if len(done) > 0 {
				d.after(done)
			}
		}
	}
}

// pause waits, and reports false if ctx ends first.
func pause(ctx context.Context, t time.Duration) bool {
	if t <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(t)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// call makes one call to the store.
func (d *driver) call(ctx context.Context, w *work) evResult {
	begin := time.Now()
	if w.reruns == 0 && w.change == nil {
		d.m.batchRows.Observe(float64(len(w.rows)))
		for _, row := range w.rows {
			d.m.wait.Observe(begin.Sub(row.arrived).Seconds())
		}
	}
	ev := d.guarded(ctx, w)
	ev.took = time.Since(begin)
	d.m.appendSeconds.Observe(ev.took.Seconds())
	if unknown(ev.err) {
		d.m.unknown.Inc()
	}
	if ev.err != nil && ctx.Err() == nil && begin.Sub(d.warned) >= time.Second && (w.change == nil || im.Retryable(ev.err)) {
		d.warned = begin
		d.log.Warn("the store did not take a batch", zap.Int("rows", len(w.rows)), obs.Attempt(w.reruns+1), obs.Took(ev.took), obs.Err(ev.err))
	}
	return ev
}

// guarded turns a panic of the driver below into an unknown outcome: the lane
// goes on, and so does the process.
func (d *driver) guarded(ctx context.Context, w *work) (ev evResult) {
	ctx, cancel := context.WithTimeout(ctx, appendTimeout)
	defer cancel()
	defer func() {
		if p := recover(); p != nil {
			ev = evResult{err: fmt.Errorf("panic in the store: %v: %w", p, store.ErrUnknownOutcome)}
		}
	}()
	if w.change != nil {
		ev.change, ev.err = d.store.Change(ctx, *w.change.change)
		return ev
	}
	if err := failpoint.Error(failpoint.BeforeAppend); err != nil {
		return evResult{err: err}
	}
	ev.results, ev.err = d.store.Append(ctx, w.append)
	if err := failpoint.Error(failpoint.AfterAppend); err != nil {
		return evResult{err: fmt.Errorf("%w: %w", store.ErrUnknownOutcome, err)}
	}
	return ev
}
