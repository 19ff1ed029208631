package settings

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/testenv"
	"github.com/imdhq/imd/proto/gen/adminv1"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// live is a running node whose settings change.
type live struct {
	*testenv.Node
	t *testing.T
}

// set changes values for all nodes; "" takes one away. They are in force when it
// returns.
func (l live) set(pairs ...string) {
	l.t.Helper()
	res, err := set(l.t.Context(), service(l.Node), pairs...)
	if err != nil {
		l.t.Fatal(err)
	}
	inForce(l.t, l.Node, res.GetRevision())
}

// hello begins a session of a new login on a device of a class, and gives the
// answer. A server that is busy is asked again when it says.
func (l live) hello(user, device, class string) (*testenv.Client, *clientv1.ServerFrame) {
	l.t.Helper()
	for limit := testenv.NewLimit(testenv.Patience); ; {
		c := testenv.Dial(l.t, l.URL(), protocol.Proto)
		c.Write(&clientv1.ClientFrame{Id: 1, Kind: &clientv1.ClientFrame_Hello{Hello: &clientv1.Hello{
			Version: 1, Token: l.Token(user), DeviceId: device, Class: class,
		}}})
		f := c.Take("an answer to hello", func(f *clientv1.ServerFrame) bool {
			return f.GetWelcome() != nil || f.GetBye() != nil || f.GetError() != nil
		})
		if f.GetBye().GetReason() != "busy" || limit.Over() {
			return c, f
		}
		time.Sleep(time.Duration(f.GetBye().GetRetryAfterMs()) * time.Millisecond)
	}
}

func (l live) session(user, device, class string) *testenv.Client {
	l.t.Helper()
	c, f := l.hello(user, device, class)
	if f.GetWelcome() == nil {
		l.t.Fatalf("%s is answered %v", user, f)
	}
	return c
}

// passed is how many of some sends are stored. What a busy server sends back is sent
// again.
func passed(c *testenv.Client, to string, sends int) int {
	n := 0
	for i := range sends {
		m := testenv.ToUser(to, fmt.Sprint(i))
		a := c.Send(m)
		for l := testenv.NewLimit(testenv.Patience); (a.GetError().GetReason() == "busy" || a.GetError().GetReason() == "unavailable") && !l.Over(); a = c.Send(m) {
			m.Resend = true
			time.Sleep(time.Duration(a.Error.GetRetryAfterMs()) * time.Millisecond)
		}
		if a.Status == clientv1.Ack_ACK_OK {
			n++
		}
	}
	return n
}

// isDelivery tells the deliveries of one entry.
func isDelivery(conv string, seq int64) func(*clientv1.ServerFrame) bool {
	return func(f *clientv1.ServerFrame) bool {
		d := f.GetDeliver()
		return d.GetConversationId() == conv && slices.ContainsFunc(d.GetEntries(), func(e *clientv1.Entry) bool { return e.Seq == seq })
	}
}

// wantCopies waits until a message has reached a client, that does not acknowledge it,
// as often as wanted, and sees that it comes no more.
func wantCopies(t *testing.T, c *testenv.Client, ack *clientv1.SendAck, want int) {
	t.Helper()
	is := isDelivery(ack.ConversationId, ack.Seq)
	for i := range want {
		c.Take(fmt.Sprintf("copy %d of %d", i+1, want), is)
	}
	if f := c.TakeWithin(time.Second, is); f != nil {
		t.Errorf("delivered more than %d times", want)
	}
}

// Each setting does on a running node what it says, without a restart.
func TestEverySettingIsLive(t *testing.T) {
	t.Parallel()
	spans := testenv.StartCollector(t)
	n := testenv.Start(t, "--set", "tracing.endpoint="+spans.URL)
	tests := []struct {
		keys []string // what it shows
		test func(t *testing.T, l live)
	}{
		{[]string{"gateway.ping_interval", "gateway.pong_timeout"}, heartbeat},
		{[]string{"gateway.redeliver_after", "gateway.redeliver_count"}, redelivery},
		{[]string{"gateway.login.mode", "gateway.login.multi", "gateway.login.same_class"}, logins},
		{append(ofClasses("gateway.login.%s.mode", "gateway.login.%s.multi"), "gateway.login.total"), classLogins},
		{[]string{"gateway.limits.user_rate", "gateway.limits.user_burst", "rate.factor"}, userRate},
		{[]string{"gateway.limits.conversation_rate", "gateway.limits.conversation_burst"}, conversationRate},
		{[]string{"gateway.limits.connection_rate", "gateway.limits.connection_burst"}, connectionRate},
		{[]string{"gateway.limits.accept_rate", "gateway.limits.accept_burst"}, acceptRate},
		{[]string{"gateway.limits.tls_rate", "gateway.limits.tls_burst"}, tlsRate},
		{[]string{"receipt.max_members"}, receipts},
		{[]string{"presence.offline_after"}, offlineAfter},
		{[]string{"presence.return_after", "gateway.ping_interval", "gateway.pong_timeout"}, returnAfter},
		{[]string{"tracing.share"}, func(t *testing.T, l live) { tracingShare(t, l, spans) }},
		{[]string{"presence.typing_members"}, typingMembers},
		{[]string{"schedule.horizon", "schedule.max_per_user", "schedule.max_total"}, scheduling},
		{[]string{"push.group_members", "push.pull_sessions", "push.pull_load", "push.pull_interval"}, largeGroups},
	}
	shown := map[string]bool{
		// test/requirements TestR15AStrictSession sets it while nodes run; it takes
		// two gateways to see.
		"session.strict": true,
		// It is 10 s at least; modules/gateway TestWatchingIsRenewed shows it.
		"presence.lease": true,
		// They want messages that are days old. test/outbox
		// TestLeadingProcessesEndInEachJob sets the first two while nodes run;
		// modules/scheduler TestOldMessagesGo shows the pace.
		"retention.direct_days": true, "retention.group_days": true, "retention.pace": true,
		// It is 1 m at least; modules/scheduler TestEndedScheduledMessagesGo shows it.
		"schedule.keep": true,
		// Connections from loopback are exempt; the gateway's own tests show these.
		"gateway.limits.address_rate": true, "gateway.limits.address_burst": true,
	}
	for _, tt := range tests {
		t.Run(strings.Join(tt.keys, ","), func(t *testing.T) {
			l := live{n, t}
			tt.test(t, l)
			var back []string
			for _, k := range tt.keys {
				shown[k] = true
				back = append(back, k, "")
			}
			l.set(back...)
		})
	}
	res, err := service(n).ListSettings(t.Context(), &adminv1.ListSettingsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range res.GetSettings() {
		if strings.HasPrefix(s.GetKey(), "peers.") {
			continue // of calls between processes: here all roles are in one
		}
		if !shown[s.GetKey()] {
			t.Errorf("nothing shows that %s has an effect", s.GetKey())
		}
	}
}

// shrinkHeartbeat makes pings follow within 1.6 s, in steps, as one change may
// not end every connection. It leaves who answers more than a second.
func (l live) shrinkHeartbeat() {
	l.t.Helper()
	for ping := 12500 * time.Millisecond; ping >= 1500*time.Millisecond; ping /= 2 {
		l.set("gateway.ping_interval", ping.String(), "gateway.pong_timeout", min(ping*4/5, 6*time.Second).String())
	}
}

func heartbeat(t *testing.T, l live) {
	if _, err := set(t.Context(), service(l.Node), "gateway.ping_interval", "200ms", "gateway.pong_timeout", "150ms"); err == nil {
		t.Error("a heartbeat may shrink at once")
	}
	clock, c := testenv.NewClock(t), l.session("beat", "d", "phone")
	l.shrinkHeartbeat()
	dead := testenv.Dial(t, l.URL(), protocol.Proto)
	dead.Silence()
	dead.Write(&clientv1.ClientFrame{Id: 1, Kind: &clientv1.ClientFrame_Hello{Hello: &clientv1.Hello{Version: 1, Token: l.Token("dead"), DeviceId: "d"}}})
	if ms := dead.Answer(1).GetWelcome().GetPingIntervalMs(); ms < 1000 || ms > 2000 {
		t.Errorf("a newcomer is told %d ms", ms)
	}
	if code, _ := dead.WaitClosed(testenv.Patience); code == 1000 {
		t.Errorf("a silent one is closed with %d", code)
	}
	if c.Closed() && clock.Stood() < 500*time.Millisecond { // else it did not answer either
		t.Error("one that answers was closed")
	}
}

func redelivery(t *testing.T, l live) {
	l.set("gateway.redeliver_after", "100ms", "gateway.redeliver_count", "2")
	a, b := l.session("red-a", "d", "phone"), l.session("red-b", "d", "phone")
	wantCopies(t, b, a.MustSend(testenv.ToUser("red-b", "x")), 3)
	l.set("gateway.redeliver_count", "1")
	wantCopies(t, b, a.MustSend(testenv.ToUser("red-b", "y")), 2)
}

func logins(t *testing.T, l live) {
	phone, web := l.session("log", "p", "phone"), l.session("log", "w", "web")
	l.set("gateway.login.multi", "1")
	other := l.session("log", "p2", "phone")
	phone.WaitClosed(testenv.Patience)
	if web.Closed() {
		t.Error("a login of another class ended")
	}
	l.set("gateway.login.mode", "reject_new")
	if _, f := l.hello("log", "p3", "phone"); f.GetWelcome() != nil {
		t.Error("a login was let in under reject_new")
	}
	if other.Closed() {
		t.Error("reject_new ended a login")
	}
	l.set("gateway.login.mode", "kick_old", "gateway.login.same_class", "false")
	l.session("log", "t", "tablet")
	other.WaitClosed(testenv.Patience)
	web.WaitClosed(testenv.Patience)
}

// ofClasses is the keys of every device class.
func ofClasses(patterns ...string) (keys []string) {
	for _, c := range im.Classes() {
		for _, p := range patterns {
			keys = append(keys, fmt.Sprintf(p, c))
		}
	}
	return keys
}

func classLogins(t *testing.T, l live) {
	for _, c := range im.Classes() {
		class, user := string(c), "cls-"+string(c)
		first := l.session(user, "1", class)
		l.set("gateway.login."+class+".multi", "1")
		l.session(user, "2", class)
		first.WaitClosed(testenv.Patience)
		l.set("gateway.login."+class+".mode", "reject_new")
		if _, f := l.hello(user, "3", class); f.GetWelcome() != nil {
			t.Errorf("a login of class %s was let in under reject_new", class)
		}
		l.set("gateway.login."+class+".multi", "", "gateway.login."+class+".mode", "")
	}
	first := l.session("cls-total", "1", "phone")
	l.set("gateway.login.total", "1")
	l.session("cls-total", "2", "web")
	first.WaitClosed(testenv.Patience)
}

func acceptRate(t *testing.T, l live) {
	l.set("gateway.limits.accept_rate", "0.001", "gateway.limits.accept_burst", "1")
	for range runtime.NumCPU() + 1 {
		c, res, err := testenv.TryDial(t, l.URL(), protocol.Proto, testenv.DialOptions{})
		if err == nil {
			c.Cut()
			continue
		}
		if res == nil || res.StatusCode != http.StatusServiceUnavailable || res.Header.Get("Retry-After") == "" {
			t.Errorf("refused with %v, %v", res, err)
		}
		return
	}
	t.Error("one for each processor pass, and more")
}

// tlsRate has a node of its own, as the one of the others has no certificate.
func tlsRate(t *testing.T, _ live) {
	ca, dir := testenv.NewAuthority(t), t.TempDir()
	ca.Serve(t, dir, time.Now().Add(time.Hour))
	l := live{testenv.Start(t, "--set", "gateway.tls.cert_file="+dir+"/cert.pem", "--set", "gateway.tls.key_file="+dir+"/key.pem"), t}
	u, err := url.Parse(l.URL())
	if err != nil {
		t.Fatal(err)
	}
	passed := func() (n int) {
		for range runtime.NumCPU() + 1 {
			d := tls.Dialer{NetDialer: &net.Dialer{Timeout: testenv.Patience}, Config: &tls.Config{RootCAs: ca.Pool()}}
			if c, err := d.DialContext(t.Context(), "tcp", u.Host); err == nil {
				n++
				_ = c.Close()
			}
		}
		return n
	}
	if n := passed(); n != runtime.NumCPU()+1 {
		t.Errorf("%d of %d handshakes pass without a limit that matters", n, runtime.NumCPU()+1)
	}
	l.set("gateway.limits.tls_rate", "0.001", "gateway.limits.tls_burst", "1")
	if n := passed(); n > runtime.NumCPU() { // one for each processor, and no more
		t.Errorf("%d of %d handshakes pass", n, runtime.NumCPU()+1)
	}
}

func userRate(t *testing.T, l live) {
	l.set("gateway.limits.user_rate", "0.01", "gateway.limits.user_burst", "10", "rate.factor", "0.5")
	if got := passed(l.session("rate-a", "d", "phone"), "x", 12); got != 5 {
		t.Errorf("%d of 12 pass with half of 10, want 5", got)
	}
	l.set("rate.factor", "2")
	if got := passed(l.session("rate-b", "d", "phone"), "x", 25); got != 20 {
		t.Errorf("%d of 25 pass with twice 10, want 20", got)
	}
	// The narrowest scope wins: another zone's does not hold, the role's does, and
	// the node's own wins over it.
	narrow := func(scope *adminv1.SettingScope, value string) {
		t.Helper()
		req := &adminv1.SetSettingsRequest{By: "test", Edits: []*adminv1.SettingEdit{{Key: "rate.factor", Scope: scope, Value: value}}}
		res, err := service(l.Node).SetSettings(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		inForce(t, l.Node, res.GetRevision())
	}
	res, err := service(l.Node).ListSettings(t.Context(), &adminv1.ListSettingsRequest{Keys: []string{"rate.factor"}})
	if err != nil {
		t.Fatal(err)
	}
	zone, role := &adminv1.SettingScope{Scope: &adminv1.SettingScope_Zone{Zone: "elsewhere"}}, &adminv1.SettingScope{Scope: &adminv1.SettingScope_Role{Role: "gateway"}}
	node := &adminv1.SettingScope{Scope: &adminv1.SettingScope_Node{Node: res.GetNodeId()}}
	narrow(zone, "0.1")
	if got := passed(l.session("rate-c", "d", "phone"), "x", 25); got != 20 {
		t.Errorf("%d of 25 pass, want 20: another zone's value holds", got)
	}
	narrow(role, "0.4")
	if got := passed(l.session("rate-d", "d", "phone"), "x", 12); got != 4 {
		t.Errorf("%d of 12 pass, want 4 by the role's value", got)
	}
	narrow(node, "0.3")
	if got := passed(l.session("rate-e", "d", "phone"), "x", 12); got != 3 {
		t.Errorf("%d of 12 pass, want 3 by the node's value", got)
	}
	for _, s := range []*adminv1.SettingScope{zone, role, node} {
		narrow(s, "")
	}
}

func conversationRate(t *testing.T, l live) {
	l.set("gateway.limits.conversation_rate", "0.01", "gateway.limits.conversation_burst", "3")
	c := l.session("conv-a", "d", "phone")
	if got := passed(c, "conv-b", 5); got != 3 {
		t.Errorf("%d of 5 pass into one conversation, want 3", got)
	}
	if got := passed(c, "conv-c", 2); got != 2 {
		t.Errorf("%d of 2 pass into another one", got)
	}
}

func connectionRate(t *testing.T, l live) {
	l.set("gateway.limits.connection_rate", "0.01", "gateway.limits.connection_burst", "4")
	c := l.session("frames", "d", "phone") // hello counts
	if got := passed(c, "x", 8); got >= 8 {
		t.Errorf("%d of 8 frames pass, want fewer", got)
	}
}

func receipts(t *testing.T, l live) {
	group := testenv.Group(t, l.URL(), l.Token("rc-a"), "g", "rc-b", "rc-c")
	a, b := l.session("rc-a", "d", "phone"), l.session("rc-b", "d", "phone")
	read := func() (isReceipt func(*clientv1.ServerFrame) bool) {
		t.Helper()
		ack := a.MustSend(testenv.To(group, "x"))
		b.Write(&clientv1.ClientFrame{Id: b.ID(), Kind: &clientv1.ClientFrame_Read{Read: &clientv1.Read{ConversationId: group, Seq: ack.Seq}}})
		return func(f *clientv1.ServerFrame) bool {
			return f.GetReceipt().GetUserId() == "rc-b" && f.GetReceipt().ReadSeq >= ack.Seq
		}
	}
	a.Take("a receipt in a group of three", read())
	l.set("receipt.max_members", "2")
	if f := a.TakeWithin(2*time.Second, read()); f != nil {
		t.Errorf("a receipt in a group of three, for two at most: %v", f)
	}
}

// lost is how long it takes until a watcher hears that a session of another user
// has ended, from before it does, and from when end returned.
func (l live) lost(watcher, user string, end func(*testenv.Client)) (most, least time.Duration) {
	l.t.Helper()
	var a *testenv.Client
	watch := func() {
		a = l.session(watcher, "d", "phone")
		a.Write(&clientv1.ClientFrame{Id: a.ID(), Kind: &clientv1.ClientFrame_WatchPresence{WatchPresence: &clientv1.WatchPresence{UserIds: []string{user}}}})
	}
	hear := func(online bool) {
		l.t.Helper()
		told := func(f *clientv1.ServerFrame) bool {
			return slices.ContainsFunc(f.GetPresence().GetUsers(), func(u *clientv1.UserPresence) bool { return u.UserId == user && u.Online == online })
		}
		for limit := testenv.NewLimit(testenv.Patience); a.TakeWithin(20*time.Millisecond, told) == nil; {
			if limit.Over() {
				l.t.Fatalf("nobody says online = %t", online)
			}
			if a.Closed() { // where a heartbeat is short and this process was not run
				watch()
			}
		}
	}
	l.session(watcher, "d", "phone").MustSend(testenv.ToUser(user, "x")) // they know each other
	b := l.session(user, "d", "phone")
	watch()
	hear(true)
	clock, before := testenv.NewClock(l.t), time.Now()
	end(b)
	after := clock.Now()
	hear(false)
	return time.Since(before), clock.Since(after)
}

func offlineAfter(t *testing.T, l live) {
	l.set("presence.offline_after", "3s")
	if most, _ := l.lost("off-a", "off-b", (*testenv.Client).Close); most < 3*time.Second {
		t.Errorf("offline after %v, before its time", most)
	}
}

// returnAfter is about a session that the server ends, and of which it may be that it
// comes back.
func returnAfter(t *testing.T, l live) {
	var closed time.Time
	ended := func(c *testenv.Client) {
		c.Silence()
		c.WaitClosed(testenv.Patience)
		closed = time.Now()
	}
	l.shrinkHeartbeat()
	l.set("presence.return_after", "1s")
	clock := testenv.NewClock(t)
	for try := range 3 { // who does not run when the server closes sees it late
		_, least := l.lost("ret-a", fmt.Sprint("ret-b", try), ended)
		took := time.Since(closed)
		if least > 4*time.Second {
			t.Errorf("offline %v after the end", least)
		}
		if took >= 900*time.Millisecond {
			return
		}
		t.Logf("offline %v after the end was seen; this process stood for %v at most", took, clock.Stood())
	}
	t.Error("offline before its time, three times in a row")
}

func tracingShare(t *testing.T, l live, spans *testenv.Collector) {
	seen := func(a *clientv1.SendAck) bool {
		return slices.ContainsFunc(spans.Spans(), func(s testenv.CollectedSpan) bool {
			return s.Name == "send" && s.Attrs["messaging.message.id"] == fmt.Sprint(a.MessageId)
		})
	}
	a := l.session("tr-a", "d", "phone")
	l.set("tracing.share", "0")
	var none []*clientv1.SendAck
	for range 20 {
		none = append(none, a.MustSend(testenv.ToUser("tr-b", "x")))
	}
	l.set("tracing.share", "1")
	last := a.MustSend(testenv.ToUser("tr-b", "y"))
	eventually(t, "a span arrives", func() bool { return seen(last) }) // and with it those of before
	if slices.ContainsFunc(none, seen) {
		t.Error("a send has a span while none is to have one")
	}
}

func typingMembers(t *testing.T, l live) {
	group := func() string { return testenv.Group(t, l.URL(), l.Token("ty-a"), "g", "ty-b", "ty-c") }
	many, few := group(), group() // one for each case: what is late in one is not of the other
	a, b := l.session("ty-a", "d", "phone"), l.session("ty-b", "d", "phone")
	types := func(group string) *clientv1.ServerFrame {
		a.Write(&clientv1.ClientFrame{Kind: &clientv1.ClientFrame_Typing{Typing: &clientv1.Typing{ConversationId: group}}})
		return b.TakeWithin(2500*time.Millisecond, func(f *clientv1.ServerFrame) bool { return f.GetTyping().GetConversationId() == group })
	}
	for limit := testenv.NewLimit(testenv.Patience); types(many) == nil; { // it is passed on if there is time
		if limit.Over() {
			t.Fatal("typing is not passed on in a group of three")
		}
	}
	l.set("presence.typing_members", "2")
	if f := types(few); f != nil {
		t.Errorf("typing in a group of three, for two at most: %v", f)
	}
}

func largeGroups(t *testing.T, l live) {
	users := make([]string, 60)
	for i := range users {
		users[i] = fmt.Sprint("lg-", i)
	}
	group := testenv.Group(t, l.URL(), l.Token("lg-a"), "g", users...)
	a, b := l.session("lg-a", "d", "phone"), l.session("lg-1", "d", "phone")
	head := func(f *clientv1.ServerFrame) bool { return f.GetHead().GetConversationId() == group }
	send := func() int64 { return a.MustSend(testenv.To(group, "x")).Seq }
	lists := func() (n float64) {
		t.Helper()
		res, err := http.Get(l.OpsURL() + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = res.Body.Close() }()
		text, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(text), "\nimd_gateway_groups ")
		_, _ = fmt.Sscan(rest, &n)
		return n
	}
	come := func(what string) {
		t.Helper()
		b.Take(what, isDelivery(group, send()))
	}
	come("a message")
	if lists() != 0 {
		t.Error("a group of 61 is a large one")
	}
	l.set("push.group_members", "55")
	come("a message of a large group")
	if lists() != 1 {
		t.Error("a group of 61 is no large one, for 55")
	}
	l.set("push.pull_sessions", "1", "push.pull_load", "0", "push.pull_interval", "700ms")
	come("a message that tells how many are here")
	began := time.Now()
	first := send()
	if f := b.Take("a hint", head); f.GetHead().Seq != first {
		t.Errorf("a hint of %d, want %d", f.GetHead().Seq, first)
	}
	second := send()
	if f := b.Take("a hint", head); f.GetHead().Seq != second || time.Since(began) < 500*time.Millisecond {
		t.Errorf("a hint of %d after %v, want %d after 700 ms", f.GetHead().Seq, time.Since(began), second)
	}
	l.set("push.pull_load", "1000000")
	come("a message of a group that is not busy")
	l.set("push.pull_load", "0", "push.pull_sessions", "100")
	come("a message of a group with few sessions")
}
