package state

import (
	"time"

	"github.com/imdhq/imd/pkg/store"
)

// issue begins the next call: the rest of a batch that was split, or a new one.
func (l *lane) issue(now time.Time) {
	for len(l.parts) > 0 {
		last := len(l.parts) - 1
		part := wanted(l.parts[last])
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

// wanted are the rows of a part that are not done.
func wanted(rows []*laneRow) []*laneRow {
	var keep []*laneRow
	for _, row := range rows {
		if row.state == rowSplit {
			row.state = rowOut
			keep = append(keep, row)
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

// share is what one conversation has of a batch.
type share struct{ rows, bytes int }

func (s share) atHalf() bool {
	return s.rows >= store.MaxAppendRows/2 || s.bytes >= maxBatchBytes/2
}

// batch is a batch while it is being made.
type batch struct {
	rows  []*laneRow
	bytes int
}

func (b *batch) fits(row *laneRow) bool {
	return len(b.rows) < store.MaxAppendRows && (len(b.rows) == 0 || b.bytes+row.size <= maxBatchBytes)
}

// makeBatch takes rows off the queue in the order of their arrival, which per
// conversation is never broken; nil if there is nothing to take. The first
// round gives each conversation at most half of the batch; what then is free
// goes to those that have more. A change is a batch of its own.
func (l *lane) makeBatch(now time.Time) *work {
	b := &batch{}
	clear(l.shares)
	for _, fair := range []bool{true, false} {
		clear(l.blocked)
		for r := l.head; r != nil; r = l.walk {
			l.walk = r.next
			if l.blocked[r.conv] {
				continue
			}
			if r.change != nil {
				if w := l.takeChange(now, r, b); w != nil {
					return w
				}
				continue
			}
			if full := l.takeRun(now, r, b, fair); full {
				return &work{rows: b.rows}
			}
		}
	}
	if len(b.rows) == 0 {
		return nil
	}
	return &work{rows: b.rows}
}

// takeChange takes a change if the batch is empty; else what the conversation
// has behind it waits too.
func (l *lane) takeChange(now time.Time, r *laneRun, b *batch) *work {
	if len(b.rows) > 0 {
		l.blocked[r.conv] = true
		return nil
	}
	l.rows--
	r.queued = 0
	l.unlink(r)
	if now.Sub(r.arrived) > maxQueueAge {
		l.settle(r, store.ChangeResult{}, l.errBusy())
		return nil
	}
	return &work{change: r}
}

// takeRun takes a prefix of a run. full: nothing more fits into the batch.
func (l *lane) takeRun(now time.Time, r *laneRun, b *batch, fair bool) (full bool) {
	if r.joined > 0 { // what it repeats is in this very batch
		l.blocked[r.conv] = true
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
		if s := l.shares[r.conv]; fair && s.atHalf() {
			l.blocked[r.conv] = true
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

func (l *lane) take(row *laneRow, b *batch) {
	row.state = rowOut
	l.unqueue(row)
	b.rows = append(b.rows, row)
	b.bytes += row.size
	s := l.shares[row.row.Conversation]
	l.shares[row.row.Conversation] = share{s.rows + 1, s.bytes + row.size}
}

// tooOld refuses a row and what follows it in the runs that wait for it.
func (l *lane) tooOld(row *laneRow) {
	for _, w := range row.waiters {
		l.refuse(w.run, w.at, l.errBusy())
	}
}
