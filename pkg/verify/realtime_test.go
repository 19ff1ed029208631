package verify

import (
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"github.com/imdhq/imd/pkg/verify/verifytest"
)

// The search for a linear order finds an exchange within a window by itself,
// without the sweep.
func TestSearchAlone(t *testing.T) {
	caught := 0
	for seed := range uint64(20) {
		made := verifytest.Good(seed, verifytest.Size{Messages: 150, Conversations: 1})
		h, err := New(made.Run, made.Records())
		if err != nil {
			t.Fatal(err)
		}
		broken := *h
		m := &mutant{History: &broken, good: newIndex(h), rng: rand.New(rand.NewPCG(seed, 0)), opt: Options{}.withDefaults()}
		if swapPair(false)(m) == "" {
			continue
		}
		c := &check{index: newIndex(m.History), opt: m.opt, inv: &Invariant{}}
		if c.search(); c.inv.Found == 0 {
			t.Errorf("seed %d: not found", seed)
		}
		caught++
		good := &check{index: newIndex(h), opt: m.opt, inv: &Invariant{}}
		if good.search(); good.inv.Found != 0 {
			t.Errorf("seed %d: found in a good history", seed)
		}
	}
	if caught == 0 {
		t.Error("no history could be broken")
	}
}

func TestFaultWindows(t *testing.T) {
	const s = int64(time.Second)
	h := newHistory()
	h.Run.Ended = 100 * s
	kill, pause := h.names.id("kill"), h.names.id("pause")
	h.faults = []fault{
		{t: 10 * s, name: kill}, {t: 12 * s, name: kill, stop: true},
		{t: 11 * s, name: pause}, {t: 14 * s, name: pause, stop: true},
		{t: 40 * s, name: kill}, {t: 41 * s, name: kill}, {t: 42 * s, name: kill, stop: true}, {t: 50 * s, name: kill, stop: true},
		{t: 80 * s, name: pause},
	}
	windows := newIndex(h).faultWindows()
	want := [][2]int64{{10 * s, 19 * s}, {40 * s, 55 * s}, {80 * s, never}}
	if !reflect.DeepEqual(windows, want) {
		t.Fatalf("faultWindows() = %v, want %v", windows, want)
	}
	for _, tt := range []struct {
		from, to int64
		want     bool
	}{{1, 9, false}, {1, 10, true}, {15, 16, true}, {20, 39, false}, {20, 40, true}, {18, 90, true}, {56, 79, false}, {99, 99, true}} {
		if got := touches(windows, tt.from*s, tt.to*s); got != tt.want {
			t.Errorf("touches(%d, %d) = %v", tt.from, tt.to, got)
		}
	}
}
