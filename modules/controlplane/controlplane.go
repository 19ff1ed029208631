package controlplane

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/backoff"
	"github.com/imdhq/imd/pkg/control"
	"github.com/imdhq/imd/pkg/control/relay"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/module"
	"github.com/imdhq/imd/pkg/settings"
)

// loadLimit is how long the start waits for the first answer.
const loadLimit = 5 * time.Second

// pauses are between attempts to read from the embedded server.
var pauses = backoff.Policy{Base: 100 * time.Millisecond, Max: time.Second}

// Deps is what the module works with.
type Deps struct {
	Open    Opener
	Node    im.NodeID
	DataDir string
	Handle  *control.Handle
	// Settings are fed by the driver, remembered in the data folder and told to
	// their subscribers; nil = none.
	Settings *settings.Live
	Log      *zap.Logger
	Stop     func(reason string) // stops this process in order
}

// ControlPlane is the control plane of one node.
type ControlPlane struct {
	cfg Config
	Deps

	mu    sync.Mutex
	plane Plane        // nil before Start and after Close
	node  control.Node // announced last

	relay *relay.Client // nil unless the node gets the records from others
}

var _ module.Announcer = (*ControlPlane)(nil)

// New makes the module; it opens nothing.
func New(cfg Config, d Deps) *ControlPlane {
	c := &ControlPlane{cfg: cfg, Deps: d}
	if d.Settings != nil {
		d.Settings.Subscribe("log", c.logSettings)
		d.Settings.Subscribe("memory", c.keepSettings)
	}
	return c
}

// Start opens the control plane and reads the cluster once. Endpoints that do
// not answer do not fail it: the node begins with what was known before, if
// anything was, and becomes ready when etcd is there. Endpoints that refuse the
// node's name or certificate do fail it.
func (c *ControlPlane) Start(ctx context.Context) error {
	o := OpenOptions{
		Config: c.cfg, Node: c.Node, DataDir: c.DataDir, Publish: c.Handle.SetView, PublishLeaders: c.Handle.SetLeaders,
		Settings: c.Settings, Drain: c.drain, Log: c.Log,
	}
	if c.cfg.Watch == Relayed {
		c.relay = relay.NewClient(c.Node, c.Handle.View, c.secret)
		o.Upstream = c.relay
	}
	p, err := c.Open(ctx, o)
	if err != nil {
		return err
	}
	c.recallSettings()
	if err := c.load(ctx, p); err != nil {
		return errors.Join(err, p.Close())
	}
	c.mu.Lock()
	c.plane = p
	c.mu.Unlock()
	c.Handle.SetWorkers(p)
	c.Handle.SetOperator(p)
	c.Handle.SetElector(p)
	c.Handle.SetLocker(p)
	c.Handle.SetSecret(c.secret)
	return nil
}

// drain obeys an operator.
func (c *ControlPlane) drain(reason string) {
	c.Log.Info("an operator wants this node to stop", zap.String("reason", reason))
	c.Stop(reason)
}

// source is what other nodes are answered from.
func (c *ControlPlane) source() (relay.Source, bool) {
	p, ok := c.opened()
	return p, ok
}

func (c *ControlPlane) secret() string {
	if p, ok := c.opened(); ok {
		return p.Secret()
	}
	return ""
}

// load reads the cluster. The embedded server has just started and must answer;
// endpoints may come later.
func (c *ControlPlane) load(ctx context.Context, p Plane) error {
	ctx, cancel := context.WithTimeout(ctx, loadLimit)
	defer cancel()
	for attempt := 0; ; attempt++ {
		err := p.Load(ctx)
		var refused *control.RefusedError
		var away *control.AwayError
		switch {
		case err == nil:
			return nil
		case errors.As(err, &refused):
			return &module.ConfigError{Err: fmt.Errorf("%w; see controlplane.username, password and tls", err)}
		case errors.As(err, &away) && len(c.cfg.Endpoints) > 0:
			c.Log.Warn("etcd cannot be reached; going on without it and trying again", zap.Strings("endpoints", c.cfg.Endpoints),
				zap.Bool("nodes_known", away.Known), zap.Error(err))
			return nil
		}
		if pauses.Sleep(ctx, attempt) != nil {
			return err
		}
	}
}

// Announce writes what the record of this node says, with the zone and the
// weight of the configuration. It returns when etcd has it or ctx ends; then
// the record follows when etcd is back. A *control.TakenError says that another
// living process has the node's id.
func (c *ControlPlane) Announce(ctx context.Context, n control.Node) error {
	n.Zone, n.Weight = c.cfg.Zone, c.cfg.Weight
	n.Relay = c.cfg.Watch == Direct && len(c.cfg.Endpoints) > 0
	p, ok := c.opened()
	if !ok {
		return errors.New("controlplane: not started")
	}
	c.mu.Lock()
	c.node = n
	c.mu.Unlock()
	return p.Announce(ctx, n)
}

// Run keeps the registration and the view. It returns early only if the
// embedded server ended by itself.
func (c *ControlPlane) Run(ctx context.Context) error {
	p, ok := c.opened()
	if !ok {
		return errors.New("controlplane: not started")
	}
	var told sync.WaitGroup
	tell, stop := context.WithCancel(ctx)
	told.Go(func() { c.tell(tell) })
	if c.Settings != nil {
		told.Go(func() { c.Settings.Run(tell) })
	}
	defer told.Wait()
	defer stop()
	return p.Run(ctx)
}

// Drain has nothing to do: Run gives up the lease when it ends, which is after
// all modules that start later.
func (c *ControlPlane) Drain(context.Context) error { return nil }

// Close frees the control plane; the last view stays readable.
func (c *ControlPlane) Close() error {
	c.mu.Lock()
	p := c.plane
	c.plane = nil
	c.mu.Unlock()
	if c.relay != nil {
		c.relay.Close()
	}
	if p == nil {
		return nil
	}
	return p.Close()
}

func (c *ControlPlane) opened() (Plane, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.plane, c.plane != nil
}

// termEnded is Plane's TermEnded.
func (c *ControlPlane) termEnded(name string) <-chan struct{} {
	p, ok := c.opened()
	if !ok {
		return nil
	}
	return p.TermEnded(name)
}

// record is what was announced last.
func (c *ControlPlane) record() control.Node {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.node
}

func (c *ControlPlane) stats() (control.Stats, bool) {
	p, ok := c.opened()
	if !ok {
		return control.Stats{}, false
	}
	return p.Stats(), true
}

// cordon is why an operator keeps new work away from this node; "" = nobody does.
func (c *ControlPlane) cordon() string {
	n, _ := c.Handle.View().Node(c.Node)
	return n.Cordon
}

// ready is the readiness check. A node that has seen the cluster never becomes
// unready by the absence of etcd: it serves from what it last knew.
func (c *ControlPlane) ready(context.Context) module.Status {
	s, ok := c.stats()
	view := c.Handle.View()
	switch {
	case !ok:
		return module.Status{Reason: "the control plane is not open"}
	case view.Stale && view.Revision == 0:
		return module.Status{Reason: fmt.Sprintf("etcd at %s cannot be reached (%s), and no nodes are known from before", strings.Join(c.cfg.Endpoints, ", "), s.Trouble)}
	case view.Stale && s.Heard.IsZero():
		return module.Status{Ready: true, Degraded: true,
			Reason: fmt.Sprintf("etcd at %s cannot be reached (%s); serving from the nodes known before this start", strings.Join(c.cfg.Endpoints, ", "), s.Trouble)}
	case view.Stale:
		return module.Status{Ready: true, Degraded: true,
			Reason: fmt.Sprintf("etcd has not answered for %v; serving from the last view", time.Since(s.Heard).Round(time.Second))}
	case c.record().State == control.Serving && c.cordon() != "":
		return module.Status{Reason: "an operator keeps new work away: " + c.cordon()}
	case !s.Registered && c.record().ID != "":
		return module.Status{Ready: true, Degraded: true, Reason: "this node is not registered at the moment"}
	}
	return module.Status{Ready: true}
}
