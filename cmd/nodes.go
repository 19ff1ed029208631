package cmd

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"connectrpc.com/connect/v2"
	"github.com/spf13/cobra"

	"github.com/imdhq/imd/proto/gen/adminv1"
	"github.com/imdhq/imd/proto/gen/adminv1/adminv1connect"
)

// nodeRow is a node as `nodes -o json` prints it.
type nodeRow struct {
	NodeID    string    `json:"node_id"`
	BootID    string    `json:"boot_id"`
	Roles     []string  `json:"roles"`
	State     string    `json:"state"`
	Standing  string    `json:"standing,omitempty"` // held, suspect or unregistered
	Cordon    string    `json:"cordon,omitempty"`   // why new work is kept away
	Version   string    `json:"version"`
	Public    string    `json:"public,omitempty"`
	Ops       string    `json:"ops,omitempty"`
	Internal  string    `json:"internal,omitempty"`
	Zone      string    `json:"zone,omitempty"`
	Weight    int32     `json:"weight"`
	MaxConns  int32     `json:"max_connections,omitempty"`
	Relay     bool      `json:"relay,omitempty"`
	Started   time.Time `json:"started"`
	LeaseLeft int64     `json:"lease_left_ms,omitempty"`
	LeaseTTL  int64     `json:"lease_ttl_ms,omitempty"`
	Self      bool      `json:"self"` // the node that answered
}

// nodeList is the whole answer.
type nodeList struct {
	Nodes    []nodeRow `json:"nodes"`
	Revision string    `json:"revision"`
	Stale    bool      `json:"stale"`
	serial   uint64
}

func newNodes(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:   "nodes",
		Short: "List the nodes of the cluster",
		Long: `Nodes asks one node for its view of the cluster. A * stands at the node that
answered, a ! at a version that most nodes do not run. STATE tells what the node
says of itself, and what others see: cordoned, or a record that vanished (held,
suspect, unregistered). LEASE is what is left of the lease and what was granted.

With --watch the list is printed again whenever it changes, until interrupted;
with -o json each time as one line.`,
		Example: "  imd nodes\n  imd nodes --watch\n  imd nodes -o json",
		Args:    cobra.NoArgs,
	}
	f := addServer(a, c, "ops listener")
	watch := c.Flags().Bool("watch", false, "print the list again whenever it changes")
	c.RunE = func(c *cobra.Command, _ []string) error {
		client, err := f.admin()
		if err != nil {
			return err
		}
		if *watch {
			return a.watchNodes(c.Context(), client)
		}
		list, err := a.listNodes(c.Context(), client, &adminv1.ListNodesRequest{Leases: true})
		if err != nil {
			return err
		}
		return a.printer().data(list, func(w io.Writer) { printNodes(w, list) })
	}
	return c
}

func (a *app) listNodes(ctx context.Context, client *connect.Client, req *adminv1.ListNodesRequest) (nodeList, error) {
	ctx, cancel := context.WithTimeout(ctx, a.timeout+time.Duration(req.WaitMs)*time.Millisecond)
	defer cancel()
	res, err := adminv1connect.NewClusterServiceClient(client).ListNodes(ctx, req)
	if err != nil {
		return nodeList{}, err
	}
	return nodeList{Nodes: nodeRows(res.GetNodes()), Revision: fmt.Sprint(res.GetRevision()), Stale: res.GetStale(), serial: res.GetSerial()}, nil
}

// watchNodes prints the list whenever what it shows changes.
func (a *app) watchNodes(ctx context.Context, client *connect.Client) error {
	serial, last := uint64(0), ""
	for {
		list, err := a.listNodes(ctx, client, &adminv1.ListNodesRequest{Serial: serial, WaitMs: 10_000})
		if err != nil {
			return err
		}
		serial = list.serial
		line, err := json.Marshal(list)
		if err != nil {
			return err
		}
		seen := list
		seen.Revision = ""
		now, err := json.Marshal(seen) // the revision alone is no news
		if err != nil {
			return err
		}
		if string(now) == last {
			continue
		}
		last = string(now)
		if a.format == asJSON {
			fmt.Fprintf(a.out, "%s\n", line)
			continue
		}
		fmt.Fprintf(a.out, "%s, revision %s\n", time.Now().Format(time.TimeOnly), list.Revision)
		printNodes(a.out, list)
		fmt.Fprintln(a.out)
	}
}

func nodeRows(nodes []*adminv1.Node) []nodeRow {
	rows := make([]nodeRow, 0, len(nodes))
	for _, n := range nodes {
		rows = append(rows, nodeRow{
			NodeID: n.GetNodeId(), BootID: n.GetBootId(), Roles: n.GetRoles(), State: n.GetState(), Version: n.GetVersion(),
			Standing: n.GetStanding(), Cordon: n.GetCordon(), MaxConns: n.GetMaxConnections(), Relay: n.GetRelay(),
			Public: n.GetPublicAddress(), Ops: n.GetOpsAddress(), Internal: n.GetInternalAddress(), Zone: n.GetZone(), Weight: n.GetWeight(),
			Started: time.UnixMilli(n.GetStartedMs()).UTC(), LeaseLeft: n.GetLeaseLeftMs(), LeaseTTL: n.GetLeaseTtlMs(), Self: n.GetSelf(),
		})
	}
	return rows
}

// state is what the node says and what others see of it.
func (n nodeRow) state() string {
	s := n.State
	if n.Cordon != "" {
		s += ",cordoned"
	}
	if n.Standing != "" {
		s += "," + n.Standing
	}
	return s
}

func (n nodeRow) lease() string {
	if n.LeaseTTL == 0 {
		return ""
	}
	return fmt.Sprintf("%d/%ds", n.LeaseLeft/1000, n.LeaseTTL/1000)
}

// usual is the version that most nodes run, and how many run another.
func usual(rows []nodeRow) (version string, others int) {
	count := map[string]int{}
	for _, n := range rows {
		count[n.Version]++
		if c := count[n.Version]; c > count[version] || c == count[version] && n.Version > version {
			version = n.Version
		}
	}
	return version, len(rows) - count[version]
}

func printNodes(w io.Writer, list nodeList) {
	most, others := usual(list.Nodes)
	var out [][]string
	for _, n := range list.Nodes {
		name, version := n.NodeID, n.Version
		if n.Self {
			name += " *"
		}
		if version != most {
			version += " !"
		}
		out = append(out, []string{name, strings.Join(n.Roles, ","), n.state(), version, n.Public, n.Ops, n.Zone, fmt.Sprint(n.Weight), n.lease(), span(time.Since(n.Started))})
	}
	table(w, "NODE ROLES STATE VERSION PUBLIC OPS ZONE WEIGHT LEASE UP", out)
	if others > 0 {
		fmt.Fprintf(w, "%d of %d nodes do not run %s\n", others, len(list.Nodes), most)
	}
	if list.Stale {
		fmt.Fprintln(w, "the registry cannot be reached; this view may be old")
	}
}
