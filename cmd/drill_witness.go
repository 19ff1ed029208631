package cmd

import (
	"encoding/json"
	"os"

	"github.com/spf13/cobra"

	"github.com/imdhq/imd/pkg/drill/witness"
	"github.com/imdhq/imd/pkg/obs"
)

// newDrillWitness is the process that a drill starts for each witness. People
// have no use for it.
func newDrillWitness(a *app) *cobra.Command {
	return &cobra.Command{
		Use:    "witness JOB",
		Short:  "Take part in the control plane of a drill",
		Args:   cobra.ExactArgs(1),
		Hidden: true,
		RunE: func(c *cobra.Command, args []string) error {
			var job witness.Job
			if err := json.Unmarshal([]byte(args[0]), &job); err != nil {
				return usagef("JOB: %v", err)
			}
			known, err := hotSettings(a.specs)
			if err != nil {
				return err
			}
			log, _, err := obs.NewLogger(obs.DefaultLogConfig(), os.Stderr)
			if err != nil {
				return err
			}
			ctx, release := untilSignal(c.Context(), func(os.Signal) {})
			defer release()
			return witness.Run(ctx, job, known, log.With(obs.Node(job.Node)))
		},
	}
}
