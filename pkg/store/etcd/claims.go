package etcd

import (
	"context"
	"sync"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// ClaimMany is store.RouteStore's. It reads all users at once and changes many in
// one transaction. Claims whose user somebody else changes meanwhile, and all but the
// first of one user, are made one by one.
func (r *Routes) ClaimMany(ctx context.Context, list []store.Claiming) ([]store.Claimed, error) {
	const op = "etcd.Claim"
	if len(list) > store.MaxClaims {
		return nil, im.Errorf(clientv1.Reason_REASON_BAD_REQUEST, op, "more than %d claims", store.MaxClaims)
	}
	out := make([]store.Claimed, len(list))
	var first, rest []int
	seen := map[im.UserID]bool{}
	for i, c := range list {
		switch out[i].Err = r.room(c.Route); {
		case out[i].Err != nil:
		case seen[c.Route.User]:
			rest = append(rest, i)
		default:
			seen[c.Route.User], first = true, append(first, i)
		}
	}
	more, err := r.claimTogether(ctx, list, out, first)
	if err != nil {
		return nil, unavailable(ctx, op, err)
	}
	var wg sync.WaitGroup
	for _, i := range append(rest, more...) {
		wg.Go(func() { out[i].Claim, out[i].Err = r.Claim(ctx, list[i].Route, list[i].Policy) })
	}
	wg.Wait()
	return out, nil
}

// claimTogether makes claims of different users in as few transactions as can be. It
// returns those that are still to be made.
func (r *Routes) claimTogether(ctx context.Context, list []store.Claiming, out []store.Claimed, which []int) (rest []int, err error) {
	users := make([]im.UserID, len(which))
	for n, i := range which {
		users[n] = list[i].Route.User
	}
	have, err := r.read(ctx, users)
	if err != nil {
		return nil, err
	}
	var b claims
	for n, i := range which {
		v := r.decide(have[n], list[i].Route, list[i].Policy)
		if v.change == nil {
			out[i].Claim, out[i].Err = r.settle(v)
			continue
		}
		v.change.user, v.change.rev = list[i].Route.User, have[n].rev
		lease, err := r.lease(ctx, list[i].Route.Session)
		if err != nil {
			return nil, err
		}
		cmp, ops, err := r.ops(ctx, *v.change, lease)
		if err != nil {
			return nil, err
		}
		if len(b.which) > 0 && len(b.ops)+len(ops) > maxOps {
			if rest, err = r.commitClaims(ctx, b, out, rest); err != nil {
				return nil, err
			}
			b = claims{}
		}
		b.which, b.verdicts, b.leases = append(b.which, i), append(b.verdicts, v), append(b.leases, lease)
		b.cmps, b.ops = append(b.cmps, cmp), append(b.ops, ops...)
	}
	return r.commitClaims(ctx, b, out, rest)
}

// claims are those of one transaction.
type claims struct {
	which    []int
	verdicts []verdict
	leases   []clientv3.LeaseID
	cmps     []clientv3.Cmp
	ops      []clientv3.Op
}

// commitClaims makes a transaction, and adds its claims to rest if they are to be
// made one by one.
func (r *Routes) commitClaims(ctx context.Context, b claims, out []store.Claimed, rest []int) ([]int, error) {
	if len(b.which) == 0 {
		return rest, nil
	}
	cctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	res, err := r.client.Txn(cctx).If(b.cmps...).Then(b.ops...).Commit()
	switch {
	case r.gone(ctx, err, b.leases...), err == nil && !res.Succeeded:
		return append(rest, b.which...), nil
	case err != nil:
		return nil, err
	}
	for n, i := range b.which {
		out[i].Claim, out[i].Err = r.settle(b.verdicts[n])
	}
	return rest, nil
}
