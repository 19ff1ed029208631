package drill

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/imdhq/imd/pkg/auth"
	"github.com/imdhq/imd/pkg/bench"
	"github.com/imdhq/imd/pkg/datadir"
	"github.com/imdhq/imd/pkg/failpoint"
	"github.com/imdhq/imd/pkg/faultproxy"
	"github.com/imdhq/imd/pkg/history"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/pkg/verify"
)

// Options say what to do. The zero value of a field is no default; see
// [Defaults].
type Options struct {
	Exe      string // the program whose serve the nodes run
	Dir      string // an empty or new folder for data, logs and the history
	Layout   Layout
	Name     string // of the layout, for the outcome
	Seed     uint64
	Kinds    []Kind
	Duration time.Duration // of the load under faults
	Settle   time.Duration // the longest wait, after it, until every device has everything

	Conns, Users int // devices, and users they belong to
	Rate         float64
	GroupSize    int
	AntiEntropy  time.Duration // between two comparisons of heads in the gateways
	Allocator    string        // who numbers messages, as seq.allocator has it; store.Segment only with Postgres

	// OpenLedger opens an empty message store in a folder, for layouts with
	// witnesses.
	OpenLedger func(ctx context.Context, dir string) (LedgerStore, error)

	// OpenRoutes opens the route store that a URL of Redis names, for layouts with routes
	// there.
	OpenRoutes func(url string) (store.RouteStore, error)

	// Standing are fail points that are in force all the time, as a file has them.
	Standing string
	// Progress is told, about once a second, how far the drill is; nil = nobody.
	// It is called from one goroutine at a time.
	Progress func(Progress)
}

// Defaults are the options of a standard drill, but for Exe, Dir, Seed and Kinds.
func Defaults() Options {
	return Options{Layout: AllInOne(), Name: "one", Duration: 10 * time.Minute, Settle: 40 * time.Second,
		Conns: 120, Users: 100, Rate: 200, GroupSize: 10, AntiEntropy: 5 * time.Second}
}

// AllocatorOf is who numbers messages in a drill that is not told: in layouts with
// Postgres the seed chooses.
func AllocatorOf(seed uint64, l Layout) string {
	if l.Postgres && rand.New(rand.NewPCG(seed, 0x616c6c6f63)).IntN(2) == 0 {
		return store.Segment
	}
	return store.Transaction
}

// Possible are the kinds that this process can carry out on a layout: some want a
// build with the tag drill, some the right to mount, which is tried, some members
// of etcd or witnesses.
func Possible(l Layout) []Kind {
	var all []Kind
	for _, t := range traits {
		if t.why(l) == "" {
			all = append(all, t.kind)
		}
	}
	return all
}

// Impossible says why a kind cannot be carried out on a layout; "" = it can.
func Impossible(k Kind, l Layout) string {
	t := traitOf(k)
	if t == nil {
		return "there is no such fault"
	}
	return t.why(l)
}

func (t *trait) why(l Layout) string {
	switch {
	case l.Etcd < t.etcd:
		return fmt.Sprintf("wants a layout with members of etcd, at least %d, such as --layout control", t.etcd)
	case t.sqlite && l.Postgres:
		return "wants a layout with messages in SQLite, such as --layout one"
	case t.postgres && !l.Postgres:
		return "wants a layout with Postgres, such as --layout postgres"
	case t.redis && !l.Redis:
		return "wants a layout with Redis, such as --layout postgres"
	case t.mesh && l.Hosts:
		return "wants a layout whose nodes reach each other through the drill, such as --layout split"
	case t.hosts && !l.Hosts:
		return "wants a layout with hosts, such as --layout hosts"
	case t.routes && !l.routes():
		return "wants a layout with routes in Redis, such as --layout split"
	case t.split && !l.split():
		return "wants a layout with roles in several processes, such as --layout split"
	case (t.effects || t.leaders) && !l.effects():
		return "wants a layout with Postgres and the role scheduler, such as --layout postgres"
	case t.leaders && l.leaders() < 2:
		return "wants a layout with two nodes that can lead, such as --layout split"
	case t.witness && l.Witnesses == 0:
		return "wants a layout with witnesses, such as --layout control"
	case t.tag && !failpoint.Built:
		return "wants a build with the tag drill"
	case t.mount && mountable() != nil:
		return fmt.Sprintf("wants the right to mount a small file system (%v)", mountable())
	}
	return ""
}

// Missing says what a layout wants that is not on this machine; "" = nothing.
func Missing(l Layout) string {
	var all []string
	if l.Postgres {
		all = append(all, postgresMissing())
	}
	if l.Redis {
		all = append(all, redisMissing())
	}
	if l.Hosts {
		all = append(all, hostsMissing())
	}
	return strings.Join(slices.DeleteFunc(all, func(s string) bool { return s == "" }), "; ")
}

// Progress is how far a drill is.
type Progress struct {
	Phase  string   // start, connect, load, settle, read, stop, judge
	Done   float64  // share of the load's time, 0 to 1; below 0 = another phase
	Up     int      // devices online
	Rate   int64    // operations in the last second
	Faults int      // begun so far
	All    int      // of the schedule
	Now    []string // faults under way
}

// maxCrashes bounds the crashes that are told.
const maxCrashes = 50

// longestPause is the longest before a device comes back: devices that stay away
// see no faults.
const longestPause = 1500 * ms

// ErrLoad is a load that could not be put on the cluster, so that there is
// nothing to judge.
var ErrLoad = errors.New("the load could not be put on the cluster")

// drill is one drill under way.
type drill struct {
	Options
	ctx     context.Context
	spawner *spawner
	nodes   []*node
	mounted []string
	world   *world
	plane   *plane       // nil = the layout has no members of etcd
	db      *database    // nil = the nodes keep messages themselves
	cache   *cache       // nil = the nodes remember sends themselves
	signer  auth.Key     // of all tokens
	network *network     // nil = each node has all roles, or is on a host of its own
	hosts   *hosts       // nil = the nodes are on this one
	where   *whereabouts // nil = the routes are not in Redis
	effects *effects     // nil = no Postgres, or nobody who leads
	rec     *history.Recorder
	plan    []Event
	faults  sync.WaitGroup

	mu      sync.Mutex
	begun   bool
	ended   time.Time // when the load had its time
	healed  int64     // of the recorder; when the last fault was over
	running map[int]string
	out     Outcome
}

// Run runs one drill to its end. It returns the outcome, good or bad, or an
// error if there is nothing to judge. ctx ends it early, without an outcome.
func Run(ctx context.Context, o Options) (*Outcome, error) {
	if err := o.Layout.check(); err != nil {
		return nil, err
	}
	for _, k := range o.Kinds {
		if why := Impossible(k, o.Layout); why != "" {
			return nil, fmt.Errorf("fault %s: %s", k, why)
		}
	}
	if o.Allocator == "" {
		o.Allocator = AllocatorOf(o.Seed, o.Layout)
	}
	if o.Allocator == store.Segment && !o.Layout.Postgres {
		return nil, errors.New("segments want a layout with Postgres")
	}
	if why := Missing(o.Layout); why != "" {
		return nil, errors.New("the layout " + why)
	}
	d := &drill{Options: o, running: map[int]string{}, plan: Plan(o.Seed, o.Kinds, o.Duration), spawner: newSpawner()}
	if len(d.plan) == 0 {
		return nil, fmt.Errorf("no fault fits into %v", o.Duration)
	}
	ctx, cancel := context.WithCancel(ctx)
	d.ctx = ctx
	d.out = Outcome{Seed: o.Seed, Layout: o.Name, Allocator: o.Allocator, Kinds: o.Kinds, Seconds: o.Duration.Seconds(), Planned: len(d.plan), Dir: o.Dir}
	began := time.Now()
	err := d.run()
	d.tell(Progress{Phase: "stop", Done: -1})
	d.stopNodes(err == nil)
	cancel()
	err = errors.Join(err, d.clean())
	if err != nil {
		return nil, err
	}
	d.tell(Progress{Phase: "judge", Done: -1})
	if err := d.judge(); err != nil {
		return nil, err
	}
	d.out.Took = time.Since(began).Round(100 * ms).Seconds()
	return &d.out, nil
}

func (d *drill) tell(p Progress) {
	if d.Progress != nil {
		d.Progress(p)
	}
}

// run is everything up to the recorded history.
func (d *drill) run() error {
	d.tell(Progress{Phase: "start", Done: -1})
	if err := d.prepare(); err != nil {
		return err
	}
	var err error
	if d.rec, err = history.NewRecorder(historyDir(d.Dir)); err != nil {
		return err
	}
	if d.plane != nil {
		if err := d.plane.begin(); err != nil {
			return err
		}
	}
	if d.db != nil {
		if err := d.db.create(d.ctx, d.Exe); err != nil {
			return err
		}
	}
	if d.cache != nil {
		if err := d.cache.begin(); err != nil {
			return err
		}
	}
	if err := beginAll(d.nodes); err != nil {
		return err
	}
	if d.plane != nil {
		if err := d.plane.beginWitnesses(); err != nil {
			return err
		}
	}
	d.world = newWorld(d.nodes, d.signer)
	d.world.oneLogin = d.Layout.routes()
	defer d.world.close()
	if err := d.world.makeKey(d.ctx); err != nil {
		return fmt.Errorf("make an API key: %w", err)
	}
	if d.effects != nil {
		if err := d.effects.ready(); err != nil {
			return err
		}
	}
	return d.load()
}

// prepare makes folders, proxies and nodes; it starts nothing.
func (d *drill) prepare() error {
	if err := os.MkdirAll(d.Dir, 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(d.Dir, "schedule.txt"), []byte(Print(d.plan)), 0o644); err != nil {
		return err
	}
	common := append([]string{
		"gateway.limits.user_rate=1000000", "gateway.limits.user_burst=1000000", "gateway.limits.connection_rate=1000000",
		"gateway.limits.connection_burst=1000000", "gateway.limits.conversation_rate=1000000", "gateway.limits.conversation_burst=1000000",
		"gateway.antientropy.interval=" + d.AntiEntropy.String(), "gateway.ping_interval=5s", "gateway.pong_timeout=3s",
		"seq.allocator=" + d.Allocator,
		"gateway.drain.delay=100ms", "gateway.drain.min_spread=500ms", "gateway.drain.grace=1s",
	}, d.Layout.Set...)
	if d.Layout.routes() {
		common = append(common, "gateway.login.mode=kick_old", "gateway.login.same_class=false")
	}
	var keys string
	var err error
	if d.signer, keys, err = newSigner(d.Dir); err != nil {
		return err
	}
	if d.Layout.Hosts {
		if d.hosts, err = newHosts(d); err != nil {
			return err
		}
		common = append(common, "peers.allow_plaintext=true", "peers.key_file="+d.hosts.key,
			"gateway.limits.failed_hellos=1000000", "gateway.limits.address_rate=1000000", "gateway.limits.address_burst=1000000") // loopback is exempt
	}
	if d.Layout.Etcd > 0 {
		if d.plane, err = newPlane(d); err != nil {
			return err
		}
		common = append(common, "controlplane.endpoints="+strings.Join(d.plane.urls, ","), "controlplane.cluster="+clusterName)
	}
	if err := d.prepareServers(); err != nil {
		return err
	}
	var apart []*node
	for _, spec := range d.Layout.Nodes {
		n := d.child(spec.Name)
		n.spec, n.standing = spec, d.Standing
		if d.plane != nil {
			n.told = d.truth
		}
		at := "127.0.0.1"
		if d.hosts != nil {
			x, err := d.hosts.add(n)
			if err != nil {
				return err
			}
			at, n.under = x.address, x.under()
		}
		own, env, err := d.waysOf(spec, at, len(apart))
		if err != nil {
			return err
		}
		if spec.apart() {
			apart = append(apart, n)
		}
		if err := writeRules(n.rules, d.Standing); err != nil {
			return err
		}
		if err := d.makeDir(n.dir); err != nil {
			return err
		}
		if spec.Clients {
			own = append(own, keys)
		}
		n.args, n.env = nodeArgs(spec, at, n.dir, slices.Concat(common, own)), append(env, spec.Env...)
		if spec.Clients {
			p, err := faultproxy.Listen("127.0.0.1:0", "127.0.0.1:1") // until the node is ready nobody is there
			if err != nil {
				return err
			}
			n.proxy = p
		}
		d.nodes = append(d.nodes, n)
	}
	if len(apart) > 0 && d.hosts == nil {
		if d.network, err = newNetwork(apart); err != nil {
			return err
		}
	}
	return nil
}

// prepareServers makes the stores of the layout; it starts none.
func (d *drill) prepareServers() (err error) {
	if d.Layout.Postgres {
		if d.db, err = newDatabase(d); err != nil {
			return err
		}
	}
	if d.Layout.Redis {
		if d.cache, err = newCache(d); err != nil {
			return err
		}
	}
	if d.Layout.effects() {
		d.effects, err = newEffects(d)
	}
	return err
}

// waysOf are the assignments and the environment that lead a node to the stores and
// to the others; host is its address, i its number in the network.
func (d *drill) waysOf(spec NodeSpec, host string, i int) (set, env []string, err error) {
	if d.db != nil {
		at, err := d.db.way(spec.Name)
		if err != nil {
			return nil, nil, err
		}
		env = append(env, "IMD_STORAGE_POSTGRES="+d.db.dsn(spec.Name, at, databaseName))
	}
	if d.effects != nil {
		env = append(env, d.effects.env()...)
	}
	if d.cache != nil {
		at, err := d.cache.way(spec.Name)
		if err != nil {
			return nil, nil, err
		}
		set, env = append(set, "storage.dedup=redis"), append(env, "IMD_REDIS_URL=redis://"+at)
	}
	if d.plane != nil && d.hosts == nil && spec.has("scheduler") && d.Layout.leaders() > 1 {
		urls, err := d.plane.way(spec.Name)
		if err != nil {
			return nil, nil, err
		}
		set = append(set, "controlplane.endpoints="+strings.Join(urls, ","))
	}
	switch {
	case d.hosts != nil:
		set = append(set, fmt.Sprintf("peers.listen=%s:%d", host, firstInternal))
	case spec.apart():
		set = append(set, "peers.listen="+internal(i), "peers.advertise="+advertised(i))
	}
	return set, env, nil
}

// child is a process of the drill that is told nothing yet.
func (d *drill) child(name string) *node {
	return &node{spec: NodeSpec{Name: name}, exe: d.Exe, dir: nodeDir(d.Dir, name), logPath: logPath(d.Dir, name), rules: rulesPath(d.Dir, name),
		ctx: d.ctx, spawn: d.start, died: d.died}
}

func (d *drill) makeDir(path string) error {
	if !slices.Contains(d.Kinds, Disk) {
		return os.MkdirAll(path, 0o700)
	}
	if err := mount(path); err != nil {
		return err
	}
	d.mounted = append(d.mounted, path)
	return nil
}

// load puts the load on the cluster, with the faults beside it, and completes
// the history.
func (d *drill) load() error {
	ctx, stop := context.WithCancel(d.ctx)
	defer stop()
	o := bench.Options{Scenario: "mix", Token: d.world.token, Group: d.world.group, Log: d.world.log, Conns: d.Conns, Users: d.Users,
		Outstanding: 1, Rate: d.Rate, Duration: d.Duration, Settle: d.Settle, Size: 64, Seed: d.Seed, Prefix: datadir.RandomID("d", 3) + "-", Reconnect: true, LongestPause: longestPause,
		Page: 50, GroupSize: d.GroupSize, Record: d.rec, Progress: func(p bench.Progress) { d.progress(ctx, p) }}
	for _, n := range d.nodes {
		if n.proxy != nil {
			o.Addresses = append(o.Addresses, netip.MustParseAddrPort(n.proxy.Address()))
		}
	}
	look, blind := context.WithCancel(d.ctx)
	defer blind()
	if d.plane != nil {
		d.faults.Go(func() { d.plane.run(ctx) })
		d.plane.watch(look)
		defer d.plane.watching.Wait()
		defer blind() // before
	}
	if d.Layout.routes() {
		var err error
		if d.where, err = newWhereabouts(d); err != nil {
			return err
		}
		defer d.where.close()
		d.where.run(look, ctx)
	}
	res, err := bench.Run(d.ctx, o)
	stop()
	d.faults.Wait()
	if d.effects != nil {
		d.effects.settle(d.ctx)
	}
	if d.where != nil {
		if err == nil {
			d.where.settle(d.ctx)
		}
		blind()
		d.where.wait()
	}
	if d.plane != nil {
		blind()
		d.plane.watching.Wait()
	}
	if d.ctx.Err() != nil {
		return d.ctx.Err()
	}
	if err == nil {
		err = bench.WriteGround(d.ctx, d.rec, d.world.log, d.world.unread(), nil)
	}
	if err == nil && d.plane != nil {
		err = d.plane.collect()
	}
	if err == nil && d.db != nil {
		err = d.db.collect(d.ctx, d.rec)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("%w: %w", ErrLoad, err), d.rec.Close(history.Run{Seed: d.Seed}))
	}
	d.out.Operations, d.out.Failures = res.Operations, res.Errors
	return d.rec.Close(history.Run{Seed: d.Seed, Server: d.nodes[0].endpoints().Version, Allocator: d.Allocator, Healed: d.healedAt(), Options: d.told()})
}

// told is the options as the history names them.
func (d *drill) told() map[string]any {
	return map[string]any{"drill": true, "kinds": names(d.Kinds), "duration": d.Duration.String(), "conns": d.Conns, "users": d.Users, "rate": d.Rate,
		"group_size": d.GroupSize, "antientropy": d.AntiEntropy.String(), "layout": d.Name}
}

func names(kinds []Kind) string {
	var all []string
	for _, k := range kinds {
		all = append(all, string(k))
	}
	return strings.Join(all, ",")
}

// progress follows the load, and lets the faults begin with it.
func (d *drill) progress(ctx context.Context, p bench.Progress) {
	d.mu.Lock()
	if p.Phase == "measure" && !d.begun {
		d.begun = true
		passed := time.Duration(max(p.Done, 0) * float64(d.Duration))
		began := time.Now().Add(-passed)
		d.ended = began.Add(d.Duration)
		d.faults.Go(func() { d.breakThings(ctx, began) })
		if d.effects != nil {
			d.effects.begin(ctx, d.ended)
		}
	}
	var now []string
	for _, name := range d.running {
		now = append(now, name)
	}
	slices.Sort(now)
	q := Progress{Phase: p.Phase, Done: -1, Up: p.Up, Rate: p.Last.Ops, Faults: d.out.Begun, All: len(d.plan), Now: now}
	d.mu.Unlock()
	if p.Phase == "measure" {
		q.Phase, q.Done = "load", p.Done
	}
	d.tell(q)
}

// breakThings carries out the schedule.
func (d *drill) breakThings(ctx context.Context, began time.Time) {
	b := &breaker{nodes: d.nodes, world: d.world, plane: d.plane, db: d.db, cache: d.cache, network: d.network, hosts: d.hosts, where: d.where, effects: d.effects, caught: d.caught, pipes: d.Layout.pipes(), crashed: d.crash}
	var wg sync.WaitGroup
	defer wg.Wait()
	var healed [areas]chan struct{} // closed when the last fault of the area is healed
	for _, e := range d.plan {
		if !hold(ctx, time.Until(began.Add(e.At))) {
			return
		}
		done, before := make(chan struct{}), []chan struct{}{}
		for _, a := range traitOf(e.Kind).areas() {
			if healed[a] != nil {
				before = append(before, healed[a])
			}
			healed[a] = done
		}
		wg.Go(func() {
			defer close(done)
			for _, ch := range before { // healing may take longer than was planned
				<-ch
			}
			if time.Since(began.Add(e.At)) > rest {
				hold(ctx, rest)
			}
			if late := time.Since(began.Add(e.At)); ctx.Err() != nil || late > tail && e.At+late+e.For > d.Duration-tail {
				d.skip(e)
				return
			}
			f := b.fault(e)
			d.begin(e, f.n)
			d.end(e, f.carryOut(ctx))
		})
	}
}

// skip takes note of a fault for which there was no time left.
func (d *drill) skip(e Event) {
	d.trouble("fault %s: left out, healing the ones before took too long", e.Name())
}

// caught takes note of where a leader was hit.
func (d *drill) caught(where string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.out.Leaders == nil {
		d.out.Leaders = map[string]int{}
	}
	d.out.Leaders[where]++
}

// trouble takes note of what went otherwise than it should in the drill itself.
func (d *drill) trouble(format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.out.Troubles = append(d.out.Troubles, fmt.Sprintf(format, args...))
}

// begin records that a fault begins, and which node it hits, if one.
func (d *drill) begin(e Event, n *node) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.running[e.N] = e.Name()
	d.out.Begun++
	hit := ""
	if n != nil && len(d.nodes) > 1 {
		hit = n.spec.Name
	}
	d.rec.Add("faults.log", history.Record{T: max(d.rec.Now(), 1), Kind: history.Fault, Name: e.Name(), User: hit, Reason: e.String(), Entry: e.aside()})
}

// aside is how the history tells that clients must not feel a fault.
func (e Event) aside() string {
	if t := traitOf(e.Kind); e.Kind == Files || t.area == etcds || t.area == receivers || t.area == caches && len(t.also) == 0 {
		return history.Aside
	}
	return ""
}

// end records that it is healed.
func (d *drill) end(e Event, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.running, e.N)
	if err != nil {
		d.out.Troubles = append(d.out.Troubles, fmt.Sprintf("fault %s: %v", e.Name(), err))
	}
	d.rec.Add("faults.log", history.Record{T: d.rec.Now(), Kind: history.Fault, Name: e.Name(), Stop: true, Entry: e.aside()})
	d.healed = d.rec.Now()
}

// healedAt is when devices could begin to catch up: at the end of the last
// fault, but not after the load had its time, since from then on every device
// is waited for.
func (d *drill) healedAt() int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return max(min(d.healed, d.rec.At(d.ended)), 1)
}

// start starts a child.
func (d *drill) start(cmd *exec.Cmd) error { return d.spawner.start(cmd) }

// died takes note of a node that ended by itself.
func (d *drill) died(n *node, why string, excused bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if excused {
		d.out.Excused++
		return
	}
	d.crashLocked(fmt.Sprintf("node %s ended by itself: %s%s", n.spec.Name, why, n.lastWords()))
}

// crash takes note of a node that did not end as it should.
func (d *drill) crash(what string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.crashLocked(what)
}

// crashLocked wants mu.
func (d *drill) crashLocked(what string) {
	if len(d.out.Crashes) < maxCrashes {
		d.out.Crashes = append(d.out.Crashes, what)
	}
}

// stopNodes ends all nodes, newest first, in order if all went well.
func (d *drill) stopNodes(orderly bool) {
	all := slices.Clone(d.nodes)
	if d.plane != nil {
		all = append(all, d.plane.witnesses...)
		defer func() {
			for _, m := range d.plane.members {
				m.kill()
			}
		}()
	}
	for _, n := range slices.Backward(all) {
		if !orderly {
			n.kill()
			continue
		}
		if err := n.end(); err != nil {
			d.crash(err.Error())
		}
	}
}

// clean gives back everything but the folder.
func (d *drill) clean() error {
	var errs []error
	if d.plane != nil {
		errs = append(errs, d.plane.close())
	}
	for _, n := range d.nodes {
		n.revive.Wait()
		if n.proxy != nil {
			n.proxy.Close()
		}
	}
	if d.network != nil {
		d.network.close()
	}
	if d.hosts != nil {
		d.hosts.close()
	}
	if d.effects != nil {
		d.effects.close()
	}
	if d.cache != nil {
		d.cache.close()
	}
	if d.db != nil {
		errs = append(errs, d.db.close())
	}
	d.spawner.close()
	for _, path := range d.mounted {
		errs = append(errs, unmount(path))
	}
	return errors.Join(errs...)
}

// judge reads the history and fills in the verdict.
func (d *drill) judge() error {
	h, err := verify.Load(historyDir(d.Dir))
	if err != nil {
		return err
	}
	d.out.Verdict = verify.Judge(h, verify.Options{})
	d.out.Good = d.out.Verdict.Good && len(d.out.Crashes) == 0
	return nil
}
