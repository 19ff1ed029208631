package lane

import "time"

// A conversation that is written to as fast as it goes would keep the lane, the
// store and those who deliver at work without a pause, and whoever writes
// elsewhere would wait behind it at each of them. So it has a share of the time:
// a batch takes few of its rows, and when it took as many as make it hot, the
// conversation rests for as long as a few such batches take.
const (
	// maxShare is how many rows of one conversation a batch takes.
	maxShare = 50
	// hotRows is how many rows of one conversation in a batch make it hot.
	hotRows = 20
	// restTimes is how many times as long as its batch took a hot conversation
	// rests, and maxRest the longest rest.
	restTimes = 2
	maxRest   = 20 * time.Millisecond
)

// rest lets the conversations rest that were hot in a batch.
func (l *Lane) rest(now time.Time, rows []*pendingRow, took time.Duration) {
	if len(rows) < hotRows {
		return
	}
	clear(l.shares)
	for _, row := range rows {
		conv := row.Row.Conversation
		l.shares[conv] = share{rows: l.shares[conv].rows + 1}
	}
	for conv, s := range l.shares {
		if s.rows >= hotRows {
			l.rests[conv] = now.Add(min(restTimes*took, maxRest))
		}
	}
}

// blockResting keeps the conversations that rest out of the batch that is made,
// and forgets the rests that are over.
func (l *Lane) blockResting(now time.Time) {
	for conv, until := range l.rests {
		if now.Before(until) {
			l.blocked[conv] = true
		} else {
			delete(l.rests, conv)
		}
	}
}

// nextRest is how long until the first rest is over; 0 = nobody rests, or
// nothing waits.
func (l *Lane) nextRest(now time.Time) (after time.Duration) {
	if l.head == nil {
		return 0
	}
	for _, until := range l.rests {
		if d := max(until.Sub(now), 1); after == 0 || d < after {
			after = d
		}
	}
	return after
}
