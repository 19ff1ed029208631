package gateway

import (
	"context"
	"fmt"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/im"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

var t0 = time.Unix(1_800_000_000, 0)

func TestJitterStaysWithinAFifth(t *testing.T) {
	for range 1000 {
		if j := jitter(); j < 0.8 || j > 1.2 {
			t.Fatalf("factor %v", j)
		}
	}
}

func TestHeartbeat(t *testing.T) {
	never := time.Time{}
	at := func(s float64) time.Time { return t0.Add(time.Duration(s * float64(time.Second))) }
	t.Run("silence after a ping is death", func(t *testing.T) {
		h := heartbeat{interval: 25 * time.Second, timeout: 10 * time.Second}
		h.begin(t0)
		if !h.next().Equal(at(25)) {
			t.Errorf("next at %v", h.next().Sub(t0))
		}
		if ping, dead := h.step(at(24), t0, never, false); ping || dead {
			t.Error("too early")
		}
		if ping, _ := h.step(at(25), t0, never, false); !ping {
			t.Error("no ping")
		}
		if !h.next().Equal(at(35)) {
			t.Errorf("next at %v, want the end of the wait", h.next().Sub(t0))
		}
		if _, dead := h.step(at(34.9), t0, never, false); dead {
			t.Error("dead too early")
		}
		if _, dead := h.step(at(35), t0, never, false); !dead {
			t.Error("alive without a byte")
		}
	})
	t.Run("any byte is life", func(t *testing.T) {
		h := heartbeat{interval: 25 * time.Second, timeout: 10 * time.Second}
		h.begin(t0)
		h.step(at(25), t0, never, false)
		if _, dead := h.step(at(36), at(26), never, false); dead {
			t.Error("dead with a byte after the ping")
		}
		if ping, _ := h.step(at(50), at(26), never, false); !ping {
			t.Error("no second ping")
		}
	})
	t.Run("while we do not read, silence proves nothing", func(t *testing.T) {
		h := heartbeat{interval: 25 * time.Second, timeout: 10 * time.Second}
		h.begin(t0)
		h.step(at(25), t0, never, true)
		for s := 26.0; s < 120; s++ {
			if _, dead := h.step(at(s), t0, never, true); dead {
				t.Fatalf("dead after %v s of our own silence", s)
			}
		}
		if _, dead := h.step(at(128), t0, never, false); dead {
			t.Error("dead before it had its own time")
		}
		if _, dead := h.step(at(130), t0, never, false); !dead {
			t.Error("alive after its own time")
		}
	})
	t.Run("a byte before our own silence is life", func(t *testing.T) {
		h := heartbeat{interval: 25 * time.Second, timeout: 10 * time.Second}
		h.begin(t0)
		h.step(at(25), t0, never, false)
		h.step(at(31), at(26), never, true)
		for s := 32.0; s < 50; s++ {
			if _, dead := h.step(at(s), at(26), never, false); dead {
				t.Fatalf("dead at %v s with a byte after the ping", s)
			}
		}
	})
	t.Run("while the process stands still, silence proves nothing", func(t *testing.T) {
		h := heartbeat{interval: 25 * time.Second, timeout: 10 * time.Second}
		h.begin(t0)
		h.step(at(25), t0, never, false)
		for _, s := range []float64{45, 46, 54.9} { // it stood still from 26 to 45
			if _, dead := h.step(at(s), t0, at(45), false); dead {
				t.Fatalf("dead at %v s, before there was time to read", s)
			}
		}
		if _, dead := h.step(at(55), t0, at(45), false); !dead {
			t.Error("alive after its own time")
		}
	})
	t.Run("pings faster than the timeout do not hide death", func(t *testing.T) {
		h := heartbeat{interval: time.Second, timeout: 10 * time.Second}
		h.begin(t0)
		for s := 1.0; s < 20; s += 0.5 {
			if _, dead := h.step(at(s), t0, never, false); dead {
				if s != 11 {
					t.Errorf("dead at %v s, want 11", s)
				}
				return
			}
		}
		t.Error("never dead")
	})
}

// Turns that are late by a little are usual; by more, the process stood still, unless
// the turn before took so long.
func TestTheWheelSeesThatTheProcessStoodStill(t *testing.T) {
	w, now := newWheel(time.Now()), time.Now()
	if w.came(now, now.Add(-standstill)); !w.resumed().IsZero() {
		t.Errorf("it is said to have stood still until %v", w.resumed())
	}
	if w.came(now, now.Add(-standstill-time.Millisecond)); !w.resumed().Equal(now) {
		t.Errorf("it is said to have gone on at %v, in fact at %v", w.resumed(), now)
	}
	synctest.Test(t, func(t *testing.T) {
		w := newWheel(time.Now())
		ctx, cancel := context.WithCancel(t.Context())
		s := &session{}
		s.timer.session = s
		var wg sync.WaitGroup
		wg.Go(func() { w.run(ctx, func(*session, time.Time) { time.Sleep(10 * time.Second) }) })
		w.wakeBy(&s.timer, time.Now())
		time.Sleep(20 * time.Second)
		if at := w.resumed(); !at.IsZero() {
			t.Errorf("while sessions were woken it is said to have stood still until %v", at)
		}
		cancel()
		wg.Wait()
	})
}

func TestWheelWakesInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWheel(time.Now())
		var mu sync.Mutex
		woken := map[*session]time.Time{}
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			w.run(ctx, func(s *session, now time.Time) {
				mu.Lock()
				defer mu.Unlock()
				woken[s] = now
			})
		})
		begin := time.Now()
		var all []*session
		var due []time.Duration
		for i := range 3000 {
			s := &session{}
			s.timer.session = s
			d := time.Duration(i) * 37 * time.Millisecond // up to 111 s: more than a turn
			w.wakeBy(&s.timer, begin.Add(d))
			all, due = append(all, s), append(due, d)
		}
		earlier, later, gone := all[100], all[200], all[300]
		w.wakeBy(&earlier.timer, begin.Add(time.Second))
		due[100] = time.Second
		w.wakeBy(&later.timer, begin.Add(time.Hour)) // never moves to a later time
		w.remove(&gone.timer)
		w.remove(&gone.timer)
		time.Sleep(2 * time.Minute)
		cancel()
		wg.Wait()
		for i, s := range all {
			at, ok := woken[s]
			if s == gone {
				if ok {
					t.Error("a removed timer fired")
				}
				continue
			}
			if late := at.Sub(begin.Add(due[i])); !ok || late < -tick || late > 2*tick {
				t.Fatalf("timer %d, due after %v: fired %v, %v late", i, due[i], ok, late)
			}
		}
	})
}

func TestMarksJoin(t *testing.T) {
	for _, tt := range []struct{ name, add, want string }{
		{"what touches becomes one", "0-5 5-9", "0-9"},
		{"what overlaps becomes one", "3-9 0-5", "0-9"},
		{"what is contained changes nothing", "0-9 2-3", "0-9"},
		{"a gap stays a gap", "0-5 7-9", "0-5 7-9"},
		{"a bridge joins both sides", "0-5 7-9 4-8", "0-9"},
		{"the oldest of too many goes", "0-1 10-11 20-21 30-31 40-41 50-51 60-61 70-71 80-81", "10-11 20-21 30-31 40-41 50-51 60-61 70-71 80-81"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var list []span
			for f := range strings.FieldsSeq(tt.add) {
				var s span
				fmt.Sscanf(f, "%d-%d", &s.after, &s.seq)
				list = join(list, s)
			}
			var got []string
			for _, s := range list {
				got = append(got, fmt.Sprintf("%d-%d", s.after, s.seq))
			}
			if g := strings.Join(got, " "); g != tt.want {
				t.Errorf("got %s, want %s", g, tt.want)
			}
		})
	}
}

// markLog is a state role that only takes marks.
type markLog struct {
	calls [][]*v1.Mark
	at    []time.Time
	fail  int // that many calls fail first
}

func (l *markLog) Mark(_ context.Context, r *v1.MarkRequest) (*v1.MarkResponse, error) {
	l.calls, l.at = append(l.calls, r.Marks), append(l.at, time.Now())
	if l.fail > 0 {
		l.fail--
		return nil, im.Errorf(clientv1.Reason_REASON_UNAVAILABLE, "test", "away")
	}
	return &v1.MarkResponse{}, nil
}

func TestMarksAreBatchedAndTriedTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &markLog{fail: 1}
		c := newMarks(l, newMetrics(prometheus.NewRegistry()), zap.NewNop())
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { c.run(ctx) })
		begin := time.Now()
		for i := range int64(100) {
			c.add(mark{"c", "u"}, span{i, i + 1})
			time.Sleep(time.Millisecond)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if len(l.calls) < 2 || len(l.calls) > 4 {
			t.Fatalf("%d calls for 100 acks in 100 ms", len(l.calls))
		}
		if d := l.at[0].Sub(begin); d != markPause {
			t.Errorf("the first call came after %v", d)
		}
		covered := span{}
		for _, call := range l.calls[1:] { // the first failed and went again
			for _, m := range call {
				covered = join([]span{covered}, span{m.AfterSeq, m.Seq})[0]
			}
		}
		if covered != (span{0, 100}) {
			t.Errorf("state heard of %v", covered)
		}
		n := len(l.calls)
		l.fail = 100
		c.add(mark{"c", "u"}, span{100, 101})
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if len(l.calls) != n+2 {
			t.Errorf("%d calls for a mark that always fails, want 2", len(l.calls)-n)
		}
		cancel()
		wg.Wait()
	})
}

func TestMarksStayBounded(t *testing.T) {
	c := newMarks(&markLog{}, newMetrics(prometheus.NewRegistry()), zap.NewNop())
	for i := range maxMarks + 500 {
		c.add(mark{fmt.Sprint(i), "u"}, span{0, 1})
	}
	if n := len(c.take()); n != maxMarks {
		t.Errorf("%d marks wait, want %d", n, maxMarks)
	}
}

func TestOrigins(t *testing.T) {
	c := DefaultConfig()
	c.AllowedOrigins = []string{"https://app.example", "http://other.example:3000"}
	o := newOrigins(c)
	const host = "chat.example:8420"
	for _, tt := range []struct {
		origin string
		ok     bool
	}{
		{"http://chat.example:8420", true},
		{"https://chat.example:8420", true},
		{"http://CHAT.example:8420", true},
		{"http://chat.example", false},
		{"http://chat.example:8421", false},
		{"https://app.example", true},
		{"http://app.example", false},
		{"https://app.example:444", false},
		{"http://other.example:3000", true},
		{"https://app.example.evil.example", false},
		{"https://evilapp.example", false},
		{"https://app.example@evil.example", false},
		{"https://evil.example/https://app.example", false},
		{"https://app.example/", false},
		{"https://app.example?x", false},
		{"null", false},
		{"", false},
		{"file://", false},
		{"ftp://chat.example:8420", false},
		{"https://*.example", false},
	} {
		if got := o.check([]string{tt.origin}, host) == ""; got != tt.ok {
			t.Errorf("origin %q: allowed %v, want %v", tt.origin, got, tt.ok)
		}
	}
	if o.check(nil, host) != "" {
		t.Error("a missing Origin is refused")
	}
	if o.check([]string{"https://app.example", "https://app.example"}, host) == "" {
		t.Error("two Origin headers pass")
	}
	if msg := o.check([]string{"https://evil.example"}, host); !strings.Contains(msg, "https://evil.example") || !strings.Contains(msg, "gateway.allowed_origins") {
		t.Errorf("the refusal says %q", msg)
	}
	c.RequireOrigin = true
	if newOrigins(c).check(nil, host) == "" {
		t.Error("a missing Origin passes although one is required")
	}
	c.AllowedOrigins, c.UnsafeAllowAllOrigins = []string{"*"}, true
	if newOrigins(c).check([]string{"https://evil.example"}, host) != "" {
		t.Error("* does not let all in")
	}
	c.UnsafeAllowAllOrigins = false
	if newOrigins(c).check([]string{"https://evil.example"}, host) == "" {
		t.Error("* works without the unsafe setting")
	}
}

func TestConfigNamesEveryProblem(t *testing.T) {
	if err := DefaultConfig().Validate(); err != nil {
		t.Fatalf("the defaults: %v", err)
	}
	c := DefaultConfig()
	c.Listen = ""
	c.AllowedOrigins = []string{"*", "app.example", "https://a.example/path"}
	c.TrustedProxies = []string{"proxy.local"}
	c.MaxConnections = -1
	c.PingInterval = time.Millisecond
	c.QueueFrames = 1
	c.Login = LoginConfig{Mode: "newest"}
	c.Drain.MaxSpread = time.Second
	c.Limits.UserRate = -1
	err := c.Validate()
	if err == nil {
		t.Fatal("no problem found")
	}
	for _, key := range []string{"listen", "unsafe_allow_all_origins", `"app.example"`, `"https://a.example/path"`, "trusted_proxies", "max_connections",
		"ping_interval", "queue_frames", "login.mode", "login.multi", "drain.max_spread", "limits.user_rate"} {
		if !strings.Contains(err.Error(), key) {
			t.Errorf("%s is not named in:\n%v", key, err)
		}
	}
}

func TestNegotiate(t *testing.T) {
	for _, tt := range []struct {
		low, high, level uint32
		ok               bool
	}{
		{0, 1, 1, true}, {1, 1, 1, true}, {0, 0, 0, false}, {0, 99, 1, false}, {1, 99, 1, true}, {2, 99, 1, false}, {3, 2, 1, false}, {5, 1, 1, false},
	} {
		level, ok := negotiate(tt.low, tt.high)
		if ok != tt.ok || ok && level != tt.level {
			t.Errorf("negotiate(%d, %d) = %d, %v", tt.low, tt.high, level, ok)
		}
	}
}

// The rate of newcomers holds for the node, whoever they are, and for each of
// its processors.
func TestRateOfNewcomers(t *testing.T) {
	now := t0
	c := DefaultConfig().Limits
	c.AcceptRate, c.AcceptBurst = 1, 3
	l := newLimits(c, func() rates { return tune(Config{Limits: c}, nil).rates }, func() time.Time { return now })
	passed := func() (n int) {
		for {
			ok, wait := l.accept()
			if !ok && wait < minWait {
				t.Errorf("to come back in %v", wait)
			}
			if !ok || n > 1000 {
				return n
			}
			n++
		}
	}
	procs := runtime.GOMAXPROCS(0)
	if n := passed(); n != 3*procs {
		t.Errorf("%d at once, with %d processors", n, procs)
	}
	now = now.Add(2 * time.Second)
	if n := passed(); n != 2*procs {
		t.Errorf("%d after two seconds, with %d processors", n, procs)
	}
	l.SetOff(true)
	if ok, _ := l.accept(); !ok {
		t.Error("refused although rates are off")
	}
}

func TestLimits(t *testing.T) {
	now := t0
	c := DefaultConfig().Limits
	c.UserRate, c.UserBurst, c.ConversationRate, c.ConversationBurst = 1, 3, 1, 5
	l := newLimits(c, func() rates { return tune(Config{Limits: c}, nil).rates }, func() time.Time { return now })
	for i := range 3 {
		if ok, _ := l.Send("ann", "c"); !ok {
			t.Fatalf("send %d refused", i)
		}
	}
	if ok, wait := l.Send("ann", "c"); ok || wait < time.Second {
		t.Errorf("above the user's rate: %v, %v", ok, wait)
	}
	l.Send("bob", "c")
	l.Send("bob", "c")
	if ok, _ := l.Send("bob", "c"); ok {
		t.Error("above the conversation's rate")
	}
	if ok, _ := l.Send("bob", "d"); !ok {
		t.Error("a refusal by the conversation used up the user's rate")
	}
	l.SetOff(true)
	for range 100 {
		if ok, _ := l.Send("ann", "c"); !ok {
			t.Fatal("refused although rates are off")
		}
	}
	l.SetOff(false)
	if ok, _ := l.Send("ann", "c"); ok {
		t.Error("rates do not come back")
	}
	far, near := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("127.0.0.1")
	for range c.FailedHellos {
		l.badToken(far)
		l.badToken(near)
	}
	if ok, wait := l.upgrade(far); ok || wait != time.Minute {
		t.Errorf("after too many bad tokens: %v, %v", ok, wait)
	}
	if ok, _ := l.upgrade(near); !ok {
		t.Error("loopback is not exempt")
	}
	now = now.Add(time.Minute)
	if ok, _ := l.upgrade(far); !ok {
		t.Error("blocked for more than a minute")
	}
}

func TestOverload(t *testing.T) {
	var o overload
	for d := time.Duration(0); d < overloadTime; d += 100 * time.Millisecond {
		if o.refused(t0.Add(d), overloadTime) {
			t.Fatalf("too long after %v", d)
		}
	}
	if !o.refused(t0.Add(overloadTime), overloadTime) {
		t.Error("10 s on end are not too long")
	}
	o = overload{} // one that we did not read from in between has made no pause
	o.refused(t0, overloadTime)
	o.passOver(5 * time.Second)
	o.refused(t0.Add(5*time.Second), overloadTime)
	if !o.refused(t0.Add(5*time.Second+overloadGap), 5*time.Second) {
		t.Error("a time in which nothing was read counts as a pause")
	}
	o = overload{}
	for i := range 100 { // a client that waits as told
		if o.refused(t0.Add(time.Duration(i)*minWait), overloadTime) {
			t.Fatal("a client that waits as told is closed")
		}
	}
}

func TestAdmission(t *testing.T) {
	a, b := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	local := netip.MustParseAddr("::1")
	x := &admission{most: 6, mostPending: 4, mostAddress: 2, exempt: netip.Addr.IsLoopback, byAddr: map[netip.Addr]int{}}
	want := func(addr netip.Addr, v admitVerdict) {
		t.Helper()
		if got, _ := x.enter(addr); got != v {
			t.Errorf("enter(%v) = %v, want %v", addr, got, v)
		}
	}
	want(a, admitted)
	want(a, admitted)
	want(a, addressFull)
	want(b, admitted)
	want(local, admitted)
	want(local, tooManyPending)
	x.authenticated(a)
	want(a, admitted)
	x.authenticated(a)
	x.authenticated(local)
	want(local, admitted)
	want(b, nodeFull)
	for range 2 {
		x.leave(a, false)
	}
	x.leave(a, true)
	x.leave(b, true)
	x.leave(local, false)
	x.leave(local, true)
	if x.total != 0 || x.pending != 0 || len(x.byAddr) != 0 {
		t.Errorf("left over: %d, %d, %v", x.total, x.pending, x.byAddr)
	}
}

// While too many have not authenticated, others wait in a line, in which they count
// for their address, and are let in one after the other.
func TestAdmissionLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
		x := &admission{most: 10, mostPending: 1, mostAddress: 3, mostInLine: 3, exempt: netip.Addr.IsLoopback, byAddr: map[netip.Addr]int{}}
		in := make(chan string, 10)
		var gone sync.Map // of those that have left
		wait := func(name string, addr netip.Addr, ctx context.Context) {
			v, n := x.enter(addr)
			if n == nil {
				t.Fatalf("%s got %v at once", name, v)
			}
			go func() {
				in <- fmt.Sprint(name, x.await(ctx, n, enterWait, func() bool { _, left := gone.Load(name); return left }) == admitted)
			}()
			synctest.Wait()
		}
		want := func(list ...string) {
			t.Helper()
			synctest.Wait()
			for _, s := range list {
				select {
				case got := <-in:
					if got != s {
						t.Errorf("%s, want %s", got, s)
					}
				default:
					t.Errorf("nobody, want %s", s)
				}
			}
			if len(in) > 0 {
				t.Errorf("%s too", <-in)
			}
		}
		if v, n := x.enter(a); v != admitted || n != nil {
			t.Fatal(v)
		}
		ctx, leave := context.WithCancel(t.Context())
		wait("a1", a, t.Context())
		wait("a2", a, ctx)
		if v, n := x.enter(a); v != addressFull || n != nil {
			t.Errorf("a fourth of one address: %v", v)
		}
		wait("b", b, t.Context())
		if v, n := x.enter(b); v != tooManyPending || n != nil {
			t.Errorf("more than the line has room for: %v", v)
		}
		leave()
		want("a2false")
		x.authenticated(a)
		want("a1true")
		x.leave(a, true) // it was in the way
		want("btrue")
		wait("late", a, t.Context())
		wait("left", b, t.Context())
		time.Sleep(enterWait / 2)
		gone.Store("left", true)
		time.Sleep(leftLook)
		want("leftfalse")
		time.Sleep(enterWait/2 - leftLook)
		want("latefalse")
		x.leave(a, false)
		x.leave(b, true)
		if x.total != 0 || x.pending != 0 || len(x.byAddr) != 0 || x.inLine != 0 || len(x.line) != 0 {
			t.Errorf("left over: %+v", x)
		}
	})
}

func TestDrainPlan(t *testing.T) {
	c := DefaultConfig().Drain
	const ample = time.Hour
	for _, x := range []struct {
		n                 int
		left, spread, end time.Duration
	}{
		{0, ample, 2 * time.Second, 7 * time.Second},
		{500, ample, 2 * time.Second, 7 * time.Second},
		{5000, ample, 10 * time.Second, 15 * time.Second},
		{1 << 20, ample, 25 * time.Second, 30 * time.Second},
		{1 << 20, 26 * time.Second, 21 * time.Second, 26 * time.Second},
		{1 << 20, 6 * time.Second, 3 * time.Second, 6 * time.Second},
		{500, 3 * time.Second, 1500 * time.Millisecond, 3 * time.Second},
		{500, -time.Second, 0, 0},
	} {
		if spread, end := drainPlan(c, x.n, x.left); spread != x.spread || end != x.end {
			t.Errorf("%d clients with %v left: %v and %v, want %v and %v", x.n, x.left, spread, end, x.spread, x.end)
		}
	}
}

// Clients move evenly over the spread, and each knows half of its time ahead.
func TestDrainTimes(t *testing.T) {
	const n, spread = 10_000, 20 * time.Second
	var tenths [10]int
	last := time.Duration(-1)
	for i := range n {
		ask, move := drainTimes(i, n, spread)
		if ask < last || 2*ask > move+1 || move >= spread {
			t.Fatalf("the %dth is asked at %v to move at %v", i, ask, move)
		}
		last = ask
		tenths[move*10/spread]++
	}
	for i, moves := range tenths {
		if moves < n/10-1 || moves > n/10+1 {
			t.Errorf("%d move in tenth %d", moves, i)
		}
	}
	if ask, move := drainTimes(3, 5, 0); ask != 0 || move != 0 {
		t.Errorf("without a spread: %v, %v", ask, move)
	}
}
