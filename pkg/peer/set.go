package peer

import (
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/control"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/trace"
	"github.com/imdhq/imd/proto/gen/internalv1/internalv1connect"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// Set is the clients of one process. Roles in this process announce their
// handlers with the Serve methods; other processes are called after Link. A role
// that can be reached nowhere answers unavailable. Safe for concurrent use.
type Set struct {
	node   im.NodeID
	log    *zap.Logger
	parity bool

	attempt, whole time.Duration // what one attempt of a call and the call take at most

	state     service[internalv1connect.StateServiceHandler]
	directory service[internalv1connect.DirectoryServiceHandler]
	push      service[internalv1connect.PushServiceHandler]
	gateway   service[internalv1connect.GatewayServiceHandler]

	metrics *metrics // nil without Link
	link    Link
	others  atomic.Pointer[map[im.NodeID]*place] // other processes, whatever their state

	mu     sync.Mutex // of Update
	view   *control.View
	placed map[string][]control.Node // roles that do not come from the registry

	trace *trace.Log // what is remembered of messages; nil = nothing
	tally counting
}

// handler holds the handler of a service in this process.
type handler[H any] struct{ p atomic.Pointer[H] }

// Load gives the handler; nil before it was announced.
func (h *handler[H]) Load() *H { return h.p.Load() }

// Store announces the handler.
func (h *handler[H]) Store(v H) { h.p.Store(&v) }

// Option changes a Set.
type Option func(*Set)

// WithParity makes direct calls copy what they carry and check that handlers
// leave requests alone. For tests.
func WithParity() Option { return func(s *Set) { s.parity = true } }

// WithPatience gives calls and each of their attempts that time. For tests that are
// about other things than time, on machines that may stand still.
func WithPatience(d time.Duration) Option { return func(s *Set) { s.attempt, s.whole = d, d } }

// The roles that are called.
const (
	roleState   = "state"
	rolePush    = "push"
	roleGateway = "gateway"
)

// NewSet makes the clients of the node.
func NewSet(node im.NodeID, log *zap.Logger, opts ...Option) *Set {
	s := &Set{node: node, log: log, attempt: AttemptTimeout, whole: CallTimeout}
	state := newGroup(roleState)
	s.state.group, s.directory.group = state, state
	s.push.group, s.gateway.group = newGroup(rolePush), newGroup(roleGateway)
	s.state.at = func(r *remote) internalv1connect.StateServiceHandler { return r.state }
	s.directory.at = func(r *remote) internalv1connect.DirectoryServiceHandler { return r.directory }
	s.push.at = func(r *remote) internalv1connect.PushServiceHandler { return r.push }
	s.gateway.at = func(r *remote) internalv1connect.GatewayServiceHandler { return r.gateway }
	for _, o := range opts {
		o(s)
	}
	return s
}

func (s *Set) groups() []*group { return []*group{s.state.group, s.push.group, s.gateway.group} }

func (s *Set) panicked(op string, p any) {
	s.log.Error("a call between roles panicked", zap.String("op", op), zap.Any("panic", p), zap.Stack("stack"))
}

// ServeState announces the state role of this process.
func (s *Set) ServeState(h internalv1connect.StateServiceHandler) { s.state.local.Store(h) }

// ServeDirectory announces the directory of this process's state role.
func (s *Set) ServeDirectory(h internalv1connect.DirectoryServiceHandler) { s.directory.local.Store(h) }

// ServePush announces the push role of this process.
func (s *Set) ServePush(h internalv1connect.PushServiceHandler) { s.push.local.Store(h) }

// ServeGateway announces the gateway role of this process.
func (s *Set) ServeGateway(h internalv1connect.GatewayServiceHandler) { s.gateway.local.Store(h) }

// State is the state role, picked per call; see Methods.
func (s *Set) State() internalv1connect.StateServiceClient { return stateClient{s} }

// Directory is the directory of the state role.
func (s *Set) Directory() internalv1connect.DirectoryServiceClient { return directoryClient{s} }

// Push is the push role, picked per call by the hash of the conversation of the
// first item, so that live order holds.
func (s *Set) Push() internalv1connect.PushServiceClient { return pushClient{s} }

// Gateway is the gateway role of one node.
func (s *Set) Gateway(node im.NodeID) internalv1connect.GatewayServiceClient {
	return gatewayClient{s, node}
}

// StateHome names the node that now orders the conversation, so that what goes
// to one node can go in one call; "" = this process, or nobody.
func (s *Set) StateHome(conv string) im.NodeID { return s.state.group.homeOf(shardKey(conv)) }

// PushHome names the node that now fans out the conversation; "" = this process,
// or nobody.
func (s *Set) PushHome(conv string) im.NodeID { return s.push.group.homeOf(conv) }

func (g *group) homeOf(conv string) im.NodeID {
	if g.alone.Load() {
		return ""
	}
	return im.NodeID(g.home(conv))
}

func absent(op, role string) error {
	return im.Errorf(clientv1.Reason_REASON_UNAVAILABLE, op, "no %s node can be reached", role)
}
