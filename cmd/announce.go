package cmd

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/imdhq/imd/proto/gen/public/imd/v1/imdv1connect"
	imd "github.com/imdhq/imd/sdk/go"
	"github.com/imdhq/imd/sdk/go/gen/imdv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

func newAnnounce(a *app) *cobra.Command {
	c := &cobra.Command{
		Use: "announce", Short: "Tell everybody something",
		Long: `Announcements are shown by every client that can show them, those that connect later
included, each once, until they expire or are withdrawn. These commands ask the ops
listener of any node.`,
	}
	c.AddCommand(newAnnounceSend(a), newAnnounceList(a), newAnnounceWithdraw(a))
	return c
}

func (f *serverFlags) announcementService() (imdv1connect.AnnouncementServiceClient, error) {
	client, err := f.admin()
	if err != nil {
		return nil, err
	}
	return imdv1connect.NewAnnouncementServiceClient(client), nil
}

// announcementRow is an announcement as commands print it.
type announcementRow struct {
	Seq       int64      `json:"seq,string"`
	Text      string     `json:"text"`
	Created   time.Time  `json:"created"`
	Expires   time.Time  `json:"expires"`
	Withdrawn *time.Time `json:"withdrawn,omitempty"`
}

func newAnnouncementRow(a *imdv1.AnnouncementInfo) announcementRow {
	r := announcementRow{Seq: a.GetSeq(), Text: a.GetText(), Created: time.UnixMilli(a.GetCreatedMs()).UTC(), Expires: time.UnixMilli(a.GetExpiresMs()).UTC()}
	if ms := a.GetWithdrawnMs(); ms > 0 {
		r.Withdrawn = new(time.UnixMilli(ms).UTC())
	}
	return r
}

func newAnnounceSend(a *app) *cobra.Command {
	c := &cobra.Command{
		Use: "send TEXT...", Short: "Tell everybody, now and until it expires",
		Example: "  imd announce send --for 24h 'The service pauses tonight from 22:00 to 22:15 UTC.'",
		Args:    cobra.MinimumNArgs(1),
	}
	f := addServer(a, c, "ops listener")
	life := c.Flags().Duration("for", 24*time.Hour, "how long it is shown")
	id := c.Flags().String("id", "", "request id, a UUID of version 4 or 7; the same one again announces nothing new (default: a new one)")
	c.RunE = func(c *cobra.Command, args []string) error {
		if *life <= 0 {
			return usagef("--for: %v is not above 0", *life)
		}
		if *id == "" {
			*id = imd.NewID()
		} else if !protocol.ValidUUID(*id) {
			return usagef("--id: %q is not a UUID of version 4 or 7 in lower case", *id)
		}
		svc, err := f.announcementService()
		if err != nil {
			return err
		}
		ctx, cancel := a.bounded(c.Context())
		defer cancel()
		res, err := svc.Announce(ctx, &imdv1.AnnounceRequest{RequestId: *id, Text: strings.Join(args, " "), ExpiresMs: time.Now().Add(*life).UnixMilli()})
		if err != nil {
			return err
		}
		r := newAnnouncementRow(res.GetAnnouncement())
		return a.printer().data(r, func(w io.Writer) {
			fmt.Fprintf(w, "announcement %d is shown until %s\n", r.Seq, r.Expires.Format(time.RFC3339))
		})
	}
	return c
}

func newAnnounceList(a *app) *cobra.Command {
	c := &cobra.Command{
		Use: "list", Short: "List the newest announcements, also those that have ended",
		Example: "  imd announce list\n  imd announce list -o json",
		Args:    cobra.NoArgs,
	}
	f := addServer(a, c, "ops listener")
	most := c.Flags().Int("limit", 1000, "how many at most")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if *most < 1 {
			return usagef("--limit: %d is not above 0", *most)
		}
		svc, err := f.announcementService()
		if err != nil {
			return err
		}
		ctx, cancel := a.bounded(c.Context())
		defer cancel()
		var rows []announcementRow
		for req := (&imdv1.ListAnnouncementsRequest{}); ; {
			res, err := svc.ListAnnouncements(ctx, req)
			if err != nil {
				return err
			}
			page := []announcementRow{} // older ones than those before
			for _, x := range res.GetAnnouncements() {
				page = append(page, newAnnouncementRow(x))
			}
			rows = append(page, rows...)
			if req.PageToken = res.GetNextPageToken(); req.PageToken == "" || len(rows) >= *most {
				break
			}
		}
		rows = rows[max(0, len(rows)-*most):]
		return a.printer().data(map[string]any{"announcements": rows}, func(w io.Writer) { printAnnouncements(w, rows) })
	}
	return c
}

func printAnnouncements(w io.Writer, rows []announcementRow) {
	var lines [][]string
	for _, r := range rows {
		state := "shown"
		switch {
		case r.Withdrawn != nil:
			state = "withdrawn"
		case !r.Expires.After(time.Now()):
			state = "expired"
		}
		text := []rune(printable(r.Text))
		lines = append(lines, []string{strconv.FormatInt(r.Seq, 10), state, r.Created.Format(time.RFC3339), r.Expires.Format(time.RFC3339), string(text[:min(len(text), 60)])})
	}
	table(w, "SEQ STATE CREATED EXPIRES TEXT", lines)
}

func newAnnounceWithdraw(a *app) *cobra.Command {
	c := &cobra.Command{
		Use: "withdraw SEQ", Short: "End an announcement before its time",
		Example: "  imd announce withdraw 7",
		Args:    cobra.ExactArgs(1),
	}
	f := addServer(a, c, "ops listener")
	c.RunE = func(c *cobra.Command, args []string) error {
		seq, err := strconv.ParseInt(args[0], 10, 64)
		if err != nil {
			return usagef("%q is not the number of an announcement", args[0])
		}
		svc, err := f.announcementService()
		if err != nil {
			return err
		}
		ctx, cancel := a.bounded(c.Context())
		defer cancel()
		res, err := svc.Withdraw(ctx, &imdv1.WithdrawRequest{Seq: seq})
		if err != nil {
			return err
		}
		r := newAnnouncementRow(res.GetAnnouncement())
		return a.printer().data(r, func(w io.Writer) { fmt.Fprintf(w, "announcement %d is taken back\n", r.Seq) })
	}
	return c
}
