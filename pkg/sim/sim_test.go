package sim

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

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

// TestASeedIsOneSchedule runs schedules twice: everything happens again.
func TestASeedIsOneSchedule(t *testing.T) {
	for seed := range uint64(40) {
		first, errA := Run(Options{Seed: seed})
		second, errB := Run(Options{Seed: seed, Trace: io.Discard})
		if first != second || fmt.Sprint(errA) != fmt.Sprint(errB) {
			t.Fatalf("seed %d: %+v, %v and then %+v, %v", seed, first, errA, second, errB)
		}
	}
}

// found are schedules that failed once. A change of the plans or of the dice
// makes other schedules of them; then they are as good as any.
var found = map[uint64]string{
	3913: "a lost head of a group that the user had come to and left meanwhile was expected to be found by the digest",
	1540: "what was stored in a log that is void stayed pending",
	4867: "what lay between a raised start and the newest page could not be loaded",
	6500: "an own message above a gap stayed pending when its log was void",
}

// TestSimFoundBefore runs them again.
func TestSimFoundBefore(t *testing.T) {
	for seed, what := range found {
		if _, err := Run(Options{Seed: seed}); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// Events of the same time happen in the order in which they were made.
func TestClockKeepsOrder(t *testing.T) {
	var c clock
	var got []int
	for i, d := range []time.Duration{3, 1, 2, 1, 0, 3} {
		c.after(d, func() { got = append(got, i) })
	}
	for c.next(2) {
	}
	if s := fmt.Sprint(got); s != "[4 1 3 2]" || c.now != 2 {
		t.Errorf("happened %s up to %d", s, c.now)
	}
}
