package transfer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/imdhq/imd/pkg/store"
)

// ErrDiffers says that the target holds something else than was written to it.
// It stays closed to servers.
var ErrDiffers = errors.New("the copy differs from the source")

// Bounds of one step.
const (
	batchRows = 10_000
	// stepTime bounds one call of a store. A batch takes well under a second.
	stepTime = time.Minute
)

// Step is how far a copy is.
type Step struct {
	Table    store.Table
	Checking bool  // it is being read back
	Rows     int64 // of this table, so far
}

// Options change how Copy works.
type Options struct {
	Step func(Step) // is told after each batch; nil = nobody
}

// Report says what was copied.
type Report struct {
	DataEpoch string // of the target now
	Retired   string // the new data_epoch of the source
	Resumed   bool   // an earlier run had begun it
	Tables    []TableReport
}

// TableReport is one table of a Report.
type TableReport struct {
	Table store.Table
	Rows  int64
	Sum   string // both in the source and in the target
}

// Copy copies all of from into to and checks it. It may be run again after any
// end, also a kill: it goes on where it was, and does nothing twice.
//
// Errors: store.ErrOccupied, store.ErrChanged, ErrDiffers, and what the stores
// say.
func Copy(ctx context.Context, from store.Source, to store.Target, o Options) (*Report, error) {
	if o.Step == nil {
		o.Step = func(Step) {}
	}
	origin := from.Origin()
	have, err := to.Begin(ctx, origin)
	if err != nil {
		return nil, err
	}
	r := &Report{DataEpoch: origin.DataEpoch, Resumed: len(have.Tables) > 0}
	if have.Moved {
		r.DataEpoch, r.Retired = origin.MovedEpoch, origin.DataEpoch
	}
	for _, t := range store.Tables() {
		p := have.Tables[t]
		if !p.End {
			if p, err = copyTable(ctx, from, to, t, p, o); err != nil {
				return nil, fmt.Errorf("copy %s: %w", t, err)
			}
		}
		r.Tables = append(r.Tables, TableReport{t, p.Rows, p.Sum})
	}
	if !have.Finished {
		for _, t := range r.Tables {
			if err := check(ctx, to, t, o); err != nil {
				return nil, fmt.Errorf("check %s: %w", t.Table, err)
			}
		}
		if err := to.Finish(ctx); err != nil {
			return nil, fmt.Errorf("finish: %w", err)
		}
	}
	if have.Moved {
		return r, nil
	}
	if r.Retired, err = from.Retire(ctx); err != nil {
		return nil, fmt.Errorf("give the source a new data_epoch: %w", err)
	}
	return r, nil
}

// copyTable copies what is left of a table. While one batch is stored the next
// one is read.
func copyTable(ctx context.Context, from store.Source, to store.Target, t store.Table, p store.Progress, o Options) (store.Progress, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	total, err := parseSum(p.Sum)
	if err != nil {
		return p, err
	}
	next := read(ctx, from, t, p.After)
	defer func() { // the source must be quiet when this returns
		cancel()
		for range next {
		}
	}()
	for got := range next {
		if got.err != nil {
			return p, got.err
		}
		total.add(got.batch)
		p = store.Progress{After: got.batch.After, End: got.batch.End, Rows: p.Rows + int64(got.batch.Len()), Sum: total.String()}
		step, stop := context.WithTimeout(ctx, stepTime)
		err := to.Import(step, t, got.batch, p)
		stop()
		if err != nil {
			return p, err
		}
		o.Step(Step{Table: t, Rows: p.Rows})
	}
	if !p.End {
		return p, ctx.Err()
	}
	return p, nil
}

// piece is a batch or why there is none.
type piece struct {
	batch *store.Batch
	err   error
}

// read exports a table from a place on, batch by batch, ahead of who takes them.
// The channel is closed after the last batch, an error, or the end of ctx.
func read(ctx context.Context, from store.Exporter, t store.Table, after string) <-chan piece {
	out := make(chan piece, 1) // one ahead
	go func() {
		defer close(out)
		for {
			step, stop := context.WithTimeout(ctx, stepTime)
			b, err := from.Export(step, t, after, batchRows)
			stop()
			select {
			case out <- piece{b, err}:
			case <-ctx.Done():
				return
			}
			if err != nil || b.End {
				return
			}
			after = b.After
		}
	}()
	return out
}

// check reads a table of the target and compares it with what was written.
func check(ctx context.Context, to store.Target, want TableReport, o Options) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var have sum
	var rows int64
	next := read(ctx, to, want.Table, "")
	defer func() {
		cancel()
		for range next {
		}
	}()
	ended := false
	for got := range next {
		if got.err != nil {
			return got.err
		}
		have.add(got.batch)
		rows += int64(got.batch.Len())
		ended = got.batch.End
		o.Step(Step{Table: want.Table, Checking: true, Rows: rows})
	}
	switch {
	case !ended:
		return ctx.Err()
	case rows != want.Rows:
		return fmt.Errorf("%w: it has %d rows, %d were written", ErrDiffers, rows, want.Rows)
	case have.String() != want.Sum:
		return fmt.Errorf("%w: its %d rows have another sum", ErrDiffers, rows)
	}
	return nil
}
