package drill

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/imdhq/imd/pkg/control"
	"github.com/imdhq/imd/pkg/control/etcd/tamper"
	"github.com/imdhq/imd/pkg/datadir"
	"github.com/imdhq/imd/pkg/drill/ledger"
	"github.com/imdhq/imd/pkg/drill/witness"
	"github.com/imdhq/imd/pkg/faultproxy"
	"github.com/imdhq/imd/pkg/history"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/proto/gen/adminv1"
	"github.com/imdhq/imd/proto/gen/adminv1/adminv1connect"
)

// LedgerStore is a message store of the drill's own, which it lends to witnesses.
type LedgerStore interface {
	ledger.Store
	Close() error
}

const (
	clusterName = "imd" // of the nodes, below /imd/ in etcd
	// changeEvery is between changes of the settings that go on all the time.
	changeEvery = 1500 * ms
	// askEvery is between questions to nodes about their settings.
	askEvery = 200 * ms
	// firstClient and firstPeer are ports of the members, ten apart.
	firstClient, firstPeer, firstFront = 2379, 2380, 12380
)

// plane is the control plane of a drill whose layout has one: members of etcd,
// witnesses, and what is done and seen there.
type plane struct {
	d         *drill
	urls      []string // of the members, for clients
	members   []*node
	witnesses []*node
	mesh      *mesh
	etcd      *tamper.Cluster
	ways      map[string][]*faultproxy.Proxy // of nodes that can be cut off from etcd
	ledger    *ledger.Server
	store     LedgerStore

	watching sync.WaitGroup // those that ask nodes

	mu      sync.Mutex
	leader  string     // holder of the newest token
	writing sync.Mutex // one change of the settings at a time, so that their numbers rise with their revisions
	changes int64      // made so far; guarded by writing
}

// host is a loopback address of this process alone, so that the ports of members
// are free.
func loopback() string {
	pid := os.Getpid()
	return fmt.Sprintf("127.%d.%d.%d", 64+pid>>16&63, pid>>8&255, pid&255)
}

// newPlane makes members and witnesses; it starts none.
func newPlane(d *drill) (*plane, error) {
	p := &plane{d: d, ways: map[string][]*faultproxy.Proxy{}}
	host := loopback()
	at := func(first, i int) string { return fmt.Sprintf("%s:%d", host, first+10*i) }
	var fronts, targets, cluster []string
	clients := host
	if d.Layout.Hosts {
		clients = etcdHost
	}
	for i := range d.Layout.Etcd {
		p.urls = append(p.urls, fmt.Sprintf("http://%s:%d", clients, firstClient+10*i))
		fronts, targets = append(fronts, at(firstFront, i)), append(targets, at(firstPeer, i))
		cluster = append(cluster, fmt.Sprintf("%s=http://%s", memberName(i), at(firstFront, i)))
	}
	for i := range d.Layout.Etcd {
		n := d.child(memberName(i))
		n.check = func() bool { return answers(p.urls[i] + "/health") }
		n.args = []string{"etcd", "--name", memberName(i), "--data-dir", n.dir, "--listen-client", p.urls[i], "--listen-peer", "http://" + targets[i],
			"--advertise-peer", "http://" + fronts[i], "--cluster", strings.Join(cluster, ","), "--heartbeat", "100ms", "--election", "1s"}
		p.members = append(p.members, n)
	}
	var err error
	if p.mesh, err = newMesh(fronts, targets, func(i int) int { return p.members[i].pid() }); err != nil {
		return nil, err
	}
	if p.etcd, err = tamper.Open(p.urls); err != nil {
		p.mesh.close()
		return nil, err
	}
	return p, nil
}

// way opens a node's way to the members, and returns their addresses there.
func (p *plane) way(node string) (urls []string, err error) {
	for _, u := range p.urls {
		way, err := faultproxy.Listen("127.0.0.1:0", strings.TrimPrefix(u, "http://"))
		if err != nil {
			return nil, err
		}
		p.ways[node] = append(p.ways[node], way)
		urls = append(urls, "http://"+way.Address())
	}
	return urls, nil
}

// cut swallows what a node with a way of its own and etcd say to each other, or heals that.
func (p *plane) cut(node string, cut bool) {
	for _, way := range p.ways[node] {
		way.Set(faultproxy.Mode{Blackhole: cut})
		if !cut {
			way.Reset() // the streams have holes
		}
	}
}

func memberName(i int) string  { return fmt.Sprint("m", i+1) }
func witnessName(i int) string { return fmt.Sprint("w", i+1) }

// begin starts the members.
func (p *plane) begin() error {
	if err := p.startMembers(); err != nil {
		return err
	}
	p.is(history.EtcdGood)
	return nil
}

// startMembers starts all members that do not run, together, since none is ready
// without a majority.
func (p *plane) startMembers() error {
	if err := beginAll(p.members); err != nil {
		return err
	}
	ctx, cancel := healing(p.d.ctx)
	defer cancel()
	return p.etcd.Await(ctx)
}

// beginWitnesses lends a store and starts the witnesses.
func (p *plane) beginWitnesses() (err error) {
	if p.d.Layout.Witnesses == 0 {
		return nil
	}
	dir := filepath.Join(p.d.Dir, "ledger")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if p.store, err = p.d.OpenLedger(p.d.ctx, dir); err != nil {
		return fmt.Errorf("open a store for witnesses: %w", err)
	}
	if p.ledger, err = ledger.Listen(p.store, p.decided); err != nil {
		return err
	}
	for i := range p.d.Layout.Witnesses {
		name := witnessName(i)
		n := p.d.child(name)
		n.told = p.d.truth
		job, err := json.Marshal(witness.Job{Node: im.NodeID(name), Dir: n.dir, URLs: p.urls, Cluster: clusterName, Ledger: p.ledger.Address(), Report: reportPath(p.d.Dir, name)})
		if err != nil {
			return err
		}
		n.args = []string{"drill", "witness", string(job)}
		if err := os.MkdirAll(n.dir, 0o700); err != nil {
			return err
		}
		p.witnesses = append(p.witnesses, n)
		if err := n.begin(); err != nil {
			return err
		}
	}
	return nil
}

func reportPath(dir, name string) string { return filepath.Join(dir, name+".report") }

// decided records a claim or an effect of a leader.
func (p *plane) decided(r history.Record) {
	r.T = max(p.d.rec.Now(), 1)
	p.d.rec.Add("leader.log", r)
	if r.Kind == history.Claim && r.Ack == history.AckOK && r.Name == witness.Election {
		p.mu.Lock()
		p.leader = r.User
		p.mu.Unlock()
	}
}

// leading is the witness that was given the newest token, and how it names itself
// as a holder; nil = none.
func (p *plane) leading() (*node, string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, n := range p.witnesses {
		if p.leader == n.spec.Name+"/"+n.endpoints().BootID {
			return n, p.leader
		}
	}
	return nil, ""
}

// is records how etcd is from now on.
func (p *plane) is(how string) {
	p.d.rec.Add("control.log", history.Record{T: max(p.d.rec.Now(), 1), Kind: history.Etcd, Reason: how})
}

// truth records what became of a process.
func (d *drill) truth(n *node, boot, what string) {
	d.rec.Add("control.log", history.Record{T: max(d.rec.Now(), 1), Kind: history.Node, User: n.spec.Name, Entry: boot, Reason: what})
}

// watch asks nodes about their settings and rings until ctx is done; watching ends then.
func (p *plane) watch(ctx context.Context) {
	for _, n := range p.d.nodes {
		p.watching.Go(func() { p.ask(ctx, n) })
		if n.proxy != nil && n.spec.apart() {
			p.watching.Go(func() { p.askRing(ctx, n) })
		}
	}
}

// run changes settings until ctx is done.
func (p *plane) run(ctx context.Context) {
	for i := 1; hold(ctx, changeEvery); i++ {
		p.change(ctx, i%4 == 0)
	}
}

// change writes new settings; with wrong first some that must be refused.
func (p *plane) change(ctx context.Context, wrong bool) {
	p.writing.Lock()
	defer p.writing.Unlock()
	if wrong {
		p.put(ctx, history.Bad)
	}
	p.put(ctx, "")
}

// put is one change. The caller holds writing.
func (p *plane) put(ctx context.Context, reason string) {
	p.changes++
	values := map[string]string{}
	for section, doc := range witness.Documents(p.changes, reason == history.Bad) {
		values["/imd/"+clusterName+"/config/"+section] = doc
	}
	r := history.Record{T: max(p.d.rec.Now(), 1), Kind: history.Put, N: p.changes, Reason: reason, Ack: history.AckOK}
	var class control.Class
	r.Seq, class, _ = p.etcd.Put(ctx, values) // under faults it may fail; the record says so
	switch class {
	case control.ClassOK:
	case control.ClassUnknown:
		r.Ack = history.AckUnknown
	default:
		r.Ack = history.AckFail
	}
	r.To = p.d.rec.Now()
	p.d.rec.Add("control.log", r)
}

// ask records the settings of a node that are in force, when they change.
func (p *plane) ask(ctx context.Context, n *node) {
	file := "node-" + n.spec.Name + ".log"
	boot, last := "", history.Record{N: -1}
	for hold(ctx, askEvery) {
		at := n.endpoints()
		r, ok := p.inForce(ctx, n, at)
		if !ok {
			continue
		}
		if at.BootID != boot { // what a new process has in force is news in any case
			boot, last.N = at.BootID, -1
		}
		if r != last {
			last = r
			r.T = p.d.rec.Now()
			p.d.rec.Add(file, r)
		}
	}
}

// inForce asks a node once; false = it does not answer.
func (p *plane) inForce(ctx context.Context, n *node, at datadir.Endpoints) (history.Record, bool) {
	key, err := datadir.ReadAdminKey(n.dir)
	if err != nil || at.Ops == "" {
		return history.Record{}, false
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	res, err := adminv1connect.NewSettingsServiceClient(p.d.world.client(at.Ops, key)).ListSettings(ctx, &adminv1.ListSettingsRequest{Keys: witness.Keys()})
	if err != nil {
		return history.Record{}, false
	}
	values := map[string]string{}
	for _, s := range res.GetSettings() {
		values[s.GetKey()] = s.GetValue()
	}
	r := history.Record{Kind: history.Applied, User: n.spec.Name, Seq: res.GetRevision()}
	r.N, r.To = witness.Numbers(values)
	return r, true
}

// askRing records which ring of state nodes a gateway has in use, when it changes.
func (p *plane) askRing(ctx context.Context, n *node) {
	last := int64(0)
	for hold(ctx, askEvery) {
		version, err := p.ring(ctx, n)
		if err == nil && version != last {
			last = version
			p.d.rec.Add("control.log", history.Record{T: max(p.d.rec.Now(), 1), Kind: history.Ring, User: n.spec.Name, N: version})
		}
	}
}

// ring is a number that is another for another ring.
func (p *plane) ring(ctx context.Context, n *node) (int64, error) {
	key, err := datadir.ReadAdminKey(n.dir)
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+n.endpoints().Ops+"/statusz/ring?role=state", nil)
	if err != nil {
		return 0, err
	}
	res, err := (&http.Client{Transport: bearer{key, p.d.world.hc.Transport}}).Do(req)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	var r struct {
		Nodes []struct {
			ID     string `json:"id"`
			Weight int    `json:"weight"`
		} `json:"nodes"`
	}
	if err := json.NewDecoder(res.Body).Decode(&r); err != nil {
		return 0, err
	}
	h := fnv.New64a()
	for _, n := range r.Nodes {
		fmt.Fprintln(h, n.ID, n.Weight)
	}
	return int64(h.Sum64() >> 1), nil
}

// collect takes the reports of the witnesses into the history.
func (p *plane) collect() error {
	for _, n := range p.witnesses {
		if err := p.collectFrom(n.spec.Name); err != nil {
			return fmt.Errorf("report of %s: %w", n.spec.Name, err)
		}
	}
	return nil
}

func (p *plane) collectFrom(name string) error {
	file, err := os.Open(reportPath(p.d.Dir, name))
	if err != nil {
		return err
	}
	defer file.Close()
	for in := bufio.NewScanner(file); in.Scan(); {
		var r history.Record
		if err := json.Unmarshal(in.Bytes(), &r); err != nil {
			return err
		}
		r.T = max(p.d.rec.At(time.Unix(0, r.T)), 1)
		to := "node-" + name + ".log"
		if r.Kind == history.Made {
			to = "ids.log"
		}
		p.d.rec.Add(to, r)
	}
	return nil
}

// close gives everything back. No process may run any more.
func (p *plane) close() error {
	for _, n := range append(append([]*node{}, p.members...), p.witnesses...) {
		n.revive.Wait()
	}
	p.mesh.close()
	for _, ways := range p.ways {
		for _, way := range ways {
			way.Close()
		}
	}
	err := p.etcd.Close()
	if p.ledger != nil {
		p.ledger.Close()
	}
	if p.store != nil {
		err = errors.Join(err, p.store.Close())
	}
	return err
}
