package cmd

import (
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/imdhq/imd/pkg/status"
)

func newTrace(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:   "trace MESSAGE_ID",
		Short: "Tell what became of a message, node by node",
		Long: `Trace asks one node, which asks all others, what they remember of a message: when
it was stored, answered, handed on, queued for a device and acknowledged, and how
long each of it took. Nodes remember 10 minutes, less if much goes on. Times are
those of the nodes' own clocks.

A session that was queued for and has not acknowledged either did not get the
message or does not say so; it gets it again while it is connected, and finds it
by its cursor when it comes back.

Exit status: 3 if nobody remembers the message.`,
		Example: "  imd trace 117093590311632897\n  imd trace 117093590311632897 -o json",
		Args:    cobra.ExactArgs(1),
	}
	f := addServer(a, c, "ops listener")
	c.RunE = func(c *cobra.Command, args []string) error {
		if id, err := strconv.ParseInt(args[0], 10, 64); err != nil || id <= 0 {
			return usagef("%q is no message id; it is a number, as imd send prints it", args[0])
		}
		var t status.TraceStatus
		if err := f.page(c.Context(), "/statusz/trace/"+args[0], &t); err != nil {
			return err
		}
		if len(t.Stages) == 0 {
			return newFailure(exitNotFound, "not_found", "nobody remembers message "+args[0], remembered(t))
		}
		return a.printer().data(t, func(w io.Writer) { printTrace(w, t) })
	}
	return c
}

// remembered says how far back the nodes remember.
func remembered(t status.TraceStatus) string {
	var parts []string
	for _, n := range t.Nodes {
		switch {
		case n.Error != "":
			parts = append(parts, n.Node+" did not tell: "+n.Error)
		case n.Since.IsZero():
			parts = append(parts, n.Node+" remembers nothing")
		default:
			parts = append(parts, n.Node+" remembers since "+n.Since.Local().Format("15:04:05"))
		}
	}
	return strings.Join(parts, "; ")
}

func printTrace(w io.Writer, t status.TraceStatus) {
	fmt.Fprintf(w, "message %s, seq %d, first seen %s\n", t.Message, t.Seq, t.Stages[0].At.Local().Format("2006-01-02 15:04:05.000"))
	var rows [][]string
	for _, s := range t.Stages {
		rows = append(rows, s.Row())
	}
	table(w, strings.ToUpper(strings.Join(status.TraceColumns, " ")), rows)
	for _, n := range t.Nodes {
		if n.Error != "" {
			fmt.Fprintf(w, "%s did not tell: %s\n", n.Node, n.Error)
		}
	}
}
