package cmd

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/imdhq/imd/proto/gen/adminv1"
	"github.com/imdhq/imd/proto/gen/adminv1/adminv1connect"
)

// watchWait is one long poll of watch, below what the server allows.
const watchWait = 9 * time.Second

func newSettingsWatch(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:   "watch",
		Short: "Show changes as they come into force on one node, until interrupted",
		Long: `Watch prints each value that changes, and each revision that the node refuses. With
-o json each is one JSON object on a line. It ends at an interrupt, or after --count lines.`,
		Example: "  imd settings watch\n  imd settings watch -o json --count 1",
		Args:    cobra.NoArgs,
	}
	f := addServer(a, c, "ops listener")
	count := c.Flags().Int("count", 0, "end after so many lines; 0 = never")
	c.RunE = func(c *cobra.Command, _ []string) error {
		svc, err := f.settingsService()
		if err != nil {
			return err
		}
		ctx, cancel := untilInterrupted(c)
		defer cancel()
		if err = f.watchSettings(ctx, svc, *count); ctx.Err() != nil {
			return nil
		}
		return err
	}
	return c
}

// watchLine is what watch prints as JSON.
type watchLine struct {
	Revision string         `json:"revision"`
	Change   *differenceRow `json:"change,omitempty"`
	Refused  string         `json:"refused,omitempty"` // why
}

func (f *serverFlags) watchSettings(ctx context.Context, svc adminv1connect.SettingsServiceClient, count int) error {
	before, err := f.readSettings(ctx, svc, nil)
	if err != nil {
		return err
	}
	known := &adminv1.AwaitSettingsRequest{WaitMs: int32(watchWait / time.Millisecond)}
	known.SinceRevision, _ = strconv.ParseInt(before.Revision, 10, 64)
	known.SinceRefusedRevision, _ = strconv.ParseInt(before.Refused, 10, 64) // "" = 0
	printed := 0
	for {
		res, err := svc.AwaitSettings(ctx, known)
		if err != nil {
			return err
		}
		var lines []watchLine
		if rev := res.GetRefusedRevision(); rev != 0 && rev != known.SinceRefusedRevision {
			lines = append(lines, watchLine{Revision: fmt.Sprint(rev), Refused: res.GetRefusedReason()})
		}
		known.SinceRefusedRevision = res.GetRefusedRevision()
		if res.GetRevision() != known.SinceRevision {
			now, err := f.readSettings(ctx, svc, nil)
			if err != nil {
				return err
			}
			for _, d := range settingChanges(before, now) {
				lines = append(lines, watchLine{Revision: now.Revision, Change: &d})
			}
			before = now
			known.SinceRevision, _ = strconv.ParseInt(now.Revision, 10, 64)
		}
		for _, l := range lines {
			f.printWatch(l)
			if printed++; printed == count {
				return nil
			}
		}
	}
}

// settingChanges lists what differs between two pages, scope by scope.
func settingChanges(before, now settingsPage) []differenceRow {
	var out []differenceRow
	for _, s := range now.Settings {
		i := slices.IndexFunc(before.Settings, func(o settingRow) bool { return o.Key == s.Key })
		var old []overrideRow
		if i >= 0 {
			old = before.Settings[i].Set
		}
		value := func(in []overrideRow, scope string) string {
			for _, o := range in {
				if o.Scope == scope {
					return o.Value
				}
			}
			return ""
		}
		seen := map[string]bool{}
		for _, o := range append(slices.Clone(old), s.Set...) {
			was, is := value(old, o.Scope), value(s.Set, o.Scope)
			if was != is && !seen[o.Scope] {
				out = append(out, differenceRow{s.Key, o.Scope, was, is})
			}
			seen[o.Scope] = true
		}
	}
	return out
}

func (f *serverFlags) printWatch(l watchLine) {
	if f.app.format == asJSON {
		enc := json.NewEncoder(f.app.out)
		enc.SetEscapeHTML(false)
		_ = enc.Encode(l)
		return
	}
	at := time.Now().Format("15:04:05")
	if l.Change == nil {
		fmt.Fprintf(f.app.out, "%s  revision %s refused: %s\n", at, l.Revision, l.Refused)
		return
	}
	fmt.Fprintf(f.app.out, "%s  revision %s  %s\n", at, l.Revision, l.Change.line())
}

func newSettingsWait(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:     "wait [REVISION]",
		Short:   "Wait until all nodes have a revision in force, the newest by default",
		Long:    "Wait ends with exit status 1 if a node refuses the revision, and 5 if --timeout is over.",
		Example: "  imd settings wait\n  imd settings wait 1234 --timeout 30s",
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
		var rev int64
		if len(args) > 0 {
			if rev, err = strconv.ParseInt(args[0], 10, 64); err != nil || rev < 0 {
				return usagef("%s is not a revision", args[0])
			}
		} else {
			res, err := svc.AwaitSettings(ctx, &adminv1.AwaitSettingsRequest{})
			if err != nil {
				return err
			}
			rev = max(res.GetRevision(), res.GetRefusedRevision())
		}
		nodes, err := f.awaitNodes(ctx, svc, rev)
		if err != nil {
			return err
		}
		return a.printer().data(map[string]any{"revision": fmt.Sprint(rev), "nodes": nodes}, func(w io.Writer) {
			fmt.Fprintf(w, "revision %d is in force on all %d nodes\n", rev, len(nodes))
		})
	}
	return c
}
