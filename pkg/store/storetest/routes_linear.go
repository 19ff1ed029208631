package storetest

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
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
	unsure   bool // nobody knows whether it happened
}

// routeState is what one user has: the routes that are live and why others are
// not.
type routeState struct {
	live      []store.Route
	displaced map[im.SessionID]store.Standing
	top       uint64
}

// routeModel is what route stores promise, one call after the other.
var routeModel = (&porcupine.NondeterministicModel{
	Init: func() []any { return []any{routeState{}} },
	Step: func(state, input, output any) []any {
		s, op, out := state.(routeState), input.(routeOp), output.(routeAnswer)
		if out.unsure {
			return []any{s, s.happened(op)}
		}
		if ok, next := s.step(op, out); ok {
			return []any{next}
		}
		return nil
	},
	Equal: func(a, b any) bool { return a.(routeState).text() == b.(routeState).text() },
	DescribeOperation: func(input, output any) string {
		op, out := input.(routeOp), output.(routeAnswer)
		return fmt.Sprintf("%s %s/%s -> %+v", op.kind, op.route.Session, op.route.Login, out)
	},
}).ToModel()

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
		next := s.without(op.route)
		return out.released == (len(next.live) < len(s.live)), next
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
	return true, s.with(r, want, keep)
}

// with is the state after a claim that was granted.
func (s routeState) with(r store.Route, c store.Claim, keep []store.Route) routeState {
	next := routeState{append(slices.Clone(keep), r), map[im.SessionID]store.Standing{}, r.Epoch}
	for id, why := range s.displaced {
		next.displaced[id] = why
	}
	for _, x := range c.Superseded {
		next.displaced[x.Session] = store.Superseded
	}
	for _, x := range c.Replaced {
		next.displaced[x.Session] = store.Replaced
	}
	return next
}

// without is the state after a release.
func (s routeState) without(r store.Route) routeState {
	kept := slices.DeleteFunc(slices.Clone(s.live), func(h store.Route) bool { return h.Session == r.Session && h.Epoch == r.Epoch })
	return routeState{kept, s.displaced, s.top}
}

// happened is the state after a claim or a release that was not answered. A claim has
// any epoch above the others, as nobody will name it again.
func (s routeState) happened(op routeOp) routeState {
	if op.kind == "release" {
		return s.without(op.route)
	}
	r := op.route
	r.Epoch = s.top + 1
	c, keep, ok := store.Admit(s.live, r, op.policy)
	if !ok {
		return s
	}
	return s.with(r, c, keep)
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
	stores := []store.RouteStore{k.s}
	if k.r.Other != nil {
		stores = append(stores, k.r.Other(k))
	}
	h := newRouteHistory()
	h.play(k, stores, func(call int) (users string, ok bool) { return "u", call < 60 })
	if h.unsure > 0 {
		k.Errorf("%d calls failed", h.unsure)
	}
	h.check(k)
}

// Linearizable lets several workers use stores that have the same routes until stop
// is closed, while somebody disturbs the servers behind them, and checks that there
// is an order in which each answer is right. A call that fails as unavailable may
// have happened, at any time from then on, or not. It returns how many calls were
// answered and how many were not.
func Linearizable(t testing.TB, stores []store.RouteStore, stop <-chan struct{}) (answered, unsure int) {
	t.Helper()
	h := newRouteHistory()
	h.play(t, stores, func(int) (users string, ok bool) {
		select {
		case <-stop:
			return "", false
		case <-time.After(3 * time.Millisecond): // a load of people, and short histories
		}
		return fmt.Sprint("t", time.Since(h.begin)/routeSpan, "-"), true
	})
	h.check(t)
	return h.answered, h.unsure
}

// routeSpan is after how long other users have their turn: what is checked grows with
// the calls about one user, and so does what stores remember of them.
const routeSpan = 200 * time.Millisecond

// routeHistory is calls and their answers, for each user.
type routeHistory struct {
	begin time.Time

	mu               sync.Mutex
	ops              map[im.UserID][]porcupine.Operation
	answered, unsure int
}

func newRouteHistory() *routeHistory {
	return &routeHistory{begin: time.Now(), ops: map[im.UserID][]porcupine.Operation{}}
}

// play lets workers call the stores. next names the users of a worker's next call, by
// what their names begin with, until it says no.
func (h *routeHistory) play(t testing.TB, stores []store.RouteStore, next func(call int) (users string, ok bool)) {
	const workers, users = 6, 4
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			s, dice := stores[w%len(stores)], rand.New(rand.NewPCG(uint64(w), 7))
			mine := map[im.UserID][]store.Route{} // claimed by this worker and not released
			for call := 0; ; call++ {
				names, ok := next(call)
				if !ok {
					return
				}
				u := im.UserID(fmt.Sprint(names, dice.IntN(users)))
				op := nextOp(dice, u, mine[u])
				at := time.Since(h.begin)
				out, err := perform(t.Context(), s, op)
				if err != nil && im.ReasonOf(err) != clientv1.Reason_REASON_UNAVAILABLE {
					t.Errorf("%s: %v", op.kind, err)
					return
				}
				out.unsure = err != nil
				switch {
				case op.kind == "claim" && err == nil && !out.refused:
					r := op.route
					r.Epoch = out.claim.Epoch
					mine[u] = append(mine[u], r)
				case op.kind == "release":
					mine[u] = slices.DeleteFunc(mine[u], func(x store.Route) bool { return x.Session == op.route.Session })
				}
				h.note(u, porcupine.Operation{ClientId: w, Input: op, Output: out, Call: int64(at), Return: int64(time.Since(h.begin))})
			}
		})
	}
	wg.Wait()
}

// note takes a call down. One without an answer that would have changed something may
// come true later.
func (h *routeHistory) note(u im.UserID, o porcupine.Operation) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !o.Output.(routeAnswer).unsure {
		h.answered++
		h.ops[u] = append(h.ops[u], o)
		return
	}
	h.unsure++
	if kind := o.Input.(routeOp).kind; kind == "claim" || kind == "release" {
		o.ClientId, o.Return = 100+h.unsure, math.MaxInt64 // its worker goes on
		h.ops[u] = append(h.ops[u], o)
	}
}

func (h *routeHistory) check(t testing.TB) {
	for u, list := range h.ops {
		if res := porcupine.CheckOperationsTimeout(routeModel, list, 30*time.Second); res != porcupine.Ok {
			t.Errorf("user %s: %d calls are %s", u, len(list), res)
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

// perform makes a call.
func perform(ctx context.Context, s store.RouteStore, op routeOp) (out routeAnswer, err error) {
	switch op.kind {
	case "claim":
		out.claim, err = claimSomehow(ctx, s, op)
		if im.ReasonOf(err) == clientv1.Reason_REASON_LOGIN_REFUSED {
			out.refused, err = true, nil
		}
	case "refresh":
		var all []store.Standing
		if all, err = s.Refresh(ctx, []store.Route{op.route}); err == nil {
			out.standing = all[0]
		}
	case "release":
		out.released, err = s.Release(ctx, op.route.User, op.route.Session, op.route.Epoch)
	default:
		out.found, err = s.Lookup(ctx, []im.UserID{op.route.User})
	}
	return out, err
}

// claimSomehow makes a claim alone, or every second time together with that of somebody
// else.
func claimSomehow(ctx context.Context, s store.RouteStore, op routeOp) (store.Claim, error) {
	n := counter.Add(1)
	if n%2 == 0 {
		return s.Claim(ctx, op.route, op.policy)
	}
	other := route(im.UserID(fmt.Sprint("beside", n)), "l", "d", im.Phone)
	out, err := s.ClaimMany(ctx, []store.Claiming{{Route: other}, {Route: op.route, Policy: op.policy}})
	if err != nil {
		return store.Claim{}, err
	}
	return out[1].Claim, out[1].Err
}
