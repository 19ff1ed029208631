package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/imdhq/imd/pkg/history"
)

// Overhead is what recording costs: pairs of runs, one without and one with
// it, by turns, so that a machine that grows slower or faster hits both alike.
type Overhead struct {
	Scenario string         `json:"scenario"`
	Pairs    []OverheadPair `json:"pairs"`
	Median   float64        `json:"median"` // of the pairs' ratios; 1.05 = recording takes 5 % more
}

// OverheadPair is processor time of client and server for each operation, in
// microseconds.
type OverheadPair struct {
	Plain    float64 `json:"plain_us_each"`
	Recorded float64 `json:"recorded_us_each"`
	Ratio    float64 `json:"ratio"`
}

// MeasureOverhead runs n pairs. Of each pair the run that goes first changes.
// folder gives a new folder for a history and is told when it may be removed.
// If a run ends early, what was measured comes with the error.
func MeasureOverhead(ctx context.Context, o Options, n int, folder func() (dir string, remove func(), err error)) (Overhead, error) {
	all := Overhead{Scenario: o.Scenario}
	if len(o.Processes) == 0 {
		return all, errors.New("the server's processor time is not known")
	}
	prefix := o.Prefix
	for i := range n {
		var p OverheadPair
		for _, recorded := range []bool{i%2 == 1, i%2 == 0} {
			o.Prefix = fmt.Sprintf("%s%d%t-", prefix, i, recorded)
			each, err := oneRun(ctx, o, recorded, folder)
			if err != nil {
				return all, err
			}
			if recorded {
				p.Recorded = each
			} else {
				p.Plain = each
			}
		}
		p.Ratio = p.Recorded / p.Plain
		all.Pairs = append(all.Pairs, p)
		all.Median = median(all.Pairs)
	}
	return all, nil
}

// oneRun gives the processor time of client and server for each operation.
func oneRun(ctx context.Context, o Options, recorded bool, folder func() (string, func(), error)) (float64, error) {
	if recorded {
		dir, remove, err := folder()
		if err != nil {
			return 0, err
		}
		defer remove()
		if o.Record, err = history.NewRecorder(dir); err != nil {
			return 0, err
		}
		defer func() { _ = o.Record.Close(history.Run{Seed: o.Seed}) }() // it is thrown away
	}
	r, err := Run(ctx, o)
	if err != nil {
		return 0, err
	}
	if r.Operations == 0 || r.PerOp == 0 {
		return 0, errors.New("a run measured nothing")
	}
	return r.ClientEach + r.PerOp, nil
}

func median(pairs []OverheadPair) float64 {
	ratios := make([]float64, len(pairs))
	for i, p := range pairs {
		ratios[i] = p.Ratio
	}
	slices.Sort(ratios)
	mid := len(ratios) / 2
	if len(ratios)%2 == 0 {
		return (ratios[mid-1] + ratios[mid]) / 2
	}
	return ratios[mid]
}
