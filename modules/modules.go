// Package modules is the machine on one page: every part that a node can be
// made of.
package modules

import (
	"github.com/imdhq/imd/modules/controlplane"
	"github.com/imdhq/imd/modules/gateway"
	"github.com/imdhq/imd/modules/peers"
	"github.com/imdhq/imd/modules/push"
	"github.com/imdhq/imd/modules/scheduler"
	"github.com/imdhq/imd/modules/state"
	"github.com/imdhq/imd/modules/storage"
	"github.com/imdhq/imd/modules/tracing"
	"github.com/imdhq/imd/pkg/module"
)

// Drivers are what connects the modules to the outside. The command names them;
// no module knows one.
type Drivers struct {
	Control controlplane.Opener
	Stores  storage.Drivers
	Names   func(*module.Env) peers.NamesOpener
}

// Specs lists the modules in the order of their start, as far as their needs
// leave a choice; they stop in reverse. So clients leave (gateway) while those
// who work for them (push, state) still do, and the stores go last.
func Specs(d Drivers) []module.Spec {
	return []module.Spec{
		controlplane.Spec(d.Control), // who is in the cluster
		storage.Spec(d.Stores),       // where messages and routes are kept
		tracing.Spec(),               // spans, for those who want them
		peers.Spec(d.Names),          // the other processes
		state.Spec(),                 // orders and stores messages
		push.Spec(),                  // hands them to the gateways
		gateway.Spec(),               // talks to clients
		scheduler.Spec(),             // does what only one node may do
	}
}
