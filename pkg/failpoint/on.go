//go:build drill

package failpoint

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Built reports whether this build has fail points.
const Built = true

// errInjected is what a rule makes operations fail with.
var errInjected = errors.New("failure injected by a drill")

// look is how often the file is looked at.
const look = 50 * time.Millisecond

var (
	rules atomic.Pointer[Rules]
	watch = sync.OnceFunc(begin)
	bad   = Defect(os.Getenv(BadVar))

	text    string                // of the file; of load alone
	stopped atomic.Pointer[Rules] // those under which the process was stopped last: it is once
)

// begin reads the rules, and goes on doing so as long as the process lives.
func begin() {
	rules.Store(&Rules{})
	path := os.Getenv(FileVar)
	if path == "" {
		return
	}
	load(path)
	go func() {
		for range time.Tick(look) {
			load(path)
		}
	}()
}

// load takes what the file says, and tells on standard error that it did; what cannot
// be read leaves things as they are.
func load(path string) {
	read, err := os.ReadFile(path)
	if err != nil || string(read) == text {
		return
	}
	text = string(read)
	if r, err := Parse(text); err == nil {
		rules.Store(&r)
		fmt.Fprintf(os.Stderr, "fail points in %s: %s (%d)\n", path, InForce, len(r.List))
	} else {
		fmt.Fprintf(os.Stderr, "fail points in %s: %v\n", path, err)
	}
}

// Hit does what the rules say for the point.
func Hit(p Point) { _ = Error(p) }

// HitJob does what the rules say for BeforeEffect, in a job.
func HitJob(job string) {
	_ = hit(BeforeEffect)
	_ = hit(InJob(job))
}

// Error is Hit, and the error that the caller should fail with, if any.
func Error(p Point) error { return hit(p) }

func hit(p Point) error {
	watch()
	now := rules.Load()
	for _, r := range now.List {
		if r.Point != p || r.Chance > 0 && rand.Float64() >= r.Chance {
			continue
		}
		switch r.Action {
		case Sleep:
			time.Sleep(r.For)
		case Exit:
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		case Panic:
			panic(fmt.Sprintf("fail point %s", p))
		case Stop:
			if stopped.Swap(now) != now {
				_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
			}
		case Fail:
			return fmt.Errorf("%s: %w", p, errInjected)
		}
	}
	return nil
}

// Bad reports whether a defect is switched on.
func Bad(d Defect) bool { return bad == d }

// Now is the wall clock, as times that are stored and told are taken from it,
// moved by the rules. It has no monotonic reading while it is moved.
func Now() time.Time {
	watch()
	now := time.Now()
	if shift := rules.Load().Shift; shift != 0 {
		return now.Round(0).Add(shift)
	}
	return now
}
