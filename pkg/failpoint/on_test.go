//go:build drill

package failpoint

import (
	"errors"
	"testing"
	"time"
)

// set puts rules in force for a test.
func set(t *testing.T, text string) {
	t.Helper()
	watch()
	r, err := Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	old := rules.Swap(&r)
	t.Cleanup(func() { rules.Store(old) })
}

func TestActions(t *testing.T) {
	set(t, "state.before_append sleep 30ms\nstate.after_append error\nstore.before_commit panic\nclock shift -1h\n")
	began := time.Now()
	Hit(BeforeAppend)
	if took := time.Since(began); took < 30*time.Millisecond {
		t.Errorf("slept %v", took)
	}
	if err := Error(AfterAppend); !errors.Is(err, errInjected) {
		t.Errorf("failed with %v", err)
	}
	if err := Error(BeforeWrite); err != nil {
		t.Errorf("another point fails with %v", err)
	}
	if shift := time.Until(Now()); shift > -59*time.Minute {
		t.Errorf("the clock is moved by %v", shift)
	}
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	Hit(BeforeCommit)
}

func TestChance(t *testing.T) {
	set(t, "state.before_append error 0.5\n")
	failed := 0
	for range 1000 {
		if Error(BeforeAppend) != nil {
			failed++
		}
	}
	if failed < 400 || failed > 600 {
		t.Errorf("%d of 1000 with a chance of 0.5", failed)
	}
}
