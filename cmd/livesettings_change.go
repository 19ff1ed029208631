package cmd

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/user"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/imdhq/imd/pkg/backoff"
	"github.com/imdhq/imd/proto/gen/adminv1"
	"github.com/imdhq/imd/proto/gen/adminv1/adminv1connect"
)

// changeFlags are those of the commands that write.
type changeFlags struct {
	*serverFlags
	reason string
	dry    bool
	wait   bool
}

func addChange(a *app, c *cobra.Command) *changeFlags {
	f := &changeFlags{serverFlags: addServer(a, c, "ops listener")}
	c.Flags().StringVar(&f.reason, "reason", "", "why, for the history")
	c.Flags().BoolVar(&f.dry, "dry-run", false, "show what would change and write nothing")
	c.Flags().BoolVar(&f.wait, "wait", false, "wait until all nodes have it in force")
	return f
}

// changed is what set and rollback print as JSON.
type changed struct {
	Differences []differenceRow `json:"differences"`
	Written     bool            `json:"written"`
	Revision    string          `json:"revision,omitempty"`
	Nodes       []appliedRow    `json:"nodes,omitempty"`
}

// carryOut shows what a change would do, makes it if nobody else was faster,
// and waits for the nodes if asked to.
func (f *changeFlags) carryOut(c *cobra.Command, call func(ctx context.Context, svc adminv1connect.SettingsServiceClient, dry bool, base *int64) (*adminv1.SetSettingsResponse, error)) error {
	svc, err := f.settingsService()
	if err != nil {
		return err
	}
	ctx, cancel := f.app.bounded(c.Context())
	defer cancel()
	res, err := call(ctx, svc, true, nil)
	if err != nil {
		return err
	}
	out := changed{Differences: differenceRows(res.GetDifferences())}
	say := func(format string, args ...any) {
		if f.app.format == human {
			fmt.Fprintf(f.app.out, format+"\n", args...)
		}
	}
	for _, d := range out.Differences {
		say("%s", d.line())
	}
	if len(out.Differences) == 0 {
		say("nothing to change")
	}
	if !f.dry {
		base := res.GetBaseRevision()
		if res, err = call(ctx, svc, false, &base); err != nil {
			return err
		}
		if res.GetConflict() {
			return newFailure(exitConflict, "conflict", "somebody else changed these settings meanwhile; nothing was written", "look at them with imd settings history and try again")
		}
		if out.Written = res.GetRevision() != 0; out.Written {
			out.Revision = fmt.Sprint(res.GetRevision())
			say("written as revision %s", out.Revision)
		}
	}
	if f.wait && out.Written {
		if out.Nodes, err = f.awaitNodes(ctx, svc, res.GetRevision()); err != nil {
			return err
		}
		say("in force on all %d nodes", len(out.Nodes))
	}
	return f.app.printer().data(out, func(io.Writer) {})
}

// nodesEvery is how often the nodes' reports are read while waiting.
const nodesEvery = 100 * time.Millisecond

// awaitNodes waits until all nodes have a revision in force. A node that
// refuses it ends the wait.
func (f *serverFlags) awaitNodes(ctx context.Context, svc adminv1connect.SettingsServiceClient, rev int64) ([]appliedRow, error) {
	for {
		res, err := svc.ListSettingsStatus(ctx, &adminv1.ListSettingsStatusRequest{})
		if err != nil {
			return nil, err
		}
		var late []string
		for _, n := range res.GetNodes() {
			switch {
			case n.GetAppliedRevision() >= rev && n.GetAtMs() != 0:
			case n.GetRefusedRevision() >= rev:
				return nil, newFailure(exitFailed, "refused", fmt.Sprintf("node %s refuses revision %d: %s", n.GetNodeId(), rev, n.GetRefusedReason()), "")
			default:
				late = append(late, n.GetNodeId())
			}
		}
		if len(late) == 0 {
			return appliedRows(res.GetNodes()), nil
		}
		if backoff.Sleep(ctx, nodesEvery) != nil {
			return nil, newFailure(exitUnavailable, "timeout", fmt.Sprintf("revision %d is not yet in force on %s", rev, strings.Join(late, ", ")), "give more with --timeout; see imd settings get KEY --applied")
		}
	}
}

// operator names who runs the command, for the history.
func operator() string {
	name := "unknown"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	if host, err := os.Hostname(); err == nil {
		name += "@" + host
	}
	return name[:min(len(name), 128)]
}

func newSettingsSet(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:   "set KEY=VALUE...",
		Short: "Change settings, all or none",
		Long: `Set shows what changes and writes it in one piece, with a line in the history. It
writes nothing if somebody else changed the same settings meanwhile (exit status 6).
An empty value takes a setting away, so that the next wider scope holds.`,
		Example: "  imd settings set gateway.ping_interval=20s --reason \"proxy drops idle sockets\"\n" +
			"  imd settings set rate.factor=0.5 --zone eu --wait\n  imd settings set rate.factor= --zone eu",
		Args: cobra.MinimumNArgs(1),
	}
	f := addChange(a, c)
	scopes := map[string]*string{}
	for kind, usage := range map[string]string{"zone": "only for nodes of this zone", "role": "only for nodes of this role", "node": "only for the node of this name"} {
		scopes[kind] = c.Flags().String(kind, "", usage)
	}
	c.MarkFlagsMutuallyExclusive("zone", "role", "node")
	c.RunE = func(c *cobra.Command, args []string) error {
		req := &adminv1.SetSettingsRequest{By: operator(), Reason: f.reason}
		given := map[string]bool{}
		for _, arg := range args {
			key, value, ok := strings.Cut(arg, "=")
			if !ok {
				return usagef("%s: must be key=value", arg)
			}
			if given[key] {
				return usagef("%s is given twice", key)
			}
			given[key] = true
			req.Edits = append(req.Edits, &adminv1.SettingEdit{Key: key, Value: value, Scope: scopeMessage(*scopes["zone"], *scopes["role"], *scopes["node"])})
		}
		return f.carryOut(c, func(ctx context.Context, svc adminv1connect.SettingsServiceClient, dry bool, base *int64) (*adminv1.SetSettingsResponse, error) {
			req.DryRun, req.IfBaseRevision = dry, base
			return svc.SetSettings(ctx, req)
		})
	}
	return c
}

func scopeMessage(zone, role, node string) *adminv1.SettingScope {
	switch {
	case zone != "":
		return &adminv1.SettingScope{Scope: &adminv1.SettingScope_Zone{Zone: zone}}
	case role != "":
		return &adminv1.SettingScope{Scope: &adminv1.SettingScope_Role{Role: role}}
	case node != "":
		return &adminv1.SettingScope{Scope: &adminv1.SettingScope_Node{Node: node}}
	}
	return nil
}

func newSettingsRollback(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:     "rollback SECTION NUMBER",
		Short:   "Bring an older state of a section back, as a new change",
		Long:    "Rollback writes what a section held after the change NUMBER of its history. It may go further back than one change may go.",
		Example: "  imd settings history gateway\n  imd settings rollback gateway 7 --reason \"too many reconnects\"",
		Args:    cobra.ExactArgs(2),
	}
	f := addChange(a, c)
	c.RunE = func(c *cobra.Command, args []string) error {
		n, err := strconv.ParseInt(args[1], 10, 32)
		if err != nil || n < 1 {
			return usagef("%s is not the number of a change; see imd settings history", args[1])
		}
		req := &adminv1.RollbackSettingsRequest{Section: args[0], Number: int32(n), By: operator(), Reason: f.reason}
		return f.carryOut(c, func(ctx context.Context, svc adminv1connect.SettingsServiceClient, dry bool, base *int64) (*adminv1.SetSettingsResponse, error) {
			req.DryRun, req.IfBaseRevision = dry, base
			return svc.RollbackSettings(ctx, req)
		})
	}
	return c
}
