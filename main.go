// Command imd is a self-hosted instant-messaging server: one binary whose
// roles are switched on by a flag.
package main

import (
	"os"

	"github.com/imdhq/imd/cmd"
)

func main() { os.Exit(cmd.Main()) }
