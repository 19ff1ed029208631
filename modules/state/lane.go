package state

import (
	"errors"
	"slices"
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
// A row is queued, then issued, then done. Transitions:
//
//	queued -> issued  a batch is made: FIFO per conversation, at most half a
//	                  batch for one of them while others wait
//	queued -> done    nobody waits for it any more (refused, too old, expired)
//	issued -> done    the outcome of its call is known
//
// Invariants: one call to the store is out at a time. A row whose call had an
// unknown outcome runs again, unchanged and in its place, until the outcome is
// known; that a later try failed does not tell it. Each send of each run is answered exactly once, ACK_OK only after the
// commit. After a retryable answer every later send of that run is answered
// retryable. A row that is queued or issued has one entry in pending, where
// repeats find it and wait with it.
type lane struct {
	head, tail *laneRun // runs with queued rows, oldest first
	rows       int      // queued
	bytes      int      // queued
	pending    map[rowKey]*laneRow

	out      *work        // the call that is out; nil = idle
	parts    [][]*laneRow // of the batch that is being split; the next is last
	failures int          // failed calls of the search that goes on
	probes   []chan<- struct{}
	runs     int // number of the last run
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
	rowIssued
	rowDone
)

// laneRow is one send on its way to the store, for everyone who waits for it.
type laneRow struct {
	row     store.AppendRow
	session im.SessionID // gets no deliver
	size    int
	arrived time.Time // of the newest waiter
	state   rowState
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
// them, and returns how many. Only a prefix: what follows must come after.
func (l *lane) join(now time.Time, r *laneRun) int {
	for at := range r.sends {
		s := &r.sends[at]
		row := l.pending[keyOf(&s.row)]
		if row == nil || row.row.BodyHash != s.row.BodyHash {
			return at
		}
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
	row := &laneRow{row: s.row, session: s.session, size: s.size, arrived: now, home: r, waiters: []waiter{{r, at}}, open: 1}
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
	if row.open == 0 && row.state == rowQueued {
		l.unqueue(row)
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

// result takes the outcome of the call that was out.
func (l *lane) result(ev evResult) {
	w := l.out
	l.out = nil
	switch {
	case unknown(ev.err), w.change == nil && ev.err == nil && len(ev.results) != len(w.rows),
		w.reruns > 0 && !final(ev.err):
		l.rerun(w)
	case w.change != nil:
		l.changed(w.change, ev)
	case ev.err == nil:
		l.measure(len(w.rows), ev.took)
		l.answered(w, ev.results)
	default:
		l.failed(w, ev.err)
	}
}

// unknown reports whether a call may have stored something all the same.
func unknown(err error) bool {
	return err != nil && (errors.Is(err, store.ErrUnknownOutcome) || im.ReasonOf(err) == clientv1.Reason_REASON_UNAVAILABLE && !typed(err))
}

// final reports whether err (or nil) is the last word about a call: another try
// would end in the same way.
func final(err error) bool { return err == nil || typed(err) && !im.Retryable(err) }

// typed reports whether err carries a reason of its own.
func typed(err error) bool {
	var e *im.Error
	return errors.As(err, &e)
}

// rerun lets the same call run again in its place.
func (l *lane) rerun(w *work) {
	w.after = firstRerun << min(w.reruns, 10)
	w.after = min(w.after, maxRerun)
	w.reruns++
	l.out, l.fx.work = w, w
}

func (l *lane) measure(rows int, took time.Duration) {
	if took <= 0 {
		return
	}
	rate := float64(rows) / took.Seconds()
	if l.rate == 0 {
		l.rate = rate
		return
	}
	l.rate += (rate - l.rate) / 5
}

// answered takes the results of a call that succeeded. A row that may be stored
// and was not looked at, as its conversation was locked, runs again.
func (l *lane) answered(w *work, results []store.AppendResult) {
	var again []*laneRow
	for i, row := range w.rows {
		if w.reruns > 0 && results[i].Err != nil && im.Retryable(results[i].Err) {
			again = append(again, row)
			continue
		}
		l.stored(row, results[i])
	}
	if len(again) > 0 {
		next := &work{rows: again, reruns: w.reruns}
		next.prepare()
		l.rerun(next)
	}
}

// stored takes the result of one row of a call that succeeded.
func (l *lane) stored(row *laneRow, res store.AppendResult) {
	switch {
	case res.Err != nil && im.Retryable(res.Err):
		for _, w := range row.waiters {
			l.refuse(w.run, w.at, res.Err)
		}
	case res.Err != nil:
		l.failRow(row, res.Err)
	default:
		own := !res.Duplicate || res.MessageID == row.row.MessageID // an earlier try of ours may have stored it
		for i, w := range row.waiters {
			l.answerOne(w, verdict{res: res, duplicate: !own || i > 0})
		}
		l.fx.committed = append(l.fx.committed, committed{row: row, res: res, own: own})
	}
	l.finish(row)
}

func (l *lane) failRow(row *laneRow, err *im.Error) {
	for _, w := range row.waiters {
		l.answerOne(w, verdict{err: err})
	}
}

// changed takes the outcome of a change.
func (l *lane) changed(r *laneRun, ev evResult) {
	if ev.err != nil {
		l.settle(r, store.ChangeResult{}, ev.err)
		return
	}
	own := !ev.change.Duplicate || ev.change.Entry.MessageID == r.change.MessageID
	if own {
		ev.change.Duplicate = false
	}
	l.settle(r, ev.change, nil)
	l.fx.committed = append(l.fx.committed, committed{change: &ev.change, own: own})
}

// failed takes a call that stored nothing, now or, if this is its final word,
// in an earlier try. A store that is away refuses its
// rows; any other failure may be the fault of one row, which halving finds.
func (l *lane) failed(w *work, err error) {
	l.failures++
	var e *im.Error
	if known := errors.As(err, &e); known && im.Retryable(e) || l.failures > searchFailures {
		rows := slices.Concat(append(l.parts, w.rows)...)
		l.parts = nil
		l.away(rows)
		return
	}
	if n := len(w.rows); n > 1 {
		l.parts = append(l.parts, w.rows[n/2:], w.rows[:n/2])
		return
	}
	row := w.rows[0]
	if e != nil {
		l.failRow(row, e)
	} else {
		l.abandon(row)
	}
	l.finish(row)
}

// away refuses rows because the store is out of reach, and what their runs
// still have in the queue behind them.
func (l *lane) away(rows []*laneRow) {
	for _, row := range rows {
		for _, w := range row.waiters {
			l.answerOne(w, verdict{err: errAway()})
		}
		l.finish(row)
	}
	for _, row := range rows {
		for _, w := range row.waiters {
			l.refuse(w.run, w.at, errBehind())
		}
	}
}

// issue begins the next call: the rest of a batch that was split, or a new one.
func (l *lane) issue(now time.Time) {
	for len(l.parts) > 0 {
		last := len(l.parts) - 1
		part := l.wanted(l.parts[last])
		l.parts = l.parts[:last]
		if len(part) > 0 {
			l.begin(&work{rows: part})
			return
		}
	}
	l.failures = 0
	l.fx.probed = append(l.fx.probed, l.probes...)
	l.probes = l.probes[:0]
	if l.head == nil {
		return
	}
	if w := l.makeBatch(now); w != nil {
		l.begin(w)
	}
}

// wanted drops rows of a split batch that nobody waits for any more and that
// are not stored.
func (l *lane) wanted(rows []*laneRow) []*laneRow {
	var keep []*laneRow
	for _, row := range rows {
		if row.open > 0 {
			keep = append(keep, row)
		} else {
			l.finish(row)
		}
	}
	return keep
}

func (l *lane) begin(w *work) {
	w.prepare()
	l.out, l.fx.work = w, w
}

// prepare sets what the store gets.
func (w *work) prepare() {
	w.append = make([]store.AppendRow, len(w.rows))
	for i, row := range w.rows {
		w.append[i] = row.row
	}
}
