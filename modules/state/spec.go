package state

import (
	"context"

	"github.com/imdhq/imd/pkg/idgen"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/module"
	"github.com/imdhq/imd/pkg/status"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// Spec declares the state role.
func Spec() module.Spec {
	return module.Spec{
		Name:     "state",
		Role:     true,
		Needs:    []string{"controlplane", "storage", "peers"}, // controlplane: the worker number of the message ids
		Calls:    []string{"push", "gateway"},
		Config:   func() any { c := DefaultConfig(); return &c },
		Settings: declared,
		New: func(env *module.Env) (module.Module, error) {
			cfg := DefaultConfig()
			if err := env.Config("state", &cfg); err != nil {
				return nil, err
			}
			s := New(cfg, Deps{
				Log: env.Log, Reg: env.Reg, Node: env.Node, Store: env.Store.Messages, Dedup: env.Store.Dedup, Push: env.Peers.Push(), PushHome: env.Peers.PushHome,
				Gateway: func(n im.NodeID) gatewayClient { return env.Peers.Gateway(n) },
				View:    env.Control.View, Points: env.Peers.Points, Trace: env.Trace, Tally: env.Tally, Settings: env.Settings,
				IDs: func(ctx context.Context, marks store.Workers) (ids, error) { return startIDs(ctx, env, marks) },
			})
			env.Peers.ServeState(s)
			env.Peers.ServeDirectory(s.Directory())
			env.Ready.Add("lanes", s.ready)
			env.MountOps("GET /statusz/lanes", status.Handler(s.page))
			return s, nil
		},
	}
}

// startIDs takes a worker number for message ids.
func startIDs(ctx context.Context, env *module.Env, marks store.Workers) (ids, error) {
	leaser := env.Control.Workers()
	if leaser == nil {
		return nil, im.Errorf(clientv1.Reason_REASON_UNAVAILABLE, "state.Start", "the control plane has not started")
	}
	both := idgen.Fallback{First: leaser, Then: idgen.StoreLeaser{Numbers: marks, Node: env.Node, Log: env.Log}, Log: env.Log}
	g := idgen.New(idgen.Deps{Leaser: both, Marks: marks, Log: env.Log})
	if err := g.Start(ctx); err != nil {
		return nil, err
	}
	return g, nil
}
