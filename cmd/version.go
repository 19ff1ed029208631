package cmd

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/imdhq/imd/pkg/obs"
)

func newVersion(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Say what binary this is",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			b := obs.ThisBuild()
			return a.printer().data(b, func(w io.Writer) {
				fmt.Fprintf(w, "imd %s", b.Version)
				if b.Commit != "" {
					fmt.Fprintf(w, " (%.12s)", b.Commit)
				}
				fmt.Fprintf(w, " %s %s/%s\n", b.Go, b.OS, b.Arch)
			})
		},
	}
}
