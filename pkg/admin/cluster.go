package admin

import (
	"context"

	"github.com/imdhq/imd/pkg/control"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/proto/gen/adminv1"
)

// cluster is the ClusterService.
type cluster struct{ a *Admin }

// ListNodes answers from this node's view of the registry.
func (c cluster) ListNodes(context.Context, *adminv1.ListNodesRequest) (*adminv1.ListNodesResponse, error) {
	view := c.a.Control.View()
	out := &adminv1.ListNodesResponse{Revision: view.Revision, Stale: view.Stale}
	for _, n := range view.Nodes {
		out.Nodes = append(out.Nodes, nodeMessage(n, c.a.Node))
	}
	return out, nil
}

func nodeMessage(n control.Node, self im.NodeID) *adminv1.Node {
	started := int64(0)
	if !n.Started.IsZero() {
		started = n.Started.UnixMilli()
	}
	return &adminv1.Node{
		NodeId: string(n.ID), BootId: n.BootID, Roles: n.Roles, State: string(n.State), Version: n.Version,
		PublicAddress: n.Public, OpsAddress: n.Ops, InternalAddress: n.Internal, Zone: n.Zone, Weight: int32(n.Weight),
		StartedMs: started, Self: n.ID == self,
	}
}
