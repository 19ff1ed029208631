package idgen

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/backoff"
	"github.com/imdhq/imd/pkg/control"
	"github.com/imdhq/imd/pkg/failpoint"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

const (
	markAhead   = 10 * time.Second // of the clock, while ids are made
	idleAhead   = 5 * time.Minute  // of the clock, while none are
	upkeepEvery = 3 * time.Second
	fading      = 15 * time.Second // of the lease left: its renewals fail, so look for another number
	storeLimit  = 2 * time.Second  // of one call of the store
	slowWrite   = 5 * time.Second  // a mark that took longer to write is not trusted
	waitLimit   = 100              // turns of Next; it waits some 50 ms at most
)

// pauses are between attempts to take a worker number.
var pauses = backoff.Policy{Base: 100 * time.Millisecond, Max: 5 * time.Second}

// Deps is what a Generator works with.
type Deps struct {
	Leaser control.WorkerLeaser
	Marks  store.Workers
	Clock  func() time.Time // nil = the wall clock
	Log    *zap.Logger
}

// Stats is what a Generator counts.
type Stats struct {
	Worker  int    // the number it works with; -1 = none
	Refused uint64 // calls of Next without an id
	Retired uint64 // numbers given up because of the clock or a lost lease
}

// Generator makes ids. Start it once, keep Run running, and Close it. Next is
// safe for concurrent use.
type Generator struct {
	Deps
	remake func(int) (source, error)
	sleep  func(time.Duration)
	mono   func() time.Duration // never jumps
	wake   chan struct{}        // capacity 1: Run should look at once

	mu    sync.Mutex
	cur   *holding // nil before Start and after Close
	stats Stats
}

// holding is a worker number that is held.
type holding struct {
	lease  control.WorkerLease
	cancel context.CancelFunc // ends the lease's keeping
	guard  *guard             // guarded by Generator.mu
	looked int64              // ms, by the clock, at the last look
	passed time.Duration      // the same, by the monotonic clock
	tried  int64              // ms; a mark that may or may not be written, 0 = none
}

// New makes a Generator; it makes no call.
func New(d Deps) *Generator {
	if d.Clock == nil {
		d.Clock = failpoint.Now
	}
	began := time.Now()
	return &Generator{
		Deps: d, remake: newSource, sleep: time.Sleep, mono: func() time.Duration { return time.Since(began) },
		wake: make(chan struct{}, 1), stats: Stats{Worker: -1},
	}
}

// Start takes a worker number whose mark is past. It waits only if every free
// number has a mark in the future, which a clock that was set back can do.
//
// Errors: no number is free, the control plane or the store is away, the clock
// is before 2025, or ctx ended. Nothing is held then.
func (g *Generator) Start(ctx context.Context) error {
	h, err := g.acquire(ctx)
	if err != nil {
		return err
	}
	g.swap(h)
	g.Log.Info("holding a worker number for ids", zap.Int("worker", h.lease.Worker()))
	return nil
}

// Run keeps the mark ahead of the clock and takes another worker number when
// the present one is lost, until ctx is done. It returns nil.
func (g *Generator) Run(ctx context.Context) error {
	tick := time.NewTicker(upkeepEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-g.wake:
		case <-ctx.Done():
			return nil
		}
		for attempt := 0; ctx.Err() == nil; attempt++ {
			err := g.upkeep(ctx)
			if err == nil {
				break
			}
			if ctx.Err() == nil {
				g.Log.Warn("ids cannot be made sure of; trying again", zap.Int("attempt", attempt), zap.Error(err))
			}
			_ = pauses.Sleep(ctx, attempt) // the loop looks at ctx
		}
	}
}

// Next makes an id. It makes no call and normally takes a fraction of a
// microsecond; it waits up to some 50 ms if the clock went back a little.
//
// Errors: unavailable if no id can be made now (no worker number is held, the
// clock is behind, the mark could not be written); try again after RetryAfter.
func (g *Generator) Next() (im.MessageID, error) {
	for range waitLimit {
		id, m, wait := g.try()
		switch m {
		case moveFresh, moveSame, moveRide:
			return im.MessageID(id), nil
		case moveWait:
			g.sleep(wait)
			continue
		case moveRetire:
			g.poke()
			return 0, g.refuse("no worker number is held", 200*time.Millisecond)
		}
		g.poke()
		return 0, g.refuse("the clock is behind or the mark is late", wait)
	}
	return 0, g.refuse("the clock does not go on", waitBack)
}

func (g *Generator) try() (int64, move, time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.cur == nil || !g.cur.lease.Valid() {
		return 0, moveRetire, 0
	}
	return g.cur.guard.next(g.Clock().UnixMilli())
}

func (g *Generator) refuse(why string, wait time.Duration) error {
	g.mu.Lock()
	g.stats.Refused++
	g.mu.Unlock()
	err := im.Errorf(clientv1.Reason_REASON_UNAVAILABLE, "idgen.Next", "no message id can be made now")
	err.RetryAfter, err.Err = wait, errors.New(why)
	return err
}

func (g *Generator) poke() {
	select {
	case g.wake <- struct{}{}:
	default:
	}
}

// Stats is a copy of the counters.
func (g *Generator) Stats() Stats {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.stats
}

// Close stops making ids, writes the exact mark and gives the number back.
// Whatever fails then only delays the next use of the number.
func (g *Generator) Close(ctx context.Context) error {
	h := g.swap(nil)
	if h == nil {
		return nil
	}
	defer h.cancel()
	var errs []error
	if h.look(g.Clock().UnixMilli(), g.mono()); h.lease.Valid() && !h.guard.dead {
		errs = append(errs, g.move(ctx, h, msOf(h.guard.last)))
	}
	return errors.Join(append(errs, h.lease.Release(ctx))...)
}

// swap replaces what is held and returns what was.
func (g *Generator) swap(h *holding) *holding {
	g.mu.Lock()
	defer g.mu.Unlock()
	old := g.cur
	g.cur, g.stats.Worker = h, -1
	if h != nil {
		g.stats.Worker = h.lease.Worker()
	}
	return old
}

// upkeep looks after the lease and the mark once.
func (g *Generator) upkeep(ctx context.Context) error {
	now, mono := g.Clock().UnixMilli(), g.mono()
	g.mu.Lock()
	h := g.cur
	if h == nil {
		g.mu.Unlock()
		return nil
	}
	h.look(now, mono)
	lost := h.guard.dead || !h.lease.Valid()
	mark, due := h.guard.extend(now)
	h.guard.issued = h.guard.issued && !due
	g.mu.Unlock()
	if due && !lost {
		if err := g.write(ctx, h, now, mark); err != nil {
			return err
		}
	}
	if lost || time.Until(h.lease.Until()) < fading {
		return g.replace(ctx, h)
	}
	return nil
}

// look compares the clocks with the last look, and retires the number if its
// mark must not be touched any more.
func (h *holding) look(now int64, mono time.Duration) {
	m, _ := h.guard.decide(now)
	if m == moveRetire || h.guard.leapt(now, time.Duration(now-h.looked)*time.Millisecond, mono-h.passed) {
		h.guard.dead = true
	}
	h.looked, h.passed = now, mono
}

// write moves the mark of h up. A write that took long may have come after the
// end of the lease, as when the machine slept: then the number is given up.
func (g *Generator) write(ctx context.Context, h *holding, began, mark int64) error {
	if err := g.move(ctx, h, mark); err != nil {
		return err
	}
	took := time.Duration(g.Clock().UnixMilli()-began) * time.Millisecond
	g.mu.Lock()
	defer g.mu.Unlock()
	if h.guard.dead || took > slowWrite || !h.lease.Valid() {
		h.guard.dead = true
		g.poke()
	}
	return nil
}

// move changes the mark of h, unless the store has another than this holder
// wrote: then the number was taken, and is not ours any more. After a failure,
// the mark of that attempt is settled first, so that it is always known to be
// one of two.
func (g *Generator) move(ctx context.Context, h *holding, to int64) error {
	for _, mark := range []int64{h.tried, to} {
		if mark == 0 {
			continue
		}
		g.mu.Lock()
		from, dead := h.guard.mark, h.guard.dead
		g.mu.Unlock()
		if dead {
			g.poke()
			return nil
		}
		again := h.tried == mark
		h.tried = mark
		ok, err := g.swapMark(ctx, h.lease.Worker(), from, mark)
		if err == nil && !ok && again {
			ok, err = g.swapMark(ctx, h.lease.Worker(), mark, mark)
		}
		if err != nil {
			return err
		}
		h.tried = 0
		g.mu.Lock()
		if ok {
			h.guard.mark = mark
		} else {
			h.guard.dead = true
		}
		g.mu.Unlock()
	}
	return nil
}

// replace takes another number for one that is lost. The old one's mark stays:
// the number rests until it is past.
func (g *Generator) replace(ctx context.Context, old *holding) error {
	h, err := g.acquire(ctx)
	if err != nil {
		return err
	}
	g.mu.Lock()
	current := g.cur == old
	if current {
		g.cur, g.stats.Worker = h, h.lease.Worker()
		g.stats.Retired++
	} else {
		old = h // closed meanwhile
	}
	g.mu.Unlock()
	if current {
		g.Log.Warn("another worker number for ids, after a lost lease or a jump of the clock",
			zap.Int("from", old.lease.Worker()), zap.Int("worker", h.lease.Worker()))
	}
	if err := old.lease.Release(ctx); err != nil {
		g.Log.Debug("a worker number was not released and will expire", zap.Error(err))
	}
	old.cancel()
	return nil
}

// acquire leases a number whose mark is past and sets its first mark.
func (g *Generator) acquire(ctx context.Context) (*holding, error) {
	for {
		h, earliest, err := g.lease(ctx)
		if errors.Is(err, errMoved) && ctx.Err() == nil {
			continue
		}
		if err == nil || !errors.Is(err, control.ErrNoWorker) || earliest == 0 {
			return h, err
		}
		wait := time.Duration(earliest-g.Clock().UnixMilli()+1) * time.Millisecond
		g.Log.Warn("the clock is behind the marks of all worker numbers; waiting", zap.Duration("wait", wait))
		if err := backoff.Sleep(ctx, min(max(wait, time.Millisecond), time.Second)); err != nil {
			return nil, fmt.Errorf("idgen: the clock is behind the marks of all worker numbers: %w", err)
		}
	}
}

// lease makes one attempt. earliest is the lowest mark of the numbers that were
// passed over because of it, 0 if there was none.
func (g *Generator) lease(ctx context.Context) (h *holding, earliest int64, err error) {
	keep, cancel := context.WithCancel(context.WithoutCancel(ctx))
	undo := context.AfterFunc(ctx, cancel)
	defer undo()
	l, err := g.Leaser.Lease(keep, func(ctx context.Context, worker int) (bool, error) {
		mark, err := g.mark(ctx, worker)
		if err != nil || mark < g.Clock().UnixMilli() {
			return err == nil, err
		}
		if earliest == 0 || mark < earliest {
			earliest = mark
		}
		return false, nil
	})
	if err != nil {
		cancel()
		return nil, earliest, fmt.Errorf("idgen: take a worker number: %w", err)
	}
	h = &holding{lease: l, cancel: cancel, looked: g.Clock().UnixMilli(), passed: g.mono()}
	if h.guard, err = g.begin(ctx, l.Worker()); err != nil {
		err = errors.Join(err, l.Release(ctx))
		cancel()
		return nil, earliest, err
	}
	return h, 0, nil
}

// begin reads the mark again, now that nobody else may write it, and moves it
// ahead of the clock.
func (g *Generator) begin(ctx context.Context, worker int) (*guard, error) {
	found, err := g.stored(ctx, worker)
	if err != nil {
		return nil, err
	}
	floor, now := ceilMs(found), g.Clock().UnixMilli()
	mark := now + markAhead.Milliseconds()
	ok := floor < now
	if ok {
		ok, err = g.moveMark(ctx, worker, found, mark)
	}
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, fmt.Errorf("idgen: the mark of worker %d moved: %w", worker, errMoved)
	}
	gd, err := newGuard(worker, floor, mark, g.remake)
	if err != nil {
		return nil, fmt.Errorf("idgen: the clock says %v: %w", g.Clock().UTC(), err)
	}
	return gd, nil
}

var errMoved = errors.New("another process just used it")

// mark is the mark of a number in ms, 0 if it has none.
func (g *Generator) mark(ctx context.Context, worker int) (int64, error) {
	t, err := g.stored(ctx, worker)
	return ceilMs(t), err
}

// stored is the mark of a number as the store has it.
func (g *Generator) stored(ctx context.Context, worker int) (time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, storeLimit)
	defer cancel()
	t, err := g.Marks.WorkerMark(ctx, worker)
	if err != nil {
		return time.Time{}, fmt.Errorf("idgen: read the mark of worker %d: %w", worker, err)
	}
	return t, nil
}

// swapMark moves the mark of a number from one time to another, in ms.
func (g *Generator) swapMark(ctx context.Context, worker int, from, to int64) (bool, error) {
	return g.moveMark(ctx, worker, time.UnixMilli(from).UTC(), to)
}

func (g *Generator) moveMark(ctx context.Context, worker int, from time.Time, to int64) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, storeLimit)
	defer cancel()
	ok, err := g.Marks.MoveWorkerMark(ctx, worker, from, time.UnixMilli(to).UTC())
	if err != nil {
		return false, fmt.Errorf("idgen: write the mark of worker %d: %w", worker, err)
	}
	return ok, nil
}
