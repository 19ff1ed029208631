// Package modules is the machine on one page: every part that a node can be
// made of.
package modules

import (
	"github.com/imdhq/imd/modules/push"
	"github.com/imdhq/imd/modules/scheduler"
	"github.com/imdhq/imd/pkg/module"
)

// Specs lists the modules. Each says itself what it needs; the order here only
// decides between those that do not need each other.
func Specs() []module.Spec {
	return []module.Spec{
		push.Spec(),
		scheduler.Spec(),
	}
}
