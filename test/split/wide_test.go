package split

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/auth"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/redis"
	"github.com/imdhq/imd/pkg/store"
	routes "github.com/imdhq/imd/pkg/store/redis"
	"github.com/imdhq/imd/pkg/testenv"
	"github.com/imdhq/imd/pkg/verify"
	imd "github.com/imdhq/imd/sdk/go"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// startWide starts two processes of each role.
func startWide(t *testing.T) *testenv.Node {
	t.Helper()
	n := &testenv.Node{Dir: t.TempDir() + "/data", Args: testenv.NoLimits(), Layout: testenv.Wide}
	n.Begin(t)
	return n
}

// at begins a session on a gateway of the node.
func at(t *testing.T, n, gateway *testenv.Node, user string) *testenv.Client {
	t.Helper()
	return testenv.Login(t, gateway.URL(), protocol.Proto, n.Token(user), "d")
}

func isText(text string) func(string, *clientv1.Entry) bool {
	return func(_ string, e *clientv1.Entry) bool { return e.GetContent().GetText() == text }
}

// ends waits until the server ends the session for the reason.
func ends(t *testing.T, c *testenv.Client, reason string) {
	t.Helper()
	if bye := c.Take("a bye", func(f *clientv1.ServerFrame) bool { return f.GetBye() != nil }).GetBye(); bye.Reason != reason {
		t.Errorf("the session ended with %v, want %s", bye, reason)
	}
}

// Users of two gateways: what one writes the others see at once, whatever gateway
// they are on, also on their own other devices; a route to a session that is not
// there costs nothing and goes; and sessions end wherever they are.
func TestTwoGateways(t *testing.T) {
	t.Parallel()
	n := startWide(t)
	first, second := n.Part("gateway", 1), n.Part("gateway", 2)
	t.Run("messages", func(t *testing.T) {
		ann, other, bob := at(t, n, first, "ann"), at(t, n, second, "ann"), at(t, n, second, "bob")
		ann.MustSend(testenv.ToUser("bob", "from one"))
		bob.Entry("a message of the other gateway", isText("from one"))
		other.Entry("an own message of the other gateway", isText("from one"))
		bob.MustSend(testenv.ToUser("ann", "from two"))
		ann.Entry("a message of the other gateway", isText("from two"))
		group := testenv.Group(t, first.URL(), n.Token("ann"), "both", "bob")
		bob.MustSend(testenv.To(group, "to all"))
		ann.Entry("a message of the group", isText("to all"))
	})
	t.Run("a large group", func(t *testing.T) { removedWhileAllWrite(t, n, first, second) })
	t.Run("a busy large group", func(t *testing.T) { busyGroupIsRead(t, n, first, second) })
	t.Run("permissions", func(t *testing.T) { refusedOnEveryNode(t, n, first, second) })
	t.Run("stale routes", func(t *testing.T) { staleRoute(t, n) })
	t.Run("kicks", func(t *testing.T) {
		login := im.LoginID(uuid.NewString())
		token := n.Mint(auth.Claims{User: "eve", Login: login}, time.Hour)
		old := testenv.Login(t, first.URL(), protocol.Proto, token, "d")
		now := testenv.Login(t, second.URL(), protocol.Proto, token, "d")
		ends(t, old, "superseded")
		key, _, code := n.Command("key", "create", "--name", "backend")
		if code != 0 {
			t.Fatalf("key create: exit %d", code)
		}
		testenv.MustPost(t, first.URL(), "imd.v1.TokenService/Revoke", strings.TrimSpace(key), map[string]any{"userId": "eve", "loginId": string(login)})
		ends(t, now, "revoked")
	})
	t.Run("presence", func(t *testing.T) { presenceIsRight(t, n) })
}

// removedWhileAllWrite removes a member of a large group, with sessions on both
// gateways, while others write: it gets everything up to its removal and nothing
// behind it, and the others get all.
func removedWhileAllWrite(t *testing.T, n, first, second *testenv.Node) {
	users := make([]string, 210)
	for i := range users {
		users[i] = fmt.Sprint("m", i)
	}
	group := testenv.Group(t, first.URL(), n.Token("ann"), "large", users...)
	ann, stays := at(t, n, first, "ann"), at(t, n, second, "m1")
	gone := []*testenv.Client{at(t, n, second, "m0"), testenv.Login(t, first.URL(), protocol.Proto, n.Token("m0"), "d2")}
	const all = 120
	var removal sync.WaitGroup
	defer removal.Wait()
	for i := range all {
		if i == all/3 {
			removal.Go(func() {
				testenv.MustPost(t, first.URL(), "imd.v1.ConversationService/RemoveMembers", n.Token("ann"), map[string]any{
					"conversationId": group, "requestId": uuid.NewString(), "userIds": []string{"m0"}})
			})
		}
		ann.MustSend(testenv.To(group, fmt.Sprint(i)))
	}
	for seq, last := int64(1), false; !last; {
		stays.Entry("what those get who stay", func(conv string, e *clientv1.Entry) bool {
			if conv != group || e.Seq <= seq {
				return false
			}
			if e.PrevSeq > seq {
				t.Errorf("%d follows %d for one who stays", e.Seq, seq)
			}
			seq, last = e.Seq, isText(fmt.Sprint(all-1))(conv, e)
			return true
		})
	}
	for _, c := range gone {
		seq := int64(1)
		for removed := false; !removed; {
			c.Entry("what is before the removal", func(conv string, e *clientv1.Entry) bool {
				if conv != group || e.Seq <= seq {
					return false
				}
				if e.PrevSeq > seq {
					t.Errorf("%d follows %d", e.Seq, seq)
				}
				seq, removed = e.Seq, e.GetMemberChange().GetAction() == clientv1.MemberAction_MEMBER_ACTION_REMOVED
				return true
			})
		}
		behind := func(f *clientv1.ServerFrame) bool { // what is before it may come again, as nobody confirms it
			return f.GetDeliver().GetConversationId() == group &&
				slices.ContainsFunc(f.GetDeliver().Entries, func(e *clientv1.Entry) bool { return e.Seq > seq })
		}
		if f := c.TakeWithin(50*time.Millisecond, behind); f != nil {
			t.Errorf("after the removal came %v", f)
		}
	}
}

// busyGroupIsRead lets the devices of a group read after hints: each shows every
// message once, in order, also those written while it changes between reading and
// being delivered to.
func busyGroupIsRead(t *testing.T, n, first, second *testenv.Node) {
	users := make([]string, 210)
	for i := range users {
		users[i] = fmt.Sprint("p", i)
	}
	group := testenv.Group(t, first.URL(), n.Token("ann"), "busy", users...)
	set := func(pairs ...string) {
		if out, errs, code := n.Command(append([]string{"settings", "set", "--wait"}, pairs...)...); code != 0 {
			t.Fatalf("settings set: exit %d: %s%s", code, out, errs)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	texts := make(chan []string)
	for i, gateway := range []*testenv.Node{first, second, first, second} {
		c, err := imd.Connect(ctx, gateway.URL(), imd.Options{Token: n.Token(fmt.Sprint("p", i))})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
		go func() {
			var got []string
			for e, err := range c.Conversation(group).Events(ctx, imd.After(1)) {
				if err != nil {
					break
				}
				if m, ok := e.(*imd.EntryEvent); ok && m.IsMessage() {
					if got = append(got, m.Text()); got[len(got)-1] == "last" {
						break
					}
				}
			}
			texts <- got
		}()
	}
	ann := at(t, n, first, "ann")
	write := func(from, to int) {
		for i := from; i < to; i++ {
			ann.MustSend(testenv.To(group, fmt.Sprint(i)))
		}
	}
	pulled := func() float64 {
		return metricOf(t, n.Part("push", 1), "imd_push_pulled_total") + metricOf(t, n.Part("push", 2), "imd_push_pulled_total")
	}
	set("push.pull_sessions=2", "push.pull_load=0", "push.pull_interval=100ms", "push.group_members=100")
	all := 60
	write(0, all)
	for l := testenv.NewLimit(testenv.ReadyIn); pulled() < 40; all += 10 { // until it is known how many are here, they are delivered
		if l.Over() {
			t.Fatal("the messages are not left to be read")
		}
		write(all, all+10)
	}
	set("push.pull_load=500000")
	write(all, all+30)
	all += 30
	ann.MustSend(testenv.To(group, "last"))
	for range 4 {
		got := <-texts
		for i := range all {
			if len(got) != all+1 || got[i] != fmt.Sprint(i) {
				t.Fatalf("a device showed %d messages: %v", len(got), got)
			}
		}
	}
}

// metricOf is one series of a node.
func metricOf(t *testing.T, n *testenv.Node, name string) (v float64) {
	t.Helper()
	_, text := fetch(t, n.OpsURL()+"/metrics", "")
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, name+" "); ok {
			if _, err := fmt.Sscan(rest, &v); err != nil {
				t.Fatal(err)
			}
		}
	}
	return v
}

// refusedOnEveryNode sends into what has just been closed, left or blocked, over the
// gateway that did not hear of it.
func refusedOnEveryNode(t *testing.T, n, first, second *testenv.Node) {
	fails := func(what string, c *testenv.Client, m *clientv1.Send) {
		t.Helper()
		ack := c.Send(m)
		for l := testenv.NewLimit(testenv.Patience); ack.Status == clientv1.Ack_ACK_RETRY && !l.Over(); ack = c.Send(m) { // a busy machine
			time.Sleep(time.Duration(ack.GetError().GetRetryAfterMs()) * time.Millisecond)
			m.Resend = true
		}
		if ack.Status != clientv1.Ack_ACK_FAIL {
			t.Errorf("%s: %v", what, ack)
		}
	}
	change := func(method, user string, body map[string]any) {
		body["requestId"] = uuid.NewString()
		testenv.MustPost(t, first.URL(), "imd.v1.ConversationService/"+method, n.Token(user), body)
	}
	owner, member := at(t, n, second, "own"), at(t, n, second, "mem")
	group := testenv.Group(t, first.URL(), n.Token("own"), "short", "mem", "rest")
	member.MustSend(testenv.To(group, "allowed"))
	change("RemoveMembers", "own", map[string]any{"conversationId": group, "userIds": []string{"mem"}})
	fails("a removed member", member, testenv.To(group, "removed"))
	owner.MustSend(testenv.To(group, "still there"))
	change("Close", "own", map[string]any{"conversationId": group})
	fails("the owner of a closed group", owner, testenv.To(group, "closed"))
	for _, pair := range [][2]string{{"b1", "b2"}, {"b4", "b3"}} {
		blocked := at(t, n, second, pair[1])
		testenv.MustPost(t, first.URL(), "imd.v1.UserService/Block", n.Token(pair[0]), map[string]any{"userId": pair[1]})
		fails(pair[1]+", whom "+pair[0]+" has blocked", blocked, testenv.ToUser(pair[0], "hello"))
	}
}

// staleRoute puts a route to no session beside that of a user: the gateway says that it
// is not here, and it is gone.
func staleRoute(t *testing.T, n *testenv.Node) {
	table, err := routes.Open(redis.Config{URL: n.RedisURL()}, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	defer table.Close()
	lookup := func() []store.Route {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		all, err := table.Lookup(ctx, []im.UserID{"dan"})
		if err != nil {
			return nil
		}
		return all
	}
	dan := at(t, n, n.Second(), "dan")
	var found []store.Route
	until(t, "the route is there", func() bool { found = lookup(); return len(found) == 1 })
	stale := found[0]
	stale.Session, stale.Login, stale.Device = "s_gone", "gone", "gone"
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Patience)
	defer cancel()
	if _, err := table.Refresh(ctx, []store.Route{stale}); err != nil {
		t.Fatal(err)
	}
	until(t, "the stale route is beside it", func() bool { return len(lookup()) == 2 })
	at(t, n, n, "ann").MustSend(testenv.ToUser("dan", "to both"))
	dan.Entry("a message beside the stale route", isText("to both"))
	until(t, "the stale route is gone, and the other one is not", func() bool { r := lookup(); return len(r) == 1 && r[0].Session != stale.Session })
	if found := n.Part("push", 1).Metric("imd_push_not_here_total") + n.Part("push", 2).Metric("imd_push_not_here_total"); found < 1 {
		t.Errorf("%v routes were answered with not here", found)
	}
}

// One process of a role is killed under load and comes back, a gateway only
// afterwards: its clients go on with the other one. Nothing is lost, doubled or out
// of order.
func TestOneOfTwoIsKilled(t *testing.T) {
	t.Parallel()
	n := startWide(t)
	for _, role := range []string{"state", "push", "gateway"} {
		t.Run(role, func(t *testing.T) {
			pace, victim := newPace(t), n.Part(role, 2)
			stored := func() float64 {
				return n.Part("state", 1).Metric("imd_lane_batch_rows_sum") + n.Part("state", 2).Metric("imd_lane_batch_rows_sum")
			}
			before := stored()
			dir := filepath.Join(t.TempDir(), "history")
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			load := exec.CommandContext(ctx, testenv.Binary(t), "bench", "mix", "--data-dir", n.Dir, "--gateway", n.Endpoints().Public+","+n.Second().Endpoints().Public,
				"--conns", "40", "--users", "32", "--group-size", "5", "--rate", "150", "--duration", "7s", "--reconnect", "--record", dir)
			ended := make(chan error, 1)
			go func() {
				out, err := load.CombinedOutput()
				if err != nil {
					err = fmt.Errorf("%w\n%s", err, out)
				}
				ended <- err
			}()
			until(t, "the load has begun, or ended", func() bool { return stored() > before+200 || len(ended) > 0 })
			time.Sleep(time.Second) // into the load
			victim.Kill()
			if role != "gateway" {
				victim.Start()
			}
			if err := <-ended; err != nil {
				t.Fatal(err)
			}
			if role == "gateway" {
				victim.Start()
			}
			judgeLoad(t, dir, pace)
		})
	}
}

// judgeLoad judges what a load has recorded, which was no older than the pace.
func judgeLoad(t *testing.T, dir string, pace pace) {
	t.Helper()
	slow := pace.slowness()
	h, err := verify.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	v := pace.judge(h)
	if !slices.ContainsFunc(v.Invariants, func(i verify.Invariant) bool { return i.ID == "I6" }) {
		t.Error("the order of each sender was not judged")
	}
	for _, i := range v.Invariants {
		for _, broken := range i.Violations {
			t.Errorf("%s: %+v", i.ID, broken)
		}
	}
	a := v.Availability
	t.Logf("%d acknowledged, %d given up; stalls: p50 %.0f ms, p99 %.0f ms, longest %.0f ms", v.Counts.Acked, a.GivenUp, a.P50, a.P99, a.Longest)
	if float64(v.Counts.Acked)*slow < 300 || a.GivenUp > 0 || a.P99 > 2000*slow {
		t.Errorf("on a machine %.1f times slower than usual: %+v %+v", slow, v.Counts, a)
	}
}
