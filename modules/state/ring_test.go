package state

import (
	"testing"

	"github.com/imdhq/imd/pkg/control"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/ring"
)

func TestTheRingSharesTheShardsOut(t *testing.T) {
	node := func(id string, s control.State) control.Node {
		return control.Node{ID: im.NodeID(id), Roles: []string{"state"}, State: s, Weight: 1}
	}
	v := &control.View{Revision: 7, Cluster: 3, Nodes: []control.Node{node("a", control.Serving), node("b", control.Serving), node("c", control.Draining)}}
	a, b, c := ringOf("a", v, 160), ringOf("b", v, 160), ringOf("c", v, 160)
	if a.Node != "a" || a.Revision != 7 || a.Cluster != 3 {
		t.Errorf("%+v", a)
	}
	owned := 0
	for i := range ring.Shards {
		if a.Mine(i) == b.Mine(i) || c.Mine(i) {
			t.Fatalf("shard %d: a %v, b %v, c %v", i, a.Mine(i), b.Mine(i), c.Mine(i))
		}
		if a.Mine(i) {
			owned++
		}
	}
	if owned < ring.Shards/4 || owned > ring.Shards*3/4 {
		t.Errorf("a has %d shards", owned)
	}
	if r := ringOf("a", &control.View{}, 0); r.Mine != nil {
		t.Error("an empty view gives shards")
	}
}

// A new group is in a shard of the node that makes it, or nobody could.
func TestANewGroupIsInAShardOfThisNode(t *testing.T) {
	view := &control.View{Revision: 1}
	for _, id := range []im.NodeID{"a", "b", "c", "d"} {
		view.Nodes = append(view.Nodes, control.Node{ID: id, Roles: []string{"state"}, State: control.Serving, Weight: 1})
	}
	own := &shards{node: "a", view: func() *control.View { return view }}
	c := &core{ids: &counter{}, shards: own}
	for range 100 {
		id, err := c.groupID()
		if err != nil || !own.current().Mine(ring.Shard(string(id))) {
			t.Fatalf("%s, %v", id, err)
		}
	}
}
