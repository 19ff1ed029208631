package cmd

import (
	"github.com/imdhq/imd/modules"
	"github.com/imdhq/imd/pkg/module"
)

// specs are the modules of the program with the drivers that ship in it.
func specs() []module.Spec { return modules.Specs() }
