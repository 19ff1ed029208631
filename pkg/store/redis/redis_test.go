package redis

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/faultproxy"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/redis"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/pkg/store/storetest"
	"github.com/imdhq/imd/pkg/testenv"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// open opens a store and waits until it answers.
func open(t testing.TB, url string) *Routes {
	t.Helper()
	r, err := Open(redis.Config{URL: url}, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(testenv.ReadyIn); r.Away(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the server is not reached")
		}
	}
	return r
}

func closing(t testing.TB, r *Routes) *Routes {
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

func TestRoutes(t *testing.T) {
	server := testenv.StartRedis(t)
	storetest.TestRoutes(t, storetest.Routes{
		Open: func(t testing.TB) store.RouteStore {
			server.MustDo("FLUSHALL")
			return open(t, server.URL())
		},
		Other:  func(t testing.TB) store.RouteStore { return closing(t, open(t, server.URL())) },
		Forget: func(testing.TB) { server.MustDo("FLUSHALL") },
		Soon:   0,
	})
}

func claimOf(t testing.TB, r *Routes, x store.Route) store.Claim {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for { // a call ends after 400 ms, which a machine that stands still takes too
		c, err := r.Claim(ctx, x, store.Policy{})
		if err == nil {
			return c
		}
		if ctx.Err() != nil || !im.Retryable(err) {
			t.Fatal(err)
		}
		time.Sleep(time.Millisecond)
	}
}

func routeOf(user im.UserID, session im.SessionID) store.Route {
	return store.Route{User: user, Session: session, Login: "l", Device: im.DeviceID(session), Class: im.Phone, Node: "n1", Boot: "b1", Since: time.UnixMicro(1)}
}

// Over a server whose clock is behind, and which knows nothing, epochs rise: by
// what the claiming process has seen.
func TestASlowClockAfterAFailover(t *testing.T) {
	server := testenv.StartRedis(t)
	r := closing(t, open(t, server.URL()))
	ahead := routeOf("u", "s1")
	ahead.Epoch = uint64(time.Now().Add(time.Hour).UnixMicro()) // as a server an hour ahead gave it
	if c := claimOf(t, r, ahead); c.Epoch != ahead.Epoch {
		t.Fatalf("epoch %d", c.Epoch)
	}
	server.MustDo("FLUSHALL")
	if c := claimOf(t, r, routeOf("u", "s2")); c.Epoch != ahead.Epoch+1 {
		t.Errorf("epoch %d after %d", c.Epoch, ahead.Epoch)
	}
	// A process that learns of it by the user's own hash.
	other := closing(t, open(t, server.URL()))
	if c := claimOf(t, other, routeOf("u", "s3")); c.Epoch != ahead.Epoch+2 {
		t.Errorf("epoch %d after %d", c.Epoch, ahead.Epoch+1)
	}
	if s, err := other.Refresh(t.Context(), []store.Route{ahead}); err != nil || s[0] != store.Restored {
		t.Errorf("refresh: %v, %v", s, err)
	}
}

// Over a server whose clock is behind, a session that claims late, by when it began, does
// not outrank one that began after it.
func TestALateClaimOverASlowClock(t *testing.T) {
	server := testenv.StartRedis(t)
	r := closing(t, open(t, server.URL()))
	begin := time.Now().Add(time.Hour) // as the clock of the server is an hour behind
	newer := routeOf("u", "s2")
	newer.Since = begin.Add(time.Second)
	claimOf(t, r, newer)
	older := routeOf("u", "s1")
	older.Device, older.Since, older.Epoch = newer.Device, begin, uint64(begin.UnixMicro())
	if c := claimOf(t, r, older); c.Standing != store.Superseded {
		t.Errorf("the older session is %v", c.Standing)
	}
}

// A claim that its caller gave up while the server stood still comes true when it goes on.
// It does not outrank a session that began after it and claims its place late.
func TestALateClaimOutranksNobody(t *testing.T) {
	server := testenv.StartRedis(t)
	r := closing(t, open(t, server.URL()))
	begin := time.Now().Add(-time.Minute)
	routeOf := func(user im.UserID, session im.SessionID) store.Route {
		x := routeOf(user, session)
		x.Device = "d"
		return x
	}
	old := routeOf("u", "s1")
	old.Since = begin
	late := claimOf(t, r, old) // its epoch is of now
	heir := routeOf("u", "s2")
	heir.Since = begin.Add(time.Second)
	heir.Epoch = uint64(heir.Since.UnixMicro())
	if c := claimOf(t, r, heir); c.Standing != store.Kept || len(c.Superseded) != 1 || c.Superseded[0].Session != "s1" {
		t.Errorf("the heir is %v and supersedes %v", c.Standing, c.Superseded)
	}
	old.Epoch = late.Epoch
	if s, err := r.Refresh(t.Context(), []store.Route{old}); err != nil || s[0] != store.Superseded {
		t.Errorf("the old one is %v, %v", s, err)
	}
	// One that began later keeps its place.
	newest := routeOf("u", "s3")
	newest.Since = begin.Add(2 * time.Second)
	claimOf(t, r, newest)
	heir.Session = "s4"
	if c := claimOf(t, r, heir); c.Standing != store.Superseded {
		t.Errorf("a session that began before is %v", c.Standing)
	}
}

// What the server says of a change comes late; a user who was not there is
// found all the same.
func TestAbsenceIsNotRemembered(t *testing.T) {
	server := testenv.StartRedis(t)
	p, err := faultproxy.Listen("127.0.0.1:0", server.Addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	far, near := closing(t, open(t, "redis://"+p.Address())), closing(t, open(t, server.URL()))
	look := func(u im.UserID) []store.Route {
		t.Helper()
		for end := time.Now().Add(testenv.Patience); ; time.Sleep(time.Millisecond) { // as in claimOf
			l, err := far.Recent(t.Context(), []im.UserID{u})
			if err == nil {
				return l
			}
			if time.Now().After(end) || !im.Retryable(err) {
				t.Fatal(err)
			}
		}
	}
	for _, u := range []im.UserID{"u", "v", "w", "x", "y"} {
		p.Set(faultproxy.Mode{})
		if l := look(u); len(l) != 0 {
			t.Fatal(l)
		}
		p.Set(faultproxy.Mode{Delay: 100 * time.Millisecond})
		claimOf(t, near, routeOf(u, "s1"))
		if l := look(u); len(l) != 1 {
			t.Errorf("found %v", l)
		}
	}
	claimOf(t, near, routeOf("u", "s2"))
	for end := time.Now().Add(5 * time.Second); len(look("u")) != 2; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("a second route is not found")
		}
	}
}

// Routes end by themselves, by the server's clock, and so does what is kept of a
// user.
func TestRoutesEnd(t *testing.T) {
	server := testenv.StartRedis(t)
	r := closing(t, open(t, server.URL()))
	claimOf(t, r, routeOf("u", "s1"))
	claimOf(t, r, routeOf("u", "s2"))
	rest, err := record(routeOf("u", "s1"))
	if err != nil {
		t.Fatal(err)
	}
	server.MustDo("HSET", userKey("u"), "s:s1", fmt.Sprintf("1\n%d\n%s", time.Now().Add(-time.Second).UnixMicro(), rest))
	if l, err := r.Lookup(t.Context(), []im.UserID{"u"}); err != nil || len(l) != 1 || l[0].Session != "s2" {
		t.Errorf("found %v, %v", l, err)
	}
	if ok, err := r.Release(t.Context(), "u", "s1", 1); ok || err != nil {
		t.Errorf("one that had ended was released: %v, %v", ok, err)
	}
	var ttl int
	if _, err := fmt.Sscanf(server.MustDo("TTL", userKey("u")), ":%d", &ttl); err != nil || ttl < 170 || ttl > 180 {
		t.Errorf("TTL %d, %v", ttl, err)
	}
}

func TestWhatIsNotOurs(t *testing.T) {
	server := testenv.StartRedis(t)
	r := closing(t, open(t, server.URL()))
	server.MustDo("SET", userKey("u"), "x")
	server.MustDo("HSET", userKey("v"), "s:s1", "x")
	for _, u := range []im.UserID{"u", "v"} {
		_, claim := r.Claim(t.Context(), routeOf(u, "s2"), store.Policy{})
		_, lookup := r.Lookup(t.Context(), []im.UserID{u})
		_, release := r.Release(t.Context(), u, "s1", 1)
		for _, err := range []error{claim, lookup, release} {
			if im.ReasonOf(err) != clientv1.Reason_REASON_UNAVAILABLE {
				t.Errorf("%s: %v", u, err)
			}
		}
	}
	if _, err := r.Claim(t.Context(), routeOf("w", "a\nb"), store.Policy{}); im.ReasonOf(err) != clientv1.Reason_REASON_BAD_REQUEST {
		t.Errorf("a newline: %v", err)
	}
}

// A server that stands still costs a call its time, and then nothing.
func TestAStall(t *testing.T) {
	server := testenv.StartRedis(t)
	r := closing(t, open(t, server.URL()))
	claimOf(t, r, routeOf("u", "s1"))
	server.Pause()
	for i := range 6 {
		var err error
		took := testenv.Took(func() { _, err = r.Claim(t.Context(), routeOf("u", "s2"), store.Policy{}) })
		if im.ReasonOf(err) != clientv1.Reason_REASON_UNAVAILABLE || !im.Retryable(err) {
			t.Fatalf("claim %d: %v", i, err)
		}
		if took > 2*time.Second || i > 3 && took > 50*time.Millisecond {
			t.Errorf("claim %d took %v", i, took)
		}
	}
	server.Resume()
	for end := time.Now().Add(10 * time.Second); r.Away(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it is not found again")
		}
	}
	if l, err := r.Lookup(t.Context(), []im.UserID{"u"}); err != nil || len(l) < 1 {
		t.Errorf("found %v, %v", l, err)
	}
}

// An empty restart forgets the scripts too.
func TestAnEmptyRestart(t *testing.T) {
	server := testenv.StartRedis(t)
	r := closing(t, open(t, server.URL()))
	x := routeOf("u", "s1")
	x.Epoch = claimOf(t, r, x).Epoch
	before, err := r.Memory(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	server.RestartEmpty()
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if m, err := r.Memory(t.Context()); err == nil && m != before {
			break
		}
		if time.Now().After(end) {
			t.Fatal("nobody notices")
		}
	}
	if s, err := r.Refresh(t.Context(), []store.Route{x}); err != nil || s[0] != store.Restored {
		t.Errorf("refresh: %v, %v", s, err)
	}
}

// 500 users are looked up at once: over a slow line they do not take 500 ways.
func TestManyUsersInOneRoundTrip(t *testing.T) {
	server := testenv.StartRedis(t)
	p, err := faultproxy.Listen("127.0.0.1:0", server.Addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	far, near := closing(t, open(t, "redis://"+p.Address())), closing(t, open(t, server.URL()))
	users := make([]im.UserID, 500)
	for i := range users {
		users[i] = im.UserID(fmt.Sprint("u", i))
		claimOf(t, near, routeOf(users[i], im.SessionID(users[i])))
	}
	p.Set(faultproxy.Mode{Delay: 10 * time.Millisecond}) // a call ends after 400 ms
	for range 5 {
		if l, err := far.Lookup(t.Context(), users); err == nil && len(l) == 500 {
			return
		}
	}
	t.Error("500 users are not looked up in the time of 20 ways")
}

// BenchmarkClaim is claims of many users at once.
func BenchmarkClaim(b *testing.B) {
	server := testenv.StartRedis(b)
	r := closing(b, open(b, server.URL()))
	b.SetParallelism(32)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			u := im.UserID(rnd())
			if _, err := r.Claim(b.Context(), routeOf(u, im.SessionID(u)), store.Policy{}); err != nil {
				b.Error(err)
				return
			}
		}
	})
	b.ReportMetric(cpu(b), "us-cpu/op")
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "claims/s")
}

// BenchmarkClaimMany is the same in groups of 64, four at a time, as a gateway asks.
func BenchmarkClaimMany(b *testing.B) {
	server := testenv.StartRedis(b)
	r := closing(b, open(b, server.URL()))
	const group = 64
	b.SetParallelism(2)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			list := make([]store.Claiming, group)
			for i := range list {
				u := im.UserID(rnd())
				list[i].Route = routeOf(u, im.SessionID(u))
			}
			if _, err := r.ClaimMany(b.Context(), list); err != nil {
				b.Error(err)
				return
			}
		}
	})
	b.ReportMetric(cpu(b)/group, "us-cpu/claim")
	b.ReportMetric(group*float64(b.N)/b.Elapsed().Seconds(), "claims/s")
}

// BenchmarkLookup is look-ups of 500 users.
func BenchmarkLookup(b *testing.B) {
	server := testenv.StartRedis(b)
	r := closing(b, open(b, server.URL()))
	users := make([]im.UserID, 500)
	for i := range users {
		users[i] = im.UserID(fmt.Sprint("u", i))
		claimOf(b, r, routeOf(users[i], im.SessionID(users[i])))
	}
	for name, look := range map[string]func(context.Context, []im.UserID) ([]store.Route, error){"table": r.Lookup, "recent": r.Recent} {
		b.Run(name, func(b *testing.B) {
			var took []time.Duration
			for b.Loop() {
				began := time.Now()
				if l, err := look(b.Context(), users); err != nil || len(l) != 500 {
					b.Fatal(len(l), err)
				}
				took = append(took, time.Since(began))
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-us")
		})
	}
}

// BenchmarkRestore is 10,000 routes that are put back after a flush, in calls of
// 500.
func BenchmarkRestore(b *testing.B) {
	server := testenv.StartRedis(b)
	r := closing(b, open(b, server.URL()))
	routes := make([]store.Route, 10_000)
	for i := range routes {
		id := fmt.Sprint("u", i)
		routes[i] = routeOf(im.UserID(id), im.SessionID(id))
		routes[i].Epoch = uint64(i + 1)
	}
	for b.Loop() {
		server.MustDo("FLUSHALL")
		for part := range slices.Chunk(routes, maxBatch) {
			if s, err := r.Refresh(b.Context(), part); err != nil || s[0] != store.Restored {
				b.Fatal(s, err)
			}
		}
	}
}
