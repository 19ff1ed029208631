package outbox

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/failpoint"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/pkg/webhook"
)

// Store is what a Runner asks of the message store; see store.Outbox.
type Store interface {
	OutboxState(ctx context.Context) (store.OutboxState, error)
	Events(ctx context.Context, after int64, limit int) ([]store.Event, error)
	EventsAt(ctx context.Context, positions []int64) ([]store.Event, error)
	Receivers(ctx context.Context) ([]store.Receiver, error)
	SaveReceiver(ctx context.Context, p store.Proof, r store.Receiver, s store.Settled) (bool, error)
	DeadLetters(ctx context.Context, name string, after int64, limit int) ([]store.DeadLetter, error)
}

// Sender makes one try to tell a receiver: a webhook.Sender, or another provider.
type Sender interface {
	Send(ctx context.Context, m webhook.Message) webhook.Result
}

// Options are a Runner's.
type Options struct {
	Name   string // of the receiver and of its row
	Limits Limits
	Types  []string // of events to be told; none = all about conversations
	Sender Sender
	Store  func() (Store, error)
	// News is closed when there may be new events; nil = they are looked for.
	News    func() <-chan struct{}
	Metrics *Metrics
	Log     *zap.Logger
}

const (
	page      = 200                    // events taken up at once
	poll      = 250 * time.Millisecond // pause between looks for events when nobody tells of them
	recheck   = time.Second            // pause between looks at whether the receiver was moved
	saveEvery = 200 * time.Millisecond // pause between writes of where the receiver stands
	lastTries = 150 * time.Millisecond // how long tries are waited for at the end of a term
	lastSave  = 300 * time.Millisecond // bounds that and the write then
	tell      = time.Second            // pause between two settings of the gauges
	call      = 5 * time.Second        // bounds one call of the store
	keepBytes = 4 << 20                // of contents kept for events that wait
)

// Runner tells one receiver what it wants to hear, from where it stood on.
type Runner struct {
	o       Options
	wanted  func(store.EventKind) bool
	w       *Window
	bodies  map[int64]store.Event // with entries, of events that wait
	size    int                   // bytes of contents in bodies
	results chan result           // capacity = concurrency: a try never waits to tell its end
	saved   time.Time
	looked  time.Time // for events
	checked time.Time // whether the receiver was moved
	told    time.Time // to the gauges
	full    bool      // the last look found as much as it asked for
}

type result struct {
	pos  int64
	took time.Duration
	webhook.Result
}

// NewRunner makes a Runner.
func NewRunner(o Options) *Runner {
	return &Runner{o: o, wanted: Wanted(o.Types), results: make(chan result, o.Limits.Concurrency)}
}

// Run tells until ctx is done, under the proof of a leader, and returns within
// half a second of that. Errors: store.ErrFenced; others are of the store, and Run
// may be called again.
func (r *Runner) Run(ctx context.Context, p store.Proof) error {
	if err := r.load(ctx, p); err != nil {
		return err
	}
	tries, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer r.drain()
	defer cancel()
	for ctx.Err() == nil {
		if err := r.step(ctx, tries, p); err != nil && ctx.Err() == nil {
			return err
		}
		r.await(ctx)
	}
	return r.last(ctx, p)
}

// last gives tries that are under way a moment and stores where the receiver
// stands, at the end of a term, so that the next leader repeats little.
func (r *Runner) last(ctx context.Context, p store.Proof) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastSave)
	defer cancel()
	moment := time.NewTimer(lastTries)
	defer moment.Stop()
	for over := false; r.w.Busy() > 0 && !over; {
		select {
		case one := <-r.results:
			r.done(one)
		case <-moment.C:
			over = true
		}
	}
	if !r.w.Changed() {
		return nil
	}
	_, err := r.save(ctx, p)
	return err
}

// drain waits for tries that were cut off.
func (r *Runner) drain() {
	for r.w != nil && r.w.Busy() > 0 {
		one := <-r.results
		r.w.Done(one.pos, one.Result, time.Now())
	}
}

// load makes the window from the receiver's row. A receiver without one begins
// with what comes from now on.
func (r *Runner) load(ctx context.Context, p store.Proof) error {
	ctx, cancel := context.WithTimeout(ctx, call)
	defer cancel()
	st, err := r.o.Store()
	if err != nil {
		return err
	}
	row, found, err := r.row(ctx, st)
	if err != nil {
		return err
	}
	if !found {
		state, err := st.OutboxState(ctx)
		if err != nil {
			return err
		}
		row = store.Receiver{Name: r.o.Name, Cursor: state.Last}
		if _, err := st.SaveReceiver(ctx, p, row, store.Settled{}); err != nil {
			return err
		}
		if row, _, err = r.row(ctx, st); err != nil {
			return err
		}
	}
	r.w, r.bodies, r.size = NewWindow(r.o.Limits, row), map[int64]store.Event{}, 0
	r.checked, r.full = time.Now(), true
	return r.resume(ctx, st, row)
}

func (r *Runner) row(ctx context.Context, st Store) (store.Receiver, bool, error) {
	all, err := st.Receivers(ctx)
	for _, one := range all {
		if one.Name == r.o.Name {
			return one, true, err
		}
	}
	return store.Receiver{}, false, err
}

// resume puts what is open, and the dead letters that were asked for, into the
// window.
func (r *Runner) resume(ctx context.Context, st Store, row store.Receiver) error {
	open := row.Open
	tries := map[int64]int{}
	again := map[int64]bool{}
	for after := int64(0); row.Dead > 0; {
		letters, err := st.DeadLetters(ctx, r.o.Name, after, page)
		if err != nil {
			return err
		}
		for _, d := range letters {
			if after = d.Position; d.Again {
				open, again[d.Position] = append(open, store.Open{Position: d.Position}), true
			}
		}
		if len(letters) < page {
			break
		}
	}
	slices.SortFunc(open, func(a, b store.Open) int { return cmp.Compare(a.Position, b.Position) })
	for part := range slices.Chunk(open, page) {
		positions := make([]int64, len(part))
		for i, o := range part {
			positions[i], tries[o.Position] = o.Position, o.Tries
		}
		events, err := st.EventsAt(ctx, positions)
		if err != nil {
			return err
		}
		for _, e := range events {
			r.w.Resume(e, tries[e.Position], again[e.Position])
		}
	}
	return nil
}

// step does what can be done now.
func (r *Runner) step(ctx, tries context.Context, p store.Proof) error {
	ctx, cancel := context.WithTimeout(ctx, call)
	defer cancel()
	st, err := r.o.Store()
	if err != nil {
		return err
	}
	r.take()
	now := time.Now()
	if now.Sub(r.checked) >= recheck {
		row, found, err := r.row(ctx, st)
		if err != nil {
			return err
		}
		if r.checked = now; !found || row.Generation != r.w.generation && r.w.generation > 0 {
			return r.moved(ctx, p)
		}
	}
	if err := r.look(ctx, st, now); err != nil {
		return err
	}
	if err := r.send(ctx, tries, st, now); err != nil {
		return err
	}
	if now.Sub(r.told) >= tell {
		r.told = now
		r.o.Metrics.stands(r.o.Name, r.w, now)
	}
	if !r.w.Changed() || now.Sub(r.saved) < saveEvery {
		return nil
	}
	ok, err := r.save(ctx, p)
	if err == nil && !ok {
		return r.moved(ctx, p)
	}
	return err
}

// moved begins anew where somebody has put the receiver.
func (r *Runner) moved(ctx context.Context, p store.Proof) error {
	r.o.Log.Info("a receiver was moved; it goes on where it was put", zap.String("receiver", r.o.Name))
	r.drain()
	return r.load(ctx, p)
}

// take notes the tries that have ended.
func (r *Runner) take() {
	for {
		select {
		case one := <-r.results:
			r.done(one)
		default:
			return
		}
	}
}

func (r *Runner) done(one result) {
	was := r.w.Down()
	r.w.Done(one.pos, one.Result, time.Now())
	if e, ok := r.bodies[one.pos]; ok {
		r.size -= weight(e)
		delete(r.bodies, one.pos)
	}
	r.o.Metrics.tried(r.o.Name, one)
	if down := r.w.Down(); down != was && down {
		r.o.Log.Warn("a receiver takes nothing; its events wait", zap.String("receiver", r.o.Name), zap.String("reason", one.Reason))
	} else if down != was {
		r.o.Log.Info("a receiver takes events again", zap.String("receiver", r.o.Name))
	}
}

// look takes up new events.
func (r *Runner) look(ctx context.Context, st Store, now time.Time) error {
	if !r.full && now.Sub(r.looked) < poll || r.w.Room() < page {
		return nil
	}
	r.looked = now
	events, err := st.Events(ctx, r.w.Cursor(), page)
	if err != nil {
		return err
	}
	if r.full = len(events) == page; len(events) == 0 {
		return nil
	}
	added := r.w.Add(events, r.wanted)
	return r.fetch(ctx, st, added)
}

// fetch reads the entries of events that wait, as far as there is room for them.
func (r *Runner) fetch(ctx context.Context, st Store, positions []int64) error {
	if len(positions) == 0 || r.size >= keepBytes {
		return nil
	}
	events, err := st.EventsAt(ctx, positions)
	for _, e := range events {
		r.bodies[e.Position] = e
		r.size += weight(e)
	}
	return err
}

func weight(e store.Event) int {
	n := 256
	if e.Entry != nil {
		n += len(e.Entry.Content) + len(e.Entry.Change)
	}
	return n
}

// send begins the tries that are due.
func (r *Runner) send(ctx, tries context.Context, st Store, now time.Time) error {
	next := r.w.Next(now)
	var missing []int64
	for _, pos := range next {
		if _, ok := r.bodies[pos]; !ok {
			missing = append(missing, pos)
		}
	}
	if len(missing) > 0 {
		events, err := st.EventsAt(ctx, missing)
		if err != nil {
			for _, pos := range next { // as if it had failed; nothing was sent
				r.w.Done(pos, webhook.Result{Outcome: webhook.Failed, Reason: "the message store did not answer"}, now)
			}
			return err
		}
		for _, e := range events {
			r.bodies[e.Position] = e
			r.size += weight(e)
		}
	}
	if len(next) > 0 {
		failpoint.HitJob("webhooks")
	}
	for _, pos := range next {
		e, ok := r.bodies[pos]
		if !ok {
			r.w.Expire(pos)
			continue
		}
		go r.try(tries, e, r.w.Told(pos))
	}
	return nil
}

// try tells the receiver of one event.
func (r *Runner) try(ctx context.Context, e store.Event, told bool) {
	began := time.Now()
	out := result{pos: e.Position}
	b, err := Body(e)
	if err != nil {
		out.Result = webhook.Result{Outcome: webhook.Refused, Reason: fmt.Sprint("the event cannot be written as JSON: ", err)}
	} else {
		out.Result = r.o.Sender.Send(ctx, webhook.Message{ID: ID(e), Body: b, Replay: told})
	}
	out.took = time.Since(began)
	r.results <- out
}

// save stores where the receiver stands; false if somebody has moved it.
func (r *Runner) save(ctx context.Context, p store.Proof) (bool, error) {
	st, err := r.o.Store()
	if err != nil {
		return false, err
	}
	row, settled := r.w.Stand()
	ok, err := st.SaveReceiver(ctx, p, row, settled)
	if err != nil || !ok {
		return ok, err
	}
	r.saved = time.Now()
	r.w.Saved(settled)
	for _, d := range settled.Dead {
		r.o.Metrics.dead.WithLabelValues(r.o.Name).Inc()
		r.o.Log.Error("a receiver was not told of an event; it is a dead letter now",
			zap.String("receiver", r.o.Name), zap.Int64("position", d.Position), zap.Int("tries", d.Tries), zap.String("reason", d.Reason))
	}
	return true, nil
}

// await waits until there may be something to do.
func (r *Runner) await(ctx context.Context) {
	wait := poll
	if r.full && r.w.Room() >= page {
		wait = 0
	}
	if d := r.w.Wait(time.Now()); d >= 0 {
		wait = min(wait, d)
	}
	if r.w.Changed() {
		wait = min(wait, max(saveEvery-time.Since(r.saved), 0))
	}
	if wait == 0 {
		return
	}
	var news <-chan struct{}
	if r.o.News != nil {
		news = r.o.News()
	}
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case one := <-r.results:
		r.done(one)
	case <-news:
		r.looked = time.Time{}
	case <-t.C:
	}
}
