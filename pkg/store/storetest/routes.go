package storetest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// Routes are the route stores of a driver.
type Routes struct {
	// Open makes a store for a test that holds nothing of its users.
	Open func(t testing.TB) store.RouteStore
	// Other makes the store of another process, with the same routes as the last
	// that Open made; nil = only one process can have them.
	Other func(t testing.TB) store.RouteStore
	// Forget makes the last store that Open made lose all it remembers; nil = it
	// cannot lose anything.
	Forget func(t testing.TB)
	// Soon is how long a change of another process may stay unseen.
	Soon time.Duration
}

// TestRoutes runs the suite for route stores.
func TestRoutes(t *testing.T, r Routes) {
	tests := []struct {
		name string
		run  func(*routeKit)
	}{
		{"what is claimed is found until it is released", claimLookupRelease},
		{"only the exact session is released", exactRelease},
		{"the same login and device again supersedes, whatever the policy", supersedes},
		{"multi lets n logins of a class live", multi},
		{"kick_old ends the others", kickOld},
		{"kick_old ends logins that are away", kickedAway},
		{"reject_new refuses and changes nothing", rejectNew},
		{"a replaced login loses all its sessions", replacedByLogin},
		{"route epochs rise for good", epochsRise},
		{"claims of one user are one after the other", concurrentClaims},
		{"many claims at once are each granted or refused alone", claimMany},
		{"random claims agree with a model", routeProperty},
		{"random ranked claims do what they say", rankedProperty},
		{"a claim that names its epoch displaces nobody who came later", ranked},
		{"a total over all classes", total},
		{"a refresh says what became of a route", refreshed},
		{"what a process left is swept", swept},
		{"what several processes do is linearizable", linearizable},
		{"that nobody is there is not remembered", absence},
		{"what was lost is put back in order", restored},
		{"route epochs rise over a loss", epochsRiseOverALoss},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := r.Open(t)
			t.Cleanup(func() {
				if err := s.Close(); err != nil {
					t.Errorf("close: %v", err)
				}
			})
			tt.run(&routeKit{T: t, s: s, r: r})
		})
	}
}

type routeKit struct {
	*testing.T
	s store.RouteStore
	r Routes
}

func (k *routeKit) ctx() context.Context {
	ctx, cancel := context.WithTimeout(k.Context(), 10*time.Second)
	k.Cleanup(cancel)
	return ctx
}

// route is a new session of u's login on device.
func route(u im.UserID, login im.LoginID, device im.DeviceID, class im.Class) store.Route {
	return store.Route{
		User: u, Session: im.SessionID(fmt.Sprintf("s%d", counter.Add(1))), Login: login, Device: device, Class: class,
		Node: "n1", Boot: "b1", Since: time.Now().Truncate(time.Microsecond),
	}
}

func (k *routeKit) claim(r store.Route, p store.Policy) store.Claim {
	k.Helper()
	c, err := k.s.Claim(k.ctx(), r, p)
	if err != nil {
		k.Fatalf("claim %s: %v", r.Session, err)
	}
	return c
}

func (k *routeKit) sessions(users ...im.UserID) []im.SessionID {
	k.Helper()
	l, err := k.s.Lookup(k.ctx(), users)
	if err != nil {
		k.Fatal(err)
	}
	return names(l)
}

// names are the sessions of routes, sorted.
func names(routes []store.Route) []im.SessionID {
	out := []im.SessionID{}
	for _, r := range routes {
		out = append(out, r.Session)
	}
	slices.Sort(out)
	return out
}

func (k *routeKit) same(what string, got []im.SessionID, want ...store.Route) {
	k.Helper()
	if w := names(want); !slices.Equal(got, w) {
		k.Errorf("%s: %v, want %v", what, got, w)
	}
}

var anyNumber = store.Policy{Mode: store.Multi, Multi: 100}

func claimLookupRelease(k *routeKit) {
	a, b, c := route("u", "l1", "d1", im.Phone), route("u", "l2", "d2", im.Web), route("v", "l3", "d3", im.Bot)
	ca := k.claim(a, anyNumber)
	k.claim(b, anyNumber)
	k.claim(c, anyNumber)
	k.same("u", k.sessions("u"), a, b)
	k.same("all", k.sessions("u", "v", "nobody"), a, b, c)
	l, err := k.s.Lookup(k.ctx(), []im.UserID{"v"})
	if err != nil || len(l) != 1 || l[0].Login != "l3" || l[0].Node != "n1" || l[0].Boot != "b1" || l[0].Class != im.Bot || l[0].Epoch == 0 || !l[0].Since.Equal(c.Since) {
		k.Errorf("lookup: %+v, %v", l, err)
	}
	if ok, err := k.s.Release(k.ctx(), "u", a.Session, ca.Epoch); !ok || err != nil {
		k.Errorf("release: %v, %v", ok, err)
	}
	k.same("after release", k.sessions("u", "v"), b, c)
}

func exactRelease(k *routeKit) {
	a := route("u", "l", "d", im.Phone)
	old := k.claim(a, anyNumber)
	b := route("u", "l", "d", im.Phone)
	now := k.claim(b, anyNumber)
	for _, r := range []struct {
		user    im.UserID
		session im.SessionID
		epoch   uint64
	}{{"u", a.Session, old.Epoch}, {"u", b.Session, old.Epoch}, {"u", a.Session, now.Epoch}, {"v", b.Session, now.Epoch}} {
		if ok, err := k.s.Release(k.ctx(), r.user, r.session, r.epoch); ok || err != nil {
			k.Errorf("release of %+v: %v, %v", r, ok, err)
		}
	}
	k.same("still there", k.sessions("u"), b)
	if ok, _ := k.s.Release(k.ctx(), "u", b.Session, now.Epoch); !ok {
		k.Error("the exact release did not work")
	}
	if ok, _ := k.s.Release(k.ctx(), "u", b.Session, now.Epoch); ok {
		k.Error("released twice")
	}
}

func supersedes(k *routeKit) {
	for i, p := range []store.Policy{{Mode: store.Multi, Multi: 1}, {Mode: store.KickOld}, {Mode: store.RejectNew}, {Mode: store.RejectNew, SameClass: true}} {
		u := im.UserID(fmt.Sprint("u", i))
		a := route(u, "l", "d", im.Phone)
		k.claim(a, p)
		b := route(u, "l", "d", im.Phone)
		c := k.claim(b, p)
		k.same("superseded", names(c.Superseded), a)
		k.same("replaced", names(c.Replaced))
		k.same("live", k.sessions(u), b)
		other := route(u, "l", "d2", im.Phone) // the same login elsewhere is no rival and no heir
		c = k.claim(other, p)
		k.same("superseded by another device", names(c.Superseded))
		k.same("live", k.sessions(u), b, other)
	}
}

func multi(k *routeKit) {
	p := store.Policy{Mode: store.Multi, Multi: 2}
	a, b, w := route("u", "l1", "d1", im.Phone), route("u", "l2", "d2", im.Phone), route("u", "l9", "d9", im.Web)
	k.claim(a, p)
	k.claim(b, p)
	if c := k.claim(w, p); len(c.Replaced) != 0 {
		k.Errorf("another class replaces %v", names(c.Replaced))
	}
	c3 := route("u", "l3", "d3", im.Phone)
	k.same("the oldest goes", names(k.claim(c3, p).Replaced), a)
	k.same("live", k.sessions("u"), b, c3, w)
	again := route("u", "l2", "d2", im.Phone)
	c := k.claim(again, p)
	k.same("a reconnect", names(c.Superseded), b)
	k.same("a reconnect replaces nobody", names(c.Replaced))
	d := route("u", "l4", "d4", im.Phone)
	k.same("the oldest now", names(k.claim(d, p).Replaced), c3)
	one := route("u", "l5", "d5", im.Phone)
	k.same("a lower bound", names(k.claim(one, store.Policy{Mode: store.Multi, Multi: 1}).Replaced), again, d)
	free := route("u", "l6", "d6", im.Phone)
	k.same("no bound", names(k.claim(free, store.Policy{Mode: store.Multi}).Replaced))
	k.same("live at the end", k.sessions("u"), one, free, w)
}

func kickOld(k *routeKit) {
	phone, web := route("u", "l1", "d1", im.Phone), route("u", "l2", "d2", im.Web)
	k.claim(phone, anyNumber)
	k.claim(web, anyNumber)
	next := route("u", "l3", "d3", im.Phone)
	k.same("in the class", names(k.claim(next, store.Policy{Mode: store.KickOld, SameClass: true}).Replaced), phone)
	last := route("u", "l4", "d4", im.Tablet)
	k.same("all", names(k.claim(last, store.Policy{Mode: store.KickOld}).Replaced), next, web)
	k.same("live", k.sessions("u"), last)
}

func kickedAway(k *routeKit) {
	one, all := store.Policy{Mode: store.KickOld, SameClass: true}, store.Policy{Mode: store.KickOld}
	away := func(what string, r store.Route, p store.Policy, want ...im.LoginID) store.Route {
		k.Helper()
		c := k.claim(r, p)
		slices.Sort(c.Away)
		if !slices.Equal(c.Away, want) {
			k.Errorf("%s: %v are replaced while away, want %v", what, c.Away, want)
		}
		r.Epoch = c.Epoch
		return r
	}
	leave := func(r store.Route) {
		k.Helper()
		if ok, err := k.s.Release(k.ctx(), r.User, r.Session, r.Epoch); !ok || err != nil {
			k.Fatal(ok, err)
		}
	}
	leave(away("the first", route("u", "l1", "d1", im.Phone), one))
	leave(away("it comes back", route("u", "l1", "d1", im.Phone), one))
	leave(away("another class", route("u", "l2", "d2", im.Web), one))
	leave(away("without the policy", route("u", "l3", "d3", im.Phone), anyNumber))
	late := route("u", "l4", "d4", im.Phone)
	late.Epoch = 1
	leave(away("one that began before", late, one))
	phone := away("in the class", route("u", "l5", "d5", im.Phone), one, "l1", "l4")
	k.same("live", k.sessions("u"), phone)
	last := away("in all", route("u", "l6", "d6", im.Tablet), all, "l2")
	if s := k.refresh(phone); s != store.Replaced {
		k.Errorf("the live one is %v", s)
	}
	leave(last)
	away("each is replaced once", route("u", "l7", "d7", im.Bot), all, "l6")
}

func rejectNew(k *routeKit) {
	p := store.Policy{Mode: store.RejectNew}
	a := route("u", "l1", "d1", im.Phone)
	c := k.claim(a, p)
	for _, class := range []im.Class{im.Phone, im.Web} {
		if _, err := k.s.Claim(k.ctx(), route("u", "l2", "d2", class), p); im.ReasonOf(err) != clientv1.Reason_REASON_LOGIN_REFUSED {
			k.Errorf("%s: %v", class, err)
		}
	}
	k.same("nothing changed", k.sessions("u"), a)
	w := route("u", "l2", "d2", im.Web)
	k.claim(w, store.Policy{Mode: store.RejectNew, SameClass: true})
	if _, err := k.s.Claim(k.ctx(), route("u", "l1", "d1", im.Phone), p); im.ReasonOf(err) != clientv1.Reason_REASON_LOGIN_REFUSED {
		k.Errorf("a reconnect beside a rival: %v", err)
	}
	k.same("nothing changed", k.sessions("u"), a, w)
	k.claim(route("v", "l1", "d1", im.Phone), p)
	if ok, _ := k.s.Release(k.ctx(), "u", a.Session, c.Epoch); !ok {
		k.Error("not released")
	}
	b := route("u", "l3", "d3", im.Phone)
	k.claim(b, store.Policy{Mode: store.RejectNew, SameClass: true})
	k.same("the place was free", k.sessions("u"), b, w)
}

func replacedByLogin(k *routeKit) {
	a, b := route("u", "l1", "d1", im.Phone), route("u", "l1", "d2", im.Web)
	k.claim(a, anyNumber)
	k.claim(b, anyNumber)
	next := route("u", "l2", "d3", im.Phone)
	k.same("both", names(k.claim(next, store.Policy{Mode: store.KickOld, SameClass: true}).Replaced), a, b)
	k.same("live", k.sessions("u"), next)
}

func epochsRise(k *routeKit) {
	var last uint64
	for range 50 {
		r := route("u", "l", "d", im.Phone)
		c := k.claim(r, anyNumber)
		if c.Epoch <= last {
			k.Fatalf("epoch %d after %d", c.Epoch, last)
		}
		last = c.Epoch
		if ok, _ := k.s.Release(k.ctx(), "u", r.Session, c.Epoch); !ok {
			k.Fatal("not released")
		}
	}
}

func concurrentClaims(k *routeKit) {
	const n = 40
	claims := make([]store.Claim, n)
	routes := make([]store.Route, n)
	var wg sync.WaitGroup
	for i := range n {
		routes[i] = route("u", im.LoginID(fmt.Sprint("l", i)), "d", im.Phone)
		wg.Go(func() {
			c, err := k.s.Claim(k.Context(), routes[i], store.Policy{Mode: store.KickOld})
			if err != nil {
				k.Errorf("claim: %v", err)
			}
			claims[i] = c
		})
	}
	wg.Wait()
	ended := map[im.SessionID]int{}
	epochs := map[uint64]bool{}
	for _, c := range claims {
		epochs[c.Epoch] = true
		for _, r := range c.Replaced {
			ended[r.Session]++
		}
	}
	live := k.sessions("u")
	if len(epochs) != n || len(live) != 1 || len(ended) != n-1 || ended[live[0]] != 0 {
		k.Errorf("%d epochs, %v live, %d ended", len(epochs), live, len(ended))
	}
	for s, times := range ended {
		if times != 1 {
			k.Errorf("%s was ended %d times", s, times)
		}
	}
}

// claimMany makes claims that go together: of different users, of one user twice, and
// some that are refused.
func claimMany(k *routeKit) {
	holder := route("held", "l1", "d1", im.Phone)
	k.claim(holder, anyNumber)
	var list []store.Claiming
	var free []store.Route
	for i := range store.MaxClaims - 4 {
		free = append(free, route(im.UserID(fmt.Sprint("many", i)), "l", "d", im.Phone))
		list = append(list, store.Claiming{Route: free[i], Policy: anyNumber})
	}
	old := route("many0", "l", "d", im.Phone) // the device of the first, from before
	k.claim(old, anyNumber)
	one := store.Policy{Mode: store.KickOld}
	twice := []store.Route{route("twice", "l1", "d1", im.Phone), route("twice", "l2", "d2", im.Phone)}
	ranked := route("held", "l1", "d1", im.Phone)
	ranked.Epoch = 1
	list = append(list, store.Claiming{Route: twice[0], Policy: one}, store.Claiming{Route: twice[1], Policy: one},
		store.Claiming{Route: route("held", "l2", "d2", im.Phone), Policy: store.Policy{Mode: store.RejectNew}}, store.Claiming{Route: ranked, Policy: anyNumber})
	out, err := k.s.ClaimMany(k.ctx(), list)
	if err != nil || len(out) != len(list) {
		k.Fatalf("%d answers, %v", len(out), err)
	}
	var users []im.UserID
	for i, r := range free {
		users = append(users, r.User)
		if c := out[i]; c.Err != nil || c.Claim.Epoch == 0 || len(c.Claim.Superseded) > 0 != (i == 0) {
			k.Errorf("claim %d: %+v", i, c)
		}
	}
	k.same("the device from before", names(out[0].Claim.Superseded), old)
	k.same("all", k.sessions(users...), free...)
	n := len(free)
	won := twice[0]
	if out[n+1].Claim.Epoch > out[n].Claim.Epoch {
		won = twice[1]
	}
	if out[n].Err != nil || out[n+1].Err != nil || len(out[n].Claim.Replaced)+len(out[n+1].Claim.Replaced) != 1 {
		k.Errorf("two of one user: %+v, %+v", out[n], out[n+1])
	}
	k.same("two of one user", k.sessions("twice"), won)
	if c := out[n+2]; im.ReasonOf(c.Err) != clientv1.Reason_REASON_LOGIN_REFUSED {
		k.Errorf("under reject_new: %+v", c)
	} else {
		k.same("in the way", names(c.Claim.Holders), holder)
	}
	if c := out[n+3]; c.Err != nil || c.Claim.Standing != store.Superseded {
		k.Errorf("one that was outranked: %+v", c)
	}
	k.same("nothing changed", k.sessions("held"), holder)
	if _, err := k.s.ClaimMany(k.ctx(), make([]store.Claiming, store.MaxClaims+1)); im.ReasonOf(err) != clientv1.Reason_REASON_BAD_REQUEST {
		k.Errorf("too many: %v", err)
	}
	crowd(k)
	if out, err := k.s.ClaimMany(k.ctx(), nil); err != nil || len(out) > 0 {
		k.Errorf("none: %v, %v", out, err)
	}
}

// crowd claims for many logins of one user at once, of whom one is left.
func crowd(k *routeKit) {
	list, routes, left := make([]store.Claiming, 60), map[im.SessionID]store.Route{}, map[im.SessionID]bool{}
	for i := range list {
		x := route("crowd", im.LoginID(fmt.Sprint("l", i)), "d", im.Phone)
		list[i] = store.Claiming{Route: x, Policy: store.Policy{Mode: store.KickOld}}
		routes[x.Session], left[x.Session] = x, true
	}
	out, err := k.s.ClaimMany(k.ctx(), list)
	if err != nil {
		k.Fatal(err)
	}
	var last uint64
	var newest im.SessionID
	for i, c := range out {
		if c.Err != nil {
			k.Errorf("claim %d of one user: %v", i, c.Err)
		}
		if c.Claim.Epoch > last {
			last, newest = c.Claim.Epoch, list[i].Route.Session
		}
		for _, x := range c.Claim.Replaced {
			if !left[x.Session] {
				k.Errorf("%s is replaced twice", x.Session)
			}
			delete(left, x.Session)
		}
	}
	if len(left) != 1 || !left[newest] {
		k.Errorf("not replaced are %v; the newest is %s", left, newest)
	}
	k.same("many of one user", k.sessions("crowd"), routes[newest])
}

// routeProperty checks after each random claim what must hold of the answer
// and of what is left, whatever came before.
func routeProperty(k *routeKit) {
	rapid.Check(k.T, func(t *rapid.T) {
		u := im.UserID(fmt.Sprint("u", counter.Add(1)))
		var have []store.Route
		var last uint64
		t.Repeat(map[string]func(*rapid.T){
			"claim": func(t *rapid.T) {
				r := route(u, im.LoginID(rapid.SampledFrom([]string{"l1", "l2", "l3", "l4"}).Draw(t, "login")),
					im.DeviceID(rapid.SampledFrom([]string{"d1", "d2"}).Draw(t, "device")),
					rapid.SampledFrom([]im.Class{im.Phone, im.Web}).Draw(t, "class"))
				p := store.Policy{
					Mode:      store.PolicyMode(rapid.IntRange(0, 2).Draw(t, "mode")),
					Multi:     rapid.IntRange(1, 3).Draw(t, "n"),
					SameClass: rapid.Bool().Draw(t, "same class"),
				}
				c, err := k.s.Claim(k.ctx(), r, p)
				unanswered(t, err)
				if err == nil {
					if c.Epoch <= last {
						t.Fatalf("epoch %d after %d", c.Epoch, last)
					}
					last, r.Epoch = c.Epoch, c.Epoch
				}
				have = checkClaim(t, have, r, p, c, err)
			},
			"release": func(t *rapid.T) {
				if len(have) == 0 {
					return
				}
				i := rapid.IntRange(0, len(have)-1).Draw(t, "which")
				ok, err := k.s.Release(k.ctx(), u, have[i].Session, have[i].Epoch)
				unanswered(t, err)
				if !ok || err != nil {
					t.Fatalf("release: %v, %v", ok, err)
				}
				have = slices.Delete(have, i, i+1)
			},
			"": func(t *rapid.T) {
				if got, want := k.live(t, u), names(have); !slices.Equal(got, want) {
					t.Fatalf("live: %v, want %v", got, want)
				}
			},
		})
	})
}

// unanswered ends a random course whose last call had no answer in time, as happens
// on a machine that stands still: what has come of the call is not known. If that
// happens all the time, too few courses are left and the test fails.
func unanswered(t *rapid.T, err error) {
	if im.ReasonOf(err) == clientv1.Reason_REASON_UNAVAILABLE {
		t.Skip(err)
	}
}

// live is the sessions of a user in a random course.
func (k *routeKit) live(t *rapid.T, u im.UserID) []im.SessionID {
	l, err := k.s.Lookup(k.ctx(), []im.UserID{u})
	unanswered(t, err)
	if err != nil {
		t.Fatal(err)
	}
	return names(l)
}

// checkClaim says what must be left of have after a claim of r, and compares
// the answer with what went.
func checkClaim(t *rapid.T, have []store.Route, r store.Route, p store.Policy, c store.Claim, err error) []store.Route {
	counts := func(h store.Route) bool {
		return h.Login != r.Login && (h.Class == r.Class || p.Mode != store.Multi && !p.SameClass)
	}
	if p.Mode == store.RejectNew && slices.ContainsFunc(have, counts) {
		if im.ReasonOf(err) != clientv1.Reason_REASON_LOGIN_REFUSED {
			t.Fatalf("claim beside a rival: %v", err)
		}
		return have
	}
	if err != nil {
		t.Fatal(err)
	}
	var rivals []im.LoginID // oldest first
	byAge := slices.Clone(have)
	slices.SortFunc(byAge, func(a, b store.Route) int { return int(int64(a.Epoch) - int64(b.Epoch)) })
	for _, h := range byAge {
		if counts(h) && !slices.Contains(rivals, h.Login) {
			rivals = append(rivals, h.Login)
		}
	}
	if p.Mode == store.Multi {
		rivals = rivals[:max(0, len(rivals)+1-p.Multi)]
	}
	var left, superseded, replaced []store.Route
	for _, h := range have {
		switch {
		case h.Login == r.Login && h.Device == r.Device:
			superseded = append(superseded, h)
		case slices.Contains(rivals, h.Login):
			replaced = append(replaced, h)
		default:
			left = append(left, h)
		}
	}
	if !slices.Equal(names(c.Superseded), names(superseded)) || !slices.Equal(names(c.Replaced), names(replaced)) {
		t.Fatalf("superseded %v, replaced %v; want %v and %v", names(c.Superseded), names(c.Replaced), names(superseded), names(replaced))
	}
	return append(left, r)
}
