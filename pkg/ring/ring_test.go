package ring

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

func must(t testing.TB, nodes []Node, points int) *Ring {
	t.Helper()
	r, err := New(nodes, points)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// some makes n nodes with random names.
func some(rng *rand.Rand, n int) []Node {
	out := make([]Node, n)
	for i := range out {
		out[i] = Node{ID: fmt.Sprintf("n%08x", rng.Uint32()), Weight: 1}
	}
	return out
}

// spread is the standard deviation of the shares around their mean, and the
// worst deviation, as parts of the mean.
func spread(rings []*Ring) (deviation, worst float64) {
	sum, n := 0.0, 0
	for _, r := range rings {
		for _, share := range r.Shares() {
			off := share*float64(r.Len()) - 1
			sum += off * off
			worst = max(worst, math.Abs(off))
			n++
		}
	}
	return math.Sqrt(sum / float64(n)), worst
}

func TestSharesAreEven(t *testing.T) {
	for points, limit := range map[int]struct{ deviation, worst float64 }{
		DefaultPoints: {0.09, 0.30}, MaxPoints: {0.04, 0.15},
	} {
		rng := rand.New(rand.NewPCG(1, 2))
		var rings []*Ring
		for range 100 {
			rings = append(rings, must(t, some(rng, 5), points))
		}
		deviation, worst := spread(rings)
		t.Logf("%d points: standard deviation %.1f %%, worst %.1f %%", points, deviation*100, worst*100)
		if deviation > limit.deviation || worst > limit.worst {
			t.Errorf("%d points: standard deviation %.3f, worst %.3f", points, deviation, worst)
		}
	}
}

func TestSharesFollowWeights(t *testing.T) {
	r := must(t, []Node{{"a", 1}, {"b", 3}, {"c", 0}}, 0)
	s := r.Shares()
	if sum := s["a"] + s["b"] + s["c"]; math.Abs(sum-1) > 1e-9 {
		t.Errorf("the shares make %v", sum)
	}
	if s["b"] < 0.5 || s["b"] > 0.7 {
		t.Errorf("a node with three fifths of the weight has %v", s["b"])
	}
	if one := must(t, []Node{{"a", 7}}, 0).Shares()["a"]; math.Abs(one-1) > 1e-9 {
		t.Errorf("the only node has %v", one)
	}
}

func TestJoiningTakesAndLeavingGives(t *testing.T) {
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 7))
		nodes := some(rng, 1+rng.IntN(9))
		for i := range nodes {
			nodes[i].Weight = 1 + rng.IntN(4)
		}
		last := nodes[len(nodes)-1].ID
		with, without := must(t, nodes, 100), must(t, nodes[:len(nodes)-1], 100)
		for k := range 2000 {
			key := fmt.Sprintf("g_%d_%d", seed, k)
			after, before := with.Get(key), without.Get(key)
			if after != before && after != last {
				t.Fatalf("seed %d: %s went from %s to %s, but only %s joined", seed, key, before, after, last)
			}
		}
	}
}

func TestWeightChangesMoveOnlyWhatMust(t *testing.T) {
	light, heavy := must(t, []Node{{"a", 1}, {"b", 1}, {"c", 1}}, 0), must(t, []Node{{"a", 1}, {"b", 2}, {"c", 1}}, 0)
	for k := range 5000 {
		key := fmt.Sprint(k)
		if was, is := light.Get(key), heavy.Get(key); was != is && is != "b" {
			t.Fatalf("%s went from %s to %s, but only b became heavier", key, was, is)
		}
	}
}

func TestTheOrderOfNodesDoesNotMatter(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	nodes := append(some(rng, 12), Node{"twice", 1}, Node{"twice", 5}, Node{"twice", 2})
	first := must(t, nodes, 0)
	for range 20 {
		rng.Shuffle(len(nodes), func(i, j int) { nodes[i], nodes[j] = nodes[j], nodes[i] })
		if again := must(t, nodes, 0); !slices.Equal(first.points, again.points) || !slices.Equal(first.nodes, again.nodes) {
			t.Fatal("another order makes another ring")
		}
	}
	if n := first.Len(); n != 13 {
		t.Errorf("%d nodes", n)
	}
}

func TestWalkNamesWhoeverWouldFollow(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	nodes := some(rng, 6)
	full := must(t, nodes, 0)
	for k := range 300 {
		key, left := fmt.Sprint("k", k), nodes
		n := 0
		for id := range full.Walk(key) {
			n++
			if got := must(t, left, 0).Get(key); got != id {
				t.Fatalf("%s: the walk says %s, the ring without those before says %s", key, id, got)
			}
			left = slices.DeleteFunc(slices.Clone(left), func(n Node) bool { return n.ID == id })
			if k%50 != 0 && n == 2 {
				break // whole walks are slow to check
			}
		}
		if k%50 == 0 && n != len(nodes) {
			t.Errorf("the walk named %d of %d nodes", n, len(nodes))
		}
	}
}

func TestEmptyRings(t *testing.T) {
	var none *Ring
	empty, cur := must(t, nil, 0), &Current{}
	for _, r := range []*Ring{none, {}, empty, cur.Load()} {
		if r.Get("k") != "" || r.Len() != 0 || r.Points() != 0 || len(r.Shares()) != 0 {
			t.Errorf("%v has something", r)
		}
		for id := range r.Walk("k") {
			t.Errorf("the walk names %q", id)
		}
	}
	cur.Store(must(t, []Node{{"a", 1}}, 0))
	if cur.Load().Get("k") != "a" {
		t.Error("the stored ring is not in force")
	}
	for _, points := range []int{1, 99, 1001, -1} {
		if _, err := New(nil, points); err == nil {
			t.Errorf("%d points are allowed", points)
		}
	}
}

func TestShards(t *testing.T) {
	count := [Shards]int{}
	for k := range 200 * Shards {
		count[Shard(fmt.Sprintf("d_%d", k))]++
	}
	for s, n := range count {
		if n < 120 || n > 280 {
			t.Errorf("shard %d has %d keys of a mean of 200", s, n)
		}
	}
	if ShardKey(7) == ShardKey(8) || Shard("x") != Shard("x") {
		t.Error("shards are not told apart")
	}
}

func BenchmarkGet(b *testing.B) {
	r := must(b, some(rand.New(rand.NewPCG(1, 1)), 10), 0)
	keys := make([]string, 1024)
	for i := range keys {
		keys[i] = fmt.Sprintf("d_%026d", i)
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		r.Get(keys[i%len(keys)])
	}
}

func BenchmarkNew(b *testing.B) {
	nodes := some(rand.New(rand.NewPCG(1, 1)), 10)
	for b.Loop() {
		must(b, nodes, 0)
	}
}
