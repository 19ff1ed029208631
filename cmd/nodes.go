package cmd

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/imdhq/imd/proto/gen/adminv1"
	"github.com/imdhq/imd/proto/gen/adminv1/adminv1connect"
)

// nodeRow is a node as `nodes -o json` prints it.
type nodeRow struct {
	NodeID   string    `json:"node_id"`
	BootID   string    `json:"boot_id"`
	Roles    []string  `json:"roles"`
	State    string    `json:"state"`
	Version  string    `json:"version"`
	Public   string    `json:"public,omitempty"`
	Ops      string    `json:"ops,omitempty"`
	Internal string    `json:"internal,omitempty"`
	Zone     string    `json:"zone,omitempty"`
	Weight   int32     `json:"weight"`
	Started  time.Time `json:"started"`
	Self     bool      `json:"self"` // the node that answered
}

func newNodes(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:     "nodes",
		Short:   "List the nodes of the cluster",
		Long:    "Nodes asks one node for its view of the cluster. A mark stands at the node that answered.",
		Example: "  imd nodes\n  imd nodes -o json",
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
		res, err := adminv1connect.NewClusterServiceClient(client).ListNodes(ctx, &adminv1.ListNodesRequest{})
		if err != nil {
			return err
		}
		rows := nodeRows(res.GetNodes())
		return a.printer().data(map[string]any{"nodes": rows, "revision": fmt.Sprint(res.GetRevision()), "stale": res.GetStale()}, func(w io.Writer) {
			printNodes(w, rows, res.GetStale())
		})
	}
	return c
}

func nodeRows(nodes []*adminv1.Node) []nodeRow {
	rows := make([]nodeRow, 0, len(nodes))
	for _, n := range nodes {
		rows = append(rows, nodeRow{
			NodeID: n.GetNodeId(), BootID: n.GetBootId(), Roles: n.GetRoles(), State: n.GetState(), Version: n.GetVersion(),
			Public: n.GetPublicAddress(), Ops: n.GetOpsAddress(), Internal: n.GetInternalAddress(), Zone: n.GetZone(), Weight: n.GetWeight(),
			Started: time.UnixMilli(n.GetStartedMs()).UTC(), Self: n.GetSelf(),
		})
	}
	return rows
}

func printNodes(w io.Writer, rows []nodeRow, stale bool) {
	var out [][]string
	for _, n := range rows {
		name := n.NodeID
		if n.Self {
			name += " *"
		}
		out = append(out, []string{name, strings.Join(n.Roles, ","), n.State, n.Version, n.Public, n.Ops, n.Zone, span(time.Since(n.Started))})
	}
	table(w, "NODE ROLES STATE VERSION PUBLIC OPS ZONE UP", out)
	if stale {
		fmt.Fprintln(w, "the registry cannot be reached; this view may be old")
	}
}
