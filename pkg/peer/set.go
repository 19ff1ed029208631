package peer

import (
	"context"
	"sync/atomic"

	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/im"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
	"github.com/imdhq/imd/proto/gen/internalv1/internalv1connect"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// Set is the clients of one process. Roles in this process announce their
// handlers with the Serve methods; until then calls answer unavailable. Safe
// for concurrent use.
type Set struct {
	node   im.NodeID
	log    *zap.Logger
	parity bool

	state     atomic.Pointer[internalv1connect.StateServiceHandler]
	directory atomic.Pointer[internalv1connect.DirectoryServiceHandler]
	push      atomic.Pointer[internalv1connect.PushServiceHandler]
	gateway   atomic.Pointer[internalv1connect.GatewayServiceHandler]
}

// Option changes a Set.
type Option func(*Set)

// WithParity makes direct calls copy what they carry and check that handlers
// leave requests alone. For tests.
func WithParity() Option { return func(s *Set) { s.parity = true } }

// NewSet makes the clients of the node.
func NewSet(node im.NodeID, log *zap.Logger, opts ...Option) *Set {
	s := &Set{node: node, log: log}
	for _, o := range opts {
		o(s)
	}
	return s
}

func (s *Set) panicked(op string, p any) {
	s.log.Error("a call between roles panicked", zap.String("op", op), zap.Any("panic", p), zap.Stack("stack"))
}

// ServeState announces the state role of this process.
func (s *Set) ServeState(h internalv1connect.StateServiceHandler) { s.state.Store(&h) }

// ServeDirectory announces the directory of this process's state role.
func (s *Set) ServeDirectory(h internalv1connect.DirectoryServiceHandler) { s.directory.Store(&h) }

// ServePush announces the push role of this process.
func (s *Set) ServePush(h internalv1connect.PushServiceHandler) { s.push.Store(&h) }

// ServeGateway announces the gateway role of this process.
func (s *Set) ServeGateway(h internalv1connect.GatewayServiceHandler) { s.gateway.Store(&h) }

// State is the state role, picked per call by the hash of the conversation (of
// the user for Heads).
func (s *Set) State() internalv1connect.StateServiceClient { return stateClient{s} }

// Directory is the directory of the state role.
func (s *Set) Directory() internalv1connect.DirectoryServiceClient { return directoryClient{s} }

// Push is the push role, picked per call by the hash of the conversation, so
// that live order holds.
func (s *Set) Push() internalv1connect.PushServiceClient { return pushClient{s} }

// Gateway is the gateway role of one node.
func (s *Set) Gateway(node im.NodeID) internalv1connect.GatewayServiceClient {
	return gatewayClient{s, node}
}

func absent(op, role string) error {
	return im.Errorf(clientv1.Reason_REASON_UNAVAILABLE, op, "no %s node can be reached", role)
}

// local finds the handler announced under p and calls one method of it.
func local[H, Req, Res any](ctx context.Context, s *Set, p *atomic.Pointer[H], role, op string,
	method func(H) func(context.Context, *Req) (*Res, error), req *Req) (*Res, error) {
	h := p.Load()
	if h == nil {
		return nil, absent(op, role)
	}
	return call(ctx, s, op, method(*h), req)
}

type stateClient struct{ s *Set }

func stateCall[Req, Res any](ctx context.Context, s *Set, op string,
	m func(internalv1connect.StateServiceHandler) func(context.Context, *Req) (*Res, error), req *Req) (*Res, error) {
	return local(ctx, s, &s.state, "state", op, m, req)
}

func (c stateClient) Submit(ctx context.Context, r *v1.SubmitRequest) (*v1.SubmitResponse, error) {
	return stateCall(ctx, c.s, "state.Submit", func(h internalv1connect.StateServiceHandler) func(context.Context, *v1.SubmitRequest) (*v1.SubmitResponse, error) {
		return h.Submit
	}, r)
}

func (c stateClient) Change(ctx context.Context, r *v1.ChangeRequest) (*v1.ChangeResponse, error) {
	return stateCall(ctx, c.s, "state.Change", func(h internalv1connect.StateServiceHandler) func(context.Context, *v1.ChangeRequest) (*v1.ChangeResponse, error) {
		return h.Change
	}, r)
}

func (c stateClient) Mark(ctx context.Context, r *v1.MarkRequest) (*v1.MarkResponse, error) {
	return stateCall(ctx, c.s, "state.Mark", func(h internalv1connect.StateServiceHandler) func(context.Context, *v1.MarkRequest) (*v1.MarkResponse, error) {
		return h.Mark
	}, r)
}

func (c stateClient) Sync(ctx context.Context, r *v1.SyncRequest) (*v1.SyncResponse, error) {
	return stateCall(ctx, c.s, "state.Sync", func(h internalv1connect.StateServiceHandler) func(context.Context, *v1.SyncRequest) (*v1.SyncResponse, error) {
		return h.Sync
	}, r)
}

func (c stateClient) History(ctx context.Context, r *v1.HistoryRequest) (*v1.HistoryResponse, error) {
	return stateCall(ctx, c.s, "state.History", func(h internalv1connect.StateServiceHandler) func(context.Context, *v1.HistoryRequest) (*v1.HistoryResponse, error) {
		return h.History
	}, r)
}

func (c stateClient) Members(ctx context.Context, r *v1.MembersRequest) (*v1.MembersResponse, error) {
	return stateCall(ctx, c.s, "state.Members", func(h internalv1connect.StateServiceHandler) func(context.Context, *v1.MembersRequest) (*v1.MembersResponse, error) {
		return h.Members
	}, r)
}

func (c stateClient) Heads(ctx context.Context, r *v1.HeadsRequest) (*v1.HeadsResponse, error) {
	return stateCall(ctx, c.s, "state.Heads", func(h internalv1connect.StateServiceHandler) func(context.Context, *v1.HeadsRequest) (*v1.HeadsResponse, error) {
		return h.Heads
	}, r)
}

func (c stateClient) ClearHistory(ctx context.Context, r *v1.ClearHistoryRequest) (*v1.ClearHistoryResponse, error) {
	return stateCall(ctx, c.s, "state.ClearHistory", func(h internalv1connect.StateServiceHandler) func(context.Context, *v1.ClearHistoryRequest) (*v1.ClearHistoryResponse, error) {
		return h.ClearHistory
	}, r)
}

func (c stateClient) Health(ctx context.Context, r *v1.HealthRequest) (*v1.HealthResponse, error) {
	return stateCall(ctx, c.s, "state.Health", func(h internalv1connect.StateServiceHandler) func(context.Context, *v1.HealthRequest) (*v1.HealthResponse, error) {
		return h.Health
	}, r)
}

type directoryClient struct{ s *Set }

func directoryCall[Req, Res any](ctx context.Context, s *Set, op string,
	m func(internalv1connect.DirectoryServiceHandler) func(context.Context, *Req) (*Res, error), req *Req) (*Res, error) {
	return local(ctx, s, &s.directory, "state", op, m, req)
}

func (c directoryClient) User(ctx context.Context, r *v1.UserRequest) (*v1.UserResponse, error) {
	return directoryCall(ctx, c.s, "directory.User", func(h internalv1connect.DirectoryServiceHandler) func(context.Context, *v1.UserRequest) (*v1.UserResponse, error) {
		return h.User
	}, r)
}

func (c directoryClient) SetUser(ctx context.Context, r *v1.SetUserRequest) (*v1.SetUserResponse, error) {
	return directoryCall(ctx, c.s, "directory.SetUser", func(h internalv1connect.DirectoryServiceHandler) func(context.Context, *v1.SetUserRequest) (*v1.SetUserResponse, error) {
		return h.SetUser
	}, r)
}

func (c directoryClient) SetBlock(ctx context.Context, r *v1.SetBlockRequest) (*v1.SetBlockResponse, error) {
	return directoryCall(ctx, c.s, "directory.SetBlock", func(h internalv1connect.DirectoryServiceHandler) func(context.Context, *v1.SetBlockRequest) (*v1.SetBlockResponse, error) {
		return h.SetBlock
	}, r)
}

func (c directoryClient) Admit(ctx context.Context, r *v1.AdmitRequest) (*v1.AdmitResponse, error) {
	return directoryCall(ctx, c.s, "directory.Admit", func(h internalv1connect.DirectoryServiceHandler) func(context.Context, *v1.AdmitRequest) (*v1.AdmitResponse, error) {
		return h.Admit
	}, r)
}

func (c directoryClient) Revoke(ctx context.Context, r *v1.RevokeRequest) (*v1.RevokeResponse, error) {
	return directoryCall(ctx, c.s, "directory.Revoke", func(h internalv1connect.DirectoryServiceHandler) func(context.Context, *v1.RevokeRequest) (*v1.RevokeResponse, error) {
		return h.Revoke
	}, r)
}

func (c directoryClient) PutKey(ctx context.Context, r *v1.PutKeyRequest) (*v1.PutKeyResponse, error) {
	return directoryCall(ctx, c.s, "directory.PutKey", func(h internalv1connect.DirectoryServiceHandler) func(context.Context, *v1.PutKeyRequest) (*v1.PutKeyResponse, error) {
		return h.PutKey
	}, r)
}

func (c directoryClient) Keys(ctx context.Context, r *v1.KeysRequest) (*v1.KeysResponse, error) {
	return directoryCall(ctx, c.s, "directory.Keys", func(h internalv1connect.DirectoryServiceHandler) func(context.Context, *v1.KeysRequest) (*v1.KeysResponse, error) {
		return h.Keys
	}, r)
}

type pushClient struct{ s *Set }

func (c pushClient) Fanout(ctx context.Context, r *v1.FanoutRequest) (*v1.FanoutResponse, error) {
	return local(ctx, c.s, &c.s.push, "push", "push.Fanout", func(h internalv1connect.PushServiceHandler) func(context.Context, *v1.FanoutRequest) (*v1.FanoutResponse, error) {
		return h.Fanout
	}, r)
}

type gatewayClient struct {
	s    *Set
	node im.NodeID
}

func (c gatewayClient) Deliver(ctx context.Context, r *v1.DeliverRequest) (*v1.DeliverResponse, error) {
	if c.node != c.s.node {
		return nil, absent("gateway.Deliver", "gateway")
	}
	return local(ctx, c.s, &c.s.gateway, "gateway", "gateway.Deliver", func(h internalv1connect.GatewayServiceHandler) func(context.Context, *v1.DeliverRequest) (*v1.DeliverResponse, error) {
		return h.Deliver
	}, r)
}

func (c gatewayClient) Kick(ctx context.Context, r *v1.KickRequest) (*v1.KickResponse, error) {
	if c.node != c.s.node {
		return nil, absent("gateway.Kick", "gateway")
	}
	return local(ctx, c.s, &c.s.gateway, "gateway", "gateway.Kick", func(h internalv1connect.GatewayServiceHandler) func(context.Context, *v1.KickRequest) (*v1.KickResponse, error) {
		return h.Kick
	}, r)
}
