package outbox

import (
	"cmp"
	"container/heap"
	"slices"
	"time"

	"github.com/imdhq/imd/pkg/backoff"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/pkg/webhook"
)

// Limits are the bounds of one receiver.
type Limits struct {
	Concurrency int // tries at once
	// Open is how many events may be taken up and not settled. When that many are,
	// no more are taken up, and events that fail again and again are given up to
	// make room.
	Open int
	// Tries is how often an event is tried that fails, while the receiver takes others.
	Tries int
	// Refusals is how often an event is tried that the receiver refuses.
	Refusals int
	// GiveUp is the age at which an event is given up while the receiver takes none
	// at all.
	GiveUp time.Duration
	// Event are the pauses between tries of one event, and Receiver those between
	// tries at a receiver that takes nothing.
	Event, Receiver backoff.Policy
}

// DefaultLimits are those of a receiver that says nothing else.
func DefaultLimits() Limits {
	return Limits{
		Concurrency: 16, Open: 10_000, Tries: 10, Refusals: 5, GiveUp: 24 * time.Hour,
		Event: backoff.Policy{Base: time.Second, Max: 5 * time.Minute}, Receiver: backoff.Policy{Base: time.Second, Max: time.Minute},
	}
}

const (
	// downAfter is how many tries must fail, with none that works between them, for
	// a receiver to be held for down.
	downAfter = 5
	// hopeless is how often an event must have failed to be given up for room.
	hopeless = 5
)

// Window is what one receiver has still to be told, and when. Each event of a
// conversation waits for the one before it. Not safe for concurrent use; it reads
// no clock.
//
//	waiting --Next--> busy --Done(Taken)--> settled
//	                   |---Done(Failed)---> waiting, later; after Tries a dead letter
//	                   '---Done(Refused)--> waiting, later; after Refusals a dead letter
//
// What holds: up to Cursor everything is settled but for what is waiting or busy;
// at most one event of a key is busy; at most Limits.Concurrency are, and one if
// the receiver is down.
type Window struct {
	lim        Limits
	name       string
	generation int64
	cursor     int64
	reached    int64 // the highest cursor that was stored when the window was made

	lanes map[int64]*lane
	ready []*lane // those whose first event may go now, in the order in which they became so
	later laneHeap
	items map[int64]*lane // of each event that is not settled
	busy  int

	fails int       // in a row
	probe time.Time // down: no try before it

	dead    []store.DeadLetter // since the last save
	revived []int64
	changed bool
}

// lane is the events of one key.
type lane struct {
	key   int64
	list  []item
	busy  bool // the first is being tried
	due   time.Time
	place int // in later; -1 = not there
}

type item struct {
	pos     int64
	at      time.Time // when it happened
	tries   int
	revived bool // it was a dead letter
}

// NewWindow continues where r stands. Open events and dead letters that somebody
// has asked for are put in by Resume.
func NewWindow(lim Limits, r store.Receiver) *Window {
	return &Window{
		lim: lim, name: r.Name, generation: r.Generation, cursor: r.Cursor, reached: max(r.Reached, r.Cursor),
		lanes: map[int64]*lane{}, items: map[int64]*lane{},
	}
}

// Resume puts in an event at or below the cursor that is not settled. They come in
// rising order, before anything else.
func (w *Window) Resume(e store.Event, tries int, revived bool) {
	if _, there := w.items[e.Position]; !there {
		w.put(e, item{pos: e.Position, at: e.At, tries: tries, revived: revived})
	}
}

// Add takes up the next events, in order; wanted says of which kinds the receiver
// wants to hear.
func (w *Window) Add(events []store.Event, wanted func(store.EventKind) bool) (added []int64) {
	for _, e := range events {
		if e.Position <= w.cursor {
			continue
		}
		w.cursor, w.changed = e.Position, true
		if wanted(e.Kind) {
			w.put(e, item{pos: e.Position, at: e.At})
			added = append(added, e.Position)
		}
	}
	return added
}

// Skip moves the cursor over events that are not there any more.
func (w *Window) Skip(upto int64) {
	if upto > w.cursor {
		w.cursor, w.changed = upto, true
	}
}

func (w *Window) put(e store.Event, it item) {
	l := w.lanes[e.Key]
	if l == nil {
		l = &lane{key: e.Key, place: -1}
		w.lanes[e.Key] = l
	}
	l.list = append(l.list, it)
	w.items[it.pos] = l
	if len(l.list) == 1 {
		w.ready = append(w.ready, l)
	}
}

// Room is how many more events may be taken up.
func (w *Window) Room() int { return max(w.lim.Open-len(w.items), 0) }

// Cursor is up to where events have been taken up.
func (w *Window) Cursor() int64 { return w.cursor }

// Open is how many events are taken up and not settled.
func (w *Window) Open() int { return len(w.items) }

// Busy is how many events are being tried.
func (w *Window) Busy() int { return w.busy }

// Down reports whether the receiver takes nothing.
func (w *Window) Down() bool { return w.fails >= downAfter }

// Told reports whether an event may have been told before this window began.
func (w *Window) Told(pos int64) bool { return pos <= w.reached }

// Oldest is when the oldest event happened that is not settled; zero if there is none.
func (w *Window) Oldest() time.Time {
	var t time.Time
	for _, l := range w.lanes {
		if at := l.list[0].at; t.IsZero() || at.Before(t) {
			t = at
		}
	}
	return t
}

// Next returns the positions of events to be tried now; Done must follow for each.
func (w *Window) Next(now time.Time) []int64 {
	for len(w.later) > 0 && !w.later[0].due.After(now) {
		w.ready = append(w.ready, heap.Pop(&w.later).(*lane))
	}
	if w.Room() == 0 && !w.Down() {
		w.makeRoom()
	}
	free := w.lim.Concurrency - w.busy
	if w.Down() {
		if free = 0; w.busy == 0 && !now.Before(w.probe) {
			free = 1
		}
	}
	n := min(free, len(w.ready))
	if n <= 0 {
		return nil
	}
	out := make([]int64, n)
	for i, l := range w.ready[:n] {
		l.busy = true
		out[i] = l.list[0].pos
	}
	w.ready = w.ready[n:]
	w.busy += n
	return out
}

// Wait is how long nothing becomes due by itself, from now on; negative if nothing
// ever does.
func (w *Window) Wait(now time.Time) time.Duration {
	var at time.Time
	switch {
	case w.Down() && w.busy == 0 && len(w.items) > 0:
		at = w.probe
		if len(w.ready) == 0 && len(w.later) > 0 && w.later[0].due.After(at) {
			at = w.later[0].due
		}
	case !w.Down() && len(w.ready) > 0 && w.busy < w.lim.Concurrency:
		at = now
	case len(w.later) > 0 && !w.Down():
		at = w.later[0].due
	default:
		return -1
	}
	return max(at.Sub(now), 0)
}

// Done says how a try ended. r.Reason is kept with a dead letter.
func (w *Window) Done(pos int64, r webhook.Result, now time.Time) {
	l := w.items[pos]
	if l == nil || !l.busy || l.list[0].pos != pos {
		return // it was given up meanwhile
	}
	l.busy = false
	w.busy--
	w.changed = true
	it := &l.list[0]
	if r.Outcome != webhook.Failed {
		w.up()
	} else if w.fails++; w.Down() {
		w.probe = now.Add(max(w.lim.Receiver.Pause(w.fails-downAfter), w.lim.Receiver.Base/2, r.After))
	}
	if r.Outcome == webhook.Taken {
		w.settle(l)
		return
	}
	it.tries++
	if w.givesUp(r.Outcome, it, now) {
		w.bury(l, r.Reason)
		return
	}
	l.due = now.Add(max(w.lim.Event.Pause(it.tries-1), w.lim.Event.Base/2, r.After))
	heap.Push(&w.later, l)
}

// Expire settles an event that is not there any more as a dead letter.
func (w *Window) Expire(pos int64) {
	if l := w.items[pos]; l != nil && l.busy && l.list[0].pos == pos {
		l.busy = false
		w.busy--
		w.changed = true
		w.bury(l, "the event was removed before it could be told")
	}
}

func (w *Window) givesUp(o webhook.Outcome, it *item, now time.Time) bool {
	switch {
	case o == webhook.Refused:
		return it.tries >= w.lim.Refusals
	case w.Down():
		return it.tries >= w.lim.Tries && now.Sub(it.at) >= w.lim.GiveUp
	}
	return it.tries >= w.lim.Tries
}

// up ends the time in which the receiver was down: what waited for it goes now.
func (w *Window) up() {
	if w.Down() {
		for len(w.later) > 0 {
			w.ready = append(w.ready, heap.Pop(&w.later).(*lane))
		}
	}
	w.fails = 0
}

// settle removes the first event of a lane, and lets the next one go.
func (w *Window) settle(l *lane) {
	if l.list[0].revived {
		w.revived = append(w.revived, l.list[0].pos)
	}
	delete(w.items, l.list[0].pos)
	l.list = l.list[1:]
	if len(l.list) == 0 {
		delete(w.lanes, l.key)
		return
	}
	w.ready = append(w.ready, l)
}

// maxReason bounds what is kept of why.
const maxReason = 200

// bury makes a dead letter of the first event of a lane.
func (w *Window) bury(l *lane, reason string) {
	it := l.list[0]
	w.dead = append(w.dead, store.DeadLetter{Receiver: w.name, Position: it.pos, Tries: it.tries, Reason: reason[:min(len(reason), maxReason)]})
	l.list[0].revived = false
	w.settle(l)
}

// makeRoom gives up the events that have failed most.
func (w *Window) makeRoom() {
	for _, l := range slices.Clone(w.later) {
		if l.list[0].tries >= hopeless {
			heap.Remove(&w.later, l.place)
			w.changed = true
			w.bury(l, "given up to make room for others")
		}
	}
}

// Changed reports whether there is something to store.
func (w *Window) Changed() bool { return w.changed }

// Saved forgets what Stand has told, because it is stored now.
func (w *Window) Saved(s store.Settled) {
	w.dead, w.revived = w.dead[len(s.Dead):], w.revived[len(s.Revived):]
	w.changed = len(w.dead) > 0 || len(w.revived) > 0
	if w.generation == 0 {
		w.generation = 1
	}
}

// Stand is what to store.
func (w *Window) Stand() (store.Receiver, store.Settled) {
	r := store.Receiver{Name: w.name, Generation: w.generation, Cursor: w.cursor, Reached: w.cursor}
	for _, l := range w.lanes {
		for _, it := range l.list {
			if !it.revived {
				r.Open = append(r.Open, store.Open{Position: it.pos, Tries: it.tries})
			}
		}
	}
	slices.SortFunc(r.Open, func(a, b store.Open) int { return cmp.Compare(a.Position, b.Position) })
	return r, store.Settled{Dead: slices.Clone(w.dead), Revived: slices.Clone(w.revived)}
}

// laneHeap has the lane that is due first in front.
type laneHeap []*lane

func (h laneHeap) Len() int           { return len(h) }
func (h laneHeap) Less(i, j int) bool { return h[i].due.Before(h[j].due) }
func (h laneHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].place, h[j].place = i, j
}

// Push is heap.Interface's.
func (h *laneHeap) Push(x any) {
	l := x.(*lane)
	l.place = len(*h)
	*h = append(*h, l)
}

// Pop is heap.Interface's.
func (h *laneHeap) Pop() any {
	old := *h
	l := old[len(old)-1]
	l.place = -1
	*h = old[:len(old)-1]
	return l
}
