package admin

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/backoff"
	"github.com/imdhq/imd/pkg/control"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/proto/gen/adminv1"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

const (
	transferLimit = 4200 * time.Millisecond // below the limit of a call; a wish that nobody fulfils stands for 3 s
	transferLook  = 20 * time.Millisecond
)

// elections is the ElectionService.
type elections struct{ a *Admin }

// ListLeaders answers from this node's view.
func (e elections) ListLeaders(context.Context, *adminv1.ListLeadersRequest) (*adminv1.ListLeadersResponse, error) {
	all := e.a.Control.Leaders()
	out := &adminv1.ListLeadersResponse{Revision: all.Revision, Stale: all.Stale}
	for _, l := range all.All {
		out.Leaders = append(out.Leaders, e.message(l))
	}
	return out, nil
}

func (e elections) message(l control.Leader) *adminv1.Leader {
	return &adminv1.Leader{
		Name: l.Name, NodeId: string(l.Node), BootId: l.BootID, Address: l.Address, Token: l.Token, SinceMs: l.Since.UnixMilli(),
		Gone: l.Gone, Self: l.Node == e.a.Node,
	}
}

// TransferLeader asks the leader to resign and waits for the next one.
func (e elections) TransferLeader(ctx context.Context, r *adminv1.TransferLeaderRequest) (*adminv1.TransferLeaderResponse, error) {
	const op = "admin.TransferLeader"
	elector := e.a.Control.Elector()
	if elector == nil {
		return nil, im.Errorf(clientv1.Reason_REASON_UNAVAILABLE, op, "the control plane has not started")
	}
	if control.CheckName(r.Name) != nil {
		return nil, badRequest("%.64q is no name of an election", r.Name)
	}
	to := im.NodeID(r.ToNodeId)
	if to != "" && !known(e.a.Control.View(), to) {
		return nil, im.Errorf(clientv1.Reason_REASON_NOT_FOUND, op, "there is no node %.64q", r.ToNodeId)
	}
	before, err := elector.Transfer(ctx, r.Name, to)
	switch {
	case errors.Is(err, control.ErrNoLeader):
		return nil, im.Errorf(clientv1.Reason_REASON_NOT_FOUND, op, "the election %.64q has no leader now", r.Name)
	case err != nil:
		fault := im.Errorf(clientv1.Reason_REASON_UNAVAILABLE, op, "the leader could not be asked")
		fault.Err = err
		return nil, fault
	}
	e.a.Log.Info("a leader is asked to resign", zap.String("election", r.Name), zap.String("from", string(before.Node)), zap.String("to", r.ToNodeId))
	return &adminv1.TransferLeaderResponse{Leader: e.next(ctx, r.Name, to, before.Token)}, nil
}

func known(v *control.View, id im.NodeID) bool {
	for _, n := range v.Nodes {
		if n.ID == id {
			return true
		}
	}
	return false
}

// next waits for a leader with a higher token, or the one that was wished for
// and leads already; nil if there is none in time.
func (e elections) next(ctx context.Context, name string, to im.NodeID, token int64) *adminv1.Leader {
	ctx, cancel := context.WithTimeout(ctx, transferLimit)
	defer cancel()
	for {
		if l, ok := e.a.Control.Leaders().Of(name); ok && !l.Gone && (l.Token > token || l.Token != 0 && l.Node == to) {
			return e.message(l)
		}
		if backoff.Sleep(ctx, transferLook) != nil {
			return nil
		}
	}
}

// locks is the LockService.
type locks struct{ a *Admin }

// ListLocks reads the queues.
func (l locks) ListLocks(ctx context.Context, _ *adminv1.ListLocksRequest) (*adminv1.ListLocksResponse, error) {
	const op = "admin.ListLocks"
	locker := l.a.Control.Locker()
	if locker == nil {
		return nil, im.Errorf(clientv1.Reason_REASON_UNAVAILABLE, op, "the control plane has not started")
	}
	all, err := locker.Locks(ctx)
	if err != nil {
		fault := im.Errorf(clientv1.Reason_REASON_UNAVAILABLE, op, "the locks cannot be read")
		fault.Err = err
		return nil, fault
	}
	out := &adminv1.ListLocksResponse{}
	for _, i := range all {
		out.Locks = append(out.Locks, &adminv1.Lock{
			Name: i.Name, NodeId: string(i.Node), BootId: i.BootID, Purpose: i.Purpose, AskedMs: i.Asked.UnixMilli(), Token: i.Token, Held: i.Held,
		})
	}
	return out, nil
}
