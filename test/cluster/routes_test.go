package cluster

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/auth"
	"github.com/imdhq/imd/pkg/control/etcd"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	routes "github.com/imdhq/imd/pkg/store/etcd"
	"github.com/imdhq/imd/pkg/store/storetest"
	"github.com/imdhq/imd/pkg/testenv"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// openRoutes is the route store of one process.
func openRoutes(t *testing.T, urls []string) *routes.Routes {
	t.Helper()
	client, err := etcd.Dial(etcd.Endpoints{URLs: urls}, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	r := routes.Open(client, routes.Options{Prefix: "/imd/c/routes/", Log: zap.NewNop(), Reg: prometheus.NewRegistry(), Close: client.Close})
	t.Cleanup(func() { _ = r.Close() })
	return r
}

// The member that leads is killed, and another one is cut off from the rest: the
// routes of two processes are as if one call came after the other, and both tables
// have them in the end.
func TestRoutesWhileMembersFail(t *testing.T) {
	t.Parallel()
	testenv.InOwnNetwork(t, func(t *testing.T) {
		n := testenv.NewNetwork(t)
		hosts := []*testenv.Host{n.Host(), n.Host(), n.Host()}
		c := n.Etcd(hosts...)
		first, second := openRoutes(t, c.URLs()), openRoutes(t, c.URLs())
		clock, stop := testenv.NewClock(t), make(chan struct{})
		// rest lets the load go on before, between and after the faults, for longer where it is slow.
		rest := func(d time.Duration) {
			for began := clock.Now(); clock.Since(began) < d; time.Sleep(10 * time.Millisecond) {
			}
		}
		var answered, unsure int
		var load sync.WaitGroup
		load.Go(func() { answered, unsure = storetest.Linearizable(t, []store.RouteStore{first, second}, stop) })
		rest(500 * time.Millisecond)
		led := c.Leader()
		led.Kill()
		rest(1500 * time.Millisecond)
		led.Start()
		led.Await(10 * time.Second)
		at := slices.Index(c.Members, c.Leader())
		others := append(append([]*testenv.Host{}, hosts[:at]...), hosts[at+1:]...)
		hosts[at].Cut(others...)
		rest(1500 * time.Millisecond)
		hosts[at].Heal(others...)
		rest(500 * time.Millisecond)
		close(stop)
		load.Wait()
		t.Logf("%d calls were answered, %d were not", answered, unsure)
		if answered < 200 {
			t.Error("few calls were answered")
		}
		users := []im.UserID{"v"}
		for i, r := range []*routes.Routes{first, second} {
			x := store.Route{User: "v", Session: im.SessionID(fmt.Sprint("s", i)), Login: "l", Device: im.DeviceID(fmt.Sprint("d", i)), Class: im.Phone, Node: "n1", Boot: "b1", Since: time.Now()}
			eventually(t, "a claim", 10*time.Second, func() bool { _, err := r.Claim(t.Context(), x, store.Policy{}); return err == nil })
		}
		for _, r := range []*routes.Routes{first, second} {
			eventually(t, "the table has both routes", 30*time.Second, func() bool { l, err := r.Recent(t.Context(), users); return err == nil && len(l) == 2 })
		}
	})
}

// keeper is one node with all roles on three members, with its routes there, and
// people on it.
type keeper struct {
	*testenv.Node
	t *testing.T
}

// hello begins a session and returns why not; "" = it has.
func (k *keeper) hello(user, login string, class im.Class) (*testenv.Client, string) {
	k.t.Helper()
	c := testenv.Dial(k.t, k.URL(), protocol.Proto)
	c.Write(&clientv1.ClientFrame{Id: 1, Kind: &clientv1.ClientFrame_Hello{Hello: &clientv1.Hello{Version: 1, DeviceId: "d-" + login,
		Token: k.Mint(auth.Claims{User: im.UserID(user), Login: im.LoginID(login), Class: class}, time.Hour)}}})
	f := c.Take("welcome or bye", func(f *clientv1.ServerFrame) bool { return f.GetWelcome() != nil || f.GetBye() != nil })
	if f.GetBye().GetReason() == "busy" && f.GetBye().GetRetryAfterMs() == 0 {
		k.t.Error("busy without a time to wait")
	}
	return c, f.GetBye().GetReason()
}

// logins are those of the user in the route store.
func (k *keeper) logins(user string) (out []string) {
	text, _, status := k.Command("user", "devices", user, "-o", "json")
	var got struct {
		Devices []struct {
			LoginID string `json:"login_id"`
		}
	}
	if status != 0 || json.Unmarshal([]byte(text), &got) != nil {
		return []string{"unknown"}
	}
	for _, d := range got.Devices {
		out = append(out, d.LoginID)
	}
	slices.Sort(out)
	return out
}

// etcd goes back to an older state: all routes are there again within 7 s. Then it
// has no quorum: each policy lets newcomers in, or does not, as the documents say,
// and is made up for afterwards.
func TestRoutesOverARestoreAndWithoutQuorum(t *testing.T) {
	t.Parallel()
	c := testenv.StartEtcd(t, 3)
	k := &keeper{t: t, Node: testenv.Start(t, "--set", "controlplane.endpoints="+strings.Join(c.URLs(), ","), "--set", "storage.routes=etcd")}
	if out, errs, status := k.Command("settings", "set", "--wait", "gateway.login.web.mode=kick_old", "gateway.login.tablet.mode=reject_new"); status != 0 {
		t.Fatal(out, errs)
	}
	clock := testenv.NewClock(t)
	var people []*testenv.Client
	enter := func(user, login string, class im.Class, want string) {
		t.Helper()
		p, reason := k.hello(user, login, class)
		for l := testenv.NewLimit(testenv.Patience); want == "" && reason == "busy" && !l.Over(); { // a busy machine is
			time.Sleep(time.Second)
			p, reason = k.hello(user, login, class)
		}
		if reason != want {
			t.Fatalf("%s of %s: %q, want %q", login, user, reason, want)
		}
		if people = append(people, p); want != "" {
			people = people[:len(people)-1]
		}
	}
	has := func(when, user string, limit time.Duration, logins ...string) {
		t.Helper()
		eventually(t, fmt.Sprintf("%s %s has %v", when, user, logins), limit, func() bool { return slices.Equal(k.logins(user), logins) })
	}
	all := func(when string, limit time.Duration, upto int) {
		t.Helper()
		began := clock.Now()
		for i := range upto {
			has(when, fmt.Sprint("u", i), limit-clock.Since(began), "l")
		}
	}
	for i := range 3 {
		enter(fmt.Sprint("u", i), "l", im.Phone, "")
	}
	enter("w", "old", im.Web, "")
	backup := c.Backup()
	eventually(t, "the route store answers", 20*time.Second, func() bool {
		return k.Metric("imd_gateway_routes_away") == 0 && slices.Equal(k.logins("u0"), []string{"l"})
	})
	for i := range 3 {
		enter(fmt.Sprint("u", 3+i), "l", im.Phone, "")
	}
	losses := k.Metric("imd_gateway_route_losses_total")
	c.Restore(backup)
	began := time.Now()
	all("after the restore", 7*time.Second, 6)
	t.Logf("the routes were back %v after the restore", time.Since(began).Round(10*time.Millisecond))
	if now := k.Metric("imd_gateway_route_losses_total"); now == losses {
		t.Error("the loss was not counted")
	}
	has("after the restore", "w", 7*time.Second, "old")

	for _, m := range c.Members[:2] {
		m.Kill()
	}
	enter("v", "l", im.Phone, "")      // multi
	enter("w", "new", im.Web, "")      // kick_old
	enter("x", "l", im.Tablet, "busy") // reject_new
	people[0].MustSend(testenv.ToUser("u1", "without quorum"))
	eventually(t, "two sessions are unclaimed", 5*time.Second, func() bool { return k.Metric("imd_gateway_sessions_unclaimed") == 2 })
	old := people[3]
	for _, m := range c.Members[:2] {
		m.Start()
	}
	has("with quorum again", "v", 20*time.Second, "l")
	has("with quorum again", "w", 20*time.Second, "new")
	if bye := old.Take("a bye", func(f *clientv1.ServerFrame) bool { return f.GetBye() != nil }).GetBye(); bye.Reason != "replaced" {
		t.Errorf("the older login ended with %v", bye)
	}
	enter("x", "l", im.Tablet, "")
	for i, p := range people {
		if p != old && p.Closed() {
			t.Errorf("session %d was closed", i)
		}
	}
}
