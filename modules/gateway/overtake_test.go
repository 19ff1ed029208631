package gateway

import (
	"context"
	"slices"
	"sync"
	"testing"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/pkg/testenv"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// claimers is a route store that notes which logins claim, and holds up claims.
type claimers struct {
	mu   sync.Mutex
	list []im.LoginID
	hold map[im.LoginID]chan struct{} // the next claim of a login waits for it
}

type claimersOf struct {
	routes
	c *claimers
}

func (r claimersOf) ClaimMany(ctx context.Context, list []store.Claiming) ([]store.Claimed, error) {
	var wait []chan struct{}
	r.c.mu.Lock()
	for _, x := range list {
		l := x.Route.Login
		r.c.list = append(r.c.list, l)
		if c := r.c.hold[l]; c != nil {
			wait = append(wait, c)
			delete(r.c.hold, l)
		}
	}
	r.c.mu.Unlock()
	for _, c := range wait {
		<-c
	}
	return r.routes.ClaimMany(ctx, list)
}

func (c *claimers) of(l im.LoginID) (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, x := range c.list {
		if x == l {
			n++
		}
	}
	return n
}

// A client that gave a hello up and said another is not thrown out by the first one,
// in whichever order they are handled.
func TestALaterHelloOvertakes(t *testing.T) {
	dir, claims := &gated{came: make(chan struct{}, 100)}, &claimers{hold: map[im.LoginID]chan struct{}{}}
	w := beginTuned(t, func(g *Gateway) {
		dir.directoryClient, g.Directory = g.Directory, dir
		found := g.Routes
		g.Routes = func() (routes, error) {
			r, err := found()
			return claimersOf{r, claims}, err
		}
	})
	hello := func(user string) *testenv.Client {
		c := testenv.Dial(t, w.base(), protocol.Proto)
		c.Write(helloWith(w.token(user)))
		return c
	}
	// crowd fills all calls, so that those who come next are looked at in one group.
	crowd := func(users ...string) (pass func()) {
		eventually(t, "all had their turn", func() bool { return w.g.joins.busy() == 0 && w.g.joins.waits() == 0 })
		open := dir.shut()
		for i, user := range users {
			hello(user)
			eventually(t, "its call is out", func() bool { return w.g.joins.busy() == i+1 })
		}
		return open
	}

	welcomed := func(c *testenv.Client) {
		c.Take("welcome", func(f *clientv1.ServerFrame) bool { return f.GetWelcome() != nil })
	}

	t.Run("both are in one group", func(t *testing.T) {
		pass := crowd("a", "b", "c", "d")
		first := hello("one")
		eventually(t, "it waits", func() bool { return w.g.joins.waits() == 1 })
		second := hello("one")
		eventually(t, "both wait", func() bool { return w.g.joins.waits() == 2 })
		pass()
		wantBye(t, first, "superseded")
		welcomed(second)
		if n := claims.of("l-one"); n != 1 {
			t.Errorf("%d claims of a place", n)
		}
	})
	t.Run("the claim of the first comes true last", func(t *testing.T) {
		late := make(chan struct{})
		claims.mu.Lock()
		claims.hold["l-two"] = late
		claims.mu.Unlock()
		first := hello("two")
		eventually(t, "it claims", func() bool { return claims.of("l-two") == 1 })
		second := hello("two")
		welcomed(second)
		wantBye(t, first, "superseded")
		close(late)
		wantBye(t, second, "busy") // it comes back
	})
	t.Run("somebody else hears of it before", func(t *testing.T) {
		late := make(chan struct{})
		defer close(late)
		claims.mu.Lock()
		claims.hold["l-three"] = late
		claims.mu.Unlock()
		hello("three")
		eventually(t, "it claims", func() bool { return claims.of("l-three") == 1 })
		second := hello("three")
		welcomed(second)
		for _, s := range w.g.hub.of("three") {
			s.displace("superseded")
		}
		wantBye(t, second, "busy")
	})
	t.Run("the first has hung up", func(t *testing.T) {
		pass := crowd("e", "f", "g", "h")
		first := hello("four")
		eventually(t, "it waits", func() bool { return w.g.joins.waits() == 1 })
		first.Cut()
		eventually(t, "that has come", func() bool {
			return slices.ContainsFunc(w.g.hub.all(), func(s *session) bool {
				s.mu.Lock()
				defer s.mu.Unlock()
				return s.user == "four" && hungUp(s.wire.Conn)
			})
		})
		pass()
		eventually(t, "all had their turn", func() bool { return w.g.joins.busy() == 0 && w.g.joins.waits() == 0 })
		if n := claims.of("l-four"); n != 0 {
			t.Errorf("who has hung up claims a place")
		}
	})
}
