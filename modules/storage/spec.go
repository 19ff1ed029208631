package storage

import (
	"slices"

	"github.com/imdhq/imd/pkg/module"
)

// Spec declares the module with the drivers that ship in the program.
func Spec(drivers Drivers) module.Spec {
	return module.Spec{
		Name:   "storage",
		Config: func() any { c := DefaultConfig(); return &c },
		New: func(env *module.Env) (module.Module, error) {
			cfg := DefaultConfig()
			if err := env.Config("storage", &cfg); err != nil {
				return nil, err
			}
			redis := DefaultRedisConfig()
			if err := env.Config("redis", &redis); err != nil {
				return nil, err
			}
			seq := DefaultSeqConfig()
			if err := env.Config("seq", &seq); err != nil {
				return nil, err
			}
			routed := []string{"gateway", "push"}
			if cfg.Routes != "memory" { // that of another process is out of the scheduler's reach
				routed = append(routed, "scheduler")
			}
			var plane func() string
			if env.Joined {
				plane = env.Control.Secret
			}
			s := New(cfg, Deps{
				Log: env.Log, Reg: env.Reg, Drivers: drivers, Redis: redis, Seq: seq, Section: env.Config, DataDir: env.DataDir, Handle: env.Store,
				Server:     serverOf(env),
				Plane:      plane,
				NoMessages: !uses(env.Roles, "state", "scheduler"), NoRoutes: !uses(env.Roles, routed...),
			})
			env.Ready.Add("storage", s.Ready)
			return s, nil
		},
	}
}

// serverOf names the server that a node is of: all nodes of one cluster, by its name,
// are one, and a node with a control plane of its own is one by itself.
func serverOf(env *module.Env) string {
	if env.Joined {
		return "cluster " + env.Cluster
	}
	return alone + string(env.Node)
}

// uses reports whether one of the roles is among those that use a store. A node
// that does not say which roles it has may have all.
func uses(roles []string, users ...string) bool {
	return len(roles) == 0 || slices.ContainsFunc(roles, func(r string) bool { return slices.Contains(users, r) })
}
