package etcd

import (
	"context"
	"slices"
	"sync"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// claimers is how many users' claims of one ClaimMany are made one by one at a time.
const claimers = 16

// ClaimMany is store.RouteStore's. It reads all users at once and changes many in
// one transaction. Claims whose user somebody else changes meanwhile, and all but the
// first of one user, are made one by one, those of one user in order. Only a failed
// read is an error of all: of the transactions some may come true and others not.
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
	r.claimApart(ctx, list, out, append(rest, more...))
	return out, nil
}

// claimApart makes claims one by one: those of one user in order, since they would
// only be in each other's way, and some users at a time.
func (r *Routes) claimApart(ctx context.Context, list []store.Claiming, out []store.Claimed, which []int) {
	slices.Sort(which)
	of := map[im.UserID][]int{}
	for _, i := range which {
		of[list[i].Route.User] = append(of[list[i].Route.User], i)
	}
	users := make(chan []int, len(of))
	for _, own := range of {
		users <- own
	}
	close(users)
	var wg sync.WaitGroup
	for range min(claimers, len(of)) {
		wg.Go(func() {
			for own := range users {
				for _, i := range own {
					out[i].Claim, out[i].Err = r.Claim(ctx, list[i].Route, list[i].Policy)
				}
			}
		})
	}
	wg.Wait()
}

// claimTogether makes claims of different users in as few transactions as can be. It
// returns those that are still to be made. Its error is that of the read, before
// anything was changed.
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
	var broken error // why there are no leases: who comes later does not ask and wait again
	for n, i := range which {
		x := list[i].Route
		v := r.decide(have[n], x, list[i].Policy)
		if v.change == nil {
			out[i].Claim, out[i].Err = r.settle(v)
			continue
		}
		v.change.user, v.change.rev = x.User, have[n].rev
		var w writes
		if broken == nil {
			w, broken = r.writes(ctx, *v.change, x.Session)
		}
		if broken != nil {
			out[i].Err = unavailable(ctx, "etcd.Claim", broken)
			continue
		}
		if len(b.which) > 0 && b.ops+len(w.ops) > maxOps {
			rest = append(rest, r.commitClaims(ctx, b, out)...)
			b = claims{}
		}
		b.which, b.verdicts, b.writes = append(b.which, i), append(b.verdicts, v), append(b.writes, w)
		b.ops += len(w.ops)
	}
	return append(rest, r.commitClaims(ctx, b, out)...), nil
}

// claims are those of one transaction.
type claims struct {
	which    []int
	verdicts []verdict
	writes   []writes
	ops      int // of all writes
}

// commitClaims makes a transaction, whose error is that of its claims alone. It
// returns its claims if they are to be made one by one.
func (r *Routes) commitClaims(ctx context.Context, b claims, out []store.Claimed) (rest []int) {
	if len(b.which) == 0 {
		return nil
	}
	done, err := r.commit(ctx, b.writes...)
	if r.gone(ctx, err, b.writes...) || err == nil && !done {
		return b.which
	}
	for n, i := range b.which {
		if err != nil {
			out[i].Err = unavailable(ctx, "etcd.Claim", err)
			continue
		}
		out[i].Claim, out[i].Err = r.settle(b.verdicts[n])
	}
	return nil
}
