package controlplane

import (
	"context"
	"maps"
	"slices"

	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/control"
	"github.com/imdhq/imd/pkg/im"
)

// tell logs who came and went, one line for a wave of changes, until ctx is
// done.
func (c *ControlPlane) tell(ctx context.Context) {
	told, serial := c.Handle.View(), uint64(0)
	for ctx.Err() == nil {
		v := c.Handle.Settled(ctx, serial, control.Quiet)
		serial = v.Serial
		if came, left := compare(told, v); len(came)+len(left) > 0 {
			c.Log.Info("the cluster changed", zap.Strings("came", came), zap.Strings("left", left), zap.Int("nodes", len(v.Nodes)), zap.Int64("rev", v.Revision))
		}
		told = v
	}
}

// compare lists the nodes that take new work in one of two views only.
func compare(before, after *control.View) (came, left []string) {
	was, is := takers(before), takers(after)
	for _, id := range slices.Sorted(maps.Keys(is)) {
		if !was[id] {
			came = append(came, string(id))
		}
	}
	for _, id := range slices.Sorted(maps.Keys(was)) {
		if !is[id] {
			left = append(left, string(id))
		}
	}
	return came, left
}

func takers(v *control.View) map[im.NodeID]bool {
	out := map[im.NodeID]bool{}
	for _, n := range v.Nodes {
		if n.State == control.Serving && n.Cordon == "" && n.Standing != control.Suspect {
			out[n.ID] = true
		}
	}
	return out
}
