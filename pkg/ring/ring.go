package ring

import (
	"cmp"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"sync/atomic"

	"github.com/cespare/xxhash/v2"
)

// Points of a node with weight 1.
const (
	DefaultPoints = 160
	MinPoints     = 100
	MaxPoints     = 1000
)

// Node is one node that takes keys.
type Node struct {
	ID     string
	Weight int // share compared with the others, 1 to 100; less counts as 1, more as 100
}

// Ring is an immutable ring. The zero value and nil have no nodes. Safe for
// concurrent use.
type Ring struct {
	nodes  []Node // by ID
	points []point
}

// point is a place on the circle of 64-bit hashes. Keys up to it, from the one
// before, belong to its node.
type point struct {
	hash uint64
	node uint32 // index in nodes
}

// New makes the ring of the nodes, in whatever order they come. Of nodes with
// the same ID the heaviest counts. points is how many a node of weight 1 has;
// 0 = DefaultPoints. Errors: points is not within MinPoints and MaxPoints.
func New(nodes []Node, points int) (*Ring, error) {
	if points == 0 {
		points = DefaultPoints
	}
	if points < MinPoints || points > MaxPoints {
		return nil, fmt.Errorf("ring: %d points a node is not within %d and %d", points, MinPoints, MaxPoints)
	}
	r := &Ring{nodes: distinct(nodes)}
	total := 0
	for _, n := range r.nodes {
		total += n.Weight * points
	}
	r.points = make([]point, 0, total)
	var buf []byte
	for i, n := range r.nodes {
		buf = append(append(buf[:0], n.ID...), '#')
		for p, name := 0, len(buf); p < n.Weight*points; p++ {
			buf = strconv.AppendInt(buf[:name], int64(p), 10)
			r.points = append(r.points, point{mix(xxhash.Sum64(buf)), uint32(i)})
		}
	}
	slices.SortFunc(r.points, func(a, b point) int { // equal hashes: by node, so that all rings agree
		return cmp.Or(cmp.Compare(a.hash, b.hash), cmp.Compare(a.node, b.node))
	})
	return r, nil
}

// distinct sorts by ID, bounds the weights and keeps one node an ID.
func distinct(nodes []Node) []Node {
	out := make([]Node, len(nodes))
	for i, n := range nodes {
		out[i] = Node{n.ID, min(max(n.Weight, 1), 100)}
	}
	slices.SortFunc(out, func(a, b Node) int { return cmp.Or(cmp.Compare(a.ID, b.ID), b.Weight-a.Weight) })
	return slices.CompactFunc(out, func(a, b Node) bool { return a.ID == b.ID })
}

// mix spreads the hashes of similar short texts over all bits.
func mix(h uint64) uint64 {
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	h ^= h >> 33
	h *= 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}

// Hash is where a key lies on the circle.
func Hash(key string) uint64 { return mix(xxhash.Sum64String(key)) }

// Nodes are the nodes by ID. Read only.
func (r *Ring) Nodes() []Node {
	if r == nil {
		return nil
	}
	return r.nodes
}

// Len is the number of nodes.
func (r *Ring) Len() int { return len(r.Nodes()) }

// Get is the ID of the node that has the key; "" if there are no nodes.
func (r *Ring) Get(key string) string {
	if r.Len() == 0 {
		return ""
	}
	return r.nodes[r.points[r.search(Hash(key))].node].ID
}

// search is the index of the first point at or after h, around the circle.
func (r *Ring) search(h uint64) int {
	low, high := 0, len(r.points)
	for low < high {
		if mid := int(uint(low+high) >> 1); r.points[mid].hash < h {
			low = mid + 1
		} else {
			high = mid
		}
	}
	if low == len(r.points) {
		return 0
	}
	return low
}

// Walk gives the nodes in the order in which they would have the key if those
// before them were gone. Each node comes once.
func (r *Ring) Walk(key string) iter.Seq[string] {
	return func(yield func(string) bool) {
		if r.Len() == 0 {
			return
		}
		seen := make([]bool, len(r.nodes))
		for left, i := len(r.nodes), r.search(Hash(key)); left > 0; i++ {
			n := r.points[i%len(r.points)].node
			if seen[n] {
				continue
			}
			seen[n] = true
			left--
			if !yield(r.nodes[n].ID) {
				return
			}
		}
	}
}

// Shares is the part of all keys that each node has, 0 to 1, by ID.
func (r *Ring) Shares() map[string]float64 {
	out := map[string]float64{}
	if r == nil {
		return out
	}
	for i, p := range r.points {
		before := r.points[(i+len(r.points)-1)%len(r.points)]
		out[r.nodes[p.node].ID] += float64(p.hash-before.hash) / (1 << 64) // wraps around the circle
	}
	for id, share := range out {
		out[id] = min(share, 1) // a sum of many may be a bit above
	}
	return out
}

// Points is how many points the ring has.
func (r *Ring) Points() int {
	if r == nil {
		return 0
	}
	return len(r.points)
}

// Shards is the number of shards into which keys fall for work that is taken
// over as a whole.
const Shards = 1024

// Shard is the shard of a key, 0 to Shards-1. It depends on the key alone.
func Shard(key string) int { return int(Hash(key) >> 54) }

// ShardKey is the key by which a ring gives the shard to a node.
func ShardKey(shard int) string { return "shard/" + strconv.Itoa(shard) }

// Current is a ring that is replaced while others read it. The zero value has
// an empty ring. Safe for concurrent use.
type Current struct{ p atomic.Pointer[Ring] }

// Load is the ring in force; never nil.
func (c *Current) Load() *Ring {
	if r := c.p.Load(); r != nil {
		return r
	}
	return &Ring{}
}

// Store replaces the ring.
func (c *Current) Store(r *Ring) { c.p.Store(r) }
