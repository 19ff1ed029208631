package state

import (
	"context"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/failpoint"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/lane"
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
	DataEpoch() string
}

// driver runs one lane: events come from the goroutines of the callers, calls
// to the store are made by its own.
type driver struct {
	store appender
	m     *metrics
	log   *zap.Logger
	// after is told, in order, what was committed, and the data_epoch that the
	// store had before. It must not block.
	after func(epoch string, done []lane.Committed)

	work chan *lane.Work // capacity 1: one call is out at a time
	tick *time.Timer     // for the lane's Tick; stopped if it wants none

	mu     sync.Mutex
	lane   *lane.Lane
	queued int       // as the gauge was told
	warned time.Time // of the last warning about the store; only for the goroutine of run
}

func newDriver(s appender, m *metrics, log *zap.Logger, after func(string, []lane.Committed)) *driver {
	d := &driver{store: s, m: m, log: log, after: after, work: make(chan *lane.Work, 1), tick: time.NewTimer(time.Hour), lane: lane.New()}
	d.tick.Stop()
	return d
}

// do hands an event to the lane and carries out what follows from it, but for
// what was committed, which it returns.
func (d *driver) do(ev lane.Event) []lane.Committed {
	d.mu.Lock()
	defer d.mu.Unlock()
	fx := d.lane.Step(time.Now(), ev)
	for _, a := range fx.Answers {
		a.Run.Reply(a.At, a.Verdict)
	}
	for _, s := range fx.Settled {
		s.Run.Settled(s.Result, s.Err)
	}
	for _, ch := range fx.Probed {
		close(ch)
	}
	if fx.Work != nil {
		d.work <- fx.Work
	}
	if d.tick.Stop(); fx.Wake > 0 {
		d.tick.Reset(fx.Wake)
	}
	d.m.queued.Add(float64(d.lane.Queued() - d.queued))
	d.queued = d.lane.Queued()
	return append([]lane.Committed(nil), fx.Committed...)
}

// idle reports whether the lane has nothing to do.
func (d *driver) idle() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.lane.Idle()
}

// report tells what the lane holds.
func (d *driver) report() lane.Report {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.lane.Report()
}

// run makes the calls to the store until ctx is done; then it answers everyone
// who still waits.
func (d *driver) run(ctx context.Context) {
	defer d.tick.Stop()
	defer d.do(lane.Stop{})
	for {
		select {
		case <-ctx.Done():
			return
		case <-d.tick.C:
			d.do(lane.Tick{})
		case w := <-d.work:
			if !pause(ctx, w.After) {
				return
			}
			epoch := d.store.DataEpoch() // if it changes meanwhile, the rows may be lost under the new one
			done := d.do(d.call(ctx, w))
			if len(done) > 0 {
				d.after(epoch, done)
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
func (d *driver) call(ctx context.Context, w *lane.Work) lane.Result {
	begin := time.Now()
	if w.Reruns == 0 && w.Change == nil {
		d.m.batchRows.Observe(float64(len(w.Append)))
		for at := range w.Arrived() {
			d.m.wait.Observe(begin.Sub(at).Seconds())
		}
	}
	ev := d.guarded(ctx, w)
	ev.Took = time.Since(begin)
	d.m.appendSeconds.Observe(ev.Took.Seconds())
	if lane.Unknown(ev.Err) {
		d.m.unknown.Inc()
	}
	if ev.Err != nil && ctx.Err() == nil && begin.Sub(d.warned) >= time.Second && (w.Change == nil || im.Retryable(ev.Err)) {
		d.warned = begin
		d.log.Warn("the store did not take a batch", zap.Int("rows", len(w.Append)), obs.Attempt(w.Reruns+1), obs.Took(ev.Took), obs.Err(ev.Err))
	}
	return ev
}

// guarded turns a panic of the driver below into an unknown outcome: the lane
// goes on, and so does the process.
func (d *driver) guarded(ctx context.Context, w *lane.Work) (ev lane.Result) {
	ctx, cancel := context.WithTimeout(ctx, appendTimeout)
	defer cancel()
	defer func() {
		if p := recover(); p != nil {
			ev = lane.Result{Err: fmt.Errorf("panic in the store: %v: %w", p, store.ErrUnknownOutcome)}
		}
	}()
	if w.Change != nil {
		ev.Change, ev.Err = d.store.Change(ctx, *w.Change.Change)
		return ev
	}
	if err := failpoint.Error(failpoint.BeforeAppend); err != nil {
		return lane.Result{Err: err}
	}
	ev.Results, ev.Err = d.store.Append(ctx, w.Append)
	if err := failpoint.Error(failpoint.AfterAppend); err != nil {
		return lane.Result{Err: fmt.Errorf("%w: %w", store.ErrUnknownOutcome, err)}
	}
	return ev
}
