package state

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
	// firstRerun and maxRerun are the pauses before a batch of unknown outcome
	// runs again, doubling.
	firstRerun = 10 * time.Millisecond
	maxRerun   = 500 * time.Millisecond
	// searchFailures is how many failed calls the search for a row that spoils
	// its batch may take before the store is held to be away. A single such row
	// among 200 takes 8.
	searchFailures = 24
)

// lane orders the sends of the conversations that hash to it. It is a pure
// state machine: step takes an event and leaves effects, and whoever drives it
// carries them out. It is not safe for concurrent use.
//
// A row is queued, then out, then done. Transitions:
//
//	queued -> out   a batch is made: FIFO per conversation, at most half a
//	                batch for one of them while others wait
//	out -> split    its batch stored nothing and is halved
//	split -> out    its part of the batch is next
//	out -> done     the outcome of its call is known
//	queued, split -> done
//	                nobody waits for it any more (refused, too old, expired)
//
// Invariants: one call to the store is out at a time. A row whose call had an
// unknown outcome runs again, unchanged and in its place, until the outcome is
// known; that a later try failed does not tell it. Each send of each run is answered exactly once, ACK_OK only after the
// commit. After a retryable answer every later send of that run is answered
// retryable. A row that is not done has one entry in pending, where repeats
// find it and wait with it.
type lane struct {
	head, tail *laneRun // runs with queued rows, oldest first
	rows       int      // queued
	bytes      int      // queued
	pending    map[rowKey]*laneRow

	out      *work        // the call that is out; nil = idle
	parts    [][]*laneRow // of the batch that is being split; the next is last
	failures int          // failed calls of the search that goes on
	aways    int          // batches refused in a row because the store was away
	probes   []chan<- struct{}
	runs     int // number of the last run
	numbered int // number of the last row
	draining bool
	rate     float64 // rows a second through the store, smoothed; 0 = not known

	fx effects
	// Scratch of makeBatch; walk is the run it visits next.
	walk    *laneRun
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

// laneRow is one send on its way to the store, for everyone who waits for it.
type laneRow struct {
	row     store.AppendRow
	session im.SessionID // gets no deliver
	size    int
	arrived time.Time // of the newest waiter
	state   rowState
	number  int      // rows of a conversation go to the store in this order
	home    *laneRun // in whose rows it is queued
	waiters []waiter // the first brought it
	open    int      // waiters without an answer
}

// waiter is one send of one run.
type waiter struct {
	run *laneRun
	at  int
}

// laneRun is a run, or one change of a conversation.
type laneRun struct {
	conv  im.ConversationID
	sends []laneSend
	reply func(at int, v verdict) // the driver's; called once per send
	// change makes it a change of the conversation: sends is empty.
	change  *store.Change
	arrived time.Time
	settled func(store.ChangeResult, error) // the driver's; called once

	number     int
	slots      []slot
	rows       []*laneRow // queued, in order; others are skipped
	queued     int        // of rows, or 1 for a change
	joined     int        // sends that wait for a row of another run
	answered   bool       // of a change
	prev, next *laneRun
	linked     bool
}

// laneSend is one send of a run as it arrives.
type laneSend struct {
	row     store.AppendRow
	session im.SessionID
	size    int
}

// slot is the place of one send in its run.
type slot struct {
	row  *laneRow
	done bool
}

// verdict answers one send. err nil = stored.
type verdict struct {
	err       *im.Error
	res       store.AppendResult
	duplicate bool
}

// Events.
type (
	// evSubmit brings a run or a change.
	evSubmit struct{ run *laneRun }
	// evExpire ends the wait of a run: what is unanswered is retryable.
	evExpire struct{ run *laneRun }
	// evResult is the outcome of the call that was out.
	evResult struct {
		results []store.AppendResult
		change  store.ChangeResult
		err     error
		took    time.Duration
	}
	// evProbe asks for a sign of life: ch is closed when no call is out.
	evProbe struct{ ch chan<- struct{} }
	// evDrain refuses everything that comes from now on.
	evDrain struct{}
	// evStop also answers all who wait, and forgets the queue.
	evStop struct{}
)

// effects are what the driver must do after a step, in this order.
type effects struct {
	answers   []answer
	settled   []settled
	committed []committed
	probed    []chan<- struct{}
	work      *work // to begin
}

type answer struct {
	waiter
	verdict
}

type settled struct {
	run *laneRun
	res store.ChangeResult
	err error
}

// committed is what the store has now and may not have been told to others.
type committed struct {
	row    *laneRow
	res    store.AppendResult
	change *store.ChangeResult // instead of row
	own    bool                // stored by this lane, not found
}

// work is one call to the store.
type work struct {
	rows   []*laneRow
	append []store.AppendRow
	change *laneRun      // instead of rows
	reruns int           // unknown outcomes so far
	after  time.Duration // to wait before
}

func newLane() *lane {
	return &lane{
		pending: map[rowKey]*laneRow{},
		shares:  map[im.ConversationID]share{}, blocked: map[im.ConversationID]bool{},
	}
}

// step handles one event. The effects are valid until the next step.
func (l *lane) step(now time.Time, ev any) *effects {
	l.fx = effects{answers: l.fx.answers[:0], settled: l.fx.settled[:0], committed: l.fx.committed[:0], probed: l.fx.probed[:0]}
	switch ev := ev.(type) {
	case evSubmit:
		l.submit(now, ev.run)
	case evExpire:
		l.expire(ev.run)
	case evResult:
		l.result(ev)
	case evProbe:
		l.probe(ev.ch)
	case evDrain:
		l.draining = true
	case evStop:
		l.stop()
	}
	if l.out == nil {
		l.issue(now)
	}
	return &l.fx
}

// idle reports whether nothing waits and nothing is out.
func (l *lane) idle() bool { return l.out == nil && l.head == nil }

func retry(r im.Reason, msg string, after time.Duration) *im.Error {
	return &im.Error{Reason: r, Op: "state.lane", Msg: msg, RetryAfter: after}
}

func errAway() *im.Error {
	return retry(clientv1.Reason_REASON_UNAVAILABLE, "", 0)
}

func errBehind() *im.Error {
	return retry(clientv1.Reason_REASON_BEHIND, "", 0)
}

func (l *lane) errBusy() *im.Error {
	return retry(clientv1.Reason_REASON_BUSY, "", l.hint())
}

// hint estimates how long the queue takes to drain.
func (l *lane) hint() time.Duration {
	if l.rate <= 0 {
		return 200 * time.Millisecond
	}
	return min(max(time.Duration(float64(l.rows)/l.rate*float64(time.Second)), minHint), maxHint)
}

func (l *lane) submit(now time.Time, r *laneRun) {
	l.runs++
	r.number, r.arrived = l.runs, now
	if r.change != nil {
		l.submitChange(r)
		return
	}
	r.slots = make([]slot, len(r.sends))
	if l.draining {
		l.refuse(r, 0, errAway())
		return
	}
	at := l.join(now, r)
	for ; at < len(r.sends); at++ {
		s := &r.sends[at]
		if l.rows >= maxQueueRows || l.bytes+s.size > maxQueueBytes {
			break
		}
		l.queue(now, r, at)
	}
	if r.queued > 0 {
		l.link(r)
	}
	if at < len(r.sends) && !r.slots[at].done { // a prefix or nothing
		l.refuse(r, at, l.errBusy())
	}
}

func (l *lane) submitChange(r *laneRun) {
	switch {
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
func (l *lane) join(now time.Time, r *laneRun) int {
	last := 0
	for at := range r.sends {
		s := &r.sends[at]
		row := l.pending[keyOf(&s.row)]
		if row == nil || row.row.BodyHash != s.row.BodyHash || row.number < last {
			return at
		}
		last = row.number
		if len(row.waiters) >= maxWaiters {
			l.refuse(r, at, l.errBusy())
			return len(r.sends)
		}
		row.waiters = append(row.waiters, waiter{r, at})
		row.open++
		row.arrived = now
		r.slots[at].row = row
		r.joined++
	}
	return len(r.sends)
}

func (l *lane) queue(now time.Time, r *laneRun, at int) {
	s := &r.sends[at]
	l.numbered++
	row := &laneRow{number: l.numbered, row: s.row, session: s.session, size: s.size, arrived: now, home: r, waiters: []waiter{{r, at}}, open: 1}
	row.row.Run = r.number
	r.slots[at].row = row
	r.rows = append(r.rows, row)
	r.queued++
	l.rows++
	l.bytes += s.size
	// A copy of another content, or a later one in the run, stays unfindable.
	if k := keyOf(&s.row); l.pending[k] == nil {
		l.pending[k] = row
	}
}

// answerOne answers one send, once, and lets go of its row.
func (l *lane) answerOne(w waiter, v verdict) {
	s := &w.run.slots[w.at]
	if s.done {
		return
	}
	s.done = true
	l.fx.answers = append(l.fx.answers, answer{w, v})
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
func (l *lane) refuse(r *laneRun, from int, err *im.Error) {
	l.answerOne(waiter{r, from}, verdict{err: err})
	for at := from + 1; at < len(r.slots); at++ {
		if !r.slots[at].done {
			l.answerOne(waiter{r, at}, verdict{err: errBehind()})
		}
	}
}

// unqueue takes a row out of the queue's accounts.
func (l *lane) unqueue(row *laneRow) {
	l.rows--
	l.bytes -= row.size
	if row.home.queued--; row.home.queued == 0 {
		l.unlink(row.home)
	}
}

// finish forgets a row.
func (l *lane) finish(row *laneRow) {
	row.state = rowDone
	if k := keyOf(&row.row); l.pending[k] == row {
		delete(l.pending, k)
	}
}

func (l *lane) link(r *laneRun) {
	r.prev, r.linked = l.tail, true
	if l.tail == nil {
		l.head = r
	} else {
		l.tail.next = r
	}
	l.tail = r
}

// unlink takes a run out of the queue, also from before the walk of makeBatch.
func (l *lane) unlink(r *laneRun) {
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
func (l *lane) expire(r *laneRun) {
	if r.change == nil {
		for at := range r.slots {
			if !r.slots[at].done {
				l.refuse(r, at, errAway())
				return
			}
		}
		return
	}
	if r.linked {
		l.rows--
		r.queued = 0
		l.unlink(r)
	}
	l.settle(r, store.ChangeResult{}, errAway())
}

func (l *lane) settle(r *laneRun, res store.ChangeResult, err error) {
	if !r.answered {
		r.answered = true
		l.fx.settled = append(l.fx.settled, settled{r, res, err})
	}
}

func (l *lane) probe(ch chan<- struct{}) {
	if len(l.probes) < maxProbes {
		l.probes = append(l.probes, ch) // answered when no call is out, which may be now
	}
}

func (l *lane) stop() {
	l.draining = true
	for l.head != nil {
		l.expire(l.head)
		if l.head != nil && l.head.change == nil { // kept alive by repeats only
			for _, row := range l.head.rows {
				l.abandon(row)
			}
		}
	}
	if l.out != nil {
		if l.out.change != nil {
			l.settle(l.out.change, store.ChangeResult{}, errAway())
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
}

// abandon refuses everyone who waits for a row.
func (l *lane) abandon(row *laneRow) {
	for _, w := range row.waiters {
		l.refuse(w.run, w.at, errAway())
	}
}
