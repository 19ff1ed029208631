package cmd

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/imdhq/imd/proto/gen/adminv1"
)

// settingsChangeRow is one change of the history.
type settingsChangeRow struct {
	Section     string          `json:"section"`
	Number      int32           `json:"number"`
	At          *time.Time      `json:"at,omitempty"`
	By          string          `json:"by"`
	Reason      string          `json:"reason"`
	Rollback    int32           `json:"rollback,omitempty"`
	Differences []differenceRow `json:"differences"`
}

func newSettingsHistory(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:     "history [SECTION]",
		Short:   "List the changes that are kept, newest first: 50 a section",
		Example: "  imd settings history\n  imd settings history gateway -o json",
		Args:    cobra.MaximumNArgs(1),
	}
	f := addServer(a, c, "ops listener")
	c.RunE = func(c *cobra.Command, args []string) error {
		svc, err := f.settingsService()
		if err != nil {
			return err
		}
		ctx, cancel := a.bounded(c.Context())
		defer cancel()
		res, err := svc.ListSettingsHistory(ctx, &adminv1.ListSettingsHistoryRequest{Section: strings.Join(args, "")})
		if err != nil {
			return err
		}
		rows := []settingsChangeRow{}
		for _, ch := range res.GetChanges() {
			r := settingsChangeRow{Section: ch.GetSection(), Number: ch.GetNumber(), By: ch.GetBy(), Reason: ch.GetReason(), Rollback: ch.GetRollback(), Differences: differenceRows(ch.GetDifferences())}
			if ch.GetAtMs() != 0 {
				at := time.UnixMilli(ch.GetAtMs()).UTC()
				r.At = &at
			}
			rows = append(rows, r)
		}
		return a.printer().data(map[string]any{"changes": rows}, func(w io.Writer) { printHistory(w, rows) })
	}
	return c
}

func printHistory(w io.Writer, rows []settingsChangeRow) {
	for _, r := range rows {
		at := "at an unknown time"
		if r.At != nil {
			at = r.At.Local().Format(time.DateTime)
		}
		fmt.Fprintf(w, "%s %d  %s  %s", r.Section, r.Number, at, r.By)
		if r.Rollback != 0 {
			fmt.Fprintf(w, "  back to %d", r.Rollback)
		}
		if r.Reason != "" {
			fmt.Fprintf(w, "  %q", r.Reason)
		}
		fmt.Fprintln(w)
		for _, d := range r.Differences {
			fmt.Fprintln(w, "  "+d.line())
		}
	}
}
