package drill

import (
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// A schedule depends on the seed, the set of kinds and the duration; no fault
// lies outside the run, none overlaps another of its area, and every kind that
// fits comes before any comes again.
func TestPlan(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		seed := rapid.Uint64().Draw(t, "seed")
		kinds := rapid.SliceOfNDistinct(rapid.SampledFrom(Kinds()), 1, len(Kinds()), rapid.ID[Kind]).Draw(t, "kinds")
		duration := time.Duration(rapid.Int64Range(int64(Shortest), int64(20*time.Minute)).Draw(t, "duration"))
		events := Plan(seed, kinds, duration)

		mixed := append(slices.Clone(kinds), kinds...)
		rand.Shuffle(len(mixed), func(i, j int) { mixed[i], mixed[j] = mixed[j], mixed[i] })
		if again := Plan(seed, mixed, duration); !reflect.DeepEqual(events, again) {
			t.Fatalf("the same seed gives\n%sand\n%s", Print(events), Print(again))
		}
		used := map[Kind]int{}
		var busy [areas]time.Duration
		for i, e := range events {
			if e.N != i+1 || e.At < lead || e.At+e.For > duration {
				t.Fatalf("%d: %v in a run of %v", e.N, e, duration)
			}
			if !slices.Contains(kinds, e.Kind) {
				t.Fatalf("%v is not among %v", e.Kind, kinds)
			}
			used[e.Kind]++
			tr := traitOf(e.Kind)
			for _, a := range tr.areas() {
				if e.At < busy[a] {
					t.Fatalf("%v begins before another of its area has ended:\n%s", e, Print(events))
				}
				busy[a] = max(busy[a], e.At+e.For)
			}
		}
		if duration > 4*time.Minute {
			for _, ofEtcd := range []bool{false, true} {
				low, high := len(events), 0
				for _, k := range kinds {
					if (traitOf(k).area == etcds) == ofEtcd {
						low, high = min(low, used[k]), max(high, used[k])
					}
				}
				if high-low > 3 { // one each for the deck that is not played to its end and the closing reset, and one to spare
					t.Fatalf("kinds come %d to %d times:\n%s", low, high, Print(events))
				}
			}
		}
	})
}

// A drill of eighty seconds has enough faults for a verdict.
func TestShortDrillsHaveManyFaults(t *testing.T) {
	var normal []Kind
	for _, tr := range traits {
		if !tr.tag && !tr.mount && tr.why(AllInOne()) == "" {
			normal = append(normal, tr.kind)
		}
	}
	for seed := range uint64(200) {
		if n := len(Plan(seed, normal, 75*time.Second)); n < 15 {
			t.Errorf("seed %d has %d faults", seed, n)
		}
	}
}

// Faults of the control plane last long, but others go on meanwhile: two minutes
// hold many of both.
func TestLongFaultsHoldNothingUp(t *testing.T) {
	var possible []Kind
	for _, tr := range traits {
		if !tr.tag && !tr.mount && tr.why(ControlPlane()) == "" {
			possible = append(possible, tr.kind)
		}
	}
	for seed := range uint64(200) {
		plane, others := 0, 0
		for _, e := range Plan(seed, possible, 2*time.Minute) {
			if traitOf(e.Kind).area == etcds {
				plane++
			} else {
				others++
			}
		}
		if plane < 3 || others < 8 {
			t.Errorf("seed %d has %d faults of the control plane and %d others", seed, plane, others)
		}
	}
}

func TestNoPlan(t *testing.T) {
	if Plan(1, nil, time.Minute) != nil || Plan(1, []Kind{Kill}, Shortest-1) != nil {
		t.Error("a schedule of nothing has faults")
	}
}
