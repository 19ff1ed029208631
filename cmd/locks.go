package cmd

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/imdhq/imd/proto/gen/adminv1"
	"github.com/imdhq/imd/proto/gen/adminv1/adminv1connect"
)

// lockRow is a holder or waiter as `locks -o json` prints it.
type lockRow struct {
	Name    string    `json:"name"`
	NodeID  string    `json:"node_id"`
	BootID  string    `json:"boot_id"`
	Purpose string    `json:"purpose,omitempty"`
	Asked   time.Time `json:"asked"`
	Token   string    `json:"token"`
	Held    bool      `json:"held"` // false = it waits
}

func newLocks(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:     "locks",
		Short:   "List who holds locks, and who waits for them",
		Long:    "Locks reads the locks of the cluster from the registry. Who waits is listed in the order in which it will be served.",
		Example: "  imd locks\n  imd locks -o json",
		Args:    cobra.NoArgs,
	}
	f := addServer(a, c, "ops listener")
	c.RunE = func(c *cobra.Command, _ []string) error {
		client, err := f.admin()
		if err != nil {
			return err
		}
		ctx, cancel := a.bounded(c.Context())
		defer cancel()
		res, err := adminv1connect.NewLockServiceClient(client).ListLocks(ctx, &adminv1.ListLocksRequest{})
		if err != nil {
			return err
		}
		rows := []lockRow{}
		for _, l := range res.GetLocks() {
			rows = append(rows, lockRow{
				Name: l.GetName(), NodeID: l.GetNodeId(), BootID: l.GetBootId(), Purpose: l.GetPurpose(),
				Asked: time.UnixMilli(l.GetAskedMs()).UTC(), Token: fmt.Sprint(l.GetToken()), Held: l.GetHeld(),
			})
		}
		return a.printer().data(map[string]any{"locks": rows}, func(w io.Writer) { printLocks(w, rows) })
	}
	return c
}

func printLocks(w io.Writer, rows []lockRow) {
	var out [][]string
	for _, l := range rows {
		state := "waits"
		if l.Held {
			state = "holds"
		}
		out = append(out, []string{l.Name, l.NodeID, state, l.Token, span(time.Since(l.Asked)), l.Purpose})
	}
	table(w, "LOCK NODE STATE TOKEN FOR PURPOSE", out)
}
