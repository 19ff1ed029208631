package sim

import (
	"context"
	"flag"
	"os"
	"testing"
	"time"
)

var (
	seed      = flag.Uint64("seed", 0, "run this schedule alone and write down what happens; 0 = run many")
	schedules = flag.Int("schedules", 0, "how many schedules to run; 0 = as many as -for allows")
	duration  = flag.Duration("for", 10*time.Second, "how long to run schedules")
	first     = flag.Uint64("first", 1, "the first seed of many")
)

// TestSim runs schedules by seed. It prints the seed that fails.
func TestSim(t *testing.T) {
	if *seed != 0 {
		if _, err := Run(Options{Seed: *seed, Trace: os.Stdout}); err != nil {
			t.Fatal(err)
		}
		return
	}
	ctx := t.Context()
	if *schedules == 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, *duration)
		defer cancel()
	}
	began := time.Now()
	all := Sweep(ctx, *first, *schedules, Sound)
	took := time.Since(began)
	t.Logf("%d schedules in %v, %.0f a minute: %d events, %d messages, %d commits, %d faults",
		all.Schedules, took.Round(time.Millisecond), float64(all.Schedules)/took.Minutes(), all.Events, all.Sends, all.Commits, all.Faults)
	if f := all.Failure; f != nil {
		t.Fatalf("%v\nagain, line by line: go test ./pkg/sim -run 'TestSim$' -v -seed %d", f, f.Seed)
	}
}
