package cluster

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/control"
	"github.com/imdhq/imd/pkg/control/controltest"
	"github.com/imdhq/imd/pkg/control/etcd"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/pkg/testenv"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// admin is a client of a member that does what no node does.
func admin(t *testing.T, m *testenv.EtcdMember) *clientv3.Client {
	t.Helper()
	c, err := etcd.Dial(etcd.Endpoints{URLs: []string{m.URL}}, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// brief bounds one call of a test.
func brief(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// talk is two users who write to each other until it is stopped.
type talk struct {
	a, b *testenv.Client
	sent atomic.Int64
	quit chan struct{}
	wg   sync.WaitGroup
}

func begin(t *testing.T, n *testenv.Node) *talk {
	t.Helper()
	k := &talk{quit: make(chan struct{})}
	k.a = testenv.Login(t, n.URL(), protocol.Proto, n.Token("ann"), "d")
	k.b = testenv.Login(t, n.URL(), protocol.JSON, n.Token("bob"), "d")
	k.wg.Go(func() {
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-k.quit:
				return
			case <-tick.C:
			}
			if ack := k.a.Send(testenv.ToUser("bob", fmt.Sprint(k.sent.Load()))); ack.Status == clientv1.Ack_ACK_FAIL {
				t.Errorf("a send failed for good: %v", ack)
				return
			}
			k.sent.Add(1)
		}
	})
	return k
}

// end stops the talk; nobody may have been disconnected.
func (k *talk) end(t *testing.T) {
	t.Helper()
	close(k.quit)
	k.wg.Wait()
	if k.a.Closed() || k.b.Closed() {
		t.Error("a user was disconnected")
	}
	if k.sent.Load() == 0 {
		t.Error("nothing was sent")
	}
}

// value reads one metric of a node, without labels; -1 if it is not there.
func value(n *testenv.Node, name string) float64 {
	for line := range strings.Lines(testenv.Page(n.OpsURL() + "/metrics")) {
		var v float64
		if rest, ok := strings.CutPrefix(line, name); ok && (rest[0] == ' ' || rest[0] == '{') {
			if _, err := fmt.Sscan(rest[strings.LastIndexByte(strings.TrimSpace(rest), ' ')+1:], &v); err == nil {
				return v
			}
		}
	}
	return -1
}

// All leases of thirty nodes end at once, again and again, while people talk:
// nobody is disconnected, all nodes are back within 15 s and not all in one
// moment, and one leader follows another. On a machine with other work a leader may
// lose its lease, and a node that answers late be left out: there it is only
// counted.
func TestAllLeasesEndAtOnce(t *testing.T) {
	const light, again = 29, 3
	m := testenv.StartEtcd(t, 1).Members[0]
	c := admin(t, m)
	n := testenv.Start(t, "--set", "controlplane.endpoints="+m.URL, "--set", "controlplane.cluster=c")
	fences := controltest.NewFences()
	var leading atomic.Int32
	var terms atomic.Int64
	all := make([]*process, light)
	var wg sync.WaitGroup
	for i := range all {
		wg.Go(func() {
			p, err := launch(options{id: fmt.Sprintf("n%02d", i), urls: []string{m.URL}})
			if err != nil {
				t.Error(err)
				return
			}
			all[i] = p
		})
	}
	wg.Wait()
	for i, p := range all {
		if p == nil {
			t.FailNow()
		}
		t.Cleanup(p.stop)
		if i >= 3 {
			continue
		}
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_ = p.Campaign(ctx, control.Candidacy{Name: "job", Fences: func() (store.Fences, error) { return fences, nil },
				Lead: func(ctx context.Context, _ control.Term) error {
					terms.Add(1)
					leading.Add(1)
					defer leading.Add(-1)
					<-ctx.Done()
					return nil
				}})
		}()
		t.Cleanup(func() { cancel(); <-ended })
	}
	whole := func() bool {
		nodes := all[0].handle.View().Nodes
		return len(nodes) == light+1 && !slices.ContainsFunc(nodes, func(n control.Node) bool { return n.Standing != control.Listed })
	}
	eventually(t, "all are there", 20*time.Second, func() bool { return whole() && leading.Load() == 1 })
	chat := begin(t, n)
	parts, evicted := newPhases(t), make([]int, len(all))
	for round := range again {
		before, old := terms.Load(), created(t, c)
		leases, err := c.Leases(brief(t))
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		for _, l := range leases.Leases {
			wg.Go(func() { _, _ = c.Revoke(brief(t), l.ID) }) // one that has just ended by itself is as good
		}
		wg.Wait()
		first, last := time.Duration(0), time.Duration(0)
		back := map[string]bool{}
		slow := eventually(t, "all are back", 15*time.Second, func() bool {
			for key, rev := range created(t, c) {
				if rev > old[key] && !back[key] {
					back[key] = true
					if last = time.Since(began); first == 0 {
						first = last
					}
				}
			}
			return len(back) == light+1 && whole()
		})
		t.Logf("round %d: first back after %v, last after %v, %.1f times slower than usual", round, first, last, slow)
		slow = max(slow, eventually(t, "one leader followed", 15*time.Second, func() bool { return terms.Load() > before && leading.Load() == 1 }), parts.next())
		if last-first < time.Second {
			doubt(t, slow, "all came back within %v of each other", last-first)
		}
		if n := terms.Load() - before; n > 1 {
			doubt(t, slow, "%d leaders followed each other", n)
		}
		for i, p := range all {
			if n := int(p.Stats().Evicted); n > evicted[i] {
				doubt(t, slow, "%s: %d evicted in round %d", p.node.ID, n-evicted[i], round)
				evicted[i] = n
			}
		}
	}
	chat.end(t)
	for _, p := range all {
		s := p.Stats()
		if s.LeaseLost < again {
			t.Errorf("%s: %d leases lost", p.node.ID, s.LeaseLost)
		}
	}
}

// created is the revision at which each node's record was created.
func created(t *testing.T, c *clientv3.Client) map[string]int64 {
	t.Helper()
	resp, err := c.Get(brief(t), "/imd/c/nodes/", clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]int64{}
	for _, kv := range resp.Kvs {
		out[string(kv.Key)] = kv.CreateRevision
	}
	return out
}

// etcd dies, and comes back with nothing: the node is listed again within ten
// seconds, the time without a registration shows, and people talk all along.
func TestEtcdLosesEverything(t *testing.T) {
	t.Parallel()
	m := testenv.StartEtcd(t, 1).Members[0]
	n := testenv.Start(t, "--set", "controlplane.endpoints="+m.URL, "--set", "controlplane.cluster=c")
	before := created(t, admin(t, m))
	chat := begin(t, n)
	m.Kill()
	eventually(t, "the node is known not to be registered", 30*time.Second, func() bool { return value(n, "imd_etcd_registered") == 0 })
	if rounds(0) > 0 {
		time.Sleep(5 * time.Minute) // the longest outage that is required
	}
	m.Clear()
	m.Start()
	m.Await(testenv.ReadyIn)
	began := time.Now()
	c := admin(t, m)
	eventually(t, "the node is listed again", 10*time.Second, func() bool { return len(created(t, c)) == len(before) })
	t.Logf("listed again after %v", time.Since(began))
	eventually(t, "it knows", 5*time.Second, func() bool { return value(n, "imd_etcd_registered") == 1 && ready(n) == 200 })
	chat.end(t)
}

// etcd is full and refuses writes: people talk, an alarm shows, nodes stay
// registered; when there is room again all is as before by itself.
func TestEtcdIsFull(t *testing.T) {
	t.Parallel()
	m := testenv.StartEtcd(t, 1).Members[0]
	m.Kill()
	m.Args = append(m.Args, "--quota", "8")
	m.Start()
	m.Await(testenv.ReadyIn)
	n := testenv.Start(t, "--set", "controlplane.endpoints="+m.URL, "--set", "controlplane.cluster=c")
	chat := begin(t, n)
	c := admin(t, m)
	full := false
	for i := 0; i < 100 && !full; i++ {
		_, err := c.Put(brief(t), fmt.Sprint("ballast/", i), strings.Repeat("x", 1<<20))
		full = err != nil
	}
	if !full {
		t.Fatal("the quota does not hold")
	}
	eventually(t, "the alarm shows", 20*time.Second, func() bool { return value(n, "imd_etcd_member_alarms") > 0 })
	if out, status := imd(t, n, "settings", "set", "rate.factor=2"); status == 0 {
		t.Errorf("a setting was changed in a full etcd: %s", out)
	}
	sent := chat.sent.Load()
	eventually(t, "people talk", 10*time.Second, func() bool { return chat.sent.Load() > sent+20 })
	eventually(t, "the node is in order", 5*time.Second, func() bool { return value(n, "imd_etcd_registered") == 1 && ready(n) == 200 })
	resp, err := c.Delete(brief(t), "ballast/", clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Compact(brief(t), resp.Header.Revision, clientv3.WithCompactPhysical()); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Defragment(brief(t), m.URL); err != nil {
		t.Fatal(err)
	}
	if _, err := c.AlarmDisarm(brief(t), &clientv3.AlarmMember{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the alarm is over", 20*time.Second, func() bool { return value(n, "imd_etcd_member_alarms") == 0 })
	if out, status := imd(t, n, "settings", "set", "rate.factor=2", "--wait"); status != 0 {
		t.Errorf("afterwards: %d %s", status, out)
	}
	chat.end(t)
}

// A node's record is deleted, overwritten, and moved to a foreign lease from
// outside: it is right again within five seconds, and the node is used all along.
func TestOwnRecordIsRestored(t *testing.T) {
	m := testenv.StartEtcd(t, 1).Members[0]
	c := admin(t, m)
	watcher := start(t, options{id: "watcher", urls: []string{m.URL}})
	victim := start(t, options{id: "victim", urls: []string{m.URL}})
	const key = "/imd/c/nodes/victim"
	eventually(t, "the victim is used", 5*time.Second, func() bool { return usable(watcher, "victim") })
	right := func() *clientv3.GetResponse {
		resp, err := c.Get(brief(t), key)
		if err != nil {
			t.Fatal(err)
		}
		return resp
	}
	want := right().Kvs[0]
	for what, harm := range map[string]func(){
		"deleted":     func() { _, _ = c.Delete(brief(t), key) },
		"overwritten": func() { _, _ = c.Put(brief(t), key, "garbage") },
		"a foreign lease": func() {
			g, _ := c.Grant(brief(t), 2)
			_, _ = c.Put(brief(t), key, string(want.Value), clientv3.WithLease(g.ID))
		},
	} {
		before := victim.Stats().Repairs
		harm()
		began := time.Now()
		eventually(t, "the record is right again after it was "+what, 5*time.Second, func() bool {
			got := right().Kvs
			return len(got) == 1 && string(got[0].Value) == string(want.Value) && got[0].Lease == want.Lease && victim.Stats().Repairs > before
		})
		t.Logf("%s: right after %v", what, time.Since(began))
		eventually(t, "the node is listed for others after its record was "+what, 5*time.Second, func() bool {
			n, ok := watcher.handle.View().Node(im.NodeID("victim"))
			if !ok {
				t.Fatalf("%s: the node is not in use", what)
			}
			return n.Standing != control.Suspect
		})
	}
}
