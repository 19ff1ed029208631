package cluster

import (
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/imdhq/imd/pkg/control/etcd"
	"github.com/imdhq/imd/pkg/faultproxy"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/testenv"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// site is two nodes with all roles on three members of etcd, a process that
// follows them, and somebody who talks on each node.
type site struct {
	t       *testing.T
	etcd    *testenv.Etcd
	nodes   []*testenv.Node
	people  []*testenv.Client
	watcher *process
	journal journal
	sent    int
	clock   *testenv.Clock // since all was whole, which began then
	began   time.Time
}

func newSite(t *testing.T) *site {
	t.Helper()
	s := &site{t: t, etcd: testenv.StartEtcd(t, 3)}
	for _, name := range []string{"n1", "n2"} {
		n := testenv.Start(t, "--set", "controlplane.endpoints="+strings.Join(s.etcd.URLs(), ","), "--set", "controlplane.cluster=c", "--node-name", name)
		s.nodes = append(s.nodes, n)
		s.people = append(s.people, testenv.Login(t, n.URL(), protocol.Proto, n.Token("ann"), "d"))
	}
	s.watcher = start(t, options{id: "w", urls: s.etcd.URLs(), unlisted: true, change: kept(&s.journal, func(*etcd.Options) {})})
	s.whole("at first", 10*time.Second)
	s.clock, s.began = testenv.NewClock(t), time.Now()
	return s
}

// whole waits until all know that both nodes take work.
func (s *site) whole(when string, limit time.Duration) {
	s.t.Helper()
	eventually(s.t, "both nodes take work "+when, limit, func() bool {
		if s.watcher.handle.View().Stale || !usable(s.watcher, "n1") || !usable(s.watcher, "n2") {
			return false
		}
		return !slices.ContainsFunc(s.nodes, func(n *testenv.Node) bool {
			return n.Metric("imd_etcd_away") != 0 || n.Metric("imd_etcd_registered") != 1 || n.Metric(`imd_discovery_standing{standing="listed"}`) != 2
		})
	})
}

// talk sends a message on one of the nodes and reports whether it was stored. One that
// a busy machine refuses is sent again, but for no longer than an outage lasts.
func (s *site) talk(node int) bool {
	s.sent++
	m := testenv.ToUser("bob", fmt.Sprint(s.sent))
	for range 5 {
		a := s.people[node].Send(m)
		if a.Status == clientv1.Ack_ACK_OK {
			return true
		}
		s.t.Logf("a send is made again: %v", a)
		m.Resend = true
		time.Sleep(time.Duration(a.GetError().GetRetryAfterMs()) * time.Millisecond)
	}
	return false
}

// unharmed checks that nobody lost a node, a connection or a message meanwhile.
func (s *site) unharmed() {
	s.t.Helper()
	slow := slowness(s.clock, s.began)
	s.journal.always(s.t, slow, "the watcher", "n1", "n2")
	for i, n := range s.nodes {
		if v := n.Metric("imd_discovery_evicted_total"); v != 0 {
			doubt(s.t, slow, "n%d evicted %v nodes", i+1, v)
		}
		if s.people[i].Closed() || !s.talk(i) {
			s.t.Errorf("who talks on n%d was disturbed", i+1)
		}
	}
}

// Somebody revokes the lease of a node: it registers again under another one,
// and nobody loses it meanwhile.
func TestRevokedLease(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	key := "/imd/c/nodes/n1"
	before := s.etcd.Keys(key)
	if len(before) != 1 || before[0].Lease == 0 {
		t.Fatalf("the record of n1: %+v", before)
	}
	began := time.Now()
	s.etcd.Revoke(before[0].Lease)
	eventually(t, "the record is back", 10*time.Second, func() bool {
		now := s.etcd.Keys(key)
		return len(now) == 1 && now[0].Lease != before[0].Lease
	})
	t.Logf("registered again after %v", time.Since(began).Round(time.Millisecond))
	s.whole("again", 10*time.Second)
	if v := s.nodes[0].Metric("imd_etcd_lease_lost_total"); v != 1 {
		t.Errorf("%v leases were lost", v)
	}
	s.unharmed()
}

// All members of etcd are away for longer than every lease: nobody is evicted,
// messages go on, newcomers are let in, and when etcd is back all is as before.
// IMD_TEST_OUTAGE=60s makes it longer.
func TestOutage(t *testing.T) {
	t.Parallel()
	outage := 13 * time.Second
	if d, err := time.ParseDuration(os.Getenv("IMD_TEST_OUTAGE")); err == nil {
		outage = d
	}
	s := newSite(t)
	s.etcd.Kill()
	end := time.Now().Add(outage)
	failed, newcomers := 0, 0
	for i := 0; time.Now().Before(end); i++ {
		if !s.talk(i % 2) {
			failed++
		}
		if i%20 == 0 {
			n := s.nodes[i/20%2]
			testenv.Login(t, n.URL(), protocol.Proto, n.Token(fmt.Sprint("new", i)), "d").Close()
			newcomers++
		}
		time.Sleep(20 * time.Millisecond) // people who talk, not a load
	}
	for i, n := range s.nodes {
		eventually(t, fmt.Sprintf("n%d is degraded and knows both", i+1), 5*time.Second, func() bool {
			status, body := ask(n, "/readyz")
			out, exit := imd(t, n, "nodes")
			return status == http.StatusOK && strings.Contains(body, `"degraded"`) && exit == 0 && strings.Contains(out, "n1") && strings.Contains(out, "n2")
		})
	}
	if v := s.watcher.handle.View(); !v.Stale {
		t.Error("the view is not stale")
	}
	s.etcd.Start()
	back := time.Now()
	s.whole("after the outage", 15*time.Second)
	t.Logf("%v without etcd: %d messages, %d of them refused, %d newcomers; whole %v after it was back",
		outage, s.sent, failed, newcomers, time.Since(back).Round(time.Millisecond))
	if failed > 0 {
		t.Errorf("%d of %d messages were not stored", failed, s.sent)
	}
	s.unharmed()
	if out, status := imd(t, s.nodes[1], "settings", "set", "rate.factor=2", "--reason", "after the outage", "--wait"); status != 0 {
		t.Errorf("a setting after the outage: %d\n%s", status, out)
	}
}

// A node stands still for longer than its lease: it leaves the list, and is back
// under a new lease soon after it goes on, with its people still connected.
func TestNodePausedBeyondItsLease(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	if !s.talk(0) {
		t.Fatal("n1 does not store")
	}
	lease := s.etcd.Keys("/imd/c/nodes/n1")[0].Lease
	s.nodes[0].Signal(syscall.SIGSTOP)
	before := s.clock.Now()
	gone := func(p *process) bool { _, ok := p.handle.View().Node(im.NodeID("n1")); return !ok }
	eventually(t, "the paused node is out of the list", 20*time.Second, func() bool { return gone(s.watcher) })
	took := s.clock.Since(before)
	t.Logf("out of the list after %v", took.Round(time.Millisecond))
	if took > 12*time.Second {
		t.Errorf("a paused node was in the list for %v", took)
	}
	if !s.talk(1) {
		t.Error("n2 was disturbed")
	}
	s.nodes[0].Signal(syscall.SIGCONT)
	began := time.Now()
	s.whole("after the pause", 15*time.Second)
	t.Logf("back %v after it went on", time.Since(began).Round(time.Millisecond))
	if now := s.etcd.Keys("/imd/c/nodes/n1")[0].Lease; now == lease {
		t.Error("the old lease is still used")
	}
	if s.people[0].Closed() || !s.talk(0) {
		t.Error("who was connected to the paused node was lost")
	}
}

// The leases of all nodes but one end at the same moment, because nodes cannot
// reach etcd and etcd does not know why: who sees them vanish keeps them, as they
// answer, and they are back when they can reach it.
func TestLeasesExpireTogether(t *testing.T) {
	t.Parallel()
	c := testenv.StartEtcd(t, 3)
	var gates []*faultproxy.Proxy
	var urls []string
	for _, m := range c.Members {
		p, url := gate(t, m)
		gates, urls = append(gates, p), append(urls, url)
	}
	var ids []im.NodeID
	var nodes []*process
	for i := range 6 {
		ids = append(ids, im.NodeID(fmt.Sprintf("n%d", i)))
		nodes = append(nodes, start(t, options{id: string(ids[i]), urls: urls, change: quick}))
	}
	var j journal
	watcher := start(t, options{id: "w", urls: c.URLs(), change: kept(&j, quick)})
	eventually(t, "all are seen", 10*time.Second, func() bool { return len(watcher.handle.View().With("gateway")) == 7 })
	clock, began := testenv.NewClock(t), time.Now()
	for _, p := range gates {
		p.Set(faultproxy.Mode{Blackhole: true})
	}
	eventually(t, "all their records are gone", 15*time.Second, func() bool { return len(c.Keys("/imd/c/nodes/")) == 1 })
	eventually(t, "all are missed and get work", 5*time.Second, func() bool {
		return watcher.Stats().Suspects >= 6 && len(watcher.handle.View().With("gateway")) == 7
	})
	t.Logf("missed %d, of these held as a mass %d", watcher.Stats().Suspects, watcher.Stats().Held)
	for _, p := range gates {
		p.Set(faultproxy.Mode{})
		p.Reset()
	}
	eventually(t, "all are registered again", 15*time.Second, func() bool {
		return len(c.Keys("/imd/c/nodes/")) == 7 && !slices.ContainsFunc(nodes, func(p *process) bool { return !p.Stats().Registered || p.handle.View().Stale })
	})
	slow := slowness(clock, began)
	j.always(t, slow, "the watcher", ids...)
	for _, p := range append(nodes, watcher) {
		if s := p.Stats(); s.Drift != 0 {
			t.Errorf("%s: %+v", p.node.ID, s)
		} else if s.Evicted != 0 {
			doubt(t, slow, "%s: %+v", p.node.ID, s)
		}
	}
}
