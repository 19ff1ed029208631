package admin

import (
	"context"
	"strings"
	"time"

	"github.com/imdhq/imd/pkg/control"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/proto/gen/adminv1"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// maxWait is the longest wait of one call.
const maxWait = 10 * time.Second

// cluster is the ClusterService.
type cluster struct{ a *Admin }

// ListNodes answers from this node's view of the registry.
func (c cluster) ListNodes(ctx context.Context, req *adminv1.ListNodesRequest) (*adminv1.ListNodesResponse, error) {
	view := c.a.Control.View()
	if req.WaitMs > 0 {
		wctx, cancel := context.WithTimeout(ctx, min(time.Duration(req.WaitMs)*time.Millisecond, maxWait))
		view = c.a.Control.Next(wctx, req.Serial)
		cancel()
	}
	var leases map[im.NodeID]control.LeaseLeft
	if op := c.a.Control.Operator(); op != nil && req.Leases {
		leases = op.Leases(ctx)
	}
	out := &adminv1.ListNodesResponse{Revision: view.Revision, Stale: view.Stale, Serial: view.Serial}
	for _, n := range view.Nodes {
		m := nodeMessage(n, c.a.Node)
		if l, ok := leases[n.ID]; ok {
			m.LeaseLeftMs, m.LeaseTtlMs = l.Left.Milliseconds(), l.TTL.Milliseconds()
		}
		out.Nodes = append(out.Nodes, m)
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
		StartedMs: started, Self: n.ID == self, Standing: string(n.Standing), Cordon: n.Cordon, MaxConnections: int32(n.MaxConns), Relay: n.Relay,
	}
}

// nodes is the NodeService.
type nodes struct{ a *Admin }

// nodeAlphabet is what node ids are made of.
const nodeAlphabet = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"

// noReason stands where an operator gave none.
const noReason = "no reason given"

// Cordon keeps new work away from a node.
func (s nodes) Cordon(ctx context.Context, req *adminv1.CordonRequest) (*adminv1.CordonResponse, error) {
	op, id, err := s.operator("admin.Cordon", req.NodeId)
	if err != nil {
		return nil, err
	}
	if err := registry("admin.Cordon", op.Cordon(ctx, id, reason(req.Reason))); err != nil {
		return nil, err
	}
	return &adminv1.CordonResponse{}, nil
}

// Uncordon lets new work go to a node again.
func (s nodes) Uncordon(ctx context.Context, req *adminv1.UncordonRequest) (*adminv1.UncordonResponse, error) {
	op, id, err := s.operator("admin.Uncordon", req.NodeId)
	if err != nil {
		return nil, err
	}
	if err := registry("admin.Uncordon", op.Uncordon(ctx, id)); err != nil {
		return nil, err
	}
	return &adminv1.UncordonResponse{}, nil
}

// Drain makes the running process of a node stop in order.
func (s nodes) Drain(ctx context.Context, req *adminv1.DrainRequest) (*adminv1.DrainResponse, error) {
	const name = "admin.Drain"
	op, id, err := s.operator(name, req.NodeId)
	if err != nil {
		return nil, err
	}
	n, ok := s.a.Control.View().Node(id)
	if !ok {
		return nil, im.Errorf(clientv1.Reason_REASON_NOT_FOUND, name, "node %s is not registered", id)
	}
	if err := registry(name, op.Drain(ctx, id, n.BootID, reason(req.Reason))); err != nil {
		return nil, err
	}
	return &adminv1.DrainResponse{BootId: n.BootID}, nil
}

func (s nodes) operator(name, node string) (control.Operator, im.NodeID, error) {
	if node == "" || len(node) > 64 || !named(node) {
		return nil, "", im.Errorf(clientv1.Reason_REASON_INVALID_ID, name, "%q is no node id", node)
	}
	op := s.a.Control.Operator()
	if op == nil {
		return nil, "", im.Errorf(clientv1.Reason_REASON_UNAVAILABLE, name, "the control plane has not started")
	}
	return op, im.NodeID(node), nil
}

// named reports whether s is of the alphabet of node ids.
func named(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return !strings.ContainsRune(nodeAlphabet, r) })
}

func reason(given string) string {
	if given == "" {
		return noReason
	}
	return given[:min(len(given), 200)]
}

// registry turns an error of the registry into one for the caller.
func registry(name string, err error) error {
	if err == nil {
		return nil
	}
	return &im.Error{Reason: clientv1.Reason_REASON_UNAVAILABLE, Op: name, Msg: "the registry did not take the order; it may be given again", Err: err}
}
