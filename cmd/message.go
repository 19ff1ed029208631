package cmd

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	imd "github.com/imdhq/imd/sdk/go"
	"github.com/imdhq/imd/sdk/go/gen/imdv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

func newMessage(a *app) *cobra.Command {
	c := &cobra.Command{Use: "message", Short: "Schedule messages, list and cancel them"}
	c.AddCommand(newMessageSchedule(a), newMessageScheduled(a), newMessageCancel(a))
	return c
}

// scheduledMessage is a scheduled message as commands print it.
type scheduledMessage struct {
	ScheduledID     int64      `json:"scheduled_id,string"`
	ConversationID  string     `json:"conversation_id"`
	Text            string     `json:"text,omitempty"`
	SendAt          time.Time  `json:"send_at"`
	State           string     `json:"state"`
	Reason          string     `json:"reason,omitempty"`
	ClientMessageID string     `json:"client_message_id"`
	MessageID       int64      `json:"message_id,string,omitempty"`
	Seq             int64      `json:"seq,string,omitempty"`
	Ended           *time.Time `json:"ended,omitempty"`
}

func showScheduled(m *imdv1.ScheduledMessage) scheduledMessage {
	s := scheduledMessage{
		ScheduledID: m.GetScheduledId(), ConversationID: m.GetConversationId(), Text: m.GetContent().GetText(), SendAt: time.UnixMilli(m.GetSendAtMs()).UTC(),
		State:  strings.ToLower(strings.TrimPrefix(m.GetState().String(), "SCHEDULED_STATE_")),
		Reason: m.GetReason(), ClientMessageID: m.GetClientMessageId(), MessageID: m.GetMessageId(), Seq: m.GetSeq(),
	}
	if ms := m.GetEndedMs(); ms > 0 {
		s.Ended = new(time.UnixMilli(ms).UTC())
	}
	return s
}

func newMessageSchedule(a *app) *cobra.Command {
	c := &cobra.Command{
		Use: "schedule TEXT...", Short: "Have a message sent later",
		Long: `Schedule keeps a message at the server, which sends it at a time. Whether the
user may send it is asked now, and again when its time has come. The same --id
again, with the same --at, gets the first answer.`,
		Example: "  imd message schedule --as alice --to bob --in 2h 'good night'\n  imd message schedule --as alice --conversation g_123 --at 2027-01-01T00:00:00Z 'happy new year'",
		Args:    cobra.MinimumNArgs(1),
	}
	f := addPerson(a, c)
	id := c.Flags().String("id", "", "request id, a UUID of version 4 or 7 (default: a new one)")
	in := c.Flags().Duration("in", 0, "send it after this long, such as 90m")
	at := c.Flags().String("at", "", "send it at this time, such as 2027-01-01T00:00:00Z")
	c.RunE = func(c *cobra.Command, args []string) error {
		if err := f.check(true); err != nil {
			return err
		}
		when, err := later(*in, *at)
		if err != nil {
			return err
		}
		if *id != "" && !protocol.ValidUUID(*id) {
			return usagef("--id: %q is not a UUID of version 4 or 7 in lower case", *id)
		}
		if *id != "" && *in > 0 {
			return usagef("--id needs --at: with --in each run names another time")
		}
		text := strings.Join(args, " ")
		if !utf8.ValidString(text) {
			return usagef("the text is not UTF-8")
		}
		return f.schedule(c, *id, when, text)
	}
	return c
}

// later is the time that the flags name.
func later(in time.Duration, at string) (time.Time, error) {
	if (in > 0) == (at != "") || in < 0 {
		return time.Time{}, usagef("give --in DURATION or --at TIME")
	}
	if in > 0 {
		return time.Now().Add(in), nil
	}
	when, err := time.Parse(time.RFC3339, at)
	if err != nil {
		return when, usagef("--at: %q is not a time such as 2027-01-01T00:00:00Z", at)
	}
	return when, nil
}

func (f *personFlags) schedule(c *cobra.Command, id string, when time.Time, text string) error {
	ctx, cancel := f.app.bounded(c.Context())
	defer cancel()
	client, err := f.connect(ctx, imd.Options{SendOnly: true})
	if err != nil {
		return err
	}
	defer client.Close()
	r := &imdv1.ScheduleRequest{RequestId: id, SendAtMs: when.UnixMilli(), Content: imd.Text(text)}
	if f.conv != "" {
		r.To = &imdv1.ScheduleRequest_ConversationId{ConversationId: f.conv}
	} else {
		r.To = &imdv1.ScheduleRequest_ToUser{ToUser: f.to}
	}
	m, err := client.API().Schedule(ctx, r)
	if err != nil {
		return clientFailure(err)
	}
	s := showScheduled(m)
	return f.app.printer().data(s, func(w io.Writer) {
		fmt.Fprintf(w, "%d is sent to %s at %s\n", s.ScheduledID, s.ConversationID, s.SendAt.Format(time.RFC3339))
	})
}

func newMessageScheduled(a *app) *cobra.Command {
	c := &cobra.Command{
		Use: "scheduled", Short: "List the scheduled messages of a user",
		Long: `Scheduled lists what waits for its time, the earliest first. With --ended it also
shows what was sent, dropped or cancelled, and why.`,
		Example: "  imd message scheduled --as alice\n  imd message scheduled --as alice --ended -o json",
		Args:    cobra.NoArgs,
	}
	f := addActor(a, c)
	ended := c.Flags().Bool("ended", false, "also those that were sent, dropped or cancelled")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if err := f.check(false); err != nil {
			return err
		}
		ctx, cancel := f.app.bounded(c.Context())
		defer cancel()
		client, err := f.connect(ctx, imd.Options{SendOnly: true})
		if err != nil {
			return err
		}
		defer client.Close()
		list, err := client.API().Scheduled(ctx, *ended)
		if err != nil {
			return clientFailure(err)
		}
		rows := []scheduledMessage{}
		for _, m := range list {
			rows = append(rows, showScheduled(m))
		}
		return f.app.printer().data(map[string]any{"scheduled": rows}, func(w io.Writer) { printScheduled(w, rows) })
	}
	return c
}

func printScheduled(w io.Writer, rows []scheduledMessage) {
	var lines [][]string
	for _, r := range rows {
		state := r.State
		if r.Reason != "" {
			state += ":" + r.Reason
		}
		text := []rune(printable(r.Text))
		lines = append(lines, []string{strconv.FormatInt(r.ScheduledID, 10), r.SendAt.Format(time.RFC3339), r.ConversationID, state, string(text[:min(len(text), 40)])})
	}
	table(w, "SCHEDULED SEND_AT CONVERSATION STATE TEXT", lines)
}

func newMessageCancel(a *app) *cobra.Command {
	c := &cobra.Command{
		Use: "cancel SCHEDULED", Short: "Cancel a scheduled message",
		Long: `Cancel takes a scheduled message back. If its sending has begun, the command says
what has become of it and ends with the status of a conflict.`,
		Example: "  imd message cancel --as alice 117093590311632897",
		Args:    cobra.ExactArgs(1),
	}
	f := addActor(a, c)
	c.RunE = func(c *cobra.Command, args []string) error {
		id, err := strconv.ParseInt(args[0], 10, 64)
		if err != nil {
			return usagef("%q is not the number of a scheduled message", args[0])
		}
		if err := f.check(false); err != nil {
			return err
		}
		ctx, cancel := f.app.bounded(c.Context())
		defer cancel()
		client, err := f.connect(ctx, imd.Options{SendOnly: true})
		if err != nil {
			return err
		}
		defer client.Close()
		cancelled, m, err := client.API().CancelScheduled(ctx, id)
		if err != nil {
			return clientFailure(err)
		}
		s := showScheduled(m)
		if !cancelled {
			return newFailure(exitConflict, "too_late", fmt.Sprintf("%d is %s", id, s.State), "")
		}
		return f.app.printer().data(s, func(w io.Writer) { fmt.Fprintf(w, "%d is not sent\n", id) })
	}
	return c
}
