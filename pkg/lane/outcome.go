package lane

import (
	"errors"
	"slices"
	"time"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// result takes the outcome of the call that was out.
func (l *Lane) result(now time.Time, ev Result) {
	w := l.out
	l.out = nil
	if busy := busyIn(w, ev.Err); busy != nil {
		if rest := l.aside(now, w, busy); len(rest) > 0 {
			l.begin(&Work{rows: rest, Reruns: w.Reruns})
		}
		return
	}
	switch {
	case Unknown(ev.Err), w.Change == nil && ev.Err == nil && len(ev.Results) != len(w.rows),
		w.Reruns > 0 && !final(ev.Err):
		l.rerun(w)
	case w.Change != nil:
		l.changed(w.Change, ev)
		l.freed(w.Change.Conv)
	case ev.Err == nil:
		l.aways = 0
		l.measure(len(w.rows), ev.Took)
		l.rest(now, w.rows, ev.Took)
		l.answered(now, w, ev.Results)
	default:
		l.failed(w, ev.Err)
	}
}

// Unknown reports whether a call may have stored something all the same.
func Unknown(err error) bool {
	return err != nil && (errors.Is(err, store.ErrUnknownOutcome) || im.ReasonOf(err) == clientv1.Reason_REASON_UNAVAILABLE && !typed(err))
}

// final reports whether err (or nil) is the last word about a call: another try
// would end in the same way.
func final(err error) bool {
	return err == nil || typed(err) && !im.Retryable(err) || errors.Is(err, store.ErrNotOwner)
}

// typed reports whether err carries a reason of its own.
func typed(err error) bool {
	var e *im.Error
	return errors.As(err, &e)
}

// rerun lets the same call run again in its place.
func (l *Lane) rerun(w *Work) {
	w.After = FirstRerun << min(w.Reruns, 10)
	w.After = min(w.After, MaxRerun)
	w.Reruns++
	l.out, l.fx.Work = w, w
}

func (l *Lane) measure(rows int, took time.Duration) {
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

// answered takes the results of a call that succeeded. Conversations that it
// found held by somebody else go aside. A row that may be stored and was not
// looked at for another reason runs again.
func (l *Lane) answered(now time.Time, w *Work, results []store.AppendResult) {
	if busy := busyRows(w, results); busy != nil {
		w, results = l.lookedAt(now, w, results, busy)
	}
	var again []*pendingRow
	for i, row := range w.rows {
		if e := results[i].Err; w.Reruns > 0 && e != nil && im.Retryable(e) && !errors.Is(e, store.ErrNotOwner) {
			again = append(again, row)
			continue
		}
		l.stored(row, results[i])
	}
	if len(again) > 0 {
		next := &Work{rows: again, Reruns: w.Reruns}
		l.prepare(next)
		l.rerun(next)
	}
}

// lookedAt puts the busy conversations of a call aside and returns the rest of
// it with its results. What the call says of their other rows counts for nothing
// but "stored" and "never": those were looked at.
func (l *Lane) lookedAt(now time.Time, w *Work, results []store.AppendResult, busy map[im.ConversationID]bool) (*Work, []store.AppendResult) {
	rest, aside := &Work{Reruns: w.Reruns}, &Work{Reruns: w.Reruns}
	var kept []store.AppendResult
	for i, row := range w.rows {
		if e := results[i].Err; busy[row.Row.Conversation] && e != nil && im.Retryable(e) {
			aside.rows = append(aside.rows, row)
			continue
		}
		rest.rows = append(rest.rows, row)
		kept = append(kept, results[i])
	}
	l.aside(now, aside, busy)
	return rest, kept
}

// stored takes the result of one row of a call that succeeded.
func (l *Lane) stored(row *pendingRow, res store.AppendResult) {
	if res.Err == nil || !im.Retryable(res.Err) {
		l.freed(row.Row.Conversation)
	}
	switch {
	case res.Err != nil && im.Retryable(res.Err):
		l.refuseWaiters(row, res.Err)
	case res.Err != nil:
		l.failRow(row, res.Err)
	default:
		if w := row.waiters[0]; w.run.slots[w.at].done {
			row.Session = "" // it was told to try again, so it has to hear of the entry
		}
		own := !res.Duplicate || res.MessageID == row.Row.MessageID // an earlier try of ours may have stored it
		for i, w := range row.waiters {
			l.answerOne(w, Verdict{Result: res, Duplicate: !own || i > 0})
		}
		l.fx.Committed = append(l.fx.Committed, Committed{Send: &row.Send, Result: res, Own: own, Arrived: row.arrived})
	}
	l.finish(row)
}

// failRow gives a row its final answer. One that is about the session that sent it
// is not for those of other sessions who wait for the same row: they may send it
// again.
func (l *Lane) failRow(row *pendingRow, err *im.Error) {
	displaced := err.Reason == clientv1.Reason_REASON_SUPERSEDED || err.Reason == clientv1.Reason_REASON_REPLACED
	for _, w := range row.waiters {
		if displaced && !sameProof(w.run.Sends[w.at].Row.Proof, row.Row.Proof) {
			l.refuse(w.run, w.at, errAway())
			continue
		}
		l.answerOne(w, Verdict{Err: err})
	}
}

func sameProof(a, b *store.SessionProof) bool { return a == b || a != nil && b != nil && *a == *b }

// changed takes the outcome of a change.
func (l *Lane) changed(r *Run, ev Result) {
	if ev.Err != nil {
		l.settle(r, store.ChangeResult{}, ev.Err)
		return
	}
	own := !ev.Change.Duplicate || ev.Change.Entry.MessageID == r.Change.MessageID
	if own {
		ev.Change.Duplicate = false
	}
	l.settle(r, ev.Change, nil)
	l.fx.Committed = append(l.fx.Committed, Committed{Change: &ev.Change, Own: own})
}

// failed takes a call that stored nothing, now or, if this is its final word,
// in an earlier try. A store that is away refuses the batch; any other failure
// may be the fault of one row, which halving finds. As a driver cannot always
// tell the two apart, halving is also tried at the 2nd, 4th, 8th ... batch in a
// row that the store refused.
func (l *Lane) failed(w *Work, err error) {
	l.failures++
	var e *im.Error
	away := errors.As(err, &e) && im.Retryable(e)
	if away && l.failures == 1 {
		l.aways++
		away = l.aways == 1 || l.aways&(l.aways-1) != 0
	} else {
		away = l.failures > searchFailures
	}
	if away {
		rows := slices.Concat(append(l.parts, w.rows)...)
		l.parts = nil
		l.away(rows)
		return
	}
	if n := len(w.rows); n > 1 {
		for _, row := range w.rows {
			if row.state = rowSplit; row.open == 0 {
				l.finish(row)
			}
		}
		l.parts = append(l.parts, w.rows[n/2:], w.rows[:n/2])
		return
	}
	row := w.rows[0]
	if e != nil && !im.Retryable(e) {
		l.failRow(row, e)
	} else {
		l.abandon(row)
	}
	l.finish(row)
}

// away refuses rows because the store is out of reach, and what their runs
// still have in the queue behind them.
func (l *Lane) away(rows []*pendingRow) {
	for _, row := range rows {
		for _, w := range row.waiters {
			l.answerOne(w, Verdict{Err: errAway()})
		}
		l.finish(row)
	}
	for _, row := range rows {
		for _, w := range row.waiters {
			l.refuse(w.run, w.at, errBehind(errAway()))
		}
	}
}
