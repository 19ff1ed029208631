package gateway

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/auth"
	"github.com/imdhq/imd/pkg/control"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/obs"
	"github.com/imdhq/imd/pkg/park"
	"github.com/imdhq/imd/pkg/settings"
	"github.com/imdhq/imd/pkg/tally"
	"github.com/imdhq/imd/pkg/trace"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

const (
	headerTimeout = 5 * time.Second
	bodyTimeout   = 30 * time.Second
	idleTimeout   = 2 * time.Minute
	maxHeader     = 16 << 10
	// stopTime is how long Run waits for sessions once it has to return, and
	// lastCalls for the last acks to reach state.
	stopTime  = 1300 * time.Millisecond
	lastCalls = 300 * time.Millisecond
	// quietTime is how long a connection is quiet before it is parked. Parking
	// and waking cost more than waiting, so who writes every few seconds is not.
	quietTime = 5 * time.Second
	// spareFiles is how many descriptors the process needs besides clients'.
	spareFiles = 100
)

// verifier checks tokens.
type verifier interface {
	Verify(token string, now time.Time) (auth.Claims, error)
}

// stateClient is what the gateway asks of the state role.
type stateClient interface {
	submitClient
	markClient
	SyncMany(context.Context, *v1.SyncManyRequest) (*v1.SyncManyResponse, error)
	History(context.Context, *v1.HistoryRequest) (*v1.HistoryResponse, error)
	Heads(context.Context, *v1.HeadsRequest) (*v1.HeadsResponse, error)
	Members(context.Context, *v1.MembersRequest) (*v1.MembersResponse, error)
}

// directoryClient is what the gateway asks of the directory.
type directoryClient interface {
	AdmitMany(context.Context, *v1.AdmitManyRequest) (*v1.AdmitManyResponse, error)
	Revoke(context.Context, *v1.RevokeRequest) (*v1.RevokeResponse, error)
	Visible(context.Context, *v1.VisibleRequest) (*v1.VisibleResponse, error)
	LastSeen(context.Context, *v1.LastSeenRequest) (*v1.LastSeenResponse, error)
	Prove(context.Context, *v1.ProveRequest) (*v1.ProveResponse, error)
}

// peerClient is what one gateway asks of another.
type peerClient interface {
	Deliver(context.Context, *v1.DeliverRequest) (*v1.DeliverResponse, error)
	Kick(context.Context, *v1.KickRequest) (*v1.KickResponse, error)
	Probe(context.Context, *v1.ProbeRequest) (*v1.ProbeResponse, error)
}

// Deps is what the gateway works with.
type Deps struct {
	Node  im.NodeID
	Boot  string // boot id of this process
	Log   *zap.Logger
	Reg   prometheus.Registerer
	State stateClient
	// StateHome names the state node of a conversation; nil = there is only one.
	StateHome func(conv string) im.NodeID
	Directory directoryClient
	Peer      func(im.NodeID) peerClient
	Routes    func() (routes, error)
	// View is the latest copy of the registry; nil = there is only this node.
	View     func() *control.View
	Verifier verifier
	// Public serves everything on the public listener but the sockets; it is
	// asked for once, at Start. nil = nothing.
	Public func() http.Handler
	// Announce publishes the address that was bound.
	Announce func(name, address string)
	// Capacity publishes how many connections are taken at most; nil = nobody
	// wants to know.
	Capacity func(connections int)
	// Leaders is the latest copy of the announced leaders; nil = there are none.
	Leaders func() *control.Leaders
	// Trace remembers what became of messages; nil = nothing does.
	Trace *trace.Log
	// Tally counts deliveries, and is told who is connected; nil = nothing does.
	Tally *tally.Book
	// Settings may change what the configuration gives; nil = nothing does.
	Settings settings.Source
}

// Gateway is the gateway role of one node.
type Gateway struct {
	cfg Config
	Deps
	m         *metrics
	tuned     *settings.Derived[tuning]
	origins   origins
	proxies   []netip.Prefix
	limits    *Limits
	admission *admission
	hub       *hub
	engine    *engine
	groups    *groups
	floor     control.Floor // tokens of leaders that were followed
	wheel     *wheel
	lot       *park.Lot // of connections that are quiet; made by Start
	marks     *marks
	submitter *submitter
	keeper    *keeper
	ended     *endings
	watchers  *watchers
	announcer *announcer
	typing    *typing
	joins     *gather[*entrant]
	releases  turns // of routes that are given back
	kicks     *kicks
	requests  *gather[job] // other than syncs
	syncs     *gather[*request]

	quietTime    time.Duration // without a byte until a connection is parked
	overloadTime time.Duration // how long a connection may be above its rates
	mostSockets  int           // that may be open, upgraded or not; set by Start
	plain        atomic.Int64  // sockets that are not upgraded

	memoryLimit uint64        // of the process, in bytes; 0 = none; set by Start
	memoryUsed  func() uint64 // by the process now, in bytes
	short       atomic.Bool   // of memory: no newcomers

	ctx      context.Context // of calls; ends with Run
	cancel   context.CancelFunc
	wg       sync.WaitGroup // every goroutine of sessions
	gate     sync.Mutex     // guards stopped, and adding to wg from outside
	stopped  bool
	draining atomic.Bool               // no newcomers
	closing  atomic.Bool               // nobody stays
	leaveBy  atomic.Pointer[time.Time] // clients are asked to move, and end then; nil = they are not
	serving  atomic.Bool

	ln    net.Listener
	front *front
	srv   *http.Server
}

// leaders is the latest copy of the announced leaders.
func (g *Gateway) leaders() *control.Leaders {
	if g.Leaders == nil {
		return &control.Leaders{}
	}
	return g.Leaders()
}

// New makes a gateway from a valid configuration.
func New(cfg Config, d Deps) (*Gateway, error) {
	proxies, err := parseProxies(cfg.TrustedProxies)
	if err != nil {
		return nil, fmt.Errorf("gateway.trusted_proxies: %w", err)
	}
	m := newMetrics(d.Reg)
	g := &Gateway{
		cfg: cfg, Deps: d, m: m, origins: newOrigins(cfg), proxies: proxies,
		tuned: settings.Derive(d.Settings, func(now *settings.Snapshot) tuning { return tune(cfg, now) }), hub: newHub(), wheel: newWheel(time.Now()),
		marks: newMarks(d.State, m, d.Log), quietTime: quietTime, overloadTime: overloadTime, memoryUsed: usedMemory,
	}
	g.limits = newLimits(cfg.Limits, func() rates { return g.tuned.Get().rates }, time.Now)
	g.ctx, g.cancel = context.WithCancel(context.Background())
	g.engine = newEngine(g.another, time.Now)
	d.Reg.MustRegister(g.engine)
	g.groups = newGroups(g)
	g.keeper, g.ended = newKeeper(g), newEndings()
	d.Tally.Watch(g.hub.present)
	g.watchers, g.typing, g.announcer = newWatchers(g), newTyping(g), newAnnouncer(g)
	m.watchSilence(d.Reg, g.watchers.silence)
	g.desks()
	g.joins = newJoins(g)
	m.watchRequests(d.Reg, g)
	g.releases = make(turns, releasesAtOnce)
	g.kicks = &kicks{peer: func(n im.NodeID) peerClient { return g.Peer(n) }, m: m, log: d.Log, ctx: g.ctx, run: g.another, closing: g.closing.Load}
	g.submitter = &submitter{state: d.State, home: d.StateHome, m: m, ctx: g.ctx, run: g.goroutine, now: time.Now}
	g.admission = &admission{mostPending: cfg.MaxUnauthenticated, mostInLine: newcomersInLine,
		mostAddress: cfg.MaxUnauthenticatedAddress, exempt: g.limits.exempt, byAddr: map[netip.Addr]int{}}
	return g, nil
}

// Limits are the rates of this node, for other ways in.
func (g *Gateway) Limits() *Limits { return g.limits }

// Addr is the address that was bound; nil before Start.
func (g *Gateway) Addr() net.Addr {
	if g.ln == nil {
		return nil
	}
	return g.ln.Addr()
}

// goroutine starts f; Run waits for it. The caller is a goroutine that Run
// waits for itself, or holds a session that has one.
func (g *Gateway) goroutine(f func()) { g.wg.Go(f) }

// comeIn counts the caller as one that Run waits for, until it calls g.wg.Done;
// false = it is too late.
func (g *Gateway) comeIn() bool {
	g.gate.Lock()
	defer g.gate.Unlock()
	if g.stopped {
		return false
	}
	g.wg.Add(1)
	return true
}

// another starts f from anywhere; Run waits for it. false = it is too late.
func (g *Gateway) another(f func()) bool {
	if !g.comeIn() {
		return false
	}
	go func() {
		defer g.wg.Done()
		f()
	}()
	return true
}

// Start takes the client port, so that a port in use fails the start and not
// the first client.
func (g *Gateway) Start(ctx context.Context) error {
	g.setCeiling()
	g.setMemoryLimit()
	if g.origins.all {
		g.Log.Warn("every web page may connect: gateway.unsafe_allow_all_origins is on")
	}
	lot, err := park.New()
	if err != nil {
		return err
	}
	g.lot = lot
	ln, err := listenWide(ctx, g.cfg.Listen)
	if err != nil {
		if errors.Is(err, syscall.EADDRINUSE) {
			return fmt.Errorf("the address %s is in use by another program; stop it or set gateway.listen: %w", g.cfg.Listen, err)
		}
		return fmt.Errorf("listen on %s (gateway.listen): %w", g.cfg.Listen, err)
	}
	public := http.NotFoundHandler()
	if g.Public != nil {
		public = g.Public()
	}
	g.ln, g.front = ln, newFront(g, ln)
	g.srv = &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == protocol.Path {
				g.upgrade(w, r)
				return
			}
			public.ServeHTTP(w, r)
		}),
		ReadHeaderTimeout: headerTimeout, ReadTimeout: bodyTimeout, WriteTimeout: bodyTimeout, IdleTimeout: idleTimeout,
		MaxHeaderBytes: maxHeader, ConnState: g.countSocket, ErrorLog: zap.NewStdLog(g.Log.WithOptions(zap.IncreaseLevel(zap.ErrorLevel))),
	}
	if g.Announce != nil {
		g.Announce("public", ln.Addr().String())
	}
	return nil
}

// Run serves clients until ctx is done. Sessions that are still open then are
// closed with code 4000 (drain).
func (g *Gateway) Run(ctx context.Context) error {
	defer g.cancel()
	failed := make(chan error, 3) // the front, the server and the lot end once
	work, stop := context.WithCancel(context.Background())
	defer stop()
	var own sync.WaitGroup
	own.Go(func() { failed <- g.front.run() })
	own.Go(func() { failed <- g.srv.Serve(g.front) })
	own.Go(func() { failed <- g.lot.Run() })
	own.Go(func() { g.wheel.run(work, (*session).wake) })
	own.Go(func() { g.marks.run(work) })
	own.Go(func() { g.antiEntropy(work) })
	own.Go(func() { g.keeper.run(work) })
	own.Go(func() { g.watchers.run(work) })
	own.Go(func() { g.tidyUp(work) })
	own.Go(func() { g.guardMemory(work) })
	g.serving.Store(true)
	var err error
	select {
	case <-ctx.Done():
	case err = <-failed:
		err = fmt.Errorf("serve %s: %w", g.cfg.Listen, err)
	}
	g.serving.Store(false)
	g.stop()
	last, cancel := context.WithTimeout(g.ctx, lastCalls)
	g.marks.flush(last, nil)
	cancel()
	stop()
	g.lot.Stop()
	own.Wait()
	return err
}

// stop ends all connections and waits for their goroutines.
func (g *Gateway) stop() {
	g.draining.Store(true)
	g.closing.Store(true)
	g.gate.Lock()
	g.stopped = true
	g.gate.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), lastCalls)
	defer cancel()
	if g.srv.Shutdown(ctx) != nil { // hijacked connections are ours
		_ = g.srv.Close()
	}
	for _, s := range g.hub.all() {
		s.end("drain", "the node stops", 0)
	}
	done := make(chan struct{})
	go func() { g.wg.Wait(); close(done) }()
	select {
	case <-done:
		return
	case <-time.After(stopTime):
	}
	g.cancel() // calls
	for _, s := range g.hub.all() {
		_ = s.wire.Conn.Close()
	}
	<-done
}

// Close frees the port if Run never did.
func (g *Gateway) Close() error {
	g.cancel()
	if g.lot != nil {
		_ = g.lot.Close() // nothing was written that could be lost
	}
	if g.ln == nil {
		return nil
	}
	if err := g.ln.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

// setCeiling lets the process open as many files as it may and settles how many
// connections it takes. It says so if more are allowed than can be.
func (g *Gateway) setCeiling() {
	files, err := raiseFileLimit()
	if err != nil {
		g.Log.Warn("the limit of open files is not known", obs.Err(err))
		files = 1 << 10
	}
	files = min(max(files, 2*spareFiles), 10_000_000)
	possible := int(files - spareFiles)
	most := g.cfg.MaxConnections
	if most == 0 {
		most = possible
	}
	if most > possible {
		g.Log.Warn("more connections are allowed than the process may open files; raise LimitNOFILE or lower gateway.max_connections",
			zap.Int("max_connections", most), zap.Uint64("open_files", files), zap.Int("taken_at_most", possible))
	}
	most = min(most, possible)
	g.admission.setMost(most)
	if g.Capacity != nil {
		g.Capacity(most)
	}
	g.mostSockets = int(files - spareFiles/2)
}

// countSocket follows the sockets of the HTTP server. One that would take the
// last descriptors, which the stores need, is closed at once.
func (g *Gateway) countSocket(c net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		if int(g.plain.Add(1))+g.admission.count() > g.mostSockets {
			g.m.handshakes.WithLabelValues("no_files").Inc()
			_ = c.Close()
		}
	case http.StateHijacked, http.StateClosed: // admission counts the hijacked ones
		g.plain.Add(-1)
	}
}

// raiseFileLimit raises the soft limit of open files to the hard one and
// returns what holds then.
func raiseFileLimit() (uint64, error) {
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		return 0, err
	}
	if l.Cur < l.Max {
		raised := syscall.Rlimit{Cur: l.Max, Max: l.Max}
		if syscall.Setrlimit(syscall.RLIMIT_NOFILE, &raised) == nil {
			return raised.Cur, nil
		}
	}
	return l.Cur, nil
}
