package requirements

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/imdhq/imd/pkg/auth"
	"github.com/imdhq/imd/pkg/testenv"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// gateways is two gateways of one cluster, with their routes in a Redis of the
// test.
type gateways struct {
	*testenv.Node
	second *testenv.Node
	redis  *testenv.Redis
}

func beginGateways(t *testing.T, pairs ...string) *gateways {
	t.Helper()
	r := testenv.StartRedis(t)
	g := &gateways{redis: r, Node: &testenv.Node{Dir: filepath.Join(t.TempDir(), "data"), Layout: testenv.Split,
		Args: set(append(pairs, "storage.routes=redis")...), Env: []string{"IMD_REDIS_URL=" + r.URL()}}}
	g.Begin(t)
	g.second = g.Beside("gateway,push")
	g.second.Begin(t)
	return g
}

// at begins a session of a fresh login at one of the gateways.
func at(t *testing.T, n *testenv.Node, user string) *testenv.Client {
	t.Helper()
	return testenv.Login(t, n.URL(), protocol.Proto, n.Token(user), "d")
}

// watching lets a session watch a user who is online. What it returns waits for the
// next thing that it sees of the user.
func watching(t *testing.T, c *testenv.Client, user string) (sees func() (online bool)) {
	t.Helper()
	answer := c.Request(&clientv1.ClientFrame{Kind: &clientv1.ClientFrame_WatchPresence{WatchPresence: &clientv1.WatchPresence{UserIds: []string{user}}}})
	if u := answer.GetPresence().GetUsers(); len(u) != 1 || !u[0].Online {
		t.Fatalf("the answer is %v", answer)
	}
	return func() bool {
		t.Helper()
		f := c.Take("an event", func(f *clientv1.ServerFrame) bool { return f.GetPresence() != nil && f.Id == 0 })
		return f.GetPresence().Users[0].Online
	}
}

// arrives sends a message and waits for it at another session.
func arrives(t *testing.T, from, to *testenv.Client, user, text string) {
	t.Helper()
	from.MustSend(testenv.ToUser(user, text))
	to.Entry(text, func(_ string, e *clientv1.Entry) bool { return e.GetContent().GetText() == text })
}

// deviceList is what imd user devices prints.
func deviceList(t *testing.T, n *testenv.Node, user string) (out struct {
	Devices []struct {
		LoginID string `json:"login_id"`
		NodeID  string `json:"node_id"`
	}
}) {
	t.Helper()
	text, err := exec.Command(testenv.Binary(t), "user", "devices", user, "-o", "json", "--data-dir", n.Dir).Output()
	if err == nil {
		err = json.Unmarshal(text, &out)
	}
	if err != nil {
		t.Fatalf("imd user devices: %v: %s", err, text)
	}
	return out
}

// Whatever the route store loses comes back from the live connections: they stay,
// and live delivery works again.
func TestR19AnEmptiedRouteStore(t *testing.T) {
	t.Parallel()
	g := beginGateways(t)
	ann, bob := at(t, g.Node, "ann"), at(t, g.second, "bob")
	arrives(t, ann, bob, "bob", "before")
	sees := watching(t, ann, "bob")
	clock := testenv.NewClock(t)
	for name, empty := range map[string]func(){
		"flushed": func() { g.redis.MustDo("FLUSHALL") },
		"restarted empty": func() {
			g.redis.Pause()
			for i := range 5 { // it hangs, and people write
				began := clock.Now()
				ann.MustSend(testenv.ToUser("bob", fmt.Sprint(i)))
				if took := clock.Since(began); took > 2*time.Second {
					t.Errorf("a send took %v", took)
				}
			}
			g.redis.RestartEmpty()
		},
	} {
		empty()
		began := time.Now()
		eventually(t, name+": the routes are back", 2*testenv.Patience, func() bool {
			return len(deviceList(t, g.Node, "ann").Devices) == 1 && len(deviceList(t, g.Node, "bob").Devices) == 1
		})
		t.Logf("%s: the routes are back after %v", name, time.Since(began).Round(time.Millisecond))
		arrives(t, ann, bob, "bob", name)
		if ann.Closed() || bob.Closed() {
			t.Fatalf("%s: a connection was closed", name)
		}
	}
	if all, _ := bob.Walk(protocol.DirectID("ann", "bob"), 100, false); len(all) != 8 { // before, after each loss, and five meanwhile
		t.Errorf("%d messages are stored: %v", len(all), messages(all))
	}
	if f := ann.TakeWithin(time.Second, isPresence); f != nil {
		t.Errorf("while the routes were lost ann saw %v", f)
	}
	bob.Close()
	if sees() { // the first that ann sees of bob: it was online all the time
		t.Error("bob was seen to come back")
	}
}

// The routes of a gateway that was killed go within the life of its lease and a
// few seconds, and a restart of it revives nothing.
func TestR18AKilledGateway(t *testing.T) {
	t.Parallel()
	g := beginGateways(t)
	ann, bob := at(t, g.Node, "ann"), at(t, g.second, "bob")
	arrives(t, ann, bob, "bob", "before")
	sees := watching(t, ann, "bob")
	g.second.Kill()
	began := time.Now()
	eventually(t, "the route goes", 15*time.Second+testenv.Patience, func() bool { return len(deviceList(t, g.Node, "bob").Devices) == 0 })
	t.Logf("the routes of the killed gateway were gone after %v", time.Since(began).Round(time.Millisecond))
	if sees() {
		t.Error("bob was seen online again")
	}
	t.Logf("bob was seen to be gone after %v", time.Since(began).Round(time.Millisecond))
	g.second.Start()
	if d := deviceList(t, g.Node, "bob").Devices; len(d) != 0 {
		t.Errorf("the restart revived %v", d)
	}
	if f := ann.TakeWithin(time.Second, isPresence); f != nil {
		t.Errorf("after the end ann saw %v", f)
	}
	again := at(t, g.Node, "bob")
	arrives(t, ann, again, "bob", "after")
}

// A gateway that stands still hears of nothing. Under session.strict what its
// displaced session had sent is not stored when it goes on, and the session is told
// that it is over.
func TestR15AStrictSession(t *testing.T) {
	t.Parallel()
	g := beginGateways(t)
	if out, errs, status := g.Command("settings", "set", "session.strict=true"); status != 0 {
		t.Fatal(out, errs)
	}
	eventually(t, "all have it", testenv.Patience, func() bool {
		out, _, _ := g.Command("settings", "get", "session.strict", "--applied")
		return strings.Contains(out, "in force on 3 of 3 nodes")
	})
	session := func(n *testenv.Node) *testenv.Client { // each gateway has a key of its own; the login is one
		return testenv.Login(t, n.URL(), protocol.Proto, n.Mint(auth.Claims{User: "ann", Login: "l"}, time.Hour), "phone")
	}
	old := session(g.second)
	old.MustSend(testenv.ToUser("bob", "before"))
	g.second.Signal(syscall.SIGSTOP)
	now := session(g.Node)
	late := testenv.ToUser("bob", "late")
	late.ClientMessageId = uuid.NewString()
	old.Write(&clientv1.ClientFrame{Id: 9, Kind: &clientv1.ClientFrame_Send{Send: late}})
	g.second.Signal(syscall.SIGCONT)
	if b := old.Take("bye", func(f *clientv1.ServerFrame) bool { return f.GetBye() != nil }).GetBye(); b.Reason != "superseded" {
		t.Errorf("the older session: %v", b)
	}
	if a := now.MustSend(late); a.Duplicate {
		t.Error("the message of the older session was stored")
	}
	if a := now.MustSend(testenv.ToUser("bob", "now")); a.Seq != 3 {
		t.Errorf("seq %d", a.Seq)
	}
}
