package peers

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect/v2"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/balance"
	"github.com/imdhq/imd/pkg/control"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/module"
	"github.com/imdhq/imd/pkg/obs"
	"github.com/imdhq/imd/pkg/peer"
	"github.com/imdhq/imd/pkg/peer/pipe"
	"github.com/imdhq/imd/pkg/peer/seal"
	"github.com/imdhq/imd/pkg/rpc"
	"github.com/imdhq/imd/pkg/settings"
	"github.com/imdhq/imd/pkg/trace"
)

const (
	// maxRequest is the largest call in bytes.
	maxRequest = 8 << 20
	// maxInFlight is how many calls are answered at once.
	maxInFlight = 1024
	// closeLimit is how long open calls may take once the node stops.
	closeLimit = 1500 * time.Millisecond
	// bodyLimit is how long the body of a call may take to arrive.
	bodyLimit = 2 * time.Second
	// livesLimit is how long another node may take to show that it is there.
	livesLimit = 500 * time.Millisecond
	// idleLimit is longer than callers keep idle connections, so that they close
	// them and no call meets a closing one.
	idleLimit = 3 * time.Minute
)

// Deps is what the module works with.
type Deps struct {
	Log      *zap.Logger
	Reg      prometheus.Registerer
	BootID   string
	Roles    []string // of this node
	Set      *peer.Set
	Control  *control.Handle
	Settings *settings.Live // nil = none
	Announce func(name, address string)
	Cluster  string // its name, in certificates
	Zone     string
	Node     im.NodeID
	Unshared map[string]string // what roles of this node keep for themselves
	Names    NamesOpener
	Trace    *trace.Log // takes spans of calls; nil = none are made
}

// Peers is the module of one node.
type Peers struct {
	cfg Config
	Deps
	ln    net.Listener // nil = nothing is open
	srv   *http.Server
	pipes *pipe.Server
	met   atomic.Bool // those who are needed were there once
	named []*naming   // roles whose nodes come from a naming service

	refused *prometheus.CounterVec // label: reason
}

// New makes the module; it opens nothing.
func New(cfg Config, d Deps) *Peers {
	p := &Peers{cfg: cfg, Deps: d}
	if d.Reg != nil {
		p.refused = newRefused(d.Reg)
	}
	if d.Settings != nil && cfg.Listen != "" {
		d.Settings.Subscribe("peers", p.apply)
	}
	return p
}

// apply takes the settings over. It is a subscriber.
func (p *Peers) apply(_ context.Context, _, now *settings.Snapshot) {
	p.Set.LimitBackups(balance.HedgeLimits{Delay: backupDelay.In(now), Share: backupShare.In(now)})
	for method, s := range pickers {
		p.Set.UsePicker(method, s.In(now))
	}
}

// Start opens the listener for the roles that have announced themselves, and
// begins to know the other nodes.
func (p *Peers) Start(ctx context.Context) error {
	if p.cfg.Listen == "" {
		return nil
	}
	sec, err := p.security()
	if err != nil {
		return &module.ConfigError{Err: err}
	}
	if err := p.alone(ctx, p.Control.View(), time.Time{}); err != nil {
		return err
	}
	if p.ln, err = net.Listen("tcp", p.cfg.Listen); err != nil {
		return fmt.Errorf("peers.listen: %w", err)
	}
	p.Set.Link(peer.Link{BootID: p.BootID, Zone: p.Zone, Points: p.cfg.Points, Security: sec, Reg: p.Reg})
	p.Set.Update(p.Control.View())
	if err := p.places(); err != nil {
		return errors.Join(err, p.Close())
	}
	p.srv = p.server(sec)
	p.ln = limit(p.ln, p.refused)
	addr := p.cfg.Advertise
	if addr == "" {
		addr = p.ln.Addr().String()
	}
	p.Announce("internal", addr)
	return nil
}

// security is how this node proves itself, and believes others.
func (p *Peers) security() (peer.Security, error) {
	warn := func(err error) {
		p.Log.Warn("a file that proves this node to others is bad; the last good one stays in force", obs.Err(err))
	}
	sec := peer.Security{AllowPlaintext: p.cfg.AllowPlaintext, HTTP: p.cfg.Transport == transportHTTP}
	if t := p.cfg.TLS; t.on() {
		var err error
		sec.Certs, err = seal.Load(seal.Files{CA: t.CAFile, Cert: t.CertFile, Key: t.KeyFile}, p.Cluster, time.Now, warn)
		if err != nil {
			return sec, fmt.Errorf("peers.tls: %w", err)
		}
		for _, role := range p.Roles {
			if !slices.Contains(sec.Certs.Roles(), role) {
				return sec, fmt.Errorf("peers.tls.cert_file: the certificate does not name the role %s: it needs the URI %s", role, seal.RoleURI(p.Cluster, role))
			}
		}
		return sec, nil
	}
	if p.cfg.KeyFile != "" {
		keys, err := seal.KeyFile(p.cfg.KeyFile, time.Now, warn)
		if err != nil {
			return sec, fmt.Errorf("peers.key_file: %w", err)
		}
		sec.Keys = keys
		return sec, nil
	}
	sec.Keys = func() [][]byte {
		if s := p.Control.Secret(); s != "" {
			return [][]byte{[]byte(s)}
		}
		return nil
	}
	return sec, nil
}

// server answers the calls of other nodes.
func (p *Peers) server(sec peer.Security) *http.Server {
	calls := rpc.NewServer(rpc.Options{
		Log: p.Log, Metrics: rpc.NewMetrics(p.Reg), Trace: p.Trace, MaxRequest: maxRequest, MaxInFlight: maxInFlight,
		Timeout: func(connect.Spec) time.Duration { return peer.CallTimeout },
		Class: func(s connect.Spec) balance.Class {
			m, _ := peer.MethodOf(s.Procedure)
			return m.Class
		},
	})
	p.Set.Register(calls.Connect())
	mux := http.NewServeMux()
	d := p.door(sec)
	calls.Mount(mux.Handle, d.wrap)
	p.pipes = pipe.NewServer(d.pipes(calls.Connect(), sec))
	mux.Handle(pipe.Path, p.pipes)
	srv := &http.Server{
		Handler: mux, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: idleLimit, MaxHeaderBytes: 16 << 10, Protocols: &http.Protocols{},
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: maxInFlight, SendPingTimeout: 5 * time.Second, PingTimeout: 2 * time.Second,
			MaxReceiveBufferPerConnection: 4 << 20, MaxReceiveBufferPerStream: 1 << 20,
		},
		ErrorLog: zap.NewStdLog(p.Log.WithOptions(zap.IncreaseLevel(zap.ErrorLevel))),
	}
	srv.Protocols.SetHTTP1(true) // pipes begin there
	if sec.Certs != nil {
		srv.Protocols.SetHTTP2(true)
		srv.TLSConfig = sec.Certs.Server()
		return srv
	}
	srv.Protocols.SetUnencryptedHTTP2(true)
	return srv
}

// Run answers, follows the cluster and probes until ctx is done.
func (p *Peers) Run(ctx context.Context) error {
	if p.srv == nil {
		p.byItself(ctx)
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var work sync.WaitGroup
	defer work.Wait()
	ended := make(chan error, 2) // one slot each: a sender never blocks
	work.Go(func() {
		if err := p.follow(ctx); err != nil {
			ended <- err
		}
	})
	work.Go(func() { p.Set.Run(ctx) })
	for _, n := range p.named {
		work.Go(func() { n.run(ctx) })
	}
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		if err := p.serve(); !errors.Is(err, http.ErrServerClosed) {
			ended <- fmt.Errorf("the internal listener: %w", err)
		}
	}()
	var failed error
	select {
	case failed = <-ended:
		cancel()
	case <-ctx.Done():
	}
	sctx, stop := context.WithTimeout(context.WithoutCancel(ctx), closeLimit)
	defer stop()
	work.Go(func() { p.pipes.Shutdown(sctx) })
	if p.srv.Shutdown(sctx) != nil {
		_ = p.srv.Close() // who still waits is cut off
	}
	<-closed
	return failed
}

// byItself is Run of a node that opens nothing and calls nobody: it tells of
// other nodes that keep the same things for themselves.
func (p *Peers) byItself(ctx context.Context) {
	told := map[im.NodeID]bool{}
	for seen := uint64(0); ctx.Err() == nil; {
		v := p.Control.Settled(ctx, seen, control.Quiet)
		seen = v.Serial
		p.tellOfOthers(v, told)
	}
}

// tellOfOthers warns once of each node, by told, that has a role of this one, if
// what the role keeps is in each process for itself.
func (p *Peers) tellOfOthers(v *control.View, told map[im.NodeID]bool) {
	for _, n := range v.Nodes {
		if n.ID == p.Node || told[n.ID] || n.State == control.Draining {
			continue
		}
		var kept []string
		for _, role := range p.Roles {
			if what := p.Unshared[role]; what != "" && n.Has(role) && !slices.Contains(kept, what) {
				kept = append(kept, what)
			}
		}
		if len(kept) > 0 {
			told[n.ID] = true
			p.Log.Warn("another node of the cluster has the same roles, and each keeps its own; their users do not reach each other at once, or not at all",
				zap.String("peer", string(n.ID)), zap.Strings("kept", kept))
		}
	}
}

func (p *Peers) serve() error {
	if p.srv.TLSConfig != nil {
		return p.srv.ServeTLS(p.ln, "", "")
	}
	return p.srv.Serve(p.ln)
}

// follow takes in who is in the cluster: at once while this node knows nobody,
// and then a wave of changes at a time.
func (p *Peers) follow(ctx context.Context) error {
	var seen uint64
	began := time.Now()
	for ctx.Err() == nil {
		v := p.Control.Settled(ctx, seen, control.Quiet)
		seen = v.Serial
		p.Set.Update(v)
		if self, ok := v.Node(p.Node); ok {
			began = self.Started
		}
		if err := p.alone(ctx, v, began); err != nil {
			return err
		}
	}
	return nil
}

// alone refuses a second node with a role that keeps something where no other
// process can reach it. began is when this node started: of two, the younger one
// goes; zero = it has not started yet.
func (p *Peers) alone(ctx context.Context, v *control.View, began time.Time) error {
	for _, n := range v.Nodes {
		if n.ID == p.Node || n.Internal == "" || n.State == control.Draining || !began.IsZero() && !older(n, began, p.Node) {
			continue
		}
		for _, role := range p.Roles {
			if what := p.Unshared[role]; what != "" && n.Has(role) && lives(ctx, n) {
				return module.Configf("node %s has the role %s too, but %s cannot be shared by two processes; run one node with the role, or take a store that processes share", n.ID, role, what)
			}
		}
	}
	return nil
}

// older reports whether n started before the node id did.
func older(n control.Node, began time.Time, id im.NodeID) bool {
	return n.Started.Before(began) || n.Started.Equal(began) && n.ID < id
}

// lives reports whether the process of a record is there.
func lives(ctx context.Context, n control.Node) bool {
	ctx, cancel := context.WithTimeout(ctx, livesLimit)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+n.Ops+"/livez", nil)
	if err != nil {
		return false
	}
	t := &http.Transport{DisableKeepAlives: true} // no Proxy: variables of the environment are ignored
	res, err := t.RoundTrip(r)
	if err != nil {
		return false
	}
	_ = res.Body.Close()
	return res.Header.Get(control.BootHeader) == n.BootID
}

// ready is the readiness check: a gateway without anybody who stores messages
// serves nobody. A node that was ready stays so: its clients would find no better
// one.
func (p *Peers) ready(context.Context) module.Status {
	if p.srv == nil || !slices.Contains(p.Roles, "gateway") || p.Set.Reaches("state") {
		p.met.Store(true)
		return module.Status{Ready: true}
	}
	reason := "no state node can be reached"
	if why := p.Set.Trouble("state"); why != "" {
		reason += ": " + why
	}
	return module.Status{Ready: p.met.Load(), Degraded: true, Reason: reason}
}

// Drain does nothing: others still call what is left here.
func (p *Peers) Drain(context.Context) error { return nil }

// Close ends the listener and all connections.
func (p *Peers) Close() error {
	p.Set.Close()
	if p.ln == nil {
		return nil
	}
	var errs []error
	for _, n := range p.named {
		errs = append(errs, n.names.Close())
	}
	if err := p.ln.Close(); !errors.Is(err, net.ErrClosed) {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
