package peers

import (
	"net/http"

	"github.com/imdhq/imd/pkg/module"
)

// Spec declares the module. names connects to a naming service, with the
// configuration of the node it is called for.
func Spec(names func(env *module.Env) NamesOpener) module.Spec {
	return module.Spec{
		Name:     "peers",
		Needs:    []string{"controlplane", "tracing"}, // tracing: so that it stops after the roles
		Config:   func() any { c := DefaultConfig(); return &c },
		Settings: declared(),
		New: func(env *module.Env) (module.Module, error) {
			cfg := DefaultConfig()
			if err := env.Config("peers", &cfg); err != nil {
				return nil, err
			}
			if cfg.Listen == "" && env.Split {
				cfg.Listen = DefaultListen
			}
			p := New(cfg, Deps{
				Log: env.Log, Reg: env.Reg, BootID: env.BootID, Roles: env.Roles, Set: env.Peers, Control: env.Control, Settings: env.Settings,
				Announce: env.Announce, Cluster: env.Cluster, Zone: env.Zone, Unshared: env.Unshared, Node: env.Node, Names: names(env), Trace: env.Trace,
			})
			env.Ready.Add("peers", p.ready)
			for path, h := range map[string]http.HandlerFunc{"GET /statusz/peers": env.Peers.ServePeers, "GET /statusz/ring": env.Peers.ServeRing} {
				env.MountOps(path, h)
			}
			return p, nil
		},
	}
}
