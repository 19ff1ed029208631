package lane

import (
	"iter"
	"time"

	"github.com/imdhq/imd/pkg/store"
)

// Event is what happens to a lane: Submit, Expire, Result, Tick, Probe, Drain or
// Stop.
type Event interface{ event() }

// Events.
type (
	// Submit brings a run or a change.
	Submit struct{ Run *Run }
	// Expire ends the wait of a run: what is unanswered is retryable.
	Expire struct{ Run *Run }
	// Result is the outcome of the call that was out: the results of its rows,
	// or of its change, or why there are none.
	Result struct {
		Results []store.AppendResult
		Change  store.ChangeResult
		Err     error
		Took    time.Duration
	}
	// Tick says that the time of Effects.Wake has passed.
	Tick struct{}
	// Probe asks for a sign of life: Ch is given back in Effects.Probed when no
	// call is out. It is not answered if too many wait already.
	Probe struct{ Ch chan<- struct{} }
	// Drain refuses everything that comes from now on.
	Drain struct{}
	// Stop also answers all who wait, and forgets the queue.
	Stop struct{}
)

func (Submit) event() {}
func (Expire) event() {}
func (Result) event() {}
func (Tick) event()   {}
func (Probe) event()  {}
func (Drain) event()  {}
func (Stop) event()   {}

// Effects are what the driver must do after a step, in this order.
type Effects struct {
	Answers   []Answer          // to be handed to the runs' Reply
	Settled   []Settled         // to be handed to the changes' Settled
	Committed []Committed       // to be told to whom it concerns
	Probed    []chan<- struct{} // to be closed
	Work      *Work             // the call to begin; nil = none
	Wake      time.Duration     // a Tick is wanted after it, in place of an earlier wish; 0 = none
}

// Answer is the verdict about one send of a run.
type Answer struct {
	Run *Run
	At  int
	Verdict
}

// Settled is the outcome of a change.
type Settled struct {
	Run    *Run
	Result store.ChangeResult
	Err    error
}

// Committed is what the store has now and may not have been told to others.
// Either Send and Result are set or Change.
type Committed struct {
	Send   *Send // read only
	Result store.AppendResult
	Change *store.ChangeResult
	Own    bool // stored by this lane, not found
	// Arrived is when the newest copy of the send came to the lane; zero for changes.
	Arrived time.Time
}

// Work is one call to the store: Append, or Change if that is set. Its outcome
// comes back as Result.
type Work struct {
	Append []store.AppendRow
	Change *Run
	Reruns int           // unknown outcomes so far
	After  time.Duration // to wait before

	rows []*pendingRow
}

// Arrived yields when each row of the call came to the lane.
func (w *Work) Arrived() iter.Seq[time.Time] {
	return func(yield func(time.Time) bool) {
		for _, row := range w.rows {
			if !yield(row.arrived) {
				return
			}
		}
	}
}
