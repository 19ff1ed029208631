package lane

import (
	"time"

	"github.com/imdhq/imd/pkg/store"
)

// issue begins the next call: the rest of a batch that was split, or a new one.
func (l *Lane) issue(now time.Time) {
	for len(l.parts) > 0 {
		last := len(l.parts) - 1
		part := wanted(l.parts[last])
		l.parts = l.parts[:last]
		if len(part) > 0 {
			l.begin(&Work{rows: part})
			return
		}
	}
	if w := l.takeDoubt(now); w != nil {
		l.begin(w)
		return
	}
	l.failures = 0
	l.fx.Probed = append(l.fx.Probed, l.probes...)
	l.probes = l.probes[:0]
	if l.head == nil {
		return
	}
	if w := l.makeBatch(now); w != nil {
		l.begin(w)
	}
}

// wanted are the rows of a part that are not done.
func wanted(rows []*pendingRow) []*pendingRow {
	var keep []*pendingRow
	for _, row := range rows {
		if row.state == rowSplit {
			row.state = rowOut
			keep = append(keep, row)
		}
	}
	return keep
}

func (l *Lane) begin(w *Work) {
	l.prepare(w)
	l.out, l.fx.Work = w, w
}

// prepare sets what the store gets.
func (l *Lane) prepare(w *Work) {
	w.Append = make([]store.AppendRow, len(w.rows))
	for i, row := range w.rows {
		w.Append[i] = row.Row
		w.Append[i].NoWait = l.held[row.Row.Conversation] != nil
	}
}

// share is what one conversation has of a batch.
type share struct{ rows, bytes int }

// full reports whether a batch takes no more of the conversation; fair = others
// have not been looked at yet.
func (s share) full(fair bool) bool {
	return s.rows >= maxShare || fair && s.bytes >= maxBatchBytes/2
}

// batch is a batch while it is being made.
type batch struct {
	rows  []*pendingRow
	bytes int
}

func (b *batch) fits(row *pendingRow) bool {
	return len(b.rows) < store.MaxAppendRows && (len(b.rows) == 0 || b.bytes+row.Size <= maxBatchBytes)
}

// makeBatch takes rows off the queue in the order of their arrival, which per
// conversation is never broken; nil if there is nothing to take. The first
// round gives each conversation at most half of the bytes of a batch; what then
// is free goes to those that have more. A change is a batch of its own.
func (l *Lane) makeBatch(now time.Time) *Work {
	b := &batch{}
	clear(l.shares)
	for _, fair := range []bool{true, false} {
		clear(l.blocked)
		l.blockResting(now)
		for r := l.head; r != nil; r = l.walk {
			l.walk = r.next
			if l.blocked[r.Conv] {
				continue
			}
			if r.Change != nil {
				if w := l.takeChange(now, r, b); w != nil {
					return w
				}
				continue
			}
			if full := l.takeRun(now, r, b, fair); full {
				return &Work{rows: b.rows}
			}
		}
	}
	if len(b.rows) == 0 {
		return nil
	}
	return &Work{rows: b.rows}
}

// takeChange takes a change if the batch is empty; else what the conversation
// has behind it waits too.
func (l *Lane) takeChange(now time.Time, r *Run, b *batch) *Work {
	if len(b.rows) > 0 {
		l.blocked[r.Conv] = true
		return nil
	}
	l.rows--
	r.queued = 0
	l.unlink(r)
	if now.Sub(r.arrived) > maxQueueAge {
		l.settle(r, store.ChangeResult{}, l.errBusy())
		return nil
	}
	return &Work{Change: r}
}

// takeRun takes a prefix of a run. full: nothing more fits into the batch.
func (l *Lane) takeRun(now time.Time, r *Run, b *batch, fair bool) (full bool) {
	if r.joined > 0 { // what it repeats is in this very batch
		l.blocked[r.Conv] = true
		return false
	}
	rows, taken := r.rows, 0
	for _, row := range rows {
		taken++
		if row.state != rowQueued {
			continue
		}
		if now.Sub(row.arrived) > maxQueueAge {
			l.tooOld(row)
			continue
		}
		if s := l.shares[r.Conv]; s.full(fair) {
			l.blocked[r.Conv] = true
			taken--
			break
		}
		if !b.fits(row) {
			taken--
			full = true
			break
		}
		l.take(row, b)
	}
	if r.linked {
		r.rows = rows[taken:]
	}
	return full
}

func (l *Lane) take(row *pendingRow, b *batch) {
	row.state = rowOut
	l.unqueue(row)
	b.rows = append(b.rows, row)
	b.bytes += row.Size
	s := l.shares[row.Row.Conversation]
	l.shares[row.Row.Conversation] = share{s.rows + 1, s.bytes + row.Size}
}

// tooOld refuses a row and what follows it in the runs that wait for it.
func (l *Lane) tooOld(row *pendingRow) {
	for _, w := range row.waiters {
		l.refuse(w.run, w.at, l.errBusy())
	}
}
