package gateway

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/control"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/settings"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/pkg/store/memory"
	"github.com/imdhq/imd/pkg/testenv"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// forgetful is a route store that can lose everything, or be away for one of
// the gateways.
type forgetful struct {
	now  atomic.Pointer[memory.Routes]
	lost atomic.Int64
	asks atomic.Int64 // calls of Memory
}

func newForgetful() *forgetful {
	f := &forgetful{}
	f.now.Store(memory.New())
	return f
}

func (f *forgetful) forget() {
	f.now.Store(memory.New())
	f.lost.Add(1)
}

func (f *forgetful) Claim(ctx context.Context, r store.Route, p store.Policy) (store.Claim, error) {
	return f.now.Load().Claim(ctx, r, p)
}

func (f *forgetful) ClaimMany(ctx context.Context, list []store.Claiming) ([]store.Claimed, error) {
	return f.now.Load().ClaimMany(ctx, list)
}

func (f *forgetful) Refresh(ctx context.Context, r []store.Route) ([]store.Standing, error) {
	return f.now.Load().Refresh(ctx, r)
}

func (f *forgetful) Release(ctx context.Context, u im.UserID, s im.SessionID, e uint64) (bool, error) {
	return f.now.Load().Release(ctx, u, s, e)
}

func (f *forgetful) Lookup(ctx context.Context, users []im.UserID) ([]store.Route, error) {
	return f.now.Load().Lookup(ctx, users)
}

func (f *forgetful) Recent(ctx context.Context, users []im.UserID) ([]store.Route, error) {
	return f.now.Load().Recent(ctx, users)
}

func (f *forgetful) Memory(context.Context) (string, error) {
	f.asks.Add(1)
	return fmt.Sprint(f.lost.Load()), nil
}

// pair is two gateways with one route store and one state role.
type pair struct {
	*world
	t        *testing.T
	store    *forgetful
	gateways [2]*Gateway
	away     [2]atomic.Bool // the route store, for that gateway
	deaf     atomic.Bool    // kicks get lost
	view     atomic.Pointer[control.View]
	hot      *hot // settings of both
}

// deafPeer loses kicks.
type deafPeer struct {
	service
	p *pair
}

func (d deafPeer) Kick(ctx context.Context, r *v1.KickRequest) (*v1.KickResponse, error) {
	if d.p.deaf.Load() {
		return nil, im.Errorf(clientv1.Reason_REASON_UNAVAILABLE, "test", "lost")
	}
	return d.service.Kick(ctx, r)
}

// nobody is a peer that cannot be reached.
type nobody struct{}

func (nobody) Kick(context.Context, *v1.KickRequest) (*v1.KickResponse, error) {
	return nil, im.Errorf(clientv1.Reason_REASON_UNAVAILABLE, "test", "away")
}

func (nobody) Deliver(context.Context, *v1.DeliverRequest) (*v1.DeliverResponse, error) {
	return nil, im.Errorf(clientv1.Reason_REASON_UNAVAILABLE, "test", "away")
}

func (nobody) Probe(context.Context, *v1.ProbeRequest) (*v1.ProbeResponse, error) {
	return nil, im.Errorf(clientv1.Reason_REASON_UNAVAILABLE, "test", "away")
}

// beginPair starts two gateways, n1 and n2, whose keepers are fast.
func beginPair(t *testing.T, edit ...func(*Config)) *pair {
	return beginPairWith(t, 300*time.Millisecond, edit...)
}

// beginPairWith is beginPair with a time for a round of refreshes.
func beginPairWith(t *testing.T, refreshing time.Duration, edit ...func(*Config)) *pair {
	p := &pair{t: t, store: newForgetful(), hot: newHot(t)}
	p.view.Store(&control.View{})
	join := func(i int) func(*Gateway) {
		return func(g *Gateway) {
			p.gateways[i] = g
			g.Node, g.Boot = im.NodeID(fmt.Sprint("n", i+1)), fmt.Sprint("b", i+1)
			g.Peer = func(n im.NodeID) peerClient {
				at := slices.Index([]im.NodeID{"n1", "n2"}, n)
				if at < 0 {
					return nobody{}
				}
				return deafPeer{service{p.gateways[at]}, p}
			}
			g.Routes = func() (routes, error) {
				if p.away[i].Load() {
					return nil, im.Errorf(clientv1.Reason_REASON_UNAVAILABLE, "test", "away")
				}
				return p.store, nil
			}
			g.View = p.view.Load
			g.tuned = settings.Derive(p.hot.Live, func(now *settings.Snapshot) tuning { return tune(g.cfg, now) })
			g.keeper.refreshing, g.keeper.restoring, g.keeper.asking = refreshing, 300*time.Millisecond, 100*time.Millisecond
		}
	}
	p.world = beginTuned(t, join(0), edit...)
	cfg := p.g.cfg
	two, err := New(cfg, Deps{Log: zap.NewNop(), Reg: prometheus.NewRegistry(), State: p.peers.State(), Directory: p.peers.Directory(), Verifier: p.g.Verifier})
	if err != nil {
		t.Fatal(err)
	}
	join(1)(two)
	if err := two.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- two.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return p
}

// login begins a session at a gateway and returns what came of it: a reason, or
// "" and the client.
func (p *pair) login(at int, user, login, device string, class im.Class) (*testenv.Client, string) {
	p.t.Helper()
	token := p.token(user, func(c *claims) { c.Login, c.Class = im.LoginID(login), class })
	c := testenv.Dial(p.t, "http://"+p.gateways[at].Addr().String(), protocol.Proto)
	c.Write(&clientv1.ClientFrame{Id: 7, Kind: &clientv1.ClientFrame_Hello{Hello: &clientv1.Hello{Version: 1, Token: token, DeviceId: device}}})
	f := c.Take("welcome or bye", func(f *clientv1.ServerFrame) bool { return f.GetWelcome() != nil || f.GetBye() != nil })
	return c, f.GetBye().GetReason()
}

// policyRows are the table of docs/features/devices.md, row by row: a setting, the
// logins that come one after the other, and who is live after each.
// TestPolicyTableIsWritten keeps the two alike.
var policyRows = []struct {
	name  string
	set   LoginConfig
	hot   []string // settings over it
	steps []string // LOGIN/CLASS, or LOGIN/CLASS! if it is refused; then who is live
}{
	{"multi, 2 a class", LoginConfig{Mode: "multi", Multi: 2}, nil, []string{
		"a/phone: a", "b/phone: a b", "c/web: a b c", "d/phone: b c d", "b/phone: b c d"}},
	{"kick_old, one a class", LoginConfig{Mode: "kick_old", Multi: 1, SameClass: true}, nil, []string{
		"a/phone: a", "b/web: a b", "c/phone: b c", "c/phone: b c"}},
	{"kick_old, one in all (same_class off)", LoginConfig{Mode: "kick_old", Multi: 1}, nil, []string{
		"a/phone: a", "b/web: b", "b/web: b", "c/bot: c"}},
	{"reject_new, one a class", LoginConfig{Mode: "reject_new", Multi: 1, SameClass: true}, nil, []string{
		"a/phone: a", "b/phone!: a", "c/web: a c", "a/phone: a c"}},
	{"reject_new, one in all", LoginConfig{Mode: "reject_new", Multi: 1}, nil, []string{
		"a/phone: a", "b/web!: a", "a/phone: a"}},
	{"multi, total 2", LoginConfig{Mode: "multi", Multi: 5, Total: 2}, nil, []string{
		"a/phone: a", "b/web: a b", "c/bot: b c"}},
	{"multi, phones kick_old", LoginConfig{Mode: "multi", Multi: 10, SameClass: true}, []string{"gateway.login.phone.mode", "kick_old"}, []string{
		"a/phone: a", "b/web: a b", "c/phone: b c", "d/web: b c d"}},
	{"kick_old, one in all, bots multi 2", LoginConfig{Mode: "kick_old", Multi: 1}, []string{"gateway.login.bot.mode", "multi", "gateway.login.bot.multi", "2"}, []string{
		"a/phone: a", "b/bot: a b", "c/bot: a b c", "d/bot: a c d", "e/web: e"}},
	{"reject_new, total 2", LoginConfig{Mode: "reject_new", Multi: 1, SameClass: true, Total: 2}, nil, []string{
		"a/phone: a", "b/web: a b", "c/bot!: a b"}},
}

// written is a row as the document has it, without its back quotes.
func written(name string, steps []string) string {
	var out []string
	seen := map[string]bool{}
	for _, step := range steps {
		what, live, _ := strings.Cut(step, ": ")
		login, class, _ := strings.Cut(what, "/")
		class, refused := strings.CutSuffix(class, "!")
		switch {
		case refused:
			what = login + " (" + class + ") is refused"
		case seen[login]:
			what = login + " again"
		default:
			what = login + " (" + class + ")"
		}
		seen[login] = true
		out = append(out, what+": "+live)
	}
	return "| " + name + " | " + strings.Join(out, " · ") + " |"
}

// The table of the document has the rows that TestPolicyTable plays, and no other.
func TestPolicyTableIsWritten(t *testing.T) {
	page, err := os.ReadFile("../../docs/features/devices.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(page), "| Setting | Logins, and who is live |\n|---|---|\n")
	table, _, _ = strings.Cut(table, "\n\n")
	var want []string
	for _, row := range policyRows {
		want = append(want, written(row.name, row.steps))
	}
	if diff := cmp.Diff(want, strings.Split(strings.ReplaceAll(table, "`", ""), "\n")); diff != "" {
		t.Errorf("the document (+) is not what is played (-):\n%s", diff)
	}
}

// Whatever comes in whatever order, who is live matches the table after each
// step, on either gateway; replaced logins are refused and a reconnect kicks
// nobody.
func TestPolicyTable(t *testing.T) {
	for _, row := range policyRows {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			p := beginPair(t, func(c *Config) { c.Login = row.set })
			p.hot.put(row.hot...)
			at := map[string]*testenv.Client{}
			for i, step := range row.steps {
				what, rest, _ := strings.Cut(step, ": ")
				want := strings.Fields(rest)
				login, class, _ := strings.Cut(what, "/")
				class, refused := strings.CutSuffix(class, "!")
				before := at[login]
				c, reason := p.login(i%2, "u", login, "d-"+login, im.Class(class))
				if refused != (reason == "login_refused") || !refused && reason != "" {
					t.Fatalf("step %s: %q", step, reason)
				}
				if !refused {
					if before != nil {
						wantBye(t, before, "superseded")
					}
					at[login] = c
				}
				for l, c := range at {
					if !slices.Contains(want, l) {
						wantBye(t, c, "replaced")
						delete(at, l)
						for g := range p.gateways {
							if _, reason := p.login(g, "u", l, "d-"+l, im.Class(class)); reason != "replaced" {
								t.Errorf("step %s: the token of %s at n%d: %q", step, l, g+1, reason)
							}
						}
					} else if c.Closed() {
						t.Errorf("step %s: %s was closed", step, l)
					}
				}
				if len(at) != len(want) {
					t.Errorf("step %s: %d live", step, len(at))
				}
			}
		})
	}
}

// Under kick_old a login that is away is replaced too, wherever the newer one comes;
// one that comes back before that is not.
func TestALoginThatIsAwayIsReplaced(t *testing.T) {
	p := beginPair(t, func(c *Config) { c.Login.Mode = "kick_old" })
	leave := func(c *testenv.Client, user im.UserID) {
		t.Helper()
		c.Close()
		eventually(t, "its route is gone", func() bool {
			found, err := p.store.now.Load().Lookup(t.Context(), []im.UserID{user})
			return err == nil && len(found) == 0
		})
	}
	a, _ := p.login(0, "u", "a", "d1", im.Phone)
	leave(a, "u")
	a, reason := p.login(1, "u", "a", "d1", im.Phone)
	if reason != "" {
		t.Fatalf("it comes back: %q", reason)
	}
	leave(a, "u")
	b, _ := p.login(1, "u", "b", "d2", im.Phone)
	for g := range p.gateways {
		if _, reason := p.login(g, "u", "a", "d1", im.Phone); reason != "replaced" {
			t.Errorf("at n%d the login that was away: %q", g+1, reason)
		}
	}
	if b.Closed() {
		t.Error("the newer login was closed")
	}
}

// A kick that gets lost is found out about by the next refresh.
func TestALostKickIsFoundByTheRefresh(t *testing.T) {
	p := beginPair(t, func(c *Config) { c.Login.Mode = "kick_old" })
	p.deaf.Store(true)
	old, _ := p.login(0, "u", "l1", "d1", im.Phone)
	same, _ := p.login(0, "v", "l", "d", im.Phone)
	p.login(1, "u", "l2", "d2", im.Phone)
	next, _ := p.login(1, "v", "l", "d", im.Phone)
	wantBye(t, old, "replaced")
	wantBye(t, same, "superseded")
	if next.Closed() {
		t.Error("the newer one was closed")
	}
}

// So is one that was to end a login for good, whether the route store answers or not,
// and while nobody can be asked nobody is ended.
func TestALostRevocationIsFound(t *testing.T) {
	p := beginPair(t)
	p.deaf.Store(true)
	one, _ := p.login(0, "u", "l1", "d1", im.Phone)
	other, _ := p.login(0, "u", "l2", "d2", im.Phone)
	p.state.set(func(s *fakeState) { s.refused["l1"] = "kicked" })
	wantBye(t, one, "kicked")
	p.away[0].Store(true)
	late, _ := p.login(0, "v", "l3", "d", im.Phone)
	p.state.set(func(s *fakeState) { s.refused["l3"] = "revoked" })
	wantBye(t, late, "revoked")
	if other.Closed() {
		t.Error("another login was ended")
	}
}

// What the store has forgotten is put back without the clients noticing; who was
// superseded or ended meanwhile is not.
func TestWhatTheStoreForgotIsPutBack(t *testing.T) {
	p := beginPair(t)
	var clients []*testenv.Client
	var users []im.UserID
	for i := range 20 {
		u := fmt.Sprint("u", i)
		c, _ := p.login(i%2, u, "l-"+u, "d", im.Phone)
		clients, users = append(clients, c), append(users, im.UserID(u))
	}
	p.deaf.Store(true)
	old, _ := p.login(0, "v", "l", "d", im.Phone)
	next, _ := p.login(1, "v", "l", "d", im.Phone)
	ended, _ := p.login(0, "w", "l-w", "d", im.Phone)
	p.state.set(func(s *fakeState) { s.refused["l-w"] = "kicked" })
	eventually(t, "both have asked", func() bool { return p.store.asks.Load() > 10 })
	p.store.forget()
	eventually(t, "all routes are back", func() bool {
		found, err := p.store.now.Load().Lookup(t.Context(), users)
		return err == nil && len(found) == len(users)
	})
	wantBye(t, old, "superseded")
	wantBye(t, ended, "kicked")
	for _, c := range append(clients, next) {
		if c.Closed() {
			t.Error("a live session was closed")
		}
	}
	eventually(t, "the loss is counted", func() bool { return testutil.ToFloat64(p.g.m.routeLosses) == 1 })
	eventually(t, "the ended session's route goes", func() bool {
		found, err := p.store.now.Load().Lookup(t.Context(), []im.UserID{"w"})
		return err == nil && len(found) == 0
	})
}

// A connection that was left behind while the store was away claims late, and
// does not displace its successor: neither on the same device nor by the policy.
func TestALateClaimDisplacesNobody(t *testing.T) {
	p := beginPair(t, func(c *Config) { c.Login.Mode = "kick_old" })
	p.away[0].Store(true)
	left, _ := p.login(0, "u", "l", "d", im.Phone)
	other, _ := p.login(0, "v", "l1", "d1", im.Phone)
	alone, _ := p.login(0, "w", "l", "d", im.Phone)
	if got := testutil.ToFloat64(p.g.m.unclaimed); got != 3 {
		t.Errorf("%v without a route", got)
	}
	next, _ := p.login(1, "u", "l", "d", im.Phone)
	newer, _ := p.login(1, "v", "l2", "d2", im.Phone)
	p.away[0].Store(false)
	wantBye(t, left, "superseded")
	wantBye(t, other, "replaced")
	eventually(t, "the third gets its route", func() bool {
		found, err := p.store.now.Load().Lookup(t.Context(), []im.UserID{"w"})
		return err == nil && len(found) == 1
	})
	for _, c := range []*testenv.Client{next, newer, alone} {
		if c.Closed() {
			t.Error("one who should stay was closed")
		}
	}
	eventually(t, "nobody waits", func() bool { return testutil.ToFloat64(p.g.m.unclaimed) == 0 })
}

// Under reject_new nobody is locked out behind a holder that is dead, and a
// holder of whom nobody knows keeps the place.
func TestRejectNewProbesTheHolder(t *testing.T) {
	p := beginPair(t, func(c *Config) { c.Login.Mode = "reject_new" })
	hold := func(user im.UserID, node im.NodeID, boot string) {
		t.Helper()
		r := store.Route{User: user, Session: im.SessionID("ghost-" + user), Login: "old", Device: "d0", Class: im.Phone, Node: node, Boot: boot}
		if _, err := p.store.Claim(t.Context(), r, store.Policy{}); err != nil {
			t.Fatal(err)
		}
	}
	p.view.Store(&control.View{Revision: 3, Nodes: []control.Node{{ID: "n1", BootID: "b1"}, {ID: "n2", BootID: "b2"}, {ID: "n8", BootID: "b8"}}})
	p.login(1, "live", "old", "d0", im.Phone)
	hold("ghost", "n2", "b2")
	hold("former", "n2", "b-before")
	hold("gone", "n9", "b9")
	hold("unreachable", "n8", "b8")
	for user, want := range map[string]string{"live": "login_refused", "ghost": "", "former": "", "gone": "", "unreachable": "login_refused"} {
		if _, reason := p.login(0, user, "new", "d1", im.Phone); reason != want {
			t.Errorf("%s: %q, want %q", user, reason, want)
		}
	}
	p.away[0].Store(true)
	if _, reason := p.login(0, "x", "new", "d1", im.Phone); reason != "busy" {
		t.Errorf("without a route store: %q", reason)
	}
}

// A login that was ended is refused by what the gateway was told, whoever else
// knows it yet.
func TestEndedLoginsAreRemembered(t *testing.T) {
	p := beginPair(t)
	c, _ := p.login(0, "u", "l", "d", im.Phone)
	if _, err := (service{p.g}).Kick(t.Context(), &v1.KickRequest{UserId: "u", LoginId: "l", Reason: "revoked"}); err != nil {
		t.Fatal(err)
	}
	wantBye(t, c, "revoked")
	if _, reason := p.login(0, "u", "l", "d", im.Phone); reason != "revoked" {
		t.Errorf("again: %q", reason)
	}
	if _, reason := p.login(0, "u", "l2", "d", im.Phone); reason != "" {
		t.Errorf("another login: %q", reason)
	}
	e, now := newEndings(), time.Now()
	for i := range maxEndings + 10 {
		e.note("u", im.LoginID(fmt.Sprint(i)), "kicked", now)
	}
	e.note("u", "superseded", "superseded", now)
	if len(e.why) != maxEndings || e.of("u", "0", now) != "" || e.of("u", "100", now) != "kicked" || e.of("u", "superseded", now) != "" ||
		e.of("u", "100", now.Add(endingTime+time.Second)) != "" {
		t.Errorf("%d remembered", len(e.why))
	}
}

// A round gives every session its turn, evenly over its time.
func TestRounds(t *testing.T) {
	begin := time.Now()
	r := round{left: make([]*session, 100), total: 100, begin: begin, over: 5 * time.Second}
	n := 0
	for at := time.Duration(0); at <= 5*time.Second; at += 250 * time.Millisecond {
		due := len(r.due(begin.Add(at)))
		if due > 5 {
			t.Errorf("%d at %v", due, at)
		}
		if n += due; n < 100 && r.done(begin.Add(at)) {
			t.Error("done too early")
		}
	}
	if n != 100 || !r.done(begin.Add(5*time.Second)) {
		t.Errorf("%d had their turn", n)
	}
	late := round{left: make([]*session, 7), total: 7, begin: begin, over: time.Second}
	if got := len(late.due(begin.Add(time.Hour))); got != 7 {
		t.Errorf("%d after a pause", got)
	}
	if none := (&round{}); !none.done(begin) || len(none.due(begin)) != 0 {
		t.Error("an empty round")
	}
}
