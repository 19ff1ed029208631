package storetest

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// refresh refreshes one route.
func (k *routeKit) refresh(r store.Route) store.Standing {
	k.Helper()
	out, err := k.s.Refresh(k.ctx(), []store.Route{r})
	if err != nil || len(out) != 1 {
		k.Fatalf("refresh: %v, %v", out, err)
	}
	return out[0]
}

// claimed is claim, and returns the route as it is now.
func (k *routeKit) claimed(r store.Route, p store.Policy) store.Route {
	k.Helper()
	r.Epoch = k.claim(r, p).Epoch
	return r
}

func ranked(k *routeKit) {
	newer := k.claimed(route("u", "l", "d", im.Phone), anyNumber)
	late := route("u", "l", "d", im.Phone)
	late.Epoch = newer.Epoch - 1000
	if c := k.claim(late, anyNumber); c.Standing != store.Superseded || len(c.Superseded) != 0 {
		k.Errorf("the same device: %+v", c)
	}
	k.same("live", k.sessions("u"), newer)

	kick := store.Policy{Mode: store.KickOld}
	newer = k.claimed(route("v", "l1", "d1", im.Phone), kick)
	late = route("v", "l2", "d2", im.Phone)
	late.Epoch = newer.Epoch - 1000
	if c := k.claim(late, kick); c.Standing != store.Replaced || len(c.Replaced) != 0 {
		k.Errorf("another login under kick_old: %+v", c)
	}
	k.same("live", k.sessions("v"), newer)

	two := store.Policy{Mode: store.Multi, Multi: 2}
	a, b := k.claimed(route("w", "l1", "d1", im.Phone), two), k.claimed(route("w", "l2", "d2", im.Phone), two)
	late = route("w", "l3", "d3", im.Phone)
	late.Epoch = a.Epoch - 1
	if c := k.claim(late, two); c.Standing != store.Replaced {
		k.Errorf("the oldest of three under multi 2: %+v", c)
	}
	late.Epoch = a.Epoch + 1
	if late.Epoch == b.Epoch {
		k.Skip("the clock gave neighbours")
	}
	if c := k.claim(late, two); c.Standing != store.Kept || c.Epoch != a.Epoch+1 {
		k.Errorf("the second of three under multi 2: %+v", c)
	} else {
		k.same("the oldest goes", names(c.Replaced), a)
	}
	if c := k.claim(route("w", "l2", "d2", im.Phone), two); c.Epoch <= b.Epoch {
		k.Errorf("epoch %d after %d", c.Epoch, b.Epoch)
	}
}

func total(k *routeKit) {
	p := store.Policy{Mode: store.Multi, Multi: 2, Total: 2}
	a, b := k.claimed(route("u", "l1", "d1", im.Phone), p), k.claimed(route("u", "l2", "d2", im.Web), p)
	c := route("u", "l3", "d3", im.Desktop)
	k.same("the oldest of all", names(k.claim(c, p).Replaced), a)
	k.same("live", k.sessions("u"), b, c)
	reject := store.Policy{Mode: store.RejectNew, SameClass: true, Total: 2}
	got, err := k.s.Claim(k.ctx(), route("u", "l4", "d4", im.Tablet), reject)
	if im.ReasonOf(err) != clientv1.Reason_REASON_LOGIN_REFUSED {
		k.Errorf("a third under reject_new: %v", err)
	}
	k.same("who is in the way", names(got.Holders), b, c)
	k.same("nothing changed", k.sessions("u"), b, c)
}

func refreshed(k *routeKit) {
	a := k.claimed(route("u", "l", "d", im.Phone), anyNumber)
	if s := k.refresh(a); s != store.Kept {
		k.Errorf("a live route is %v", s)
	}
	b := k.claimed(route("u", "l", "d", im.Phone), anyNumber)
	if s := k.refresh(a); s != store.Superseded {
		k.Errorf("its predecessor is %v", s)
	}
	c := k.claimed(route("u", "l2", "d2", im.Phone), store.Policy{Mode: store.KickOld})
	out, err := k.s.Refresh(k.ctx(), []store.Route{a, b, c})
	if err != nil || !slices.Equal(out, []store.Standing{store.Superseded, store.Replaced, store.Kept}) {
		k.Errorf("all: %v, %v", out, err)
	}
	k.same("live", k.sessions("u"), c)
}

func swept(k *routeKit) {
	dead, other := store.Home{Node: "n1", Boot: "b-dead"}, store.Home{Node: "n1", Boot: "b-new"}
	var users []im.UserID
	var kept []store.Route
	for i := range 30 {
		r := route(im.UserID(fmt.Sprint("u", i)), "l", "d", im.Phone)
		r.Node, r.Boot = dead.Node, dead.Boot
		k.claim(r, anyNumber)
		users = append(users, r.User)
		if i%3 == 0 {
			s := route(r.User, "l2", "d2", im.Phone)
			s.Node, s.Boot = other.Node, other.Boot
			k.claim(s, anyNumber)
			kept = append(kept, s)
		}
	}
	homes := func() []store.Home {
		l, err := k.s.Homes(k.ctx())
		if err != nil {
			k.Fatal(err)
		}
		return l
	}
	k.within(k.r.Soon, "both are listed", func() bool { l := homes(); return slices.Contains(l, dead) && slices.Contains(l, other) })
	n := 0
	k.within(k.r.Soon, "all are swept", func() bool {
		some, err := k.s.Sweep(k.ctx(), dead)
		if err != nil {
			k.Fatal(err)
		}
		n += some
		return n == 30 && !slices.Contains(homes(), dead)
	})
	k.same("after the sweep", k.sessions(users...), kept...)
	if !slices.Contains(homes(), other) {
		k.Error("the other process is not listed any more")
	}
	if n, err := k.s.Sweep(k.ctx(), dead); n != 0 || err != nil {
		k.Errorf("swept %d again, %v", n, err)
	}
}

// absence looks for users who are not there, lets another process claim, and
// looks again at once.
func absence(k *routeKit) {
	other := k.s
	if k.r.Other != nil {
		other = k.r.Other(k)
	}
	for i := range 100 {
		r := route(im.UserID(fmt.Sprint("u", i)), "l", "d", im.Phone)
		for range 2 {
			if l, err := k.s.Recent(k.ctx(), []im.UserID{r.User}); err != nil || len(l) != 0 {
				k.Fatalf("before: %v, %v", l, err)
			}
		}
		if _, err := other.Claim(k.ctx(), r, anyNumber); err != nil {
			k.Fatal(err)
		}
		k.soon(r.User, r.Session)
	}
}

// soon waits for a session to be found, as long as a change of another process
// may take.
func (k *routeKit) soon(user im.UserID, session im.SessionID) {
	k.Helper()
	for end := time.Now().Add(k.r.Soon); ; time.Sleep(time.Millisecond) {
		l, err := k.s.Recent(k.ctx(), []im.UserID{user})
		if err == nil && slices.Equal(names(l), []im.SessionID{session}) {
			return
		}
		if time.Now().After(end) {
			k.Fatalf("%s is not found after its claim: %v, %v", user, l, err)
		}
	}
}

func restored(k *routeKit) {
	if k.r.Forget == nil {
		return
	}
	old := k.claimed(route("u", "l", "d", im.Phone), anyNumber)
	now := k.claimed(route("u", "l", "d", im.Phone), anyNumber)
	beside := k.claimed(route("u", "l2", "d2", im.Phone), anyNumber)
	before, err := k.s.Memory(k.ctx())
	if err != nil {
		k.Fatal(err)
	}
	if again, err := k.s.Memory(k.ctx()); err != nil || again != before {
		k.Errorf("its memory is %q, then %q, %v", before, again, err)
	}
	k.r.Forget(k)
	k.eventually("another memory", func() bool {
		m, err := k.s.Memory(k.ctx())
		return err == nil && m != before
	})
	// The one that was superseded comes first, and goes when its heir comes.
	for _, tt := range []struct {
		r    store.Route
		want store.Standing
	}{{old, store.Restored}, {beside, store.Restored}, {now, store.Restored}, {old, store.Superseded}, {now, store.Kept}, {beside, store.Kept}} {
		if s := k.refresh(tt.r); s != tt.want {
			k.Errorf("%s is %v, want %v", tt.r.Session, s, tt.want)
		}
	}
	k.same("live", k.sessions("u"), now, beside)
	if ok, err := k.s.Release(k.ctx(), "u", now.Session, now.Epoch); !ok || err != nil {
		k.Errorf("release: %v, %v", ok, err)
	}
}

func (k *routeKit) eventually(what string, ok func() bool) {
	k.Helper()
	k.within(10*time.Second, what, ok)
}

// within waits until ok holds; a time of 0 = it has to at once.
func (k *routeKit) within(limit time.Duration, what string, ok func() bool) {
	k.Helper()
	for end := time.Now().Add(limit); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			k.Fatalf("%s: it does not happen", what)
		}
	}
}

func epochsRiseOverALoss(k *routeKit) {
	last := uint64(0)
	for range 5 {
		r := k.claimed(route("u", "l", "d", im.Phone), anyNumber)
		if r.Epoch <= last {
			k.Fatalf("epoch %d after %d", r.Epoch, last)
		}
		last = r.Epoch
		if k.r.Forget != nil {
			k.r.Forget(k)
			k.eventually("it answers", func() bool { _, err := k.s.Memory(k.ctx()); return err == nil })
		}
	}
	if k.r.Other == nil {
		return
	}
	r := route("u", "l", "d", im.Phone)
	c, err := k.r.Other(k).Claim(k.ctx(), r, anyNumber)
	if err != nil || c.Epoch <= last {
		k.Errorf("epoch %d of another process after %d, %v", c.Epoch, last, err)
	}
}

// rankedProperty compares a driver with store.Admit, whatever claims come.
func rankedProperty(k *routeKit) {
	rapid.Check(k.T, func(t *rapid.T) {
		u := im.UserID(fmt.Sprint("u", counter.Add(1)))
		var have []store.Route
		top := uint64(0)
		for i := range rapid.IntRange(1, 12).Draw(t, "claims") {
			r := route(u, im.LoginID(rapid.SampledFrom([]string{"l1", "l2", "l3", "l4"}).Draw(t, "login")),
				im.DeviceID(rapid.SampledFrom([]string{"d1", "d2"}).Draw(t, "device")),
				rapid.SampledFrom([]im.Class{im.Phone, im.Web}).Draw(t, "class"))
			p := store.Policy{
				Mode: store.PolicyMode(rapid.IntRange(0, 2).Draw(t, "mode")), Multi: rapid.IntRange(0, 3).Draw(t, "n"),
				SameClass: rapid.Bool().Draw(t, "same class"), Total: rapid.IntRange(0, 4).Draw(t, "total"),
			}
			if i > 0 && rapid.Bool().Draw(t, "ranked") {
				r.Epoch = top - rapid.Uint64Range(1, 50).Draw(t, "older by")*7
				if slices.ContainsFunc(have, func(h store.Route) bool { return h.Epoch == r.Epoch }) {
					continue
				}
			}
			c, err := k.s.Claim(k.ctx(), r, p)
			unanswered(t, err)
			if r.Epoch != 0 && err == nil && c.Epoch != r.Epoch {
				t.Fatalf("a claim under %d got %d", r.Epoch, c.Epoch)
			}
			if r.Epoch == 0 {
				r.Epoch = max(c.Epoch, top+1)
			}
			want, keep, ok := store.Admit(have, r, p)
			if ok != (err == nil) || err != nil && im.ReasonOf(err) != clientv1.Reason_REASON_LOGIN_REFUSED {
				t.Fatalf("claim of %+v under %+v beside %+v: %v", r, p, have, err)
			}
			if c.Standing != want.Standing || !slices.Equal(names(c.Superseded), names(want.Superseded)) ||
				!slices.Equal(names(c.Replaced), names(want.Replaced)) || !slices.Equal(names(c.Holders), names(want.Holders)) {
				t.Fatalf("claim of %+v under %+v beside %+v: %+v, want %+v", r, p, have, c, want)
			}
			if ok && want.Standing == store.Kept {
				have = append(slices.Clone(keep), r)
				top = max(top, r.Epoch)
			}
			if got, want := k.live(t, u), names(have); !slices.Equal(got, want) {
				t.Fatalf("live: %v, want %v", got, want)
			}
		}
	})
}

var _ testing.TB = (*routeKit)(nil)
