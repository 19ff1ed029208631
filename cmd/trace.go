package cmd

import (
	"cmp"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"
	"time"

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

With --conversation the message is looked for in the store too, however old it is:
that says whether it was stored, where and when, and finds what nodes still
remember of its place.

A session that was queued for and has not acknowledged either did not get the
message or does not say so; it gets it again while it is connected, and finds it
by its cursor when it comes back.

Exit status: 3 if nobody remembers the message, or the conversation has none of
that id.`,
		Example: "  imd trace 117093590311632897\n  imd trace 117093590311632897 --conversation g_117093590311632000\n  imd trace 117093590311632897 -o json",
		Args:    cobra.ExactArgs(1),
	}
	f := addServer(a, c, "ops listener")
	conv := c.Flags().String("conversation", "", "look for the message in the store of this conversation too")
	c.RunE = func(c *cobra.Command, args []string) error {
		if id, err := strconv.ParseInt(args[0], 10, 64); err != nil || id <= 0 {
			return usagef("%q is no message id; it is a number, as imd send prints it", args[0])
		}
		path := "/statusz/trace/" + args[0]
		if *conv != "" {
			path += "?" + url.Values{"conversation": {*conv}}.Encode()
		}
		var t status.TraceStatus
		if err := f.page(c.Context(), path, &t); err != nil {
			return err
		}
		if len(t.Stages) == 0 && t.Stored == nil {
			return forgotten(t, *conv)
		}
		return a.printer().data(t, func(w io.Writer) { printTrace(w, t) })
	}
	return c
}

// forgotten says of a message that nobody remembers what is left to say.
func forgotten(t status.TraceStatus, conv string) error {
	text := fmt.Sprintf("nobody remembers message %s; its id was made on %s by worker %d", t.Message, t.Made.Local().Format("2006-01-02 at 15:04:05"), t.Worker)
	switch {
	case t.Made.After(time.Now().Add(time.Minute)):
		text = "nobody remembers message " + t.Message + "; no node has made this id, as it is of a time to come"
	case conv != "":
		text = fmt.Sprintf("conversation %s has no message %s, and nobody remembers one; its id was made on %s by worker %d", conv, t.Message, t.Made.Local().Format("2006-01-02 at 15:04:05"), t.Worker)
	}
	hint := remembered(t)
	if conv == "" {
		hint += "\n  older messages are found with --conversation ID"
	}
	return newFailure(exitNotFound, "not_found", text, hint)
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
	const layout = "2006-01-02 15:04:05.000"
	if len(t.Stages) > 0 {
		fmt.Fprintf(w, "message %s, seq %d, first seen %s\n", t.Message, t.Seq, t.Stages[0].At.Local().Format(layout))
	} else {
		fmt.Fprintf(w, "message %s, seq %d, made %s; nobody remembers its way any more\n", t.Message, t.Seq, t.Made.Local().Format(layout))
	}
	if s := t.Stored; s != nil {
		fmt.Fprintf(w, "stored %s in %s: %s of %s\n", s.At.Local().Format(layout), s.Conversation, s.Kind, cmp.Or(s.Sender, "the system"))
	}
	if len(t.Stages) == 0 {
		fmt.Fprintln(w, remembered(t))
		return
	}
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
