package cmd

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/imdhq/imd/proto/gen/adminv1"
	"github.com/imdhq/imd/proto/gen/adminv1/adminv1connect"
)

// leaderRow is a leader as `leader show -o json` prints it.
type leaderRow struct {
	Name    string    `json:"name"`
	NodeID  string    `json:"node_id"`
	BootID  string    `json:"boot_id"`
	Address string    `json:"address,omitempty"`
	Token   string    `json:"token"` // "0" = elected, not acting yet
	Since   time.Time `json:"since"`
	Gone    bool      `json:"gone"` // it has left and nobody has followed yet
	Self    bool      `json:"self"` // the node that answered
}

func newLeaderRow(l *adminv1.Leader) leaderRow {
	return leaderRow{
		Name: l.GetName(), NodeID: l.GetNodeId(), BootID: l.GetBootId(), Address: l.GetAddress(), Token: fmt.Sprint(l.GetToken()),
		Since: time.UnixMilli(l.GetSinceMs()).UTC(), Gone: l.GetGone(), Self: l.GetSelf(),
	}
}

func newLeader(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:   "leader",
		Short: "Who leads the elections, and moving leaders",
		Long: `Work that only one node may do is done by the leader of an election: "scheduler"
is that of the scheduler role. Each leader has a token, which rises with every
change; the message store refuses the effects of a leader with an older one.`,
	}
	c.AddCommand(newLeaderShow(a), newLeaderTransfer(a), newLeaderResign(a))
	return c
}

func newLeaderShow(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:     "show [ELECTION]",
		Short:   "Show the leaders",
		Long:    "Show asks one node for its view of the leaders. A mark stands at the node that answered.\n\nExit status: 3 if the election that was asked for has no leader.",
		Example: "  imd leader show\n  imd leader show scheduler -o json",
		Args:    cobra.MaximumNArgs(1),
	}
	f := addServer(a, c, "ops listener")
	c.RunE = func(c *cobra.Command, args []string) error {
		client, err := f.admin()
		if err != nil {
			return err
		}
		ctx, cancel := a.bounded(c.Context())
		defer cancel()
		res, err := adminv1connect.NewElectionServiceClient(client).ListLeaders(ctx, &adminv1.ListLeadersRequest{})
		if err != nil {
			return err
		}
		rows := []leaderRow{}
		for _, l := range res.GetLeaders() {
			if len(args) == 0 || l.GetName() == args[0] {
				rows = append(rows, newLeaderRow(l))
			}
		}
		if len(args) == 1 && len(rows) == 0 {
			return newFailure(exitNotFound, "not_found", fmt.Sprintf("the election %q has no leader", args[0]), "see all with imd leader show")
		}
		return a.printer().data(map[string]any{"leaders": rows, "revision": fmt.Sprint(res.GetRevision()), "stale": res.GetStale()}, func(w io.Writer) {
			printLeaders(w, rows, res.GetStale())
		})
	}
	return c
}

func printLeaders(w io.Writer, rows []leaderRow, stale bool) {
	var out [][]string
	for _, l := range rows {
		node, state := l.NodeID, "leads"
		if l.Self {
			node += " *"
		}
		switch {
		case l.Gone:
			state = "gone"
		case stale:
			state = "led when last seen"
		case l.Token == "0":
			state = "elected"
		}
		out = append(out, []string{l.Name, node, state, l.Token, span(time.Since(l.Since)), l.Address})
	}
	table(w, "ELECTION NODE STATE TOKEN FOR ADDRESS", out)
	if stale {
		fmt.Fprintln(w, "the registry cannot be reached; this view may be old")
	}
}

func newLeaderTransfer(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:   "transfer ELECTION --to NODE",
		Short: "Let another node lead",
		Long: `Transfer asks the leader to resign in favour of a node, and waits until a node
leads. If that node takes no part in the election, it is open to all after 3 s.`,
		Example: "  imd leader transfer scheduler --to n2",
		Args:    cobra.ExactArgs(1),
	}
	f := addServer(a, c, "ops listener")
	to := c.Flags().String("to", "", "id of the node that is to lead (required)")
	c.RunE = func(c *cobra.Command, args []string) error {
		if *to == "" {
			return usagef("--to is missing; to let any other node lead, use imd leader resign")
		}
		return a.moveLeader(c.Context(), f, args[0], *to)
	}
	return c
}

func newLeaderResign(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:   "resign ELECTION",
		Short: "Let any other node lead",
		Long: `Resign asks the leader to give its place to any other node, and waits until a
node leads. If there is no other, the same one leads again after 3 s.`,
		Example: "  imd leader resign scheduler",
		Args:    cobra.ExactArgs(1),
	}
	f := addServer(a, c, "ops listener")
	c.RunE = func(c *cobra.Command, args []string) error {
		return a.moveLeader(c.Context(), f, args[0], "")
	}
	return c
}

// moveLeader asks the leader to resign and prints who leads then.
func (a *app) moveLeader(ctx context.Context, f *serverFlags, name, to string) error {
	client, err := f.admin()
	if err != nil {
		return err
	}
	ctx, cancel := a.bounded(ctx)
	defer cancel()
	res, err := adminv1connect.NewElectionServiceClient(client).TransferLeader(ctx, &adminv1.TransferLeaderRequest{Name: name, ToNodeId: to})
	if err != nil {
		return err
	}
	if res.GetLeader() == nil {
		return newFailure(exitFailed, "no_leader", fmt.Sprintf("the leader of %q was asked to resign, and nobody has followed yet", name), "look again with imd leader show")
	}
	row := newLeaderRow(res.GetLeader())
	if to != "" && row.NodeID != to {
		return newFailure(exitFailed, "not_transferred", fmt.Sprintf("%s leads %q: %s takes no part in this election", row.NodeID, name, to), "the candidates are the nodes with the role")
	}
	return a.printer().data(row, func(w io.Writer) { printLeaders(w, []leaderRow{row}, false) })
}
