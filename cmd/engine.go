package cmd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/admin"
	"github.com/imdhq/imd/pkg/control"
	"github.com/imdhq/imd/pkg/datadir"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/module"
	"github.com/imdhq/imd/pkg/obs"
	"github.com/imdhq/imd/pkg/peer"
	"github.com/imdhq/imd/pkg/settings"
	"github.com/imdhq/imd/pkg/status"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/pkg/tally"
	"github.com/imdhq/imd/pkg/trace"
	"github.com/imdhq/imd/web"
)

// engine is one running node: what serve and dev share.
type engine struct {
	app  *app
	cfg  *loaded
	demo *demo // nil unless `imd dev`

	build obs.Build
	dir   *datadir.Dir
	log   *zap.Logger
	reg   *prometheus.Registry
	ready *module.Ready
	pulse *obs.Pulse
	ops   *obs.Ops
	opsLn net.Listener
	node  *module.Node

	mu     sync.Mutex
	points datadir.Endpoints
	stop   context.CancelFunc // ends live in order; nil before
}

// serve runs the node until a signal or a failure. Before it opens anything it
// checks what can be checked.
func (e *engine) serve(ctx context.Context) (err error) {
	e.build = obs.ThisBuild()
	syscall.Umask(0o077)           // nothing of ours is for other users, whatever made it
	signal.Ignore(syscall.SIGPIPE) // losing the reader of the log must not end the node
	path, err := e.cfg.dataDir(e.app.getenv)
	if err != nil {
		return err
	}
	if e.log, _, err = obs.NewLogger(e.cfg.log, os.Stderr); err != nil {
		return err
	}
	defer func() { _ = e.log.Sync() }() // a terminal cannot be synced; nothing is lost by it
	if e.dir, err = datadir.Open(path); err != nil {
		return ownFailure(err)
	}
	defer func() { err = errors.Join(err, e.dir.Close()) }()
	if err := e.checkKeys(); err != nil {
		return err
	}
	if err := free(e.cfg.listeners()); err != nil {
		return err
	}
	if err := e.assemble(); err != nil {
		return err
	}
	return ownFailure(e.live(ctx))
}

// checkKeys refuses the development key where others could use it.
func (e *engine) checkKeys() error {
	if e.demo != nil {
		return e.cfg.localOnly("imd dev signs tokens with a key that everybody knows")
	}
	for _, k := range e.dir.TokenKeys() {
		if k.ID == devKey.ID || string(k.Secret) == string(devKey.Secret) {
			return e.cfg.localOnly("keys/token.key holds the development key, which everybody knows")
		}
	}
	return nil
}

// keySource gives the keys of the data folder and, in development, the fixed
// one before them.
type keySource struct {
	*datadir.Dir
	extra []module.TokenKey
}

// TokenKeys lists the keys, newest first.
func (k keySource) TokenKeys() []module.TokenKey {
	return append(k.extra[:len(k.extra):len(k.extra)], k.Dir.TokenKeys()...)
}

func (e *engine) keys() keySource {
	k := keySource{Dir: e.dir}
	if e.demo != nil {
		k.extra = []module.TokenKey{devKey}
	}
	return k
}

// assemble builds the node from its modules.
func (e *engine) assemble() error {
	id := e.dir.Node()
	if e.cfg.node.Name != "" {
		id = im.NodeID(e.cfg.node.Name)
	}
	boot := datadir.RandomID("", 10)
	e.points = datadir.Endpoints{
		Node: id, BootID: boot, PID: os.Getpid(), Version: e.build.Version, Dev: e.demo != nil, Started: time.Now().UTC().Truncate(time.Millisecond),
		Audience: e.cfg.auth.Audience, Issuer: e.cfg.auth.Issuer,
	}
	e.log = e.log.With(obs.Node(id))
	e.reg, e.ready, e.pulse = obs.NewRegistry(e.build), module.NewReady(), obs.NewPulse(e.app.getenv)
	e.log = obs.Counted(e.log, e.reg)
	e.ops = obs.NewOps(e.ready, func() control.State { return e.node.Record().State }, e.pulse, boot, e.reg, e.build)
	public := http.NewServeMux()
	public.Handle("GET /livez", obs.Livez(e.pulse, boot))
	public.Handle("/", web.Handler())
	if e.demo != nil {
		public.Handle("GET /dev/users", e.demo.handler(e.cfg.auth))
	}
	ctl, peers := &control.Handle{}, peer.NewSet(id, e.log)
	live, err := e.settings(id)
	if err != nil {
		return err
	}
	stores := &store.Handle{}
	admin.New(admin.Deps{
		Node: id, Control: ctl, Directory: peers.Directory(), Routes: func() (admin.Routes, error) { return stores.Routes() }, Settings: live, StartValue: e.cfg.startValue,
		Log: e.log.Named("admin"), Reg: e.reg,
	}).Mount(e.ops.Mount, e.dir.AdminKey())
	kept := trace.New(trace.DefaultBytes, trace.DefaultAge, time.Now)
	peers.UseTrace(kept)
	counts := tally.New(time.Now)
	peers.UseTally(counts, ctl.Leaders)
	status.Mount(e.ops.Mount, status.Deps{
		Node: id, Roles: e.cfg.roles, Started: e.points.Started, Version: e.build.Version, State: func() control.State { return e.node.Record().State },
		Control: ctl, Settings: live, Trace: peers.Trace, Tally: counts.Cluster, History: peers.State(), Routes: func() (status.RouteLookup, error) { return stores.Routes() },
		Guard: func(h http.Handler) http.Handler { return admin.Auth(e.dir.AdminKey(), h) },
	})
	base := module.Env{
		Node: id, BootID: boot, Version: e.build.Version, DataDir: e.dir.Path(), Dev: e.demo != nil,
		Roles: e.cfg.roles, Joined: e.cfg.joined(), Unshared: e.cfg.unshared(), Cluster: e.cfg.values.Text("controlplane.cluster"), Zone: e.cfg.values.Text("controlplane.zone"),
		Reg: e.reg, Config: e.cfg.values.Decode, Settings: live, Control: ctl, Store: stores,
		Trace: kept, Tally: counts, Peers: peers, Ready: e.ready, Keys: e.keys(),
		Stop: e.stopNow, MountPublic: public.Handle, MountOps: e.ops.Mount, PublicHandler: func() http.Handler { return public },
	}
	e.node, err = module.New(e.cfg.chosen, module.Options{
		Record: control.Node{ID: id, BootID: boot, Roles: e.cfg.roles, Version: e.build.Version, Weight: 1, Started: e.points.Started},
		Grace:  e.cfg.node.Grace, Ready: e.ready, Log: e.log, Changed: e.changed,
		Env: func(s module.Spec) *module.Env {
			env := base
			env.Log = e.log.Named(s.Name)
			return &env
		},
	})
	if err != nil {
		return &module.ConfigError{Err: err} // nothing was opened yet, so only the settings can be wrong
	}
	return nil
}

// settings makes the hot settings of this node; they are read when the control
// plane starts.
func (e *engine) settings(id im.NodeID) (*settings.Live, error) {
	reg, err := hotSettings(e.app.specs)
	if err != nil {
		return nil, err
	}
	who := settings.Identity{Node: string(id), Zone: e.cfg.values.Text("controlplane.zone"), Roles: e.cfg.roles}
	return settings.NewLive(reg, who, e.log.Named("settings")), nil
}

// live opens the ops listener, so that probes answer while modules start, and
// runs the node.
func (e *engine) live(parent context.Context) error {
	ctx, release := untilSignal(parent, func(s os.Signal) {
		e.log.Info("stopping", zap.String("signal", s.String()), zap.Duration("grace", e.cfg.node.Grace))
		if isTerminal() {
			fmt.Fprintln(e.app.errOut, "  stopping; once more to stop at once")
		}
		e.pulse.Stopping(e.cfg.node.Grace)
	})
	defer release()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	e.mu.Lock()
	e.stop = stop
	e.mu.Unlock()
	defer e.hangup(ctx)()
	stopOps, err := e.openOps()
	if err != nil {
		return err
	}
	defer stopOps()
	if err := e.writePoints(); err != nil {
		return err
	}
	beat, stopBeat := context.WithCancel(context.WithoutCancel(parent))
	beating := make(chan struct{})
	go func() { defer close(beating); e.pulse.Run(beat) }()
	defer func() { stopBeat(); <-beating }()

	err = e.node.Run(ctx)
	if rerr := e.dir.RemoveEndpoints(); rerr != nil && err == nil {
		e.log.Warn("endpoints.json could not be removed", zap.Error(rerr))
	}
	if err == nil {
		e.log.Info("stopped")
	}
	return err
}

// stopNow stops the node in order, as a signal does.
func (e *engine) stopNow(reason string) {
	e.mu.Lock()
	stop := e.stop
	e.mu.Unlock()
	e.log.Info("stopping", zap.String("reason", reason), zap.Duration("grace", e.cfg.node.Grace))
	e.pulse.Stopping(e.cfg.node.Grace)
	if stop != nil {
		stop()
	}
}

// openOps binds the ops listener and serves it until the returned function is
// called.
func (e *engine) openOps() (stop func(), err error) {
	if e.opsLn, err = net.Listen("tcp", e.cfg.ops.Listen); err != nil {
		return nil, taken(listener{"ops.listen", e.cfg.ops.Listen}, err)
	}
	e.node.Bound("ops", e.opsLn.Addr().String())
	e.points.Ops = e.opsLn.Addr().String()
	srv := obs.Server(e.ops)
	srv.ErrorLog = zap.NewStdLog(e.log.Named("ops").WithOptions(zap.IncreaseLevel(zap.ErrorLevel)))
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := srv.Serve(e.opsLn); !errors.Is(err, http.ErrServerClosed) {
			e.log.Error("the ops listener ended", zap.Error(err))
		}
	}()
	return func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if srv.Shutdown(ctx) != nil {
			_ = srv.Close()
		}
		<-done
	}, nil
}

// hangup answers a service manager that wants the configuration read again. On
// a terminal the signal means something else; see untilSignal.
func (e *engine) hangup(ctx context.Context) (release func()) {
	if isTerminal() {
		return func() {}
	}
	ch := make(chan os.Signal, 1)
	signal.Notify(ch, syscall.SIGHUP)
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-ch:
				e.log.Info("the configuration is read at start only; nothing was reloaded")
			case <-done:
				return
			case <-ctx.Done():
				return
			}
		}
	}()
	return func() { signal.Stop(ch); close(done); <-ended }
}

// changed follows the node's state: the endpoints file, systemd, and the
// banner once it serves.
func (e *engine) changed(n control.Node) {
	e.mu.Lock()
	e.points.Public, e.points.PublicTLS, e.points.Ops, e.points.Internal = n.Public, n.PublicTLS, n.Ops, n.Internal
	e.mu.Unlock()
	switch n.State {
	case control.Starting:
		e.pulse.Status("starting")
	case control.Draining:
		e.pulse.Stopping(e.cfg.node.Grace)
	}
	if n.State != control.Draining {
		if err := e.writePoints(); err != nil {
			e.log.Error("endpoints.json could not be written; commands on this machine do not find the node", zap.Error(err))
		}
	}
	if n.State == control.Serving {
		e.pulse.Ready("ready, public " + n.Public + ", ops " + n.Ops)
		e.greet()
	}
}

func (e *engine) writePoints() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.dir.WriteEndpoints(e.points)
}

// newEngine puts a command's configuration into an engine.
func newEngine(a *app, cfg *loaded) *engine { return &engine{app: a, cfg: cfg} }
