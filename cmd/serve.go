package cmd

import (
	"github.com/spf13/cobra"
)

func newServe(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:   "serve",
		Short: "Run a node",
		Long: `Serve runs the chosen roles until SIGTERM or SIGINT, then lets clients go and
exits with 0. A second signal ends it at once, with 130;
the same one within 0.5 s counts once.

The first start makes the data folder, its keys and the node's id. Where the
node listens stands in endpoints.json of that folder.

Exit status: 0 stopped as asked, 1 failed, 78 the configuration is wrong (then
starting again does not help).`,
		Example: "  imd serve --roles=all\n  imd serve --config imd.yaml\n  imd serve --listen 127.0.0.1:0 --data-dir ./data",
		Args:    cobra.NoArgs,
	}
	s := addSettings(a, c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		cfg, err := s.load()
		if err != nil {
			return err
		}
		cfg.warn(a)
		return newEngine(a, cfg).serve(c.Context())
	}
	return c
}
