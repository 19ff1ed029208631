package gateway

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/pkg/testenv"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// gated is a directory that lets calls pass when its gate is open.
type gated struct {
	directoryClient
	mu   sync.Mutex
	gate chan struct{} // nil = it is open
	came chan struct{} // gets one for each call that finds it closed
}

func (d *gated) shut() (open func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	gate := make(chan struct{})
	d.gate = gate
	return sync.OnceFunc(func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.gate = nil
		close(gate)
	})
}

func (d *gated) AdmitMany(ctx context.Context, r *v1.AdmitManyRequest) (*v1.AdmitManyResponse, error) {
	d.mu.Lock()
	gate := d.gate
	d.mu.Unlock()
	if gate != nil {
		select {
		case d.came <- struct{}{}:
		default:
		}
		select {
		case <-gate:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return d.directoryClient.AdmitMany(ctx, r)
}

// noting is a route store that tells who claims, before it does.
type noting struct {
	routes
	tell func(im.LoginID)
}

func (n noting) ClaimMany(ctx context.Context, list []store.Claiming) ([]store.Claimed, error) {
	for _, c := range list {
		n.tell(c.Route.Login)
	}
	return n.routes.ClaimMany(ctx, list)
}

// A session that ends while it waits for its turn, or while it is looked up, claims no
// place. One that ends while it claims gives it back, and whom it displaced comes back.
func TestWhoHasEndedClaimsNothing(t *testing.T) {
	var mu sync.Mutex
	var claims []im.LoginID
	onClaim := func(im.LoginID) {}
	dir := &gated{came: make(chan struct{}, 100)}
	w := beginTuned(t, func(g *Gateway) {
		dir.directoryClient, g.Directory = g.Directory, dir
		found := g.Routes
		g.Routes = func() (routes, error) {
			r, err := found()
			return noting{r, func(l im.LoginID) {
				mu.Lock()
				defer mu.Unlock()
				claims = append(claims, l)
				onClaim(l)
			}}, err
		}
	})
	end := func(login im.LoginID) {
		for _, s := range w.g.hub.all() {
			s.mu.Lock()
			mine := s.login == login && s.phase == joining
			s.mu.Unlock()
			if mine {
				s.end("drain", "", time.Second)
			}
		}
	}
	hello := func(user string) *testenv.Client {
		c := testenv.Dial(t, w.base(), protocol.Proto)
		c.Write(helloWith(w.token(user)))
		return c
	}
	open := dir.shut()
	for i, user := range []string{"a", "b", "c", "looked-up"} {
		hello(user)
		eventually(t, "its call is out", func() bool { return w.g.joins.busy() == i+1 && len(dir.came) == i+1 })
	}
	waits := hello("waits")
	eventually(t, "it waits", func() bool { return w.g.joins.waits() == 1 })
	end("l-waits")
	end("l-looked-up")
	open()
	eventually(t, "all had their turn", func() bool { return w.g.joins.busy() == 0 })
	wantBye(t, waits, "drain")
	mu.Lock()
	slices.Sort(claims)
	if want := []im.LoginID{"l-a", "l-b", "l-c"}; !slices.Equal(claims, want) {
		t.Errorf("%v claim, want %v", claims, want)
	}
	mu.Unlock()

	first := w.session(t, protocol.Proto, "d", "d")
	mu.Lock()
	onClaim = func(l im.LoginID) { end(l) }
	mu.Unlock()
	again := testenv.Dial(t, w.base(), protocol.Proto)
	again.Write(helloWith(w.token("d")))
	wantBye(t, again, "drain")
	wantBye(t, first, "busy")
	eventually(t, "no route is left", func() bool {
		found, err := w.routes.Lookup(t.Context(), []im.UserID{"d"})
		return err == nil && len(found) == 0
	})
}

// Only so many logins at once probe who holds their place, or note their rank; those who
// need neither do not wait for them.
func TestLoginsThatNeedMoreHaveTurns(t *testing.T) {
	t.Parallel()
	p := beginPair(t, func(c *Config) { c.Login.Mode = "reject_new" })
	p.g.joins.age = 500 * time.Millisecond // who need not wait has its turn by then, on a slow machine too
	for range cap(p.g.apart) {
		p.g.apart <- struct{}{}
	}
	login := func(user, login, want string) {
		t.Helper()
		if _, reason := p.login(0, user, login, "d-"+login, im.Phone); reason != want {
			t.Errorf("%s of %s: %q, want %q", login, user, reason, want)
		}
	}
	login("u", "l1", "")
	login("u", "l2", "busy")
	<-p.g.apart
	login("u", "l2", "login_refused")
	if got := len(p.g.apart); got != cap(p.g.apart)-1 {
		t.Errorf("%d turns are taken", got)
	}
	p.g.apart <- struct{}{}
	p.hot.put("session.strict", "true")
	login("v", "l3", "busy")
	eventually(t, "its place is given back", func() bool {
		found, err := p.store.Lookup(t.Context(), []im.UserID{"v"})
		return err == nil && len(found) == 0
	})
	<-p.g.apart
	login("v", "l3", "")
}

// A directory that does not answer holds up no refresh of routes.
func TestRoutesAreRefreshedWhileTheDirectoryHangs(t *testing.T) {
	dir := &gated{came: make(chan struct{}, 1)}
	w := beginTuned(t, func(g *Gateway) {
		dir.directoryClient, g.Directory = g.Directory, dir
		g.keeper.refreshing = 10 * time.Millisecond
	})
	w.session(t, protocol.Proto, "ann", "d")
	open := dir.shut()
	defer open()
	<-dir.came
	kept := func() float64 { return testutil.ToFloat64(w.g.m.refreshed.WithLabelValues("kept")) }
	before := kept()
	eventually(t, "routes are refreshed", func() bool { return kept() >= before+2 })
}

// What a round has missed is one line of the log, whatever the reasons.
func TestARoundTellsOnceWhatItMissed(t *testing.T) {
	seen, logs := observer.New(zap.WarnLevel)
	var m missed
	m.add(missed{})
	m.tell(zap.New(seen))
	m.add(missed{n: 3, noRoom: 3})
	m.add(missed{n: 2, err: errors.New("away")})
	m.add(missed{n: 1, noRoom: 1})
	for range 2 {
		m.tell(zap.New(seen))
	}
	if all := logs.All(); len(all) != 1 || fmt.Sprint(all[0].ContextMap()) != "map[error:away no_room:4 sessions:6]" {
		t.Errorf("it is told %v", all)
	}
}

// Logins that were not looked up again are told in the log, once a round.
func TestWhatIsNotLookedUpAgainIsTold(t *testing.T) {
	seen, logs := observer.New(zap.WarnLevel)
	w := beginTuned(t, func(g *Gateway) {
		g.Log = zap.New(seen)
		g.keeper.refreshing = 10 * time.Millisecond
	})
	w.session(t, protocol.Proto, "ann", "d")
	w.session(t, protocol.Proto, "bad", "d")
	w.state.set(func(s *fakeState) { s.bane = "bad" })
	const told = "logins were not looked up again; the next round makes up for it"
	eventually(t, "it is told", func() bool { return logs.FilterMessage(told).Len() > 0 })
	of := logs.FilterMessage(told).All()[0].ContextMap()
	if n, _ := of["sessions"].(int64); n < 1 || !strings.Contains(fmt.Sprint(of), "bane") { // a slow look-up is told of twice
		t.Errorf("it is told with %v", of)
	}
	const half = joinsAtOnce / 2
	some := append(slices.Repeat(w.g.hub.of("ann"), half), slices.Repeat(w.g.hub.of("bad"), half+2*joinsAtOnce)...)
	if out := w.g.keeper.readmit(t.Context(), some); out.n != half+2*joinsAtOnce || out.err == nil {
		t.Errorf("of three groups %+v were not looked up", out)
	}
}

// The logins of sessions that are quiet are looked up in full groups, all of them in a
// round, and no more wait than there is room for.
func TestLoginsAreLookedUpInGroups(t *testing.T) {
	const n = 10_000
	begin := time.Now()
	r := round{left: make([]*session, n), total: n, begin: begin, over: refreshTime}
	var c checks
	asked, calls := 0, 0
	for at := time.Duration(0); at <= refreshTime; at += keepStep {
		if others := c.add(r.due(begin.Add(at))); others > 0 {
			t.Errorf("no room for %d after %v", others, at)
		}
		next := c.next(r.done(begin.Add(at)))
		asked, calls = asked+len(next), calls+(len(next)+joinsAtOnce-1)/joinsAtOnce
		c = slices.Clone(c[len(next):])
	}
	if asked != n || calls > 160 {
		t.Errorf("%d of %d in %d calls", asked, n, calls)
	}
	waited, others := len(c), 0
	for range 100 {
		others += c.add(make([]*session, 1000))
	}
	if len(c) != checksWaiting || others != waited+100*1000-checksWaiting {
		t.Errorf("%d wait, and %d others", len(c), others)
	}
}
