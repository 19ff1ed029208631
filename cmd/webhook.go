package cmd

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/imdhq/imd/proto/gen/adminv1"
	"github.com/imdhq/imd/proto/gen/adminv1/adminv1connect"
)

func newWebhook(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:   "webhook",
		Short: "Who is told of events, where they stand, and telling them once more",
		Long: `Receivers are named in the configuration (webhooks.receivers). Each has a cursor in
the list of events; the leader of the scheduler role tells them. These commands ask
a node with that role.`,
	}
	c.AddCommand(newWebhookList(a), newWebhookTest(a), newWebhookReplay(a), newWebhookDead(a), newWebhookRemove(a))
	return c
}

// receiverRow is a receiver as `webhook list -o json` prints it.
type receiverRow struct {
	Name   string     `json:"name"`
	URL    string     `json:"url,omitempty"` // "" = not in the configuration of that node
	Events []string   `json:"events"`        // none = all
	Cursor string     `json:"cursor"`        // "-1" = it never began
	Behind int64      `json:"behind"`
	Open   int64      `json:"open"`
	Dead   int64      `json:"dead"`
	Saved  *time.Time `json:"saved"`
}

func newWebhookList(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:   "list",
		Short: "Show who is told of events, and where they stand",
		Long: `List shows the receivers that the node's configuration or the message store knows.
The cursor is up to where a receiver was told, but for what is open: taken up and
not taken yet. Dead are events that were given up. Rows that begin with offline/
are the walks of the log for users without a connected device.`,
		Example: "  imd webhook list\n  imd webhook list -o json",
		Args:    cobra.NoArgs,
	}
	f := addServer(a, c, "ops listener")
	c.RunE = func(c *cobra.Command, _ []string) error {
		client, err := f.admin()
		if err != nil {
			return err
		}
		ctx, cancel := a.bounded(c.Context())
		defer cancel()
		res, err := adminv1connect.NewWebhookServiceClient(client).ListReceivers(ctx, &adminv1.ListReceiversRequest{})
		if err != nil {
			return err
		}
		rows := []receiverRow{}
		for _, r := range res.GetReceivers() {
			row := receiverRow{Name: r.GetName(), URL: r.GetUrl(), Events: append([]string{}, r.GetEvents()...), Cursor: fmt.Sprint(r.GetCursor()),
				Behind: r.GetBehind(), Open: r.GetOpen(), Dead: r.GetDead()}
			if r.GetSavedMs() > 0 {
				at := time.UnixMilli(r.GetSavedMs()).UTC()
				row.Saved = &at
			}
			rows = append(rows, row)
		}
		data := map[string]any{
			"receivers": rows, "newest": fmt.Sprint(res.GetNewest()), "oldest": fmt.Sprint(res.GetOldest()), "on": res.GetOn(),
			"pushes": map[string]int64{"due": res.GetPushesDue(), "sent": res.GetPushesSent(), "withdraw": res.GetPushesWithdraw(), "given_up": res.GetPushesGivenUp()},
		}
		return a.printer().data(data, func(w io.Writer) { printReceivers(w, rows, res) })
	}
	return c
}

func printReceivers(w io.Writer, rows []receiverRow, res *adminv1.ListReceiversResponse) {
	var out [][]string
	for _, r := range rows {
		where, events, saved := r.URL, strings.Join(r.Events, ","), ""
		if where == "" {
			where = "(not configured)"
		}
		if events == "" {
			events = "all"
		}
		if r.Saved != nil {
			saved = span(time.Since(*r.Saved)) + " ago"
		}
		out = append(out, []string{r.Name, r.Cursor, fmt.Sprint(r.Behind), fmt.Sprint(r.Open), fmt.Sprint(r.Dead), saved, events, where})
	}
	table(w, "RECEIVER CURSOR BEHIND OPEN DEAD SAVED EVENTS URL", out)
	if res.GetOldest() > res.GetNewest() {
		fmt.Fprintln(w, "no events are kept")
	} else {
		fmt.Fprintf(w, "events %d to %d are kept\n", res.GetOldest(), res.GetNewest())
	}
	if n := res.GetPushesDue() + res.GetPushesSent() + res.GetPushesWithdraw() + res.GetPushesGivenUp(); n > 0 {
		fmt.Fprintf(w, "notices: %d due, %d told, %d to be withdrawn, %d given up\n", res.GetPushesDue(), res.GetPushesSent(), res.GetPushesWithdraw(), res.GetPushesGivenUp())
	}
}

func newWebhookTest(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:     "test RECEIVER",
		Short:   "Send a signed event of the type test, once",
		Long:    "Test sends from the node that answers, with the keys, limits and deadline of the receiver.\n\nExit status: 1 if the receiver did not take it, 3 if the node does not know it.",
		Example: "  imd webhook test shop",
		Args:    cobra.ExactArgs(1),
	}
	f := addServer(a, c, "ops listener")
	c.RunE = func(c *cobra.Command, args []string) error {
		client, err := f.admin()
		if err != nil {
			return err
		}
		ctx, cancel := a.bounded(c.Context())
		defer cancel()
		res, err := adminv1connect.NewWebhookServiceClient(client).TestReceiver(ctx, &adminv1.TestReceiverRequest{Name: args[0]})
		if err != nil {
			return err
		}
		if !res.GetTaken() {
			return newFailure(exitFailed, "not_taken", fmt.Sprintf("%s did not take it: %s", args[0], res.GetReason()), "see docs/features/webhooks.md")
		}
		return a.printer().data(map[string]any{"taken": true, "status": res.GetStatus(), "took_ms": res.GetTookMs()}, func(w io.Writer) {
			fmt.Fprintf(w, "%s took it: status %d after %d ms\n", args[0], res.GetStatus(), res.GetTookMs())
		})
	}
	return c
}

func newWebhookReplay(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:   "replay RECEIVER",
		Short: "Tell a receiver once more, from a cursor or a time on, or its dead letters",
		Long: `Replay moves a receiver's cursor back. What it has been told before has the same id
again, and the header Imd-Replay. What is told comes in the order of the events of
each conversation. Events are kept for webhooks.keep.

Exit status: 2 if the cursor is out of range, 3 if nobody knows the receiver.`,
		Example: "  imd webhook replay shop --after 1234\n  imd webhook replay shop --since 2h\n  imd webhook replay shop --dead",
		Args:    cobra.ExactArgs(1),
	}
	f := addServer(a, c, "ops listener")
	after := c.Flags().String("after", "", "cursor behind which to begin; 0 is the oldest that is kept")
	since := c.Flags().Duration("since", 0, "begin with what happened this long ago, such as 2h")
	dead := c.Flags().Bool("dead", false, "only its dead letters")
	c.RunE = func(c *cobra.Command, args []string) error {
		req := &adminv1.ReplayReceiverRequest{Name: args[0], Dead: *dead}
		if *after != "" {
			n, err := strconv.ParseInt(*after, 10, 64)
			if err != nil || n < 0 {
				return usagef("%q is no cursor; it is a number, as imd webhook list prints it", *after)
			}
			req.After, req.ByCursor = n, true
		}
		if *since > 0 {
			req.SinceMs = time.Now().Add(-*since).UnixMilli()
		}
		if n := len(*after); (n > 0) == (*since > 0) && (n > 0 || !*dead) || *dead && (n > 0 || *since > 0) {
			return usagef("exactly one of --after, --since and --dead is wanted")
		}
		client, err := f.admin()
		if err != nil {
			return err
		}
		ctx, cancel := a.bounded(c.Context())
		defer cancel()
		res, err := adminv1connect.NewWebhookServiceClient(client).ReplayReceiver(ctx, req)
		if err != nil {
			return err
		}
		data := map[string]any{"receiver": args[0], "after": fmt.Sprint(res.GetAfter()), "dead": res.GetDead()}
		return a.printer().data(data, func(w io.Writer) {
			if *dead {
				fmt.Fprintf(w, "%s is told %d dead letters once more\n", args[0], res.GetDead())
				return
			}
			fmt.Fprintf(w, "%s is told once more what comes behind cursor %d\n", args[0], res.GetAfter())
		})
	}
	return c
}

// letterRow is a dead letter as `webhook dead -o json` prints it.
type letterRow struct {
	Cursor       string    `json:"cursor"`
	Type         string    `json:"type"`
	Conversation string    `json:"conversation_id,omitempty"`
	Seq          string    `json:"seq,omitempty"`
	User         string    `json:"user_id,omitempty"`
	At           time.Time `json:"at"`
	Dead         time.Time `json:"given_up"`
	Tries        int32     `json:"tries"`
	Reason       string    `json:"reason"`
	Again        bool      `json:"again"`
}

func newWebhookDead(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:     "dead RECEIVER",
		Short:   "List the events that were given up for a receiver",
		Long:    "Dead lists events that a receiver refused, or failed at too often, by cursor. imd webhook replay --dead tells them once more.\n\nExit status: 3 if nobody knows the receiver.",
		Example: "  imd webhook dead shop\n  imd webhook dead shop --after 1234 -o json",
		Args:    cobra.ExactArgs(1),
	}
	f := addServer(a, c, "ops listener")
	after := c.Flags().Int64("after", 0, "begin behind this cursor")
	most := c.Flags().Int32("limit", 100, "how many, 1 to 1000")
	c.RunE = func(c *cobra.Command, args []string) error {
		if *most < 1 || *most > 1000 {
			return usagef("--limit %d is not within 1 and 1000", *most)
		}
		client, err := f.admin()
		if err != nil {
			return err
		}
		ctx, cancel := a.bounded(c.Context())
		defer cancel()
		res, err := adminv1connect.NewWebhookServiceClient(client).ListDeadLetters(ctx, &adminv1.ListDeadLettersRequest{Name: args[0], After: *after, Limit: *most})
		if err != nil {
			return err
		}
		rows := []letterRow{}
		for _, l := range res.GetLetters() {
			rows = append(rows, letterRow{
				Cursor: fmt.Sprint(l.GetCursor()), Type: l.GetType(), Conversation: l.GetConversationId(), Seq: fmt.Sprint(l.GetSeq()), User: l.GetUserId(),
				At: time.UnixMilli(l.GetAtMs()).UTC(), Dead: time.UnixMilli(l.GetDeadMs()).UTC(), Tries: l.GetTries(), Reason: l.GetReason(), Again: l.GetAgain(),
			})
		}
		return a.printer().data(map[string]any{"letters": rows}, func(w io.Writer) {
			var out [][]string
			for _, r := range rows {
				out = append(out, []string{r.Cursor, r.Type, r.Conversation, r.Seq, span(time.Since(r.Dead)) + " ago", fmt.Sprint(r.Tries), r.Reason})
			}
			table(w, "CURSOR TYPE CONVERSATION SEQ GIVEN-UP TRIES REASON", out)
		})
	}
	return c
}

func newWebhookRemove(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:     "remove RECEIVER",
		Short:   "Forget where a receiver stands, and its dead letters",
		Long:    "Remove is for receivers that were taken out of the configuration. One that is still in it begins anew with what happens from then on.\n\nExit status: 3 if nobody knows the receiver.",
		Example: "  imd webhook remove shop",
		Args:    cobra.ExactArgs(1),
	}
	f := addServer(a, c, "ops listener")
	c.RunE = func(c *cobra.Command, args []string) error {
		client, err := f.admin()
		if err != nil {
			return err
		}
		ctx, cancel := a.bounded(c.Context())
		defer cancel()
		if _, err := adminv1connect.NewWebhookServiceClient(client).RemoveReceiver(ctx, &adminv1.RemoveReceiverRequest{Name: args[0]}); err != nil {
			return err
		}
		return a.printer().data(map[string]any{"removed": args[0]}, func(w io.Writer) { fmt.Fprintf(w, "%s is forgotten\n", args[0]) })
	}
	return c
}
