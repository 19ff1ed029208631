package push

import (
	"context"
	"slices"

	"github.com/imdhq/imd/pkg/module"
)

// Spec declares the push role.
func Spec() module.Spec {
	return module.Spec{
		Name:     "push",
		Role:     true,
		Needs:    []string{"controlplane", "storage", "peers"}, // storage: the route store
		Calls:    []string{"state", "gateway"},
		Config:   func() any { c := DefaultConfig(); return &c },
		Settings: declared,
		New: func(env *module.Env) (module.Module, error) {
			cfg := DefaultConfig()
			if err := env.Config("push", &cfg); err != nil {
				return nil, err
			}
			p := New(cfg, Deps{
				Node: env.Node, View: env.Control.View, Trace: env.Trace, Log: env.Log, Reg: env.Reg, State: env.Peers.State(),
				Here: slices.Contains(env.Roles, "gateway"), Settings: env.Settings,
				Gateway: func(n nodeID) gatewayClient { return env.Peers.Gateway(n) },
				Routes:  func() (routes, error) { return env.Store.Routes() },
			})
			env.Peers.ServePush(p)
			env.Ready.Add("push", func(context.Context) module.Status { return module.Status{Ready: true} })
			return p, nil
		},
	}
}
