package storetest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// routeOp is one call about one user.
type routeOp struct {
	kind   string // claim, refresh, release or lookup
	route  store.Route
	policy store.Policy
}

// routeAnswer is what came of it.
type routeAnswer struct {
	claim    store.Claim
	refused  bool
	standing store.Standing
	released bool
	found    []store.Route
}

// routeState is what one user has: the routes that are live and why others are
// not.
type routeState struct {
	live      []store.Route
	displaced map[im.SessionID]store.Standing
	top       uint64
}

// routeModel is what route stores promise, one call after the other.
var routeModel = porcupine.Model{
	Init: func() any { return routeState{} },
	Step: func(state, input, output any) (bool, any) {
		return state.(routeState).step(input.(routeOp), output.(routeAnswer))
	},
	Equal: func(a, b any) bool { return a.(routeState).text() == b.(routeState).text() },
	DescribeOperation: func(input, output any) string {
		op, out := input.(routeOp), output.(routeAnswer)
		return fmt.Sprintf("%s %s/%s -> %+v", op.kind, op.route.Session, op.route.Login, out)
	},
}

func (s routeState) text() string {
	var parts []string
	for _, r := range s.live {
		parts = append(parts, fmt.Sprintf("%s=%d", r.Session, r.Epoch))
	}
	for id, why := range s.displaced {
		parts = append(parts, fmt.Sprintf("%s:%v", id, why))
	}
	slices.Sort(parts)
	return fmt.Sprint(s.top, strings.Join(parts, " "))
}

func (s routeState) step(op routeOp, out routeAnswer) (bool, routeState) {
	switch op.kind {
	case "claim":
		return s.claim(op, out)
	case "refresh":
		return s.refresh(op.route, out)
	case "release":
		kept := slices.DeleteFunc(slices.Clone(s.live), func(h store.Route) bool { return h.Session == op.route.Session && h.Epoch == op.route.Epoch })
		ok := out.released == (len(kept) < len(s.live))
		return ok, routeState{kept, s.displaced, s.top}
	default:
		return slices.Equal(names(out.found), names(s.live)), s
	}
}

func (s routeState) claim(op routeOp, out routeAnswer) (bool, routeState) {
	r := op.route
	r.Epoch = out.claim.Epoch
	if out.refused {
		r.Epoch = s.top + 1
	}
	want, keep, ok := store.Admit(s.live, r, op.policy)
	if ok == out.refused {
		return false, s
	}
	if !ok {
		return true, s
	}
	if r.Epoch <= s.top || !slices.Equal(names(want.Superseded), names(out.claim.Superseded)) || !slices.Equal(names(want.Replaced), names(out.claim.Replaced)) {
		return false, s
	}
	next := routeState{append(slices.Clone(keep), r), map[im.SessionID]store.Standing{}, r.Epoch}
	for id, why := range s.displaced {
		next.displaced[id] = why
	}
	for _, x := range want.Superseded {
		next.displaced[x.Session] = store.Superseded
	}
	for _, x := range want.Replaced {
		next.displaced[x.Session] = store.Replaced
	}
	return true, next
}

func (s routeState) refresh(r store.Route, out routeAnswer) (bool, routeState) {
	want := store.Restored
	if slices.ContainsFunc(s.live, func(h store.Route) bool { return h.Session == r.Session && h.Epoch == r.Epoch }) {
		want = store.Kept
	} else if why, ok := s.displaced[r.Session]; ok {
		want = why
	}
	return want == out.standing, s
}

// linearizable lets several processes claim, refresh, release and look up the
// same few users at once and checks that there is an order in which each answer
// is right.
func linearizable(k *routeKit) {
	const workers, each, users = 6, 60, 4
	stores := []store.RouteStore{k.s}
	if k.r.Other != nil {
		stores = append(stores, k.r.Other(k))
	}
	var mu sync.Mutex
	ops := make([][]porcupine.Operation, users)
	begin := time.Now()
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			s, dice := stores[w%len(stores)], rand.New(rand.NewPCG(uint64(w), 7))
			mine := map[int][]store.Route{} // claimed by this worker and not released
			for range each {
				u := dice.IntN(users)
				op := nextOp(dice, im.UserID(fmt.Sprint("u", u)), mine[u])
				at := time.Since(begin)
				out := k.perform(s, op)
				done := time.Since(begin)
				switch {
				case op.kind == "claim" && !out.refused:
					r := op.route
					r.Epoch = out.claim.Epoch
					mine[u] = append(mine[u], r)
				case op.kind == "release":
					mine[u] = slices.DeleteFunc(mine[u], func(x store.Route) bool { return x.Session == op.route.Session })
				}
				mu.Lock()
				ops[u] = append(ops[u], porcupine.Operation{ClientId: w, Input: op, Output: out, Call: int64(at), Return: int64(done)})
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	for u, list := range ops {
		if res := porcupine.CheckOperationsTimeout(routeModel, list, 30*time.Second); res != porcupine.Ok {
			k.Errorf("user %d: %d calls are %s", u, len(list), res)
		}
	}
}

// nextOp draws a call. Only routes that were not given back are refreshed, as a
// gateway does.
func nextOp(dice *rand.Rand, user im.UserID, mine []store.Route) routeOp {
	n := dice.IntN(10)
	if n >= 5 && len(mine) == 0 {
		n = 4
	}
	switch {
	case n < 3:
		logins, devices := []im.LoginID{"l1", "l2", "l3"}, []im.DeviceID{"d1", "d2"}
		return routeOp{"claim", route(user, logins[dice.IntN(3)], devices[dice.IntN(2)], im.Phone),
			store.Policy{Mode: store.PolicyMode(dice.IntN(3)), Multi: 1 + dice.IntN(2)}}
	case n < 5:
		return routeOp{kind: "lookup", route: store.Route{User: user}}
	case n < 8:
		return routeOp{kind: "refresh", route: mine[dice.IntN(len(mine))]}
	default:
		return routeOp{kind: "release", route: mine[dice.IntN(len(mine))]}
	}
}

func (k *routeKit) perform(s store.RouteStore, op routeOp) (out routeAnswer) {
	var err error
	switch op.kind {
	case "claim":
		out.claim, err = s.Claim(k.Context(), op.route, op.policy)
		if im.ReasonOf(err) == clientv1.Reason_REASON_LOGIN_REFUSED {
			out.refused, err = true, nil
		}
	case "refresh":
		var all []store.Standing
		if all, err = s.Refresh(k.Context(), []store.Route{op.route}); err == nil {
			out.standing = all[0]
		}
	case "release":
		out.released, err = s.Release(k.Context(), op.route.User, op.route.Session, op.route.Epoch)
	default:
		out.found, err = s.Lookup(k.Context(), []im.UserID{op.route.User})
	}
	if err != nil {
		k.Error(errors.Join(errors.New(op.kind), err))
	}
	return out
}
