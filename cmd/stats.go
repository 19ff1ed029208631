package cmd

import (
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/imdhq/imd/pkg/status"
)

// statsOld is the age from which on it is said that nobody counts any more.
const statsOld = 15 * time.Second

func newStats(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:   "stats",
		Short: "Show who is connected, and messages by minute",
		Long: `Stats shows what the leader of the scheduler role counted in the whole cluster:
users online, sessions by node and device class, messages and deliveries of the
last 30 minutes. Any node can be asked; each keeps what the leader told it last,
every 5 s. A node that told the leader nothing is named as silent, and its sessions
are not in the sums.

Exit status: 3 if no leader has counted since the node that was asked started.`,
		Example: "  imd stats\n  imd stats -o json",
		Args:    cobra.NoArgs,
	}
	f := addServer(a, c, "ops listener")
	c.RunE = func(c *cobra.Command, _ []string) error {
		var s status.StatsStatus
		if err := f.page(c.Context(), "/statusz/stats", &s); err != nil {
			return err
		}
		if s.At == nil {
			return newFailure(exitNotFound, "not_found", "no leader has counted yet", "see who leads with imd leader show scheduler")
		}
		return a.printer().data(s, func(w io.Writer) { printStats(w, s, time.Now()) })
	}
	return c
}

func printStats(w io.Writer, s status.StatsStatus, now time.Time) {
	users := "unknown"
	if s.Users != nil {
		users = fmt.Sprint(*s.Users)
	}
	fmt.Fprintf(w, "users online: %s; counted by %s %s ago\n", users, s.Leader, span(now.Sub(*s.At)))
	if now.Sub(*s.At) > statsOld {
		fmt.Fprintln(w, "nobody counts any more, or the leader does not reach this node; see imd leader show scheduler")
	}
	classes := status.ClassesOf(s)
	head := "NODE USERS SESSIONS"
	for _, class := range classes {
		head += " " + class
	}
	var rows [][]string
	for _, n := range s.Nodes {
		if n.Silent == "" && !n.Gateway {
			continue // it has no gateway
		}
		row := []string{n.Node, fmt.Sprint(n.Users)}
		all := int64(0)
		for _, class := range classes {
			all += n.Sessions[class]
		}
		if row = append(row, fmt.Sprint(all)); n.Silent != "" {
			row = []string{n.Node, "silent", "-"}
		}
		for _, class := range classes {
			cell := fmt.Sprint(n.Sessions[class])
			if n.Silent != "" {
				cell = "-"
			}
			row = append(row, cell)
		}
		rows = append(rows, row)
	}
	table(w, head, rows)
	fmt.Fprintln(w)
	rows = nil
	for _, m := range slices.Backward(s.Minutes) {
		users, sessions := "-", "-"
		if m.Users != nil {
			users = fmt.Sprint(*m.Users)
		}
		if m.Sessions != nil {
			all := int64(0)
			for _, n := range m.Sessions {
				all += n
			}
			sessions = fmt.Sprint(all)
		}
		rows = append(rows, []string{m.At.Local().Format("15:04"), users, sessions, fmt.Sprint(m.Messages), fmt.Sprint(m.Delivered)})
	}
	table(w, "MINUTE USERS SESSIONS MESSAGES DELIVERIES", rows)
}
