package balance

import (
	"fmt"
	"sync"
	"testing"
	"time"
)

func ejector(n int) *Ejector {
	e := &Ejector{}
	var ids []string
	for i := range n {
		ids = append(ids, fmt.Sprintf("n%d", i))
	}
	e.Set(ids)
	return e
}

func TestEjectionAndReturn(t *testing.T) {
	e, now := ejector(3), begin
	report := func(o Outcome) bool { return e.Report("n0", o, now) }
	if report(Failed) || report(Failed) || report(OK) || report(Failed) || report(Gone) || report(Failed) {
		t.Fatal("ejected before three failures in a row")
	}
	if !report(Failed) || e.Usable("n0") || e.Out() != 1 {
		t.Fatal("three failures in a row do not eject")
	}
	for i, pause := 0, firstPause; i < 12; i++ {
		now = now.Add(pause - 1)
		if due := e.Due(now); len(due) != 0 {
			t.Fatalf("probed %v too early", due)
		}
		now = now.Add(1)
		if due := e.Due(now); len(due) != 1 || e.Standing("n0") != Probing {
			t.Fatalf("not probed after %v", pause)
		}
		if again := e.Due(now); len(again) != 0 {
			t.Fatal("probed twice at once")
		}
		report(Failed)
		pause = min(2*pause, longestRest)
	}
	now = now.Add(longestRest)
	e.Due(now)
	report(OK)
	if !e.Usable("n0") || e.Out() != 0 || e.Count != (Counts{Ejected: 1, Returned: 1}) {
		t.Errorf("not back: %v", e.Count)
	}
	// Out again at once, it rests long; after a long time it begins anew.
	report(Unreachable)
	if n := e.nodes["n0"]; n.pause != longestRest {
		t.Errorf("rests %v", n.pause)
	}
	now = now.Add(longestRest)
	e.Due(now)
	report(OK)
	now = now.Add(longestRest + 1)
	report(Unreachable)
	if n := e.nodes["n0"]; n.pause != firstPause {
		t.Errorf("rests %v after a long time", n.pause)
	}
}

// Never more than half of the nodes are out, whatever fails and comes and goes,
// and the count is right.
func TestNeverMoreThanHalf(t *testing.T) {
	for seed := range uint64(200) {
		rng, now := seeded(seed), begin
		n := 1 + rng.IntN(8)
		e := ejector(n)
		for range 400 {
			now = now.Add(time.Duration(rng.IntN(200)) * time.Millisecond)
			switch rng.IntN(12) {
			case 0:
				n = 1 + rng.IntN(8)
				var ids []string
				for i := range n {
					ids = append(ids, fmt.Sprintf("n%d", i))
				}
				e.Set(ids)
			case 1, 2:
				e.Due(now)
			default:
				e.Report(fmt.Sprintf("n%d", rng.IntN(n)), Outcome(rng.IntN(4)), now)
			}
			out := 0
			for i := range n {
				if !e.Usable(fmt.Sprintf("n%d", i)) {
					out++
				}
			}
			if out > n/2 || out != e.Out() {
				t.Fatalf("seed %d: %d of %d are out, counted as %d", seed, out, n, e.Out())
			}
		}
	}
}

func TestTheOnlyNodeStays(t *testing.T) {
	e := ejector(1)
	for range 10 {
		e.Report("n0", Unreachable, begin)
	}
	if !e.Usable("n0") || e.Count.Spared == 0 {
		t.Error("the only node is out")
	}
	if e.Usable("stranger") || e.Standing("stranger") != "" || e.Report("stranger", Unreachable, begin) {
		t.Error("a node that is not there is held something of")
	}
}

func TestClassesAreRefusedInOrder(t *testing.T) {
	g := NewGate(100)
	last := 0
	for c := Presence; c <= Vital; c++ {
		if got := g.Ceiling(c); got <= last {
			t.Errorf("%v is served up to %d, the class below up to %d", c, got, last)
		}
		last = g.Ceiling(c)
	}
	if g.Ceiling(Presence) != 75 || g.Ceiling(Append) != 100 {
		t.Errorf("presence %d, append %d", g.Ceiling(Presence), g.Ceiling(Append))
	}
	for range 80 {
		if !g.Enter(Vital) {
			t.Fatal("refused below all ceilings")
		}
	}
	if g.Enter(Presence) || g.Enter(History) || !g.Enter(Sync) {
		t.Error("at 80 of 100 presence and history are refused, sync is not")
	}
	if NewGate(0).Ceiling(Presence) != 1 {
		t.Error("a gate without room")
	}
}

func TestGateCountsRight(t *testing.T) {
	g := NewGate(10)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 2000 {
				if g.Enter(Append) {
					if n := g.InFlight(); n > 18 { // eight may be between counting and leaving
						t.Errorf("%d inside", n)
					}
					g.Leave()
				}
			}
		})
	}
	wg.Wait()
	if g.InFlight() != 0 {
		t.Errorf("%d never left", g.InFlight())
	}
}
