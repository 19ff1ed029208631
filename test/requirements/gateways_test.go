package requirements

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/auth"
	"github.com/imdhq/imd/pkg/faultproxy"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/testenv"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// number is the gateway with the number 0 or 1.
func (g *gateways) number(i int) *testenv.Node {
	if i%2 == 0 {
		return g.Node
	}
	return g.second
}

// token is one of a login for a gateway: each has a key of its own.
func (g *gateways) token(at int, user, login string, class im.Class) string {
	return g.number(at).Mint(auth.Claims{User: im.UserID(user), Login: im.LoginID(login), Class: class}, time.Hour)
}

// try says hello at a gateway and returns what came of it: "", or the reason why not.
func (g *gateways) try(t *testing.T, at int, user, login, device string, class im.Class) (*testenv.Client, string) {
	t.Helper()
	return g.through(t, g.number(at).URL(), at, user, login, device, class)
}

// through is try over another address of the gateway.
func (g *gateways) through(t *testing.T, base string, at int, user, login, device string, class im.Class) (*testenv.Client, string) {
	t.Helper()
	c := testenv.Dial(t, base, protocol.Proto)
	c.Write(&clientv1.ClientFrame{Id: 7, Kind: &clientv1.ClientFrame_Hello{Hello: &clientv1.Hello{
		Version: 1, Token: g.token(at, user, login, class), DeviceId: device}}})
	f := c.Take("welcome or bye", func(f *clientv1.ServerFrame) bool { return f.GetWelcome() != nil || f.GetBye() != nil })
	return c, f.GetBye().GetReason()
}

// in is try for one who must be let in.
func (g *gateways) in(t *testing.T, at int, user, login, device string) *testenv.Client {
	t.Helper()
	c, reason := g.try(t, at, user, login, device, im.Phone)
	if reason != "" {
		t.Fatalf("%s of %s at gateway %d: %s", login, user, at+1, reason)
	}
	return c
}

// settings changes settings and waits until all nodes have them.
func (g *gateways) settings(t *testing.T, pairs ...string) {
	t.Helper()
	if out, errs, status := g.Command(append([]string{"settings", "set", "--wait"}, pairs...)...); status != 0 {
		t.Fatal(out, errs)
	}
}

// What holds at one gateway holds over two, with routes in Redis.
func TestOverTwoGateways(t *testing.T) {
	t.Parallel()
	g := beginGateways(t, "gateway.redeliver_after=100ms")
	routesGo := quickRestarts(t, g) // R18; what takes its time is looked at later
	t.Run("R16 policies", func(t *testing.T) { policiesOverTwo(t, g) })
	t.Run("R06 receipts", func(t *testing.T) { receiptsOverTwo(t, g) })
	t.Run("R07 redelivery", func(t *testing.T) { redeliveryOverTwo(t, g) })
	t.Run("R11 resumes", func(t *testing.T) { resumesOverTwo(t, g) })
	routesGo()
	routeIsBack := movesOverTwo(t, g) // R15
	t.Run("R17 presence", func(t *testing.T) { presenceOverTwo(t, g) })
	t.Run("R42 revocations", func(t *testing.T) { revocationsOverTwo(t, g) })
	t.Run("commands", func(t *testing.T) { deviceCommands(t, g) })
	routeIsBack()
}

// What a device acknowledges and what its user reads is told to the sender and to
// the user's other devices, whatever gateways they are on.
func receiptsOverTwo(t *testing.T, g *gateways) {
	ann, bob, tablet := g.in(t, 0, "ann1", "a", "d"), g.in(t, 1, "bob1", "b", "d"), g.in(t, 0, "bob1", "b", "tablet")
	var conv string
	for i := range 3 {
		conv = ann.MustSend(testenv.ToUser("bob1", fmt.Sprint(i+1))).ConversationId
	}
	bob.Write(ackFrame(conv, 0, 2))
	ann.Take("delivered up to 2", func(f *clientv1.ServerFrame) bool { return f.GetReceipt().GetDeliveredSeq() == 2 })
	bob.Write(ackFrame(conv, 2, 3))
	bob.Write(readFrame(conv, 2))
	ann.Take("delivered up to 3, read up to 2", func(f *clientv1.ServerFrame) bool {
		return f.GetReceipt().GetDeliveredSeq() == 3 && f.GetReceipt().GetReadSeq() == 2
	})
	own := tablet.Take("the own receipt", func(f *clientv1.ServerFrame) bool {
		return f.GetReceipt().GetUserId() == "bob1" && f.GetReceipt().GetReadSeq() == 2
	}).GetReceipt()
	if own.GetUnreadCount() != 1 {
		t.Errorf("the other device hears of %d unread", own.GetUnreadCount())
	}
	tablet.Write(readFrame(conv, 3))
	ann.Take("read up to 3", func(f *clientv1.ServerFrame) bool { return f.GetReceipt().GetReadSeq() == 3 })
}

// copies counts the delivers above what a device has, and acknowledges all, until it
// is told to stop. A device that the machine holds up is rightly sent things again: the
// server counts these.
type copies struct {
	c    *testenv.Client
	conv string
	have int64
	stop chan struct{}
	done sync.WaitGroup

	mu     sync.Mutex
	seen   map[int64]int
	lowest int64 // of all
}

func count(c *testenv.Client, conv string, have int64) *copies {
	k := &copies{c: c, conv: conv, have: have, stop: make(chan struct{}), seen: map[int64]int{}, lowest: math.MaxInt64}
	k.done.Go(func() {
		for {
			var acks []*clientv1.ClientFrame
			for f := c.TakeWithin(20*time.Millisecond, isDeliver); f != nil; f = c.TakeWithin(0, isDeliver) {
				acks = append(acks, k.note(f)...)
			}
			for part := range slices.Chunk(acks, 50) {
				_ = c.TryWrite(part...)
			}
			select {
			case <-k.stop:
				return
			default:
			}
		}
	})
	return k
}

// note counts what came, and returns the acks of it.
func (k *copies) note(f *clientv1.ServerFrame) (acks []*clientv1.ClientFrame) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, e := range f.GetDeliver().GetEntries() {
		acks = append(acks, ackFrame(k.conv, e.PrevSeq, e.Seq))
		k.lowest = min(k.lowest, e.Seq)
		if e.Seq > k.have { // else a sync may have brought it too
			k.seen[e.Seq]++
		}
	}
	return acks
}

// has reports whether n different entries came.
func (k *copies) has(n int) func() bool {
	return func() bool {
		k.mu.Lock()
		defer k.mu.Unlock()
		return len(k.seen) == n
	}
}

// all ends the count and wants the entries from first to last and no others.
func (k *copies) all(t *testing.T, who string, first, last int64) {
	t.Helper()
	close(k.stop)
	k.done.Wait()
	came := slices.Sorted(maps.Keys(k.seen))
	if int64(len(came)) != last-first+1 || came[0] != first || came[len(came)-1] != last {
		t.Errorf("%s got %v, want each of %d to %d", who, k.seen, first, last)
	}
}

// again is how many of the entries from first on came more than once, after the end of
// the count: as often as they did.
func (k *copies) again(first int64) (n int) {
	for seq, times := range k.seen {
		if seq >= first {
			n += times - 1
		}
	}
	return n
}

// redeliveries is how many entries a gateway has sent again so far.
func redeliveries(n *testenv.Node) int {
	return int(n.Metric("imd_gateway_redeliveries_total"))
}

// wantCounted wants a redelivery that the server counted for each that came again.
func wantCounted(t *testing.T, who string, again, counted int) {
	t.Helper()
	t.Logf("%s: %d came again, %d were sent again", who, again, counted)
	if again > counted {
		t.Errorf("%s: %d came again, but only %d were sent again for want of an ack", who, again, counted)
	}
}

// A device that vanishes is sent nothing twice to the others' cost, and when it comes
// back on the other gateway its sync stands for all that its former connection owed
// it.
func redeliveryOverTwo(t *testing.T, g *gateways) {
	conv := protocol.DirectID("ann2", "bob2")
	before := redeliveries(g.Node)
	ann, here, there := g.in(t, 0, "ann2", "a", "d"), count(g.in(t, 0, "bob2", "b1", "d1"), conv, 0), count(g.in(t, 1, "bob2", "b2", "d2"), conv, 0)
	p, base := proxy(t, g.second)
	gone, reason := g.through(t, base, 1, "bob2", "b3", "d3", im.Phone)
	if reason != "" {
		t.Fatal(reason)
	}
	ann.SendAll(numbered(20, toUser("bob2")))
	gone.Entry("the last of 20", func(_ string, e *clientv1.Entry) bool { return e.Seq == 20 })
	again := gone.Entry("one that was not acknowledged, again", func(_ string, e *clientv1.Entry) bool { return e.Seq == 7 })
	if again.Content.GetText() != "7" {
		t.Errorf("it is %v", again)
	}
	connections := g.second.Metric("imd_gateway_connections")
	p.Set(faultproxy.Mode{Blackhole: true})
	ann.SendAll(numbered(10, toUser("bob2")))
	back := g.in(t, 0, "bob2", "b3", "d3")
	page := back.History(&clientv1.History{ConversationId: conv, AfterSeq: 20, Limit: 100})
	wantTexts(t, "what was missed", messages(page.Entries), upTo(10))
	live := count(back, conv, 30)
	eventually(t, "its former connection is gone", testenv.Patience, func() bool { return g.second.Metric("imd_gateway_connections") < connections })
	beforeLast := redeliveries(g.second)
	ann.SendAll(numbered(5, toUser("bob2")))
	for _, k := range []struct {
		*copies
		n int
	}{{here, 35}, {there, 35}, {live, 5}} {
		eventually(t, "all delivers", testenv.Patience, k.has(k.n))
	}
	time.Sleep(300 * time.Millisecond) // for a redelivery
	here.all(t, "the device on the sender's gateway", 1, 35)
	there.all(t, "the device on the other gateway", 1, 35)
	live.all(t, "the device that came back", 31, 35)
	wantCounted(t, "on the sender's gateway", here.again(1)+live.again(1), redeliveries(g.Node)-before)
	// Before the last five, most on the other gateway were the vanished device's.
	wantCounted(t, "on the other gateway", there.again(31), redeliveries(g.second)-beforeLast)
	if live.lowest <= 20 {
		t.Errorf("its new connection was sent %d, which the former one had", live.lowest)
	}
}

// A login that moves is not thrown out by its own former socket; one that was
// replaced while it was away stays out, whatever the route store forgets.
func movesOverTwo(t *testing.T, g *gateways) (later func()) {
	g.settings(t, "gateway.login.mode=kick_old", "gateway.login.same_class=false")
	p, base := proxy(t, g.second)
	away := g.in(t, 0, "cid", "a", "d1")
	away.Cut()
	eventually(t, "it is away", testenv.Patience, func() bool { return len(deviceList(t, g.Node, "cid").Devices) == 0 })
	_, reason := g.through(t, base, 1, "cid", "b", "d2", im.Web)
	if reason != "" {
		t.Fatal(reason)
	}
	out := func(when string) {
		t.Helper()
		for i := range 2 {
			if _, reason := g.try(t, i, "cid", "a", "d1", im.Phone); reason != "replaced" {
				t.Errorf("%s gateway %d tells the replaced login %q", when, i+1, reason)
			}
		}
	}
	out("at once")
	p.Set(faultproxy.Mode{Blackhole: true})
	moved, reason := g.try(t, 0, "cid", "b", "d2", im.Web)
	if reason != "" {
		t.Fatalf("the move: %s", reason)
	}
	g.redis.MustDo("FLUSHALL")
	out("after a flush")
	p.Set(faultproxy.Mode{})
	p.Reset()
	g.settings(t, "gateway.login.mode=multi", "gateway.login.same_class=true")
	return func() {
		eventually(t, "the route of the login that moved is back", testenv.Patience, func() bool { return len(deviceList(t, g.Node, "cid").Devices) == 1 })
		out("with the route back")
		moved.MustSend(testenv.ToUser("ann", "still here"))
	}
}

// Each policy, with logins of several classes that come to both gateways in turn.
func policiesOverTwo(t *testing.T, g *gateways) {
	logins := []struct {
		id    string
		class im.Class
	}{{"desktop1", im.Desktop}, {"phone1", im.Phone}, {"tablet1", im.Tablet}, {"desktop2", im.Desktop}}
	for i, row := range []struct {
		set  []string
		live [4]string // after each login
	}{
		{[]string{"gateway.login.mode=multi", "gateway.login.multi=2"}, [4]string{"desktop1", "desktop1 phone1", "desktop1 phone1 tablet1", "desktop1 desktop2 phone1 tablet1"}},
		{[]string{"gateway.login.multi=1"}, [4]string{"desktop1", "desktop1 phone1", "desktop1 phone1 tablet1", "desktop2 phone1 tablet1"}},
		{[]string{"gateway.login.multi=10", "gateway.login.total=2"}, [4]string{"desktop1", "desktop1 phone1", "phone1 tablet1", "desktop2 tablet1"}},
		{[]string{"gateway.login.total=0", "gateway.login.mode=kick_old"}, [4]string{"desktop1", "desktop1 phone1", "desktop1 phone1 tablet1", "desktop2 phone1 tablet1"}},
		{[]string{"gateway.login.same_class=false"}, [4]string{"desktop1", "phone1", "tablet1", "desktop2"}},
		{[]string{"gateway.login.mode=reject_new"}, [4]string{"desktop1", "desktop1", "desktop1", "desktop1"}},
		{[]string{"gateway.login.same_class=true"}, [4]string{"desktop1", "desktop1 phone1", "desktop1 phone1 tablet1", "desktop1 phone1 tablet1"}},
	} {
		g.settings(t, row.set...)
		user, live := fmt.Sprint("eve", i), map[string]*testenv.Client{}
		for at, l := range logins {
			want := strings.Fields(row.live[at])
			c, reason := g.try(t, at, user, l.id, "d-"+l.id, l.class)
			if slices.Contains(want, l.id) {
				live[l.id] = c
			} else if reason != "login_refused" {
				t.Errorf("%v: %s was told %q", row.set, l.id, reason)
			}
			for id, c := range live {
				if slices.Contains(want, id) {
					continue
				}
				if bye := c.Take("a bye", func(f *clientv1.ServerFrame) bool { return f.GetBye() != nil }).GetBye(); bye.Reason != "replaced" {
					t.Errorf("%v: %s ended with %s", row.set, id, bye.Reason)
				}
				delete(live, id)
				for other := range 2 {
					if _, reason := g.try(t, other, user, id, "d-"+id, im.Bot); reason != "replaced" {
						t.Errorf("%v: afterwards %s was told %q", row.set, id, reason)
					}
				}
			}
			var have []string
			for _, d := range deviceList(t, g.number(at), user).Devices {
				have = append(have, d.LoginID)
			}
			if slices.Sort(have); !slices.Equal(have, want) {
				t.Errorf("%v: after %s %v are live, want %v", row.set, l.id, have, want)
			}
		}
		g.in(t, 1, "ann5", "a", "d").MustSend(testenv.ToUser(user, "to all"))
		for id, c := range live {
			if e := c.Entry(id, func(_ string, e *clientv1.Entry) bool { return e.Content.GetText() == "to all" }); e == nil {
				t.Errorf("%v: %s got nothing", row.set, id)
			}
		}
	}
	g.settings(t, "gateway.login.mode=multi")
}

// What a watcher heard last agrees with what is.
func presenceOverTwo(t *testing.T, g *gateways) {
	watcher := g.in(t, 0, "ann6", "a", "d")
	first := g.in(t, 1, "bob6", "b", "d")
	watcher.MustSend(testenv.ToUser("bob6", "hello"))
	connections := func() float64 {
		return g.Metric("imd_gateway_connections") + g.second.Metric("imd_gateway_connections")
	}
	before := connections() - 1
	online := watcher.Request(&clientv1.ClientFrame{Kind: &clientv1.ClientFrame_WatchPresence{WatchPresence: &clientv1.WatchPresence{UserIds: []string{"bob6"}}}}).
		GetPresence().GetUsers()[0].Online
	agrees := func(phase string, want bool) {
		t.Helper()
		eventually(t, phase+": the watcher and a query agree", testenv.Patience, func() bool {
			for f := watcher.TakeWithin(0, isPresence); f != nil; f = watcher.TakeWithin(0, isPresence) {
				online = f.GetPresence().Users[0].Online
			}
			return online == want && isOnline(t, g.second, "bob6") == want
		})
	}
	agrees("at first", true)
	last := first
	for i := range 50 {
		next, reason := g.try(t, i, "bob6", "b", "d", im.Phone)
		if reason != "" {
			t.Fatal(reason)
		}
		last = next
	}
	agrees("after 50 replacements", true)
	second := g.in(t, 0, "bob6", "b", "d2")
	last.Close()
	agrees("with one device of two", true)
	second.Close()
	for round := range 10 {
		var some []*testenv.Client
		for i := range 5 {
			some = append(some, g.in(t, i, "bob6", "b", fmt.Sprintf("q%d-%d", round, i)))
		}
		for _, c := range some {
			c.Close()
		}
	}
	agrees("after many connections", false)
	if f := watcher.TakeWithin(time.Second, isPresence); f != nil && f.GetPresence().Users[0].Online {
		t.Errorf("then the watcher hears %v", f)
	}
	// Some that were counted before may have been on their way out.
	eventually(t, "all connections are gone", testenv.Patience, func() bool { return connections() <= before })
}

func isPresence(f *clientv1.ServerFrame) bool { return f.GetPresence() != nil && f.Id == 0 }

// isOnline is what imd user presence says of a user.
func isOnline(t *testing.T, n *testenv.Node, user string) bool {
	t.Helper()
	text, errs, status := n.Command("user", "presence", user, "-o", "json")
	var out struct{ Users []struct{ Online bool } }
	if err := json.Unmarshal([]byte(text), &out); err != nil || status != 0 || len(out.Users) != 1 {
		t.Fatalf("imd user presence: %d, %v, %s%s", status, err, text, errs)
	}
	return out.Users[0].Online
}

// A login is ended wherever it is, within two seconds, with the route store or
// without, and no other.
func revocationsOverTwo(t *testing.T, g *gateways) {
	key := apiKey(t, g.Node, "tokens,users")
	here, there, third, other := g.in(t, 0, "fay", "f0", "d0"), g.in(t, 1, "fay", "f1", "d1"), g.in(t, 1, "fay", "f2", "d2"), g.in(t, 1, "gil", "f1", "d1")
	tokens := map[string][2]string{}
	for _, login := range []string{"f0", "f1", "f2"} {
		tokens[login] = [2]string{g.token(0, "fay", login, im.Phone), g.token(1, "fay", login, im.Phone)}
	}
	ended := func(c *testenv.Client, login, reason string, code int) {
		t.Helper()
		wantClosed(t, c, code, 2*time.Second)
		for i, token := range tokens[login] {
			d := testenv.Dial(t, g.number(i).URL(), protocol.JSON)
			d.Write(helloFrame(1, token, "d"))
			if b := d.Take("a bye", func(f *clientv1.ServerFrame) bool { return f.GetBye() != nil }).GetBye(); b.Reason != reason {
				t.Errorf("then gateway %d says %v to %s", i+1, b, login)
			}
		}
	}
	testenv.MustPost(t, g.URL(), "imd.v1.TokenService/Revoke", key, map[string]any{"userId": "fay", "loginId": "f1"})
	ended(there, "f1", "revoked", 4505)
	g.redis.Pause()
	testenv.MustPost(t, g.URL(), "imd.v1.UserService/Kick", key, map[string]any{"userId": "fay", "loginId": "f2"})
	ended(third, "f2", "kicked", 4502)
	g.redis.Resume()
	here.MustSend(testenv.ToUser("gil", "still here"))
	if out, errs, status := g.Command("user", "revoke", "fay", "--all"); status != 0 {
		t.Fatal(out, errs)
	}
	ended(here, "f0", "revoked", 4505)
	other.MustSend(testenv.ToUser("carl", "not concerned"))
	time.Sleep(time.Second) // tokens tell the time of their issue in seconds
	g.in(t, 1, "fay", "f3", "d").MustSend(testenv.ToUser("gil", "back"))
}

// What imd user devices, kick and revoke print, and how they end.
func deviceCommands(t *testing.T, g *gateways) {
	here, there := g.in(t, 0, "hal", "h0", "d0"), g.in(t, 1, "hal", "h1", "d1")
	for _, c := range []struct {
		line   string
		status int
		says   string
	}{
		{"devices nobody", 0, "nobody is not connected"},
		{"devices nobody -o json", 0, `"devices": []`},
		{"devices hal", 0, "LOGIN"},
		{"devices hal -o json", 0, `"login_id": "h1"`},
		{"devices no!id", 1, "the user id is malformed"},
		{"devices", 2, "arg"},
		{"kick hal", 2, "--login LOGIN or --all"},
		{"revoke hal --all --login h1", 2, "--login LOGIN or --all"},
		{"kick hal --login no!id", 1, "the login id is malformed"},
		{"kick hal --login h1 -o json", 0, `"ended": 1`},
		{"revoke hal --login h0", 0, "login h0 of hal: revoked; sessions ended: 1"},
		{"revoke hal --all", 0, "all logins of hal: revoked; sessions ended: 0"},
	} {
		out, errs, status := g.number(len(c.line)).Command(append([]string{"user"}, strings.Fields(c.line)...)...)
		if status != c.status || !strings.Contains(out+errs, c.says) {
			t.Errorf("imd user %s: %d, %s%s", c.line, status, out, errs)
		}
	}
	wantClosed(t, there, 4502, 2*time.Second)
	wantClosed(t, here, 4505, 2*time.Second)
	g.redis.Pause()
	defer g.redis.Resume()
	if out, errs, status := g.Command("user", "devices", "hal"); status != 5 || !strings.Contains(errs, "route store") {
		t.Errorf("without the route store: %d, %s%s", status, out, errs)
	}
}

// endsByItself wants a life for all that nodes and sessions write into Redis and etcd.
func endsByItself(t *testing.T, g *gateways) {
	t.Helper()
	kinds := map[string]int{}
	endless, ending := g.redis.Endless("imd:")
	for _, key := range endless {
		if key != "imd:r:homes" && key != "imd:r:memory" { // these two are of the store, not of a node
			t.Errorf("%s never ends", key)
		}
	}
	kinds["redis"] = ending
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{g.EtcdURL()}, DialTimeout: testenv.Patience, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for l := testenv.NewLimit(testenv.Patience); ; time.Sleep(20 * time.Millisecond) {
		inEtcd := leased(t, client)
		maps.Copy(kinds, inEtcd)
		if kinds["redis"] > 0 && inEtcd["nodes"] > 0 && inEtcd["leader"] > 0 && inEtcd["workers"] > 0 {
			return
		}
		if l.Over() { // a leader that the machine held up has to be elected again
			t.Fatalf("too few keys were looked at: %v", kinds)
		}
	}
}

// leased wants a lease for all that nodes write into etcd, and counts it by kind.
func leased(t *testing.T, client *clientv3.Client) map[string]int {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Patience)
	defer cancel()
	all, err := client.Get(ctx, "", clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[string]int{}
	for _, kv := range all.Kvs {
		parts := strings.Split(string(kv.Key), "/") // "", imd, the cluster, a kind, ...
		if len(parts) < 4 {
			t.Fatalf("a key %s", kv.Key)
		}
		kinds[parts[3]]++
		switch parts[3] {
		case "config", "config_history", "secret":
			continue // what an operator has set, and what all share
		}
		if kv.Lease == 0 {
			t.Errorf("%s hangs on no lease", kv.Key)
		}
	}
	return kinds
}

// A gateway is killed at any moment, also of logins, and is back at once: its
// sessions are not, their routes go, what was sent meanwhile is stored, and who comes
// back over the other gateway gets it once. Few rounds, unless IMD_TEST_ROUNDS asks
// for more.
func quickRestarts(t *testing.T, g *gateways) (later func()) {
	conv := protocol.DirectID("ann8", "dan8")
	ann, dan := g.in(t, 0, "ann8", "a", "d"), g.in(t, 1, "dan8", "d", "d")
	seqs := ann.SendAll(numbered(1, toUser("dan8")))
	dan.Entry("the first", func(_ string, e *clientv1.Entry) bool { return e.Seq == seqs[0] })
	const users = 8
	rounds, killed := 3, time.Time{}
	if n, err := strconv.Atoi(os.Getenv("IMD_TEST_ROUNDS")); err == nil && n > 0 {
		rounds = n
	}
	for round := range rounds {
		var wg sync.WaitGroup
		for i := range users {
			user, base, token := fmt.Sprintf("u%d-%d", round, i), g.second.URL(), g.token(1, fmt.Sprintf("u%d-%d", round, i), "l", im.Phone)
			wg.Go(func() {
				if c, _, err := testenv.TryDial(t, base, protocol.Proto, testenv.DialOptions{}); err == nil {
					_ = c.TryWrite(helloFrame(1, token, user))
				}
			})
		}
		time.Sleep(time.Duration(10*round%60) * time.Millisecond) // before, in and after their logins
		g.second.Kill()
		killed = time.Now()
		wg.Wait()
		ann.SendAll(numbered(2, toUser("dan8")))
		if round == 0 {
			back := g.in(t, 0, "dan8", "d", "d")
			page := back.History(&clientv1.History{ConversationId: conv, AfterSeq: 1, Limit: 100})
			wantTexts(t, "what was missed", messages(page.Entries), upTo(2))
			before, live := redeliveries(g.Node), count(back, conv, 3)
			defer func() {
				live.all(t, "one who came back from a killed gateway", 4, int64(3+2*(rounds-1)))
				wantCounted(t, "one who came back from a killed gateway", live.again(1), redeliveries(g.Node)-before)
			}()
		}
		g.second.Start()
	}
	endsByItself(t, g)
	left := func() (n int) {
		for round := range rounds {
			for i := range users {
				n += len(deviceList(t, g.Node, fmt.Sprintf("u%d-%d", round, i)).Devices)
			}
		}
		return n
	}
	return func() {
		eventually(t, "no route of a killed process is left", 4*testenv.Patience, func() bool { return left() == 0 })
		t.Logf("%d rounds: no route of a killed process was left %v after the last kill", rounds, time.Since(killed).Round(time.Second))
	}
}
