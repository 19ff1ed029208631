package lane

import (
	"time"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// Limits of a lane.
const (
	// maxBatchBytes ends a batch, so that it leaves in few writes.
	maxBatchBytes = 256 << 10
	// maxQueueRows and maxQueueBytes bound what waits for its first batch.
	maxQueueRows  = 2048
	maxQueueBytes = 4 << 20
	// maxQueueAge is how old a row may be when its batch is made: its client's
	// time is then nearly gone, and the backlog of a paused process goes with it.
	maxQueueAge = 400 * time.Millisecond
	// maxWaiters is how many callers may wait for one row.
	maxWaiters = 16
	// maxProbes is how many probes may wait for a batch to end.
	maxProbes = 64
	// minHint and maxHint bound the wait that a full queue asks for.
	minHint = 50 * time.Millisecond
	maxHint = 2 * time.Second
	// FirstRerun and MaxRerun are the pauses before a batch of unknown outcome
	// runs again, doubling.
	FirstRerun = 10 * time.Millisecond
	MaxRerun   = 500 * time.Millisecond
	// searchFailures is how many failed calls the search for a row that spoils
	// its batch may take before the store is held to be away. A single such row
	// among 200 takes 8.
	searchFailures = 24
)

// Lane orders the sends of the conversations that hash to it. It is a pure
// state machine: Step takes an event and leaves effects, and whoever drives it
// carries them out. It is not safe for concurrent use.
//
// A row is queued, then out, then done. Transitions:
//
//	queued -> out   a batch is made: FIFO per conversation, a bounded share of
//	                the batch for each of them
//	out -> split    its batch stored nothing and is halved
//	split -> out    its part of the batch is next
//	out -> done     the outcome of its call is known
//	queued, split -> done
//	                nobody waits for it any more (refused, too old, expired)
//
// A conversation that somebody else holds in the store leaves the batch and is
// held: see hold. Its rows that may be stored stay out until they are known. One
// that has had much of a batch rests afterwards, see rest, and its rows gather.
//
// Invariants: one call to the store is out at a time. A row whose call had an
// unknown outcome runs again, unchanged and in its place, until the outcome is
// known; that a later try failed does not tell it. Each send of each run is
// answered exactly once, ACK_OK only after the commit. After a retryable answer
// every later send of that run is answered retryable. A row that is not done has
// one entry in pending, where repeats find it and wait with it.
type Lane struct {
	head, tail *Run // runs with queued rows, oldest first
	rows       int  // queued
	bytes      int  // queued
	pending    map[rowKey]*pendingRow

	out      *Work           // the call that is out; nil = idle
	parts    [][]*pendingRow // of the batch that is being split; the next is last
	held     map[im.ConversationID]*hold
	rests    map[im.ConversationID]time.Time // of hot conversations: until when
	failures int                             // failed calls of the search that goes on
	aways    int                             // batches refused in a row because the store was away
	probes   []chan<- struct{}
	runs     int // number of the last run
	numbered int // number of the last row
	draining bool
	rate     float64 // rows a second through the store, smoothed; 0 = not known

	fx Effects
	// Scratch of makeBatch; walk is the run it visits next.
	walk    *Run
	shares  map[im.ConversationID]share
	blocked map[im.ConversationID]bool
}

// rowKey is the identity of a send.
type rowKey struct {
	conv   im.ConversationID
	sender im.UserID
	id     im.ClientMessageID
}

func keyOf(r *store.AppendRow) rowKey { return rowKey{r.Conversation, r.Sender, r.ClientMessageID} }

type rowState uint8

const (
	rowQueued rowState = iota
	rowOut
	rowSplit
	rowDone
)

// pendingRow is one send on its way to the store, for everyone who waits for it.
type pendingRow struct {
	Send
	arrived time.Time // of the newest waiter
	state   rowState
	number  int      // rows of a conversation go to the store in this order
	home    *Run     // in whose rows it is queued
	waiters []waiter // the first brought it
	open    int      // waiters without an answer
}

// waiter is one send of one run.
type waiter struct {
	run *Run
	at  int
}

// Run is the ordered sends of one connection in one conversation, or one change
// of a conversation. It is used once: whoever submits it sets the exported
// fields and leaves the Run to the lane from then on.
type Run struct {
	// Conv is the conversation of all its rows.
	Conv im.ConversationID
	// Sends are the sends in their order; empty for a change.
	Sends []Send
	// Reply is for the driver, which finds it in an Answer: it takes the verdict
	// about the send with the index at. Once for each send.
	Reply func(at int, v Verdict)
	// Change makes it a change of the conversation instead; nil for a run.
	Change *store.Change
	// Settled is for the driver: it takes the outcome of a change, once.
	Settled func(store.ChangeResult, error)

	arrived    time.Time
	number     int
	slots      []slot
	rows       []*pendingRow // queued, in order; others are skipped
	queued     int           // of rows, or 1 for a change
	joined     int           // sends that wait for a row of another run
	answered   bool          // of a change
	prev, next *Run
	linked     bool
}

// Send is one send of a run as it arrives.
type Send struct {
	Row     store.AppendRow // but for Row.Run, which the lane sets
	Session im.SessionID    // gets no deliver, as it gets the answer; emptied if it was told to try again
	Size    int             // bytes that count against the limits
	// Traceparent is handed through for those who make spans.
	Traceparent string
}

// slot is the place of one send in its run.
type slot struct {
	row  *pendingRow
	done bool
}

// Verdict answers one send.
type Verdict struct {
	Err       *im.Error          // nil = stored; retryable = not known to be stored
	Result    store.AppendResult // where it is stored
	Duplicate bool               // it was stored, or on its way, before
}

// New returns an empty lane.
func New() *Lane {
	return &Lane{
		pending: map[rowKey]*pendingRow{}, held: map[im.ConversationID]*hold{}, rests: map[im.ConversationID]time.Time{},
		shares: map[im.ConversationID]share{}, blocked: map[im.ConversationID]bool{},
	}
}

// Step handles one event. now never goes back. The effects are valid until the
// next step.
func (l *Lane) Step(now time.Time, ev Event) *Effects {
	l.fx = Effects{Answers: l.fx.Answers[:0], Settled: l.fx.Settled[:0], Committed: l.fx.Committed[:0], Probed: l.fx.Probed[:0]}
	switch ev := ev.(type) {
	case Submit:
		l.submit(now, ev.Run)
	case Expire:
		l.expire(ev.Run)
	case Result:
		l.result(now, ev)
	case Probe:
		l.probe(ev.Ch)
	case Drain:
		l.draining = true
	case Stop:
		l.stop()
	}
	if l.out == nil {
		l.issue(now)
	}
	l.fx.Wake = l.wake(now)
	return &l.fx
}

// Idle reports whether nothing waits and nothing is out.
func (l *Lane) Idle() bool { return l.out == nil && l.head == nil && !l.doubts() }

// Queued is how many rows and changes wait for their first call.
func (l *Lane) Queued() int { return l.rows }

// Report is what a lane holds.
type Report struct {
	Queued   int     `json:"queued"`       // rows and changes that wait for their first call
	Bytes    int     `json:"queued_bytes"` // of the rows
	Out      int     `json:"out"`          // rows and changes of the call to the store that is out
	Reruns   int     `json:"reruns"`       // of that call: unknown outcomes so far
	Pending  int     `json:"pending"`      // rows that are not done
	Held     int     `json:"held"`         // conversations that somebody else holds in the store
	Draining bool    `json:"draining,omitempty"`
	Rate     float64 `json:"rows_per_second"` // through the store, smoothed; 0 = not known
}

// Report tells what the lane holds.
func (l *Lane) Report() Report {
	r := Report{Queued: l.rows, Bytes: l.bytes, Pending: len(l.pending), Held: len(l.held), Draining: l.draining, Rate: l.rate}
	if l.out != nil {
		r.Out, r.Reruns = len(l.out.rows), l.out.Reruns
		if l.out.Change != nil {
			r.Out++
		}
	}
	return r
}

func retry(r im.Reason, msg string, after time.Duration) *im.Error {
	return &im.Error{Reason: r, Op: "state.lane", Msg: msg, RetryAfter: after}
}

func errAway() *im.Error {
	return retry(clientv1.Reason_REASON_UNAVAILABLE, "", 0)
}

// errBehind is the answer to what follows a send that was refused with err: it
// has to wait as long.
func errBehind(err *im.Error) *im.Error {
	after := err.RetryAfter
	if after == 0 {
		after = time.Duration(im.Info(err.Reason).RetryAfterMs) * time.Millisecond
	}
	return retry(clientv1.Reason_REASON_BEHIND, "", after)
}

func (l *Lane) errBusy() *im.Error {
	return retry(clientv1.Reason_REASON_BUSY, "", l.hint())
}

// hint estimates how long the queue takes to drain.
func (l *Lane) hint() time.Duration {
	if l.rate <= 0 {
		return 200 * time.Millisecond
	}
	return min(max(time.Duration(float64(l.rows)/l.rate*float64(time.Second)), minHint), maxHint)
}

func (l *Lane) submit(now time.Time, r *Run) {
	l.runs++
	r.number, r.arrived = l.runs, now
	if r.Change != nil {
		l.submitChange(now, r)
		return
	}
	r.slots = make([]slot, len(r.Sends))
	if l.draining {
		l.refuse(r, 0, errAway())
		return
	}
	at := l.join(now, r)
	if h := l.holds(now, r.Conv); h != nil {
		if at < len(r.Sends) {
			l.refuse(r, at, l.errHeld(now, h))
		}
		return
	}
	for doubtful := l.doubtful(); at < len(r.Sends); at++ {
		s := &r.Sends[at]
		if l.rows+doubtful >= maxQueueRows || l.bytes+s.Size > maxQueueBytes {
			break
		}
		l.queue(now, r, at)
	}
	if r.queued > 0 {
		l.link(r)
	}
	if at < len(r.Sends) && !r.slots[at].done { // a prefix or nothing
		l.refuse(r, at, l.errBusy())
	}
}

func (l *Lane) submitChange(now time.Time, r *Run) {
	h := l.holds(now, r.Conv)
	switch {
	case h != nil:
		l.settle(r, store.ChangeResult{}, l.errHeld(now, h))
	case l.draining:
		l.settle(r, store.ChangeResult{}, errAway())
	case l.rows >= maxQueueRows:
		l.settle(r, store.ChangeResult{}, l.errBusy())
	default:
		r.queued = 1
		l.rows++
		l.link(r)
	}
}

// join lets the first sends of a run that repeat rows on their way wait for
// them, and returns how many. Only a prefix, and only rows in this order: what
// follows must come after.
func (l *Lane) join(now time.Time, r *Run) int {
	last := 0
	for at := range r.Sends {
		s := &r.Sends[at]
		row := l.pending[keyOf(&s.Row)]
		if row == nil || row.Row.BodyHash != s.Row.BodyHash || row.number < last {
			return at
		}
		last = row.number
		if len(row.waiters) >= maxWaiters {
			l.refuse(r, at, l.errBusy())
			return len(r.Sends)
		}
		row.waiters = append(row.waiters, waiter{r, at})
		row.open++
		row.arrived = now
		r.slots[at].row = row
		r.joined++
	}
	return len(r.Sends)
}

func (l *Lane) queue(now time.Time, r *Run, at int) {
	s := &r.Sends[at]
	l.numbered++
	row := &pendingRow{Send: *s, number: l.numbered, arrived: now, home: r, waiters: []waiter{{r, at}}, open: 1}
	row.Row.Run = r.number
	r.slots[at].row = row
	r.rows = append(r.rows, row)
	r.queued++
	l.rows++
	l.bytes += s.Size
	// A copy of another content, or a later one in the run, stays unfindable.
	if k := keyOf(&s.Row); l.pending[k] == nil {
		l.pending[k] = row
	}
}

// answerOne answers one send, once, and lets go of its row.
func (l *Lane) answerOne(w waiter, v Verdict) {
	s := &w.run.slots[w.at]
	if s.done {
		return
	}
	s.done = true
	l.fx.Answers = append(l.fx.Answers, Answer{w.run, w.at, v})
	row := s.row
	if row == nil {
		return
	}
	row.open--
	if row.home != w.run {
		w.run.joined--
	}
	if row.open > 0 {
		return
	}
	switch row.state {
	case rowQueued:
		l.unqueue(row)
		l.finish(row)
	case rowSplit:
		l.finish(row)
	}
}

// refuse answers a send as retryable, if it has no answer yet, and every later
// one of its run as behind it.
func (l *Lane) refuse(r *Run, from int, err *im.Error) {
	l.answerOne(waiter{r, from}, Verdict{Err: err})
	for at := from + 1; at < len(r.slots); at++ {
		if !r.slots[at].done {
			l.answerOne(waiter{r, at}, Verdict{Err: errBehind(err)})
		}
	}
}

// unqueue takes a row out of the queue's accounts.
func (l *Lane) unqueue(row *pendingRow) {
	l.rows--
	l.bytes -= row.Size
	if row.home.queued--; row.home.queued == 0 {
		l.unlink(row.home)
	}
}

// finish forgets a row.
func (l *Lane) finish(row *pendingRow) {
	row.state = rowDone
	if k := keyOf(&row.Row); l.pending[k] == row {
		delete(l.pending, k)
	}
}

func (l *Lane) link(r *Run) {
	r.prev, r.linked = l.tail, true
	if l.tail == nil {
		l.head = r
	} else {
		l.tail.next = r
	}
	l.tail = r
}

// unlink takes a run out of the queue, also from before the walk of makeBatch.
func (l *Lane) unlink(r *Run) {
	if !r.linked {
		return
	}
	r.linked = false
	if l.walk == r {
		l.walk = r.next
	}
	if r.prev == nil {
		l.head = r.next
	} else {
		r.prev.next = r.next
	}
	if r.next == nil {
		l.tail = r.prev
	} else {
		r.next.prev = r.prev
	}
	r.prev, r.next, r.rows = nil, nil, nil
}

// expire ends the wait of a run. Rows that are out stay out: their outcome is
// for repeats and for the fan-out.
func (l *Lane) expire(r *Run) {
	if r.Change == nil {
		for at := range r.slots {
			if !r.slots[at].done {
				l.refuse(r, at, errAway())
				return
			}
		}
		return
	}
	l.dropChange(r, errAway())
}

// dropChange answers a change and takes it out of the queue if it is there.
func (l *Lane) dropChange(r *Run, err *im.Error) {
	if r.linked {
		l.rows--
		r.queued = 0
		l.unlink(r)
	}
	l.settle(r, store.ChangeResult{}, err)
}

func (l *Lane) settle(r *Run, res store.ChangeResult, err error) {
	if !r.answered {
		r.answered = true
		l.fx.Settled = append(l.fx.Settled, Settled{r, res, err})
	}
}

func (l *Lane) probe(ch chan<- struct{}) {
	if len(l.probes) < maxProbes {
		l.probes = append(l.probes, ch) // answered when no call is out, which may be now
	}
}

func (l *Lane) stop() {
	l.draining = true
	for l.head != nil {
		l.expire(l.head)
		if l.head != nil && l.head.Change == nil { // kept alive by repeats only
			for _, row := range l.head.rows {
				l.abandon(row)
			}
		}
	}
	if l.out != nil {
		if l.out.Change != nil {
			l.settle(l.out.Change, store.ChangeResult{}, errAway())
		}
		for _, row := range l.out.rows {
			l.abandon(row)
		}
	}
	for _, p := range l.parts {
		for _, row := range p {
			l.abandon(row)
		}
	}
	for _, h := range l.held {
		if h.doubt == nil {
			continue
		}
		if h.doubt.Change != nil {
			l.settle(h.doubt.Change, store.ChangeResult{}, errAway())
		}
		for _, row := range h.doubt.rows {
			l.abandon(row)
		}
	}
}

// abandon refuses everyone who waits for a row.
func (l *Lane) abandon(row *pendingRow) { l.refuseWaiters(row, errAway()) }
