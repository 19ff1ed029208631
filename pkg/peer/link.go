package peer

import (
	"context"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect/v2"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/balance"
	"github.com/imdhq/imd/pkg/control"
	"github.com/imdhq/imd/pkg/im"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
	"github.com/imdhq/imd/proto/gen/internalv1/internalv1connect"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

const (
	// probeTimeout is how long a node may take to say that it works.
	probeTimeout = 400 * time.Millisecond
	// probeEvery is how long a node may be silent before it is asked.
	probeEvery = 5 * time.Second
	// probeTick is how often it is looked who is to be asked.
	probeTick = 50 * time.Millisecond
	// maxTold is of how many nodes it is told why they cannot be reached.
	maxTold = 3
)

// Link is what calls to other processes need.
type Link struct {
	BootID string
	Zone   string
	Points int // of the rings, for a node of weight 1; 0 = ring.DefaultPoints
	Security
	Reg prometheus.Registerer
}

// Link lets the Set call other processes, those that Update names. Once, before
// any of them is called.
func (s *Set) Link(l Link) {
	s.link = l
	s.metrics = newMetrics(l.Reg, s)
	s.view = &control.View{}
	for _, g := range s.groups() {
		g.zone = l.Zone
	}
}

// Points is how many points a node of weight 1 has on the rings, 0 =
// ring.DefaultPoints; for those who make the ring of a view themselves.
func (s *Set) Points() int { return s.link.Points }

// Update takes in who is in the cluster. Nodes that are gone get no new calls;
// what is in flight with them may end. Without Link it does nothing.
func (s *Set) Update(v *control.View) {
	if s.metrics == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.update(v)
}

// SetPlace says where the nodes of a role are, whatever the registry says.
// Without Link it does nothing.
func (s *Set) SetPlace(role string, nodes []control.Node) {
	if s.metrics == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.placed == nil {
		s.placed = map[string][]control.Node{}
	}
	s.placed[role] = nodes
	s.update(s.view)
}

// update is Update; the lock is held.
func (s *Set) update(v *control.View) {
	s.view = v
	nodes := slices.Clone(v.Nodes)
	for _, all := range s.placed {
		nodes = append(nodes, all...)
	}
	old := map[im.NodeID]*place{}
	if p := s.others.Load(); p != nil {
		old = *p
	}
	others := make(map[im.NodeID]*place, len(nodes))
	for _, n := range nodes {
		if n.ID == s.node || others[n.ID] != nil || !s.link.reaches(n.Internal) {
			continue
		}
		if o := old[n.ID]; o != nil && o.remote.same(n) {
			others[n.ID] = &place{n, o.remote}
			continue
		}
		others[n.ID] = &place{n, newRemote(n, s.link.Security)}
	}
	s.others.Store(&others)
	for _, g := range s.groups() {
		list := v.With(g.role)
		if placed, ok := s.placed[g.role]; ok {
			list = placed
		}
		g.set(s.places(list, others), s.link.Points)
	}
	for id, o := range old {
		if n := others[id]; n == nil || n.remote != o.remote {
			o.remote.retire()
			s.metrics.forget(string(id))
		}
	}
}

// reaches reports whether the address may be called: in the clear only on this
// machine.
func (l Link) reaches(addr string) bool {
	if l.Certs != nil || l.AllowPlaintext {
		return addr != ""
	}
	host, _, err := net.SplitHostPort(addr)
	ip := net.ParseIP(host)
	return err == nil && (host == "localhost" || ip != nil && ip.IsLoopback())
}

// Reaches reports whether a node with the role, this one included, gets calls and
// has answered one.
func (s *Set) Reaches(role string) bool {
	for _, g := range s.groups() {
		if g.role == role {
			return g.answers()
		}
	}
	return false
}

// Trouble says of a role why its nodes cannot be reached, as far as calls and
// probes tell; "" = they tell nothing.
func (s *Set) Trouble(role string) string {
	var all []string
	for _, g := range s.groups() {
		if g.role != role {
			continue
		}
		g.mu.Lock()
		for _, p := range g.places {
			if p.remote != nil {
				if why := p.remote.ails(); why != "" {
					all = append(all, p.id()+": "+why)
				}
			}
		}
		g.mu.Unlock()
	}
	return strings.Join(all[:min(len(all), maxTold)], "; ")
}

func (g *group) answers() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.ContainsFunc(g.places, func(p *place) bool {
		return p.remote == nil || p.remote.answered.Load() && g.eject.Usable(p.id())
	})
}

// places are the nodes of a role that can be called.
func (s *Set) places(list []control.Node, others map[im.NodeID]*place) []*place {
	var out []*place
	for _, n := range list {
		if n.ID == s.node {
			out = append(out, &place{node: n})
		} else if p := others[n.ID]; p != nil {
			out = append(out, p)
		}
	}
	return out
}

// reach finds another process by its node; nil = it is not known.
func (s *Set) reach(node im.NodeID) *place {
	if p := s.others.Load(); p != nil {
		return (*p)[node]
	}
	return nil
}

// UsePicker makes a method choose its nodes in another way; picker is one of
// balance.Names.
func (s *Set) UsePicker(method, picker string) {
	for _, g := range s.groups() {
		g.use(method, picker)
	}
}

// LimitBackups bounds the backup requests of this process from now on.
func (s *Set) LimitBackups(l balance.HedgeLimits) {
	for _, g := range s.groups() {
		g.bound(l)
	}
}

// Run probes nodes until ctx is done: those that were left out and may come
// back, and those of which nothing was heard.
func (s *Set) Run(ctx context.Context) {
	var probes sync.WaitGroup
	defer probes.Wait()
	tick := time.NewTicker(probeTick)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			for _, g := range s.groups() {
				for _, p := range g.due(now) {
					probes.Go(func() { s.probe(ctx, g, p) })
				}
			}
		}
	}
}

// Close lets go of all connections.
func (s *Set) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.others.Swap(nil); p != nil {
		for _, o := range *p {
			o.remote.retire()
		}
	}
}

func (s *Set) probe(ctx context.Context, g *group, p *place) {
	pctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	begin := time.Now()
	_, err := p.remote.peer.Check(pctx, &v1.CheckRequest{Role: g.role})
	took := time.Since(begin)
	o := outcome(ctx, err)
	p.remote.learn(o, err)
	if g.report(p, peerCheck, o, took, time.Now()) {
		s.ejected(g, p, err)
	}
	s.metrics.answered(p, peerCheck, took, err)
}

// ejected tells that a node gets no calls for a while.
func (s *Set) ejected(g *group, p *place, err error) {
	s.metrics.ejected(p)
	s.log.Warn("a node is left out until it answers a probe", zap.String("peer", p.id()), zap.String("role", g.role), zap.Error(err))
}

// checker answers probes of other nodes.
type checker struct{ s *Set }

// Check tells whether a role of this process works; see PeerService.
func (c checker) Check(ctx context.Context, r *v1.CheckRequest) (*v1.CheckResponse, error) {
	here := false
	switch r.Role {
	case roleState:
		if h := c.s.state.local.Load(); h != nil {
			if _, err := (*h).Health(ctx, &v1.HealthRequest{}); err != nil {
				return nil, err
			}
			here = true
		}
	case rolePush:
		here = c.s.push.local.Load() != nil
	case roleGateway:
		here = c.s.gateway.local.Load() != nil
	}
	if !here {
		return nil, im.Errorf(clientv1.Reason_REASON_UNAVAILABLE, "peer.Check", "the role %.20q is not here", r.Role)
	}
	return &v1.CheckResponse{NodeId: string(c.s.node), BootId: c.s.link.BootID}, nil
}

// Register puts the services of this process's roles on a server of the internal
// listener. After all roles have announced themselves.
func (s *Set) Register(srv *connect.Server) {
	internalv1connect.RegisterPeerServiceHandler(srv, checker{s})
	if h := s.state.local.Load(); h != nil {
		internalv1connect.RegisterStateServiceHandler(srv, *h)
	}
	if h := s.directory.local.Load(); h != nil {
		internalv1connect.RegisterDirectoryServiceHandler(srv, *h)
	}
	if h := s.push.local.Load(); h != nil {
		internalv1connect.RegisterPushServiceHandler(srv, *h)
	}
	if h := s.gateway.local.Load(); h != nil {
		internalv1connect.RegisterGatewayServiceHandler(srv, *h)
	}
}
