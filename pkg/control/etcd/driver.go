package etcd

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/control"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/settings"
)

// Options says how a Driver works. Zero durations mean the usual ones.
type Options struct {
	Cluster string    // name below /imd/; clusters of different names share nothing
	Node    im.NodeID // for the keys of worker numbers
	// Publish gets each new view. It is called from one goroutine at a time and
	// must not block.
	Publish func(*control.View)
	// PublishLeaders gets each new copy of the announced leaders, like Publish; nil =
	// nobody wants to know.
	PublishLeaders func(*control.Leaders)
	// Settings is fed with the documents of settings, and its documents are kept
	// here; nil = none.
	Settings *settings.Live
	Log      *zap.Logger
	// Close is called at the end of Driver.Close, to end what the client talks
	// to; nil = the client is closed.
	Close func() error
	// Failed gives an error if what the client talks to has ended for good; nil =
	// never.
	Failed <-chan error
	// Health is that of the client, see Dial; nil = its endpoints are not probed.
	Health *Health
	// FollowMembers adds the client URLs that the members of the cluster name to
	// the endpoints, each once a probe found it good.
	FollowMembers bool
	// LastKnown is the file that keeps the last good list of nodes, for a start
	// without etcd; "" = it is not kept.
	LastKnown string
	// Drain is called once if an operator orders this process to stop; it must not
	// block. nil = such orders are ignored.
	Drain func(reason string)
	// Upstream gives the records in place of etcd, as long as it does; nil = etcd
	// is followed. Candidates of elections follow those in etcd all the same.
	Upstream control.Feed
	// StartJitter bounds the pause before the first registration, so that many
	// nodes that start together come one by one. 0 = none.
	StartJitter time.Duration

	// The periods below are for tests.

	TTL         time.Duration // of the node's lease, whole seconds; 10 s
	Renew       time.Duration // between its renewals; 3 s
	Check       time.Duration // between looks at the own keys; 60 s
	WorkerTTL   time.Duration // of a worker lease, whole seconds; 60 s
	WorkerRenew time.Duration // between its renewals; 20 s
	Progress    time.Duration // between requests for a sign of life; 5 s
	Stale       time.Duration // silence that means a dead watch; 15 s
	Reconcile   time.Duration // between checks of the view; 60 s
	Probe       time.Duration // between probes of endpoints; 5 s
	Patience    time.Duration // with an Upstream that fails; 10 to 15 s
	Detour      time.Duration // of following etcd then; 60 s
	LeaderTTL   time.Duration // of a leader's lease, whole seconds; 3 s
	LeaderRenew time.Duration // between its renewals; 1 s
	// LeaseOnly switches the fast takeover from dead processes off.
	LeaseOnly bool
}

// timing fills in the usual periods.
func (o Options) timing() timing {
	t := defaults
	for _, f := range []struct {
		to   *time.Duration
		from time.Duration
	}{
		{&t.ttl, o.TTL}, {&t.renew, o.Renew}, {&t.check, o.Check}, {&t.workerTTL, o.WorkerTTL}, {&t.workerRenew, o.WorkerRenew},
		{&t.progress, o.Progress}, {&t.stale, o.Stale}, {&t.reconcile, o.Reconcile}, {&t.probe, o.Probe}, {&t.patience, o.Patience}, {&t.detour, o.Detour}, {&t.start, o.StartJitter},
	} {
		if f.from > 0 {
			*f.to = f.from
		}
	}
	t.margin = min(t.margin, t.ttl/3)
	t.workerSafe = min(t.workerSafe, t.workerTTL/3)
	return t
}

// electionTiming fills in the usual periods.
func (o Options) electionTiming() electionTiming {
	t := electionDefaults
	if o.LeaderTTL > 0 {
		t.ttl = o.LeaderTTL
	}
	if o.LeaderRenew > 0 {
		t.renew = o.LeaderRenew
	}
	if o.LeaseOnly {
		t.forced = 0
	}
	t.margin = min(t.margin, t.ttl/3)
	return t
}

// Driver is the control plane of one process on etcd. It is a control.Registry,
// a control.WorkerLeaser, a control.Elector and a control.Locker. Safe for
// concurrent use.
type Driver struct {
	opts       Options
	timing     timing
	root       string // of all keys
	client     *clientv3.Client
	registrar  *registrar
	pulse      *pulse
	follower   *follower   // of the nodes
	followers  []*follower // of all areas
	feeds      map[control.Area]*feed
	discoverer *discoverer
	leaser     *leaser
	secret     atomic.Pointer[string]  // what nodes show each other; nil = not known
	rewound    chan struct{}           // capacity 1: etcd went back, or is another one
	latest     atomic.Pointer[replica] // copy of the registry; nil = none
	self       atomic.Pointer[marks]   // of the server in this process; nil = not asked
	drain      sync.Once               // an order to stop is obeyed once
	elector    *elector
	locker     *locker
	settings   *follower         // nil = no settings
	reporter   *settingsReporter // nil = no settings
	once       sync.Once
}

var (
	_ control.Registry     = (*Driver)(nil)
	_ control.WorkerLeaser = (*Driver)(nil)
	_ control.Operator     = (*Driver)(nil)
	_ control.Feed         = (*Driver)(nil)
	_ control.Elector      = (*Driver)(nil)
	_ control.Locker       = (*Driver)(nil)
)

// New makes a driver; it makes no call. The driver owns the client.
func New(client *clientv3.Client, o Options) *Driver {
	t := o.timing()
	root := "/imd/" + o.Cluster + "/"
	d := &Driver{opts: o, timing: t, root: root, client: client, feeds: map[control.Area]*feed{}, rewound: make(chan struct{}, 1)}
	d.registrar = newRegistrar(client, root+"nodes/", t, o.Log)
	var file *snapshotFile
	if o.LastKnown != "" {
		file = &snapshotFile{path: o.LastKnown, cluster: o.Cluster}
	}
	d.discoverer = newDiscoverer(o.Node, o.Publish, file, o.Log)
	d.pulse = &pulse{etcd: client, every: t.progress}
	d.follower = d.follow(control.AreaNodes, feedWindow, d.listed, d.discoverer.away)
	d.follower.read, d.follower.noticed = readNode, d.registrar.noticed
	d.leaser = newLeaser(client, root+"workers/", o.Node, t, o.Log)
	publish := o.PublishLeaders
	if publish == nil {
		publish = func(*control.Leaders) {}
	}
	d.elector = newElector(client, root+string(control.AreaLeaders)+"/", o.electionTiming(), publish, o.Log)
	d.follow(control.AreaLeaders, 0, d.elector.took, d.elector.away).own = d.elector.own
	d.locker = newLocker(client, root, t, d.elector, o.Log)
	if o.Settings != nil {
		sink := &settingsSink{live: o.Settings, prefix: root + string(control.AreaSettings) + "/"}
		d.settings = d.follow(control.AreaSettings, 0, sink.took, func() {})
		d.settings.checked = sink.checked
		d.reporter = &settingsReporter{etcd: client, key: root + "config_status/" + string(o.Node), node: string(o.Node), live: o.Settings, log: o.Log}
		o.Settings.SetDocuments(&settingsStore{
			etcd: client, config: d.settings.prefix, history: root + "config_history/", statuses: root + "config_status/",
		})
	}
	return d
}

// follow makes the follower of an area and the feed that hands it on.
func (d *Driver) follow(area control.Area, window time.Duration, took func(update) error, away func()) *follower {
	f := newFollower(d.client, d.root, area, d.timing, d.pulse, d.opts.Log)
	out := newFeed(f.prefix, window, area == control.AreaSettings)
	f.upstream = d.opts.Upstream
	f.took = func(u update) error {
		if u.direct {
			out.offer(u.next, u.events)
		} else {
			out.withdraw()
		}
		return took(u)
	}
	f.away = func() {
		out.withdraw()
		away()
	}
	d.followers, d.feeds[area] = append(d.followers, f), out
	return f
}

// listed takes in a new copy of the nodes.
func (d *Driver) listed(u update) error {
	if old := d.latest.Swap(&u.next); old != nil && old.history != u.next.history {
		d.registrar.doubt() // etcd was restored, and may hold what we said long ago
		select {
		case d.rewound <- struct{}{}:
		default:
		}
	}
	d.discoverer.listed(u.next.nodes(), u.next.rev, u.next.cluster)
	d.obey(u.next)
	return nil
}

// copied is the latest copy of the registry.
func (d *Driver) copied() replica {
	if r := d.latest.Load(); r != nil {
		return *r
	}
	return replica{}
}

// Changes answers another process from the copy of this one; see control.Feed.
// It fails while this process does not follow etcd itself.
func (d *Driver) Changes(ctx context.Context, area control.Area, at control.Cursor, wait time.Duration) (control.Batch, error) {
	f, ok := d.feeds[area]
	if !ok {
		return control.Batch{}, errNoFeed
	}
	return f.Changes(ctx, at, wait)
}

// Secret is what nodes of this cluster show each other; "" = not known yet.
func (d *Driver) Secret() string {
	if s := d.secret.Load(); s != nil {
		return *s
	}
	return ""
}

// Load reads the cluster and the settings once and publishes them. Call it before Run. If etcd
// cannot be reached within 2 s, it publishes, as stale, what a former process
// knew, if that was kept; Run goes on trying. Settings that could not be read stay
// as they are remembered until Run has read them. Errors, all with the endpoints
// named: a *control.RefusedError if etcd does not want this user, a
// *control.AwayError otherwise.
func (d *Driver) Load(ctx context.Context) error {
	err := d.follower.load(ctx)
	if err == nil {
		d.loadSettings(ctx)
		return nil
	}
	at := strings.Join(d.client.Endpoints(), ", ")
	if refused(err) {
		return &control.RefusedError{At: at, Err: err}
	}
	d.follower.lost(err)
	rev, cluster, known := d.discoverer.recall()
	if known {
		d.follower.cur = replica{read: readNode, rev: rev, cluster: cluster}
		if s := d.discoverer.learnedBefore(); s != "" {
			d.secret.Store(&s)
		}
	}
	return &control.AwayError{At: at, Known: known, Err: err}
}

func (d *Driver) loadSettings(ctx context.Context) {
	if d.settings == nil {
		return
	}
	if err := d.settings.load(ctx); err != nil {
		d.opts.Log.Warn("the settings cannot be read yet; going on with those of the last run", zap.Error(err))
	}
}

// Announce sets the record of this node and waits until etcd has it. Errors: a
// *control.TakenError if another living process has the id; else etcd is away,
// and the record follows when it is back.
func (d *Driver) Announce(ctx context.Context, n control.Node) error {
	d.elector.announced(n)
	return d.registrar.announce(ctx, n)
}

// Run keeps the registration and the view until ctx is done, and then revokes
// the lease, within 2 s. It returns early only with what Failed gave.
func (d *Driver) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	wg.Go(func() { d.registrar.run(ctx) })
	for _, f := range d.followers {
		wg.Go(func() { f.run(ctx) })
	}
	wg.Go(func() { d.discoverer.run(ctx) })
	wg.Go(func() { d.learn(ctx) })
	if h := d.opts.Health; h != nil {
		p := newProber(h, d.client, d.opts.FollowMembers, d.timing.probe, d.opts.Log)
		wg.Go(func() { p.run(ctx) })
	} else if len(d.client.Endpoints()) == 0 {
		wg.Go(func() { d.inProcess(ctx) })
	}
	if d.reporter != nil {
		wg.Go(func() { d.reporter.run(ctx) })
	}
	var err error
	select {
	case <-ctx.Done():
	case err = <-d.opts.Failed:
		cancel()
	}
	wg.Wait()
	return err
}

// Lease takes a worker number from 64 to 1,023; see control.WorkerLeaser.
// control.ErrNoWorker says that none is free and usable.
func (d *Driver) Lease(ctx context.Context, usable func(context.Context, int) (bool, error)) (control.WorkerLease, error) {
	return d.leaser.lease(ctx, usable)
}

// Stats is a copy of the counters.
func (d *Driver) Stats() control.Stats {
	var s control.Stats
	d.registrar.stats(&s)
	for _, f := range d.followers {
		f.stats(&s)
	}
	s.Watches = d.pulse.watches()
	for _, f := range d.feeds {
		s.Asking += f.asking()
	}
	d.discoverer.stats(&s)
	if h := d.opts.Health; h != nil {
		h.stats(&s)
	} else if m := d.self.Load(); m != nil {
		s.Endpoints = m.stats()
	}
	d.elector.stats(&s)
	d.locker.stats(&s)
	return s
}

// Campaign takes part in an election; see control.Elector.
func (d *Driver) Campaign(ctx context.Context, c control.Candidacy) error {
	return d.elector.campaign(ctx, c)
}

// Transfer asks a leader to resign; see control.Elector.
func (d *Driver) Transfer(ctx context.Context, name string, to im.NodeID) (control.Leader, error) {
	return d.elector.transfer(ctx, name, to)
}

// TermEnded is closed when this process's term in the election ends; nil if it
// does not lead. It is for control.Await.
func (d *Driver) TermEnded(name string) <-chan struct{} { return d.elector.ended(name) }

// Lock waits for a lock; see control.Locker.
func (d *Driver) Lock(ctx context.Context, r control.LockRequest) (control.Lock, error) {
	return d.locker.lock(ctx, r)
}

// Locks lists holders and waiters; see control.Locker.
func (d *Driver) Locks(ctx context.Context) ([]control.LockInfo, error) { return d.locker.list(ctx) }

// Close gives up what Run has not, and closes the client. Run must have
// returned.
func (d *Driver) Close() error {
	var err error
	d.once.Do(func() {
		for _, f := range d.feeds {
			f.withdraw()
		}
		d.registrar.close()
		d.leaser.close()
		d.locker.close()
		d.elector.close()
		if d.opts.Close != nil {
			err = d.opts.Close()
			return
		}
		if err = d.client.Close(); errors.Is(err, context.Canceled) {
			err = nil // how a client says that it was closed
		}
	})
	return err
}
