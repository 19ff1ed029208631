package cmd

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"connectrpc.com/connect/v2"
	"github.com/spf13/cobra"

	"github.com/imdhq/imd/proto/gen/adminv1"
	"github.com/imdhq/imd/proto/gen/adminv1/adminv1connect"
)

// drainWait is how long a command waits for a drain: its grace, and the time that
// the news of it takes.
const drainWait = time.Minute

func newNode(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:   "node",
		Short: "Show one node, keep new work away from it, or make it stop",
		Long:  "Orders go through the registry: any node takes them for any other one.",
	}
	c.AddCommand(newNodeShow(a), newNodeCordon(a), newNodeUncordon(a), newNodeDrain(a))
	return c
}

// one runs what a command does with the node that its argument names.
func (a *app) one(c *cobra.Command, do func(ctx context.Context, client *connect.Client, id string) error) {
	c.Args = cobra.ExactArgs(1)
	f := addServer(a, c, "ops listener")
	c.RunE = func(c *cobra.Command, args []string) error {
		client, err := f.admin()
		if err != nil {
			return err
		}
		return do(c.Context(), client, args[0])
	}
}

// find is one node of the view of the node that is asked.
func (a *app) find(ctx context.Context, client *connect.Client, id string) (nodeRow, error) {
	list, err := a.listNodes(ctx, client, &adminv1.ListNodesRequest{Leases: true})
	if err != nil {
		return nodeRow{}, err
	}
	var known []string
	for _, n := range list.Nodes {
		if n.NodeID == id {
			return n, nil
		}
		known = append(known, n.NodeID)
	}
	return nodeRow{}, newFailure(exitNotFound, "not_found", "there is no node "+id, "the nodes are "+strings.Join(known, ", "))
}

func newNodeShow(a *app) *cobra.Command {
	c := &cobra.Command{
		Use: "show NODE", Short: "Show one node",
		Example: "  imd node show n-7f3k2",
	}
	a.one(c, func(ctx context.Context, client *connect.Client, id string) error {
		n, err := a.find(ctx, client, id)
		if err != nil {
			return err
		}
		return a.printer().data(n, func(w io.Writer) { printNode(w, n) })
	})
	return c
}

func printNode(w io.Writer, n nodeRow) {
	standing := n.Standing
	if standing == "" {
		standing = "listed"
	}
	lease := "not known"
	if n.LeaseTTL > 0 {
		lease = fmt.Sprintf("%d of %d s left", n.LeaseLeft/1000, n.LeaseTTL/1000)
	}
	conns := ""
	if n.MaxConns > 0 {
		conns = fmt.Sprintf("%d at most", n.MaxConns)
	}
	for _, line := range [][2]string{
		{"node", n.NodeID}, {"boot", n.BootID}, {"roles", strings.Join(n.Roles, ", ")}, {"state", n.State}, {"registry", standing},
		{"cordon", n.Cordon}, {"version", n.Version}, {"zone", n.Zone}, {"weight", fmt.Sprint(n.Weight)}, {"public", n.Public}, {"ops", n.Ops},
		{"internal", n.Internal}, {"clients", conns}, {"lease", lease}, {"started", fmt.Sprintf("%s (%s ago)", n.Started.Format(time.RFC3339), span(time.Since(n.Started)))},
	} {
		if line[1] != "" {
			fmt.Fprintf(w, "%-9s %s\n", line[0], line[1])
		}
	}
}

func newNodeCordon(a *app) *cobra.Command {
	c := &cobra.Command{
		Use: "cordon NODE", Short: "Keep new work away from a node",
		Long: `Cordon keeps new work away from a node, also when it starts again, until
uncordon. What it does already goes on. Its /readyz answers 503, so that load
balancers send no new clients.`,
		Example: "  imd node cordon n-7f3k2 --reason 'failing disk'",
	}
	reason := c.Flags().String("reason", "", "shown to others")
	a.one(c, func(ctx context.Context, client *connect.Client, id string) error {
		if _, err := a.find(ctx, client, id); err != nil {
			return err
		}
		ctx, cancel := a.bounded(ctx)
		defer cancel()
		if _, err := adminv1connect.NewNodeServiceClient(client).Cordon(ctx, &adminv1.CordonRequest{NodeId: id, Reason: *reason}); err != nil {
			return err
		}
		return a.ordered(id, "cordoned", "gets no new work until: imd node uncordon "+id)
	})
	return c
}

func newNodeUncordon(a *app) *cobra.Command {
	c := &cobra.Command{
		Use: "uncordon NODE", Short: "Let new work go to a node again",
		Example: "  imd node uncordon n-7f3k2",
	}
	a.one(c, func(ctx context.Context, client *connect.Client, id string) error {
		ctx, cancel := a.bounded(ctx)
		defer cancel()
		if _, err := adminv1connect.NewNodeServiceClient(client).Uncordon(ctx, &adminv1.UncordonRequest{NodeId: id}); err != nil {
			return err
		}
		return a.ordered(id, "uncordoned", "gets new work again")
	})
	return c
}

func newNodeDrain(a *app) *cobra.Command {
	c := &cobra.Command{
		Use: "drain NODE", Short: "Make the process of a node stop in order",
		Long: `Drain makes the running process of a node stop as SIGTERM does: it leaves the
cluster, hands its work over, tells its clients to connect elsewhere, and ends
with status 0. A service manager that restarts always will start it again;
cordon it first if new work shall stay away.`,
		Example: "  imd node drain n-7f3k2\n  imd node drain n-7f3k2 --wait",
	}
	reason := c.Flags().String("reason", "", "written to the log of the node")
	wait := c.Flags().Bool("wait", false, "wait until the node has left, for a minute, or --timeout if that is longer")
	a.one(c, func(ctx context.Context, client *connect.Client, id string) error {
		if *wait {
			a.timeout = max(a.timeout, drainWait)
		}
		ctx, cancel := a.bounded(ctx)
		defer cancel()
		res, err := adminv1connect.NewNodeServiceClient(client).Drain(ctx, &adminv1.DrainRequest{NodeId: id, Reason: *reason})
		if err != nil {
			return err
		}
		if !*wait {
			return a.ordered(id, "draining", "was told to stop")
		}
		if err := a.awaitGone(ctx, client, id, res.GetBootId()); err != nil {
			return err
		}
		return a.ordered(id, "gone", "has left")
	})
	return c
}

// awaitGone waits until the process has left the view of the node that is
// asked; if it is that node itself, until it does not answer any more.
func (a *app) awaitGone(ctx context.Context, client *connect.Client, id, boot string) error {
	serial, asked := uint64(0), false
	for {
		list, err := a.listNodes(ctx, client, &adminv1.ListNodesRequest{Serial: serial, WaitMs: 2000})
		if asked && err != nil && ctx.Err() == nil && classify(err).Exit == exitUnavailable {
			return nil
		}
		if err != nil {
			return err
		}
		serial = list.serial
		there := false
		for _, n := range list.Nodes {
			if n.NodeID == id && n.BootID == boot {
				there, asked = true, n.Self
			}
		}
		if !there {
			return nil
		}
	}
}

// ordered prints what became of an order.
func (a *app) ordered(id, state, text string) error {
	return a.printer().data(map[string]string{"node_id": id, "state": state}, func(w io.Writer) { fmt.Fprintln(w, id+" "+text) })
}
