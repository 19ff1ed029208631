package cmd

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/imdhq/imd/pkg/presence"
	"github.com/imdhq/imd/proto/gen/adminv1"
	"github.com/imdhq/imd/proto/gen/adminv1/adminv1connect"
)

func newUser(a *app) *cobra.Command {
	c := &cobra.Command{Use: "user", Short: "See and end the logins of a user"}
	c.AddCommand(newUserDevices(a), newUserPresence(a),
		newUserEnd(a, "kick", "kicked", "End a login of a user, or all of them: an operator wants it",
			"Clients are told that an operator has ended the login. Where a token was lost or a\nperson has signed out, take imd user revoke, which does the same in other words."),
		newUserEnd(a, "revoke", "revoked", "End a login of a user, or all of them: its token is void",
			"Clients are told that the login is over and sign in anew. To tell that an operator\nwanted it, take imd user kick, which does the same in other words."))
	return c
}

func (f *serverFlags) deviceService() (adminv1connect.DeviceServiceClient, error) {
	client, err := f.admin()
	if err != nil {
		return nil, err
	}
	return adminv1connect.NewDeviceServiceClient(client), nil
}

// deviceRow is a live session as `user devices -o json` prints it.
type deviceRow struct {
	SessionID  string    `json:"session_id"`
	LoginID    string    `json:"login_id"`
	DeviceID   string    `json:"device_id"`
	Class      string    `json:"class"`
	NodeID     string    `json:"node_id"`
	BootID     string    `json:"boot_id"`
	RouteEpoch uint64    `json:"route_epoch,string"`
	Since      time.Time `json:"since"`
}

func newUserDevices(a *app) *cobra.Command {
	c := &cobra.Command{
		Use: "devices USER", Short: "List where a user is signed in now",
		Long: `Devices lists the live sessions of a user, the oldest first: the login, which is
what a token stands for, the device, its class, and the node that holds the
connection.`,
		Example: "  imd user devices alice\n  imd user devices alice -o json",
		Args:    cobra.ExactArgs(1),
	}
	f := addServer(a, c, "ops listener")
	c.RunE = func(c *cobra.Command, args []string) error {
		svc, err := f.deviceService()
		if err != nil {
			return err
		}
		ctx, cancel := a.bounded(c.Context())
		defer cancel()
		res, err := svc.ListDevices(ctx, &adminv1.ListDevicesRequest{UserId: args[0]})
		if err != nil {
			return err
		}
		rows := []deviceRow{}
		for _, d := range res.GetDevices() {
			rows = append(rows, deviceRow{d.GetSessionId(), d.GetLoginId(), d.GetDeviceId(), d.GetClass(), d.GetNodeId(), d.GetBootId(),
				d.GetRouteEpoch(), time.UnixMilli(d.GetSinceMs()).UTC()})
		}
		return a.printer().data(map[string]any{"devices": rows}, func(w io.Writer) { printDevices(w, args[0], rows) })
	}
	return c
}

func printDevices(w io.Writer, user string, rows []deviceRow) {
	if len(rows) == 0 {
		fmt.Fprintf(w, "%s is not connected\n", user)
		return
	}
	var lines [][]string
	for _, r := range rows {
		lines = append(lines, []string{r.LoginID, r.Class, r.DeviceID, r.NodeID, r.Since.Format(time.RFC3339)})
	}
	table(w, "LOGIN CLASS DEVICE NODE SINCE", lines)
}

// presenceRow is what `user presence -o json` prints of a user.
type presenceRow struct {
	UserID   string     `json:"user_id"`
	Online   bool       `json:"online"`
	Classes  []string   `json:"classes,omitempty"`
	LastSeen *time.Time `json:"last_seen,omitempty"`
}

func newUserPresence(a *app) *cobra.Command {
	c := &cobra.Command{
		Use: "presence USER...", Short: "See who is online, or when they were last seen",
		Long: `Presence asks who of up to 200 users has a session at this moment, and with
which classes of devices. Of the others it says when their last session ended, if
that is known.`,
		Example: "  imd user presence alice bob\n  imd user presence alice -o json",
		Args:    cobra.RangeArgs(1, presence.MaxRead),
	}
	f := addServer(a, c, "ops listener")
	c.RunE = func(c *cobra.Command, args []string) error {
		svc, err := f.deviceService()
		if err != nil {
			return err
		}
		ctx, cancel := a.bounded(c.Context())
		defer cancel()
		res, err := svc.ListPresence(ctx, &adminv1.ListPresenceRequest{UserIds: args})
		if err != nil {
			return err
		}
		rows := []presenceRow{}
		for _, p := range res.GetUsers() {
			row := presenceRow{UserID: p.GetUserId(), Online: p.GetOnline(), Classes: p.GetClasses()}
			if ms := p.GetLastSeenMs(); ms > 0 {
				row.LastSeen = new(time.UnixMilli(ms).UTC())
			}
			rows = append(rows, row)
		}
		return a.printer().data(map[string]any{"users": rows}, func(w io.Writer) { printPresence(w, rows) })
	}
	return c
}

func printPresence(w io.Writer, rows []presenceRow) {
	var lines [][]string
	for _, r := range rows {
		state, with, seen := "offline", "-", "-"
		if r.Online {
			state, with = "online", strings.Join(r.Classes, ",")
		}
		if r.LastSeen != nil {
			seen = r.LastSeen.Format(time.RFC3339)
		}
		lines = append(lines, []string{r.UserID, state, with, seen})
	}
	table(w, "USER STATE CLASSES LAST_SEEN", lines)
}

// newUserEnd is kick or revoke: the same end, told to the user in other words.
func newUserEnd(a *app, verb, reason, short, when string) *cobra.Command {
	c := &cobra.Command{
		Use: verb + " USER", Short: short,
		Long: fmt.Sprintf(`The sessions of the login end on every node, with the reason %s, and its
tokens are refused from now on. Without --login that is every login whose token
was issued until now; a token that is issued later is good.

%s`, reason, when),
		Example: fmt.Sprintf("  imd user %s alice --login 6f1c\n  imd user %s alice --all", verb, verb),
		Args:    cobra.ExactArgs(1),
	}
	f := addServer(a, c, "ops listener")
	login := c.Flags().String("login", "", "login to end, as imd user devices shows it")
	all := c.Flags().Bool("all", false, "end all logins of the user")
	c.RunE = func(c *cobra.Command, args []string) error {
		if (*login == "") != *all {
			return usagef("give --login LOGIN or --all")
		}
		svc, err := f.deviceService()
		if err != nil {
			return err
		}
		return a.endLogins(c.Context(), svc, &adminv1.EndLoginsRequest{UserId: args[0], LoginId: *login, Reason: reason})
	}
	return c
}

func (a *app) endLogins(ctx context.Context, svc adminv1connect.DeviceServiceClient, r *adminv1.EndLoginsRequest) error {
	ctx, cancel := a.bounded(ctx)
	defer cancel()
	res, err := svc.EndLogins(ctx, r)
	if err != nil {
		return err
	}
	what := "login " + r.LoginId
	if r.LoginId == "" {
		what = "all logins"
	}
	notTold := append([]string{}, res.NotTold...) // an empty list in JSON, not null
	return a.printer().data(map[string]any{"user_id": r.UserId, "login_id": r.LoginId, "reason": r.Reason, "ended": res.Ended, "not_told": notTold}, func(w io.Writer) {
		fmt.Fprintf(w, "%s of %s: %s; sessions ended: %d\n", what, r.UserId, r.Reason, res.Ended)
		if len(notTold) > 0 {
			fmt.Fprintf(w, "  not told: %s; sessions there end within 30 s\n", strings.Join(notTold, ", "))
		}
	})
}
