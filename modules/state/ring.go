package state

import (
	"sync/atomic"

	"github.com/imdhq/imd/pkg/control"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/ring"
	"github.com/imdhq/imd/pkg/store"
)

// maxDraws is how many ids are drawn for a new group until one is in a shard of
// this node. With 100 nodes one in 10,000 draws that often finds none.
const maxDraws = 1000

// shards is which shards the ring gives to this node. Safe for concurrent use.
type shards struct {
	node im.NodeID
	view func() *control.View
	// points is how many points a node of weight 1 has on the ring; nil = the
	// default. It must be what callers use to find this node.
	points func() int
	last   atomic.Pointer[shardsOf]
}

// shardsOf is the answer for one view.
type shardsOf struct {
	view *control.View
	ring store.Ring
}

// current is the ring that the newest view makes. It costs two loads unless the
// view has changed.
func (s *shards) current() store.Ring {
	v := s.view()
	if last := s.last.Load(); last != nil && last.view == v {
		return last.ring
	}
	out := &shardsOf{view: v, ring: store.Ring{Node: s.node}}
	if v != nil {
		points := ring.DefaultPoints
		if s.points != nil {
			points = s.points()
		}
		out.ring = ringOf(s.node, v, points)
	}
	s.last.Store(out)
	return out.ring
}

// ringOf is the part of the ring of the state nodes that is node's.
func ringOf(node im.NodeID, v *control.View, points int) store.Ring {
	out := store.Ring{Node: node, Cluster: v.Cluster, Revision: v.Revision}
	var members []ring.Node
	for _, n := range v.With("state") {
		members = append(members, ring.Node{ID: string(n.ID), Weight: n.Weight})
	}
	r, err := ring.New(members, points)
	if err != nil || r.Len() == 0 {
		return out
	}
	var mine [ring.Shards]bool
	for i := range mine {
		mine[i] = r.Get(ring.ShardKey(i)) == string(node)
	}
	out.Mine = func(shard int) bool { return mine[shard] }
	return out
}

// groupID makes an id for a new group, in a shard of this node if the store
// needs an owner for it.
func (c *core) groupID() (im.ConversationID, error) {
	var conv im.ConversationID
	for range maxDraws {
		id, err := c.ids.Next()
		if err != nil {
			return "", err
		}
		conv = im.ConversationID("g_" + id.String())
		if c.shards == nil {
			break
		}
		if mine := c.shards.current().Mine; mine == nil || mine(ring.Shard(string(conv))) {
			break
		}
	}
	return conv, nil
}
