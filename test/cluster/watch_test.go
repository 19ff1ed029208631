package cluster

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/imdhq/imd/pkg/control"
	"github.com/imdhq/imd/pkg/faultproxy"
	"github.com/imdhq/imd/pkg/testenv"
)

// gate is a proxy before an etcd member, and the URL of it.
func gate(t testing.TB, m *testenv.EtcdMember) (*faultproxy.Proxy, string) {
	t.Helper()
	p, err := faultproxy.Listen("127.0.0.1:0", strings.TrimPrefix(m.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p, "http://" + p.Address()
}

// Records change as fast as three members take it, and all old revisions are
// compacted away every 200 ms. One process watches in peace, the connections of
// another are cut all the time, and a third hears nothing for longer than its
// history is kept: none loses a change or sees one out of order.
func TestCompactionUnderChurn(t *testing.T) {
	t.Parallel()
	c := testenv.StartEtcd(t, 3)
	cut, cutURL := gate(t, c.Members[1])
	deaf, deafURL := gate(t, c.Members[2])
	names := []string{"steady", "cut", "deaf"}
	journals, all := make([]journal, 3), make([]*process, 3)
	for i, urls := range [][]string{c.URLs(), {cutURL}, {deafURL}} {
		all[i] = start(t, options{id: names[i], urls: urls, unlisted: true, change: kept(&journals[i], quick)})
	}
	w := newChurn(c, "c")
	// On a slow machine it takes longer until a watch begins behind a compaction.
	end, limit := time.Now().Add(4*time.Second), testenv.NewLimit(20*time.Second)
	met := func() bool { return all[2].Stats().Resyncs[control.ResyncCompacted] > 0 }
	compact, reset, hush := time.Now(), time.Now(), time.Now()
	for hushed := false; time.Now().Before(end) || !met() && !limit.Over(); w.step() {
		now := time.Now()
		if now.Sub(compact) > 200*time.Millisecond {
			compact = now
			c.Compact()
		}
		if now.Sub(reset) > 300*time.Millisecond {
			reset = now
			cut.Reset()
		}
		if now.Sub(hush) > 700*time.Millisecond {
			hush, hushed = now, !hushed
			deaf.Set(faultproxy.Mode{Blackhole: hushed})
			if !hushed {
				deaf.Reset() // what was swallowed cannot be had again on the same connection
			}
		}
	}
	deaf.Set(faultproxy.Mode{})
	deaf.Reset()
	for i, p := range all {
		w.seen(t, p, names[i], 10*time.Second)
		journals[i].ordered(t, names[i])
		s := p.Stats()
		t.Logf("%s: %d changes in %d views, read anew: %v", names[i], w.count, len(journals[i].all()), s.Resyncs)
		if s.Drift != 0 {
			t.Errorf("%s: drift %d", names[i], s.Drift)
		}
	}
	if !met() {
		t.Errorf("the deaf one never met a compaction: %v", all[2].Stats().Resyncs)
	}
}

// The stream of a watch is cut again and again while nothing else happens and
// while records change: each change is seen soon after.
func TestWatchStreamIsCut(t *testing.T) {
	t.Parallel()
	c := testenv.StartEtcd(t, 1)
	p, url := gate(t, c.Members[0])
	var j journal
	follower := start(t, options{id: "f", urls: []string{url}, unlisted: true, change: kept(&j, quick)})
	w := newChurn(c, "c")
	for i := range 8 {
		if i%2 == 0 {
			w.step()
		}
		p.Reset()
		w.step()
		w.seen(t, follower, "the follower", 5*time.Second)
	}
	j.ordered(t, "the follower")
	eventually(t, "the view is fresh", 5*time.Second, func() bool { return !follower.Stats().Stale })
	if s := follower.Stats(); s.Drift != 0 {
		t.Errorf("after the cuts: %+v", s)
	}
}

// The leadership of etcd moves and its leader dies, while records change: no
// watch misses anything, and no node goes.
func TestLeaderChange(t *testing.T) {
	t.Parallel()
	c := testenv.StartEtcd(t, 3)
	journals, nodes := make([]journal, 3), make([]*process, 3)
	for i, id := range []string{"n0", "n1", "n2"} {
		nodes[i] = start(t, options{id: id, urls: c.URLs(), change: kept(&journals[i], steady)})
	}
	w, parts := newChurn(c, "c"), newPhases(t)
	unharmed := func() { // in the part that ends here
		t.Helper()
		slow := parts.next()
		for i, p := range nodes {
			journals[i].always(t, slow, string(p.node.ID), "n0", "n1", "n2")
		}
	}
	several := func() {
		for range 20 {
			w.step()
		}
	}
	for range 3 {
		several()
		c.MoveLeader()
		several()
		unharmed()
	}
	dead := c.Leader()
	dead.Kill()
	several()
	dead.Start()
	dead.Await(testenv.ReadyIn)
	several()
	for i, p := range nodes {
		who := string(p.node.ID)
		w.seen(t, p, who, 10*time.Second)
		journals[i].ordered(t, who)
		eventually(t, who+" is registered", 10*time.Second, func() bool { return p.Stats().Registered })
		if s := p.Stats(); s.Drift != 0 {
			t.Errorf("%s: %+v", who, s)
		}
	}
	unharmed()
	report(t, "a write during changes of the leader", w.took)
}

// goodEndpoints counts the endpoints that the last probes found good.
func goodEndpoints(p *process) int {
	n := 0
	for _, e := range p.Stats().Endpoints {
		if e.Good {
			n++
		}
	}
	return n
}

// Two clusters on one etcd, the name of one of which begins with that of the
// other, share nothing: no node, leader, lock, worker number or setting.
func TestPrefixNeighbours(t *testing.T) {
	t.Parallel()
	c := testenv.StartEtcd(t, 1)
	gate := start(t, options{id: "a", urls: c.URLs(), cluster: "im.gate", change: steady})
	way := start(t, options{id: "b", urls: c.URLs(), cluster: "im.gateway", change: steady})
	for _, p := range []*process{gate, way} {
		busy(t, p, "job")
	}
	for _, p := range []*process{gate, way} {
		eventually(t, "it leads", 5*time.Second, func() bool { l, ok := p.handle.Leaders().Of("job"); return ok && l.Token > 0 })
		if l, _ := p.handle.Leaders().Of("job"); l.Node != p.node.ID {
			t.Errorf("%s sees %s lead", p.node.ID, l.Node)
		}
		eventually(t, "it sees itself", 5*time.Second, func() bool { return len(p.handle.View().Nodes) > 0 })
		if n := p.handle.View().Nodes; len(n) != 1 || n[0].ID != p.node.ID {
			t.Errorf("%s sees %v", p.node.ID, n)
		}
		var locks []control.LockInfo
		err := insist(func() (err error) { locks, err = p.Locks(t.Context()); return err })
		if err != nil || len(locks) != 1 || locks[0].Node != p.node.ID {
			t.Errorf("%s sees the locks %v, %v", p.node.ID, locks, err)
		}
	}
	for _, k := range c.Keys("/imd/im.gate/") {
		if strings.Contains(string(k.Value), `"b"`) {
			t.Errorf("%s belongs to the neighbour: %s", k.Key, k.Value)
		}
	}
	for _, k := range c.Keys("/imd/im.gate/nodes/") {
		c.Delete(string(k.Key))
	}
	if n := way.handle.View().Nodes; len(n) != 1 {
		t.Errorf("the neighbour's records went too: %v", n)
	}
}

// In an etcd that nobody writes to, a watch stays alive that began with the
// newest revision.
func TestQuietEtcd(t *testing.T) {
	t.Parallel()
	c := testenv.StartEtcd(t, 1)
	p := start(t, options{id: "p", urls: c.URLs(), unlisted: true, change: quick})
	m := c.Members[0]
	heard := p.Stats().Heard
	eventually(t, "the watch is alive", 5*time.Second, func() bool { return p.Stats().Heard.After(heard) })
	m.Signal(syscall.SIGSTOP)
	eventually(t, "the view is stale", 10*time.Second, func() bool { return p.handle.View().Stale })
	m.Signal(syscall.SIGCONT)
	eventually(t, "it is fresh", 10*time.Second, func() bool { return !p.handle.View().Stale })
	before, rev := p.Stats().Resyncs[control.ResyncStale], c.Revision()
	clock := testenv.NewClock(t)
	began := time.Now()
	for clock.Now() < 6*time.Second { // three times the silence that counts as death
		time.Sleep(10 * time.Millisecond)
	}
	if after := p.Stats().Resyncs[control.ResyncStale]; after > before+1 {
		doubt(t, slowness(clock, began), "all was read again %d times while revision %d became %d", after-before, rev, c.Revision())
	}
}
