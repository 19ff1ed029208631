package controlplane

import (
	"context"

	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/control"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/module"
	"github.com/imdhq/imd/pkg/settings"
)

// Plane is an opened control plane. Methods are safe for concurrent use.
type Plane interface {
	control.Registry
	control.WorkerLeaser
	control.Elector
	control.Locker
	// TermEnded is closed when this process's term in an election ends; nil if it
	// does not lead.
	TermEnded(name string) <-chan struct{}
	// Load reads the cluster once and publishes it, before Run. An error means
	// that the control plane cannot be reached; trying again may help.
	Load(ctx context.Context) error
	// Stats is a copy of the counters.
	Stats() control.Stats
	// Close frees everything. Run must have returned.
	Close() error
}

// OpenOptions is what an Opener gets.
type OpenOptions struct {
	Config  Config
	Node    im.NodeID
	DataDir string              // absolute; the embedded server keeps its data below
	Publish func(*control.View) // gets each new view
	// PublishLeaders gets each new copy of the announced leaders.
	PublishLeaders func(*control.Leaders)
	// Settings is fed with the settings; nil = they are not followed.
	Settings *settings.Live
	Log      *zap.Logger
}

// Opener opens a control plane: the embedded server if there are no endpoints,
// else a client. It need not wait until endpoints answer; Load does.
type Opener func(ctx context.Context, o OpenOptions) (Plane, error)

// Spec declares the control plane with the drivers behind open.
func Spec(open Opener) module.Spec {
	return module.Spec{
		Name:   "controlplane",
		Config: func() any { c := DefaultConfig(); return &c },
		New: func(env *module.Env) (module.Module, error) {
			cfg := DefaultConfig()
			if err := env.Config("controlplane", &cfg); err != nil {
				return nil, err
			}
			c := New(cfg, Deps{
				Open: open, Node: env.Node, DataDir: env.DataDir, Handle: env.Control, Settings: env.Settings, Log: env.Log,
			})
			env.Reg.MustRegister(newCollector(c.stats, env.Control.View, c.record))
			if env.Settings != nil {
				env.Reg.MustRegister(newSettingsCollector(env.Settings.Stats))
			}
			env.Ready.Add("controlplane", c.ready)
			env.MountOps("GET "+control.AwaitPath, control.Await(env.BootID, c.termEnded))
			return c, nil
		},
	}
}
