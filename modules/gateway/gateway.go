package gateway

import (
	"context"
	"crypto/tls"
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
	"github.com/imdhq/imd/pkg/park"
	"github.com/imdhq/imd/pkg/reload"
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
	bulk      *bulk
	pages     pages
	groups    *groups
	floor     control.Floor // tokens of leaders that were followed
	wheel     *wheel
	sides     sides           // that busy connections use by turns
	queues    [2]*queueConfig // by encoding
	lot       *park.Lot       // of connections that are quiet; made by Start
	marks     *marks
	submitter *submitter
	keeper    *keeper
	ended     *endings
	watchers  *watchers
	announcer *announcer
	typing    *typing
	joins     *gather[*entrant]
	haste     *haste
	hellos    atomic.Uint32 // how many came; it may begin anew
	apart     turns         // of logins that need more than their group gives them
	releases  turns         // of routes that are given back
	kicks     *kicks
	requests  *gather[job] // other than syncs
	syncs     *gather[*request]

	quietTime    time.Duration // without a byte until a connection is parked
	overloadTime time.Duration // how long a connection may be above its rates
	yieldTime    time.Duration // how long a session whose client moves stays beside the new one
	sockets      *sockets
	files        uint64    // that the process may open; set by Start, then of followFiles
	toldFiles    time.Time // when the log was told last that there are none left

	cert atomic.Pointer[reload.Value[*tls.Certificate]] // of the public listener; nil = it speaks no TLS; set by Start

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
		marks: newMarks(d.State, m, d.Log), quietTime: quietTime, overloadTime: overloadTime, yieldTime: yieldTime, memoryUsed: usedMemory,
	}
	g.limits = newLimits(cfg.Limits, func() rates { return g.tuned.Get().rates }, time.Now)
	for _, enc := range []protocol.Encoding{protocol.Proto, protocol.JSON} {
		g.queues[enc] = &queueConfig{enc: enc, frames: cfg.QueueFrames, bytes: cfg.QueueBytes, timeout: cfg.WriteTimeout, m: m, run: g.goroutine, now: time.Now}
	}
	g.ctx, g.cancel = context.WithCancel(context.Background())
	g.engine = newEngine(g.another, time.Now)
	d.Reg.MustRegister(g.engine)
	g.bulk = newBulk()
	g.groups = newGroups(g)
	g.keeper, g.ended = newKeeper(g), newEndings()
	d.Tally.Watch(g.hub.present)
	g.watchers, g.typing, g.announcer = newWatchers(g), newTyping(g), newAnnouncer(g)
	m.watchSilence(d.Reg, g.watchers.silence)
	g.desks()
	g.joins, g.apart, g.haste = newJoins(g), make(turns, joinsApart), newHaste()
	m.watchRequests(d.Reg, g)
	m.watchCertificate(d.Reg, g)
	g.releases = make(turns, releasesAtOnce)
	g.kicks = &kicks{peer: func(n im.NodeID) peerClient { return g.Peer(n) }, m: m, log: d.Log, ctx: g.ctx, run: g.another, closing: g.closing.Load}
	g.submitter = &submitter{state: d.State, home: d.StateHome, m: m, ctx: g.ctx, run: g.goroutine, now: time.Now}
	g.admission = &admission{mostPending: cfg.MaxUnauthenticated, mostInLine: newcomersInLine,
		mostAddress: cfg.MaxUnauthenticatedAddress, exempt: g.limits.exempt, byAddr: map[netip.Addr]int{}}
	g.sockets = &sockets{mostSilent: cfg.MaxUnauthenticated + newcomersInLine, mostAddress: cfg.MaxUnauthenticatedAddress,
		exempt: func(a netip.Addr) bool { return g.limits.exempt(a) || g.trusted(a) }, silent: map[net.Conn]netip.Addr{}, byAddr: map[netip.Addr]int{}}
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
	if err := g.certificate(); err != nil {
		return err
	}
	lot, err := park.New()
	if err != nil {
		return err
	}
	g.lot = lot
	if err := errors.Join(g.engine.open(), g.bulk.open()); err != nil {
		return err
	}
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
	g.ln = doorstep{ln, g.noFiles}
	g.front = newFront(g, g.ln, g.cert.Load() == nil)
	g.srv = &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			g.heard(r.Context())
			if r.URL.Path == protocol.Path {
				g.upgrade(w, r)
				return
			}
			public.ServeHTTP(w, r)
		}),
		ReadHeaderTimeout: headerTimeout, ReadTimeout: bodyTimeout, WriteTimeout: bodyTimeout, IdleTimeout: idleTimeout,
		MaxHeaderBytes: maxHeader, ConnState: g.follow, ConnContext: withSocket, TLSConfig: g.tlsConfig(), Protocols: &http.Protocols{}, ErrorLog: zap.NewStdLog(g.Log.WithOptions(zap.IncreaseLevel(zap.ErrorLevel))),
	}
	g.srv.Protocols.SetHTTP1(true)
	if g.Announce != nil {
		name := "public"
		if g.cert.Load() != nil {
			name = "public-tls"
		}
		g.Announce(name, ln.Addr().String())
	}
	return nil
}

// answer serves the public listener until it is closed.
func (g *Gateway) answer() error {
	if g.cert.Load() != nil {
		return g.srv.ServeTLS(g.front, "", "")
	}
	return g.srv.Serve(g.front)
}

// Run serves clients until ctx is done. Sessions that are still open then are
// closed with code 4000 (drain).
func (g *Gateway) Run(ctx context.Context) error {
	defer g.cancel()
	failed := make(chan error, 3) // the front, the server and the lot end once
	work, stop := context.WithCancel(context.Background())
	defer stop()
	var own sync.WaitGroup
	own.Go(func() {
		failed <- g.front.run()
		g.front.wg.Wait()
	})
	own.Go(func() { failed <- g.answer() })
	own.Go(func() { failed <- g.lot.Run() })
	own.Go(func() { g.wheel.run(work, (*session).wake) })
	own.Go(func() { g.marks.run(work) })
	own.Go(func() { g.antiEntropy(work) })
	own.Go(func() { g.keeper.run(work) })
	own.Go(func() { g.watchers.run(work) })
	own.Go(func() { g.tidyUp(work) })
	own.Go(func() { g.guardMemory(work) })
	own.Go(func() { g.followFiles(work) })
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
		_ = cut(s.wire.Conn)
	}
	<-done
}

// Close frees the port if Run never did.
func (g *Gateway) Close() error {
	g.cancel()
	g.bulk.close()
	g.engine.close()
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
