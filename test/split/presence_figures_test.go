package split

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/module"
	"github.com/imdhq/imd/pkg/presence"
	"github.com/imdhq/imd/pkg/testenv"
	"github.com/imdhq/imd/proto/gen/internalv1"
	"github.com/imdhq/imd/proto/gen/internalv1/internalv1connect"
)

// gatewayOfMany tells the leader of sessions that nobody has, and takes what the
// leader shows of them.
type gatewayOfMany struct {
	internalv1connect.UnimplementedGatewayServiceHandler
	boot string

	mu      sync.Mutex
	log     []*internalv1.SessionChange
	users   []string // who is watched, and comes and goes
	of      map[string]*comesAndGoes
	took    []time.Duration // from a change until it was shown, without the wait for somebody to come back
	behind  int             // changes that are not shown yet
	session int
}

type comesAndGoes struct {
	session string
	online  bool
	at      time.Time // of the last change; zero = it is shown
}

// Start, Run, Drain and Close make it a module.
func (g *gatewayOfMany) Start(context.Context) error   { return nil }
func (g *gatewayOfMany) Run(ctx context.Context) error { <-ctx.Done(); return nil }
func (g *gatewayOfMany) Drain(context.Context) error   { return nil }
func (g *gatewayOfMany) Close() error                  { return nil }

// spec declares it in place of the gateway role.
func (g *gatewayOfMany) spec() module.Spec {
	return module.Spec{Name: "gateway", Role: true, Needs: []string{"controlplane", "peers"}, New: func(env *module.Env) (module.Module, error) {
		g.boot = env.BootID
		env.Peers.ServeGateway(g)
		return g, nil
	}}
}

func newGatewayOfMany(users int) *gatewayOfMany {
	g := &gatewayOfMany{of: map[string]*comesAndGoes{}}
	for i := range users {
		u := fmt.Sprint("user-", i)
		g.users = append(g.users, u)
		g.of[u] = &comesAndGoes{}
		g.log = append(g.log, &internalv1.SessionChange{What: &internalv1.SessionChange_Watch{Watch: u}})
	}
	return g
}

// Follow tells what has happened since, as far as a call takes it.
func (g *gatewayOfMany) Follow(ctx context.Context, r *internalv1.FollowRequest) (*internalv1.FollowResponse, error) {
	for until := time.Now().Add(time.Duration(r.WaitMs) * time.Millisecond); ; {
		g.mu.Lock()
		rest := g.log[min(r.After, uint64(len(g.log))):]
		g.mu.Unlock()
		rest = rest[:min(len(rest), 2000)]
		if len(rest) > 0 || time.Now().After(until) || ctx.Err() != nil {
			return &internalv1.FollowResponse{BootId: g.boot, Changes: rest, After: r.After + uint64(len(rest)), Snapshot: r.After == 0,
				Offset: uint64(len(rest))}, nil
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// Show takes what users are.
func (g *gatewayOfMany) Show(_ context.Context, r *internalv1.ShowRequest) (*internalv1.ShowResponse, error) {
	now := time.Now()
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, s := range r.Users {
		u := g.of[s.UserId]
		if u == nil || u.at.IsZero() || s.Online != u.online {
			continue
		}
		took := now.Sub(u.at)
		if !u.online {
			took -= offlineAfter
		}
		g.took = append(g.took, took)
		u.at = time.Time{}
		g.behind--
	}
	return &internalv1.ShowResponse{}, nil
}

// offlineAfter is the default of presence.offline_after.
const offlineAfter = 500 * time.Millisecond

// turn lets n users come, or go, from number i on.
func (g *gatewayOfMany) turn(i, n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	for ; n > 0; n-- {
		id := g.users[i%len(g.users)]
		i++
		u := g.of[id]
		if u.at.IsZero() {
			g.behind++
		}
		u.online, u.at = !u.online, now
		if !u.online {
			g.log = append(g.log, &internalv1.SessionChange{What: &internalv1.SessionChange_Ended{Ended: &internalv1.SessionEnded{
				UserId: id, SessionId: u.session, AtMs: now.UnixMilli()}}})
			continue
		}
		g.session++
		u.session = fmt.Sprint("s", g.session)
		g.log = append(g.log, &internalv1.SessionChange{What: &internalv1.SessionChange_Began{Began: &internalv1.SessionBegan{
			UserId: id, SessionId: u.session, Class: string(im.Phone), RouteEpoch: uint64(g.session), Place: presence.PlaceOf("l", "d")}}})
	}
}

func (g *gatewayOfMany) left() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.behind
}

// BenchmarkPresenceLeader measures a leader in a process of its own, over Postgres
// and Redis: each user that comes or goes is one transition, which it hears of from
// a gateway and shows it. A turn is a second of them.
func BenchmarkPresenceLeader(b *testing.B) {
	for _, rate := range []int{5_000, 10_000, 20_000, 40_000} {
		b.Run(fmt.Sprint(rate), func(b *testing.B) {
			g := newGatewayOfMany(2 * rate)
			leader := leaderOf(b, g)
			before := leader.Metric("process_cpu_seconds_total")
			b.ResetTimer()
			began := time.Now()
			for done := 0; done < rate*b.N; { // 100 steps a second
				step := rate / 100
				g.turn(done, step)
				done += step
				time.Sleep(time.Until(began.Add(time.Duration(done) * time.Second / time.Duration(rate))))
			}
			b.StopTimer()
			took := time.Since(began)
			for end := time.Now().Add(testenv.Patience); g.left() > 0; time.Sleep(10 * time.Millisecond) {
				if time.Now().After(end) {
					b.Fatalf("%d of the last changes are not shown", g.left())
				}
			}
			n := float64(rate * b.N)
			b.ReportMetric((leader.Metric("process_cpu_seconds_total")-before)*1e6/n, "us-of-cpu")
			b.ReportMetric(n/took.Seconds(), "transitions/s")
			b.ReportMetric(float64(len(g.took))/n, "shown")
			b.ReportMetric(leader.Metric(`imd_presence_saved_total{result="dropped"}`), "times-dropped")
			testenv.ReportTimes(b, g.took)
		})
	}
}

// leaderOf starts a scheduler that follows the gateway, and waits until it does.
func leaderOf(b *testing.B, g *gatewayOfMany) *testenv.Node {
	b.Helper()
	w := &world{etcd: testenv.StartEtcd(b, 1).Members[0].URL, grace: 10 * time.Second, gateway: g.spec}
	leader := &testenv.Node{Dir: b.TempDir() + "/data", Env: []string{"IMD_REDIS_URL=" + testenv.StartRedis(b).URL()},
		Args: append(testenv.SharedPostgres(b).Serve(b), "--roles=state,push,scheduler", "--set", "controlplane.endpoints="+w.etcd,
			"--set", "peers.listen=127.0.0.1:0", "--set", "storage.routes=redis")}
	if err := leader.Try(b); err != nil {
		b.Fatal(err)
	}
	w.launch(b, "g1", []string{"gateway"})
	if err := leader.WaitReady(testenv.ReadyIn); err != nil {
		b.Fatal(err)
	}
	until(b, "the gateway is followed", func() bool { return leader.Metric(`imd_presence_gateways{state="followed"}`) == 1 })
	return leader
}
