package split

import (
	"maps"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/imdhq/imd/pkg/auth"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/testenv"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// spectator is a session that watches others.
type spectator struct {
	*testenv.Client
	t     *testing.T
	known map[string]bool // who is online, as told
}

// watches lets a session write to users, which is what lets it see them, and watch
// them. The answer says of each whether it is online.
func watches(t *testing.T, c *testenv.Client, users ...string) (*spectator, map[string]bool) {
	t.Helper()
	for _, u := range users {
		c.MustSend(testenv.ToUser(u, "hi"))
	}
	answer := c.Request(&clientv1.ClientFrame{Kind: &clientv1.ClientFrame_WatchPresence{WatchPresence: &clientv1.WatchPresence{UserIds: users}}})
	online := map[string]bool{}
	for _, u := range answer.GetPresence().GetUsers() {
		online[u.UserId] = u.Online
	}
	return &spectator{c, t, maps.Clone(online)}, online
}

// sees waits for the next event that tells something new, which has to be this one. What
// began just before the watch is in its answer, and may be told once more.
func (s *spectator) sees(user string, online bool) *clientv1.UserPresence {
	s.t.Helper()
	for {
		f := s.Take("an event of "+user, func(f *clientv1.ServerFrame) bool { return f.GetPresence() != nil && f.Id == 0 })
		u := f.GetPresence().Users
		if len(u) == 1 && u[0].UserId != user && s.known[u[0].UserId] == u[0].Online {
			continue
		}
		if len(u) != 1 || u[0].UserId != user || u[0].Online != online {
			s.t.Fatalf("saw %v, want %s online %v", u, user, online)
		}
		s.known[user] = online
		return u[0]
	}
}

// meets waits until the users are online, in whatever order that is told.
func (s *spectator) meets(users ...string) {
	s.t.Helper()
	for _, u := range users {
		for !s.known[u] {
			f := s.Take("an event of "+u, func(f *clientv1.ServerFrame) bool { return f.GetPresence() != nil && f.Id == 0 })
			for _, p := range f.GetPresence().Users {
				s.known[p.UserId] = p.Online
			}
		}
	}
}

// leads tells which process with the scheduler role leads.
func leads(t *testing.T, n *testenv.Node, but *testenv.Node) (leader *testenv.Node) {
	t.Helper()
	until(t, "a scheduler leads", func() bool {
		for i := range 2 {
			if p := n.Part("scheduler", i+1); p != but && p.Metric(`imd_election_leading{election="scheduler"}`) == 1 {
				leader = p
			}
		}
		return leader != nil
	})
	return leader
}

// presenceIsRight looks at what watchers see over two gateways, whatever becomes of the leader
// and of the route store. Each event is awaited in its order, so none that is wrong
// is passed by.
func presenceIsRight(t *testing.T, n *testenv.Node) {
	first, second := n.Part("gateway", 1), n.Part("gateway", 2)
	token := n.Mint(auth.Claims{User: "pia", Login: im.LoginID(uuid.NewString())}, time.Hour)
	pia := func(gateway *testenv.Node) *testenv.Client {
		return testenv.Login(t, gateway.URL(), protocol.Proto, token, "d")
	}
	there := pia(second)
	at(t, n, second, "quin") // who is there all the time
	watcher, online := watches(t, at(t, n, first, "ron"), "pia", "quin", "sam")
	watcher.meets("pia", "quin") // that they have come may not have been known yet
	if watcher.known["sam"] || len(online) != 3 || len(watcher.known) != 3 {
		t.Fatalf("at first: %v, then %v", online, watcher.known)
	}

	left := time.Now()
	there.Close()
	if u := watcher.sees("pia", false); u.LastSeenMs < left.Add(-time.Second).UnixMilli() {
		t.Errorf("pia was last seen %v, and left %v", u.LastSeenMs, left)
	}
	t.Logf("a clean end was seen after %v", time.Since(left).Round(time.Millisecond))

	pia(second)
	watcher.sees("pia", true)
	supersededOnTheStream(t, n, pia)
	there = pia(second) // moves to the other gateway, which nobody sees

	leader := leads(t, n, nil)
	leader.Kill()
	at(t, n, second, "sam")
	watcher.sees("sam", true) // and nobody is called offline before
	next := leads(t, n, leader)
	leader.Start()

	next.Signal(syscall.SIGSTOP)
	there.Close()
	watcher.sees("pia", false) // by the leader that followed
	next.Signal(syscall.SIGCONT)
	until(t, "the leader that was paused is refused, or knows", func() bool { return next.Metric(`imd_election_leading{election="scheduler"}`) == 0 })
	pia(first)
	watcher.sees("pia", true)
}

// supersededOnTheStream begins a session again and again while the route store has
// forgotten the former one, so that no claim displaces it: the leader has it
// dropped, and the user is online all the time.
func supersededOnTheStream(t *testing.T, n *testenv.Node, login func(*testenv.Node) *testenv.Client) {
	t.Helper()
	dropped := func() float64 {
		const series = "imd_presence_superseded_total"
		return n.Part("scheduler", 1).Metric(series) + n.Part("scheduler", 2).Metric(series)
	}
	before := dropped()
	now := login(n.Part("gateway", 2))
	for i := 0; dropped() == before; i++ {
		if i == 10 {
			t.Fatal("the leader never drops a superseded session")
		}
		old := now
		n.FlushRedis()
		now = login(n.Part("gateway", 1+i%2))
		ends(t, old, "superseded")
	}
}
