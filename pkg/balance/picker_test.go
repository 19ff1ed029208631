package balance

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/imdhq/imd/pkg/ring"
)

func seeded(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 99)) }

func targets(weights ...int) []Target {
	out := make([]Target, len(weights))
	for i, w := range weights {
		out[i] = Target{ID: fmt.Sprintf("n%d", i), Weight: w}
	}
	return out
}

func currentOf(t testing.TB, ts []Target) *ring.Current {
	var nodes []ring.Node
	for _, x := range ts {
		nodes = append(nodes, ring.Node{ID: x.ID, Weight: x.Weight})
	}
	r, err := ring.New(nodes, 0)
	if err != nil {
		t.Fatal(err)
	}
	c := &ring.Current{}
	c.Store(r)
	return c
}

func TestEveryPickerHasAName(t *testing.T) {
	for _, name := range Names() {
		p := New(name, seeded(1), currentOf(t, targets(1)))
		if p == nil {
			t.Fatalf("%s makes nothing", name)
		}
		if got := p.Pick(nil, "k"); got != -1 {
			t.Errorf("%s picks %d of none", name, got)
		}
		if got := p.Pick(targets(1), "k"); got != 0 {
			t.Errorf("%s picks %d of one", name, got)
		}
	}
	if New("best", nil, nil) != nil {
		t.Error("an unknown name makes a picker")
	}
}

func TestSharesFollowWeights(t *testing.T) {
	ts := targets(1, 2, 5)
	for name, want := range map[string][]float64{
		NameRoundRobin: {1. / 3, 1. / 3, 1. / 3}, NameWeighted: {1. / 8, 2. / 8, 5. / 8}, NameRandom: {1. / 8, 2. / 8, 5. / 8},
	} {
		p, count, n := New(name, seeded(2), nil), make([]int, 3), 24_000
		for range n {
			count[p.Pick(ts, "")]++
		}
		for i := range want {
			if got := float64(count[i]) / float64(n); math.Abs(got-want[i]) > 0.02 {
				t.Errorf("%s: target %d got %.3f, want %.3f", name, i, got, want[i])
			}
		}
	}
}

// Heavy targets do not get their calls in one lump.
func TestWeightedIsSmooth(t *testing.T) {
	p, ts, seen := &Weighted{}, targets(5, 1, 1), []int{}
	for range 14 {
		seen = append(seen, p.Pick(ts, ""))
	}
	want := []int{0, 0, 1, 0, 2, 0, 0, 0, 0, 1, 0, 2, 0, 0}
	if !slices.Equal(seen, want) {
		t.Errorf("picked %v, want %v", seen, want)
	}
	for i := range 100 { // targets that come and go leave nothing behind
		p.Pick([]Target{{ID: fmt.Sprint(i)}}, "")
	}
	if len(p.credit) > 3 {
		t.Errorf("%d credits for one target", len(p.credit))
	}
}

func TestLeastRequestAvoidsTheBusyAndTheSlow(t *testing.T) {
	for name, tt := range map[string]struct {
		make func(ts []Target)
		most float64
	}{
		"busy":  {func(ts []Target) { ts[0].InFlight = 50 }, 0.001},
		"slow":  {func(ts []Target) { ts[0].Latency = 300 * time.Millisecond }, 0.001},
		"equal": {func([]Target) {}, 0.40},
		"heavy others": {func(ts []Target) {
			ts[1].Weight, ts[2].Weight = 4, 4
		}, 0.001},
	} {
		ts := targets(1, 1, 1)
		for i := range ts {
			ts[i].Latency = 10 * time.Millisecond
		}
		tt.make(ts)
		p, hit := New(NameLeastRequest, seeded(3), nil), 0
		for range 9000 {
			if p.Pick(ts, "") == 0 {
				hit++
			}
		}
		if got := float64(hit) / 9000; got > tt.most {
			t.Errorf("%s: %.3f of the calls", name, got)
		}
	}
}

// The calls of one key stay together, and those of a target that is out go to
// whoever would follow it, while all others stay.
func TestConsistentHashSkipsWhoIsOut(t *testing.T) {
	ts := targets(1, 1, 1, 1)
	p := &ConsistentHash{Ring: currentOf(t, ts)}
	less := slices.Delete(slices.Clone(ts), 2, 3)
	moved := map[string]bool{}
	for k := range 2000 {
		key := fmt.Sprint("c", k)
		was, is := ts[p.Pick(ts, key)].ID, less[p.Pick(less, key)].ID
		if was == "n2" {
			moved[is] = true
		} else if was != is {
			t.Fatalf("%s moved from %s to %s", key, was, is)
		}
	}
	if len(moved) != 3 {
		t.Errorf("the keys of one target went to %d others", len(moved))
	}
	if got := p.Pick([]Target{{ID: "unknown"}}, "k"); got != 0 {
		t.Errorf("with a ring that is behind it picks %d", got)
	}
}

func TestLocal(t *testing.T) {
	ts := []Target{{ID: "a", Zone: "x"}, {ID: "b", Zone: "y"}, {ID: "c", Zone: "x"}}
	for zone, want := range map[string]int{"x": 2, "y": 1, "z": 3, "": 3} {
		if got := Local(ts, zone); len(got) != want {
			t.Errorf("zone %q: %d targets, want %d", zone, len(got), want)
		}
	}
}

func TestEWMA(t *testing.T) {
	var e EWMA
	now := time.Unix(0, 0)
	if e.Value(now) != 0 {
		t.Error("an average without samples")
	}
	e.Add(10*time.Millisecond, now)
	e.Add(200*time.Millisecond, now)
	if e.Value(now) != 200*time.Millisecond {
		t.Errorf("a slow answer is seen as %v", e.Value(now))
	}
	for range 200 {
		now = now.Add(50 * time.Millisecond)
		e.Add(10*time.Millisecond, now)
	}
	if e.Value(now) > 12*time.Millisecond {
		t.Errorf("after 200 quick answers it is still %v", e.Value(now))
	}
	if later := e.Value(now.Add(2 * time.Minute)); later > time.Millisecond {
		t.Errorf("after two minutes without a call it is still %v", later)
	}
}

func TestSteer(t *testing.T) {
	const ms = time.Millisecond
	for name, tt := range map[string]struct {
		first, next time.Duration
		past        int // of 160
	}{
		"quick": {2 * ms, ms / 10, 0}, "both slow": {200 * ms, 60 * ms, 0}, "slow": {200 * ms, 5 * ms, 150}, "next unknown": {200 * ms, 0, 150}, "unknown": {0, ms, 0},
	} {
		s, past := Steer{}, 0
		for range 160 {
			if s.Past(tt.first, tt.next) {
				past++
			}
		}
		if past != tt.past {
			t.Errorf("%s: %d of 160 go to the next node, want %d", name, past, tt.past)
		}
	}
}

func BenchmarkPick(b *testing.B) {
	ts := targets(1, 1, 1, 1, 1, 1)
	for _, name := range Names() {
		p := New(name, seeded(1), currentOf(b, ts))
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				p.Pick(ts, "d_abcdefghijklmnopqrstuvwxyz")
			}
		})
	}
}
