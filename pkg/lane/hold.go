package lane

import (
	"errors"
	"time"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// firstHold and maxHold are how long a conversation stays out of the batches
// after somebody else was found to hold it, doubling.
const (
	firstHold = 100 * time.Millisecond
	maxHold   = 5 * time.Second
)

// hold keeps one conversation out of the batches, because somebody else holds
// it in the store. What comes for it meanwhile is refused with the time to wait.
// Afterwards its rows do not wait for the store's lock until one was taken.
type hold struct {
	wait  time.Duration
	until time.Time
	// doubt is the call that may have been carried out; nil = none. It runs again
	// before anything else of the conversation.
	doubt *Work
}

// busyIn is which conversations of a call an error names as held by somebody
// else; nil if the error is another.
func busyIn(w *Work, err error) map[im.ConversationID]bool {
	var e *store.BusyConversationError
	if !errors.As(err, &e) || errors.Is(err, store.ErrUnknownOutcome) {
		return nil
	}
	named := make(map[im.ConversationID]bool, len(e.Conversations))
	for _, conv := range e.Conversations {
		named[conv] = true
	}
	var busy map[im.ConversationID]bool
	note := func(conv im.ConversationID) {
		if named[conv] && busy == nil {
			busy = map[im.ConversationID]bool{}
		}
		if named[conv] {
			busy[conv] = true
		}
	}
	if w.Change != nil {
		note(w.Change.Conv)
	}
	for _, row := range w.rows {
		note(row.Row.Conversation)
	}
	return busy
}

// busyRows is which conversations the results of a call say are held.
func busyRows(w *Work, results []store.AppendResult) map[im.ConversationID]bool {
	var busy map[im.ConversationID]bool
	for i, row := range w.rows {
		if e := results[i].Err; e != nil && e.Reason == clientv1.Reason_REASON_BUSY {
			if busy == nil {
				busy = map[im.ConversationID]bool{}
			}
			busy[row.Row.Conversation] = true
		}
	}
	return busy
}

// aside takes the conversations that are busy out of a call that stored
// nothing of them, and returns the rows that are left.
func (l *Lane) aside(now time.Time, w *Work, busy map[im.ConversationID]bool) (rest []*pendingRow) {
	if w.Change != nil {
		h := l.hold(now, w.Change.Conv)
		if w.Reruns > 0 {
			h.doubt = w
		} else {
			l.settle(w.Change, store.ChangeResult{}, l.errHeld(now, h))
		}
		l.refuseConv(now, w.Change.Conv, h)
		return nil
	}
	doubts := map[im.ConversationID][]*pendingRow{}
	var refused []*pendingRow
	for _, row := range w.rows {
		switch conv := row.Row.Conversation; {
		case !busy[conv]:
			rest = append(rest, row)
		case w.Reruns > 0:
			doubts[conv] = append(doubts[conv], row)
		default:
			refused = append(refused, row)
		}
	}
	for conv := range busy {
		h := l.hold(now, conv)
		if rows := doubts[conv]; len(rows) > 0 {
			h.doubt = &Work{rows: rows, Reruns: w.Reruns}
		}
	}
	for _, row := range refused {
		l.refuseRow(row, l.errHeld(now, l.held[row.Row.Conversation]))
	}
	for conv := range busy {
		l.refuseConv(now, conv, l.held[conv])
	}
	return rest
}

// hold begins or prolongs the hold of a conversation, and forgets those that
// ended long ago without another try.
func (l *Lane) hold(now time.Time, conv im.ConversationID) *hold {
	for c, h := range l.held {
		if h.doubt == nil && now.Sub(h.until) > maxHold {
			delete(l.held, c)
		}
	}
	h := l.held[conv]
	if h == nil {
		h = &hold{wait: firstHold / 2}
		l.held[conv] = h
	}
	h.wait = min(2*h.wait, maxHold)
	h.until = now.Add(h.wait)
	return h
}

// holds is the hold that keeps a conversation out now; nil if none does.
func (l *Lane) holds(now time.Time, conv im.ConversationID) *hold {
	if h := l.held[conv]; h != nil && now.Before(h.until) {
		return h
	}
	return nil
}

func (l *Lane) errHeld(now time.Time, h *hold) *im.Error {
	return retry(clientv1.Reason_REASON_BUSY, "the conversation is locked in the message store", max(h.until.Sub(now), minHint))
}

// refuseConv refuses what waits of a conversation, in the queue and in the
// parts of a batch that was split.
func (l *Lane) refuseConv(now time.Time, conv im.ConversationID, h *hold) {
	err := l.errHeld(now, h)
	for _, part := range l.parts {
		for _, row := range part {
			if row.Row.Conversation == conv && row.state == rowSplit {
				l.refuseRow(row, err)
			}
		}
	}
	for r := l.head; r != nil; r = l.walk {
		l.walk = r.next
		switch {
		case r.Conv != conv:
		case r.Change != nil:
			l.dropChange(r, err)
		default:
			for _, row := range r.rows {
				if row.state == rowQueued {
					l.refuseWaiters(row, err)
				}
			}
		}
	}
	l.walk = nil
}

// refuseWaiters refuses everyone who waits for a row, and what they sent behind.
func (l *Lane) refuseWaiters(row *pendingRow, err *im.Error) {
	for _, w := range row.waiters {
		l.refuse(w.run, w.at, err)
	}
}

// refuseRow is refuseWaiters for a row that has left the queue.
func (l *Lane) refuseRow(row *pendingRow, err *im.Error) {
	l.refuseWaiters(row, err)
	if row.state != rowDone {
		l.finish(row)
	}
}

// freed ends the hold of a conversation whose lock was had.
func (l *Lane) freed(conv im.ConversationID) {
	if h := l.held[conv]; h != nil && h.doubt == nil {
		delete(l.held, conv)
	}
}

// takeDoubt is the next call whose outcome is unknown and whose hold has ended;
// nil if there is none.
func (l *Lane) takeDoubt(now time.Time) *Work {
	var first *hold
	for _, h := range l.held {
		if h.doubt != nil && !now.Before(h.until) && (first == nil || h.until.Before(first.until)) {
			first = h
		}
	}
	if first == nil {
		return nil
	}
	w := first.doubt
	first.doubt = nil
	w.After = 0
	return w
}

// wake is when the lane has something to do though nothing happens; 0 = never.
func (l *Lane) wake(now time.Time) (after time.Duration) {
	if l.out != nil {
		return 0
	}
	after = l.nextRest(now)
	for _, h := range l.held {
		if h.doubt == nil {
			continue
		}
		if d := max(h.until.Sub(now), time.Millisecond); after == 0 || d < after {
			after = d
		}
	}
	return after
}

// doubtful is how many rows wait for their conversations to find out whether
// they are stored. They count against the bound of the queue.
func (l *Lane) doubtful() (rows int) {
	for _, h := range l.held {
		if h.doubt != nil {
			rows += len(h.doubt.rows)
		}
	}
	return rows
}

// doubts reports whether a call of unknown outcome waits for its conversation.
func (l *Lane) doubts() bool {
	for _, h := range l.held {
		if h.doubt != nil {
			return true
		}
	}
	return false
}
