package cmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	imd "github.com/imdhq/imd/sdk/go"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// receipt is a stored message as `send -o json` prints it.
type receipt struct {
	ConversationID  string    `json:"conversation_id"`
	ClientMessageID string    `json:"client_message_id"`
	MessageID       int64     `json:"message_id,string"`
	Seq             int64     `json:"seq,string"`
	PrevSeq         int64     `json:"prev_seq,string"`
	ServerTime      time.Time `json:"server_time"`
	Duplicate       bool      `json:"duplicate"`
}

func newSend(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:   "send TEXT...",
		Short: "Send a message and wait until it is stored",
		Long: `Send stores one message and prints where it is. With - as TEXT it reads the text
from standard input. The same --id again gets the first answer, marked as a
duplicate.`,
		Example: "  imd send --as alice --to bob hello\n  imd send --as alice --conversation g_123 -o json 'good morning'",
		Args:    cobra.MinimumNArgs(1),
	}
	f := addPerson(a, c)
	var id string
	c.Flags().StringVar(&id, "id", "", "client message id, a UUID of version 4 or 7 (default: a new one)")
	c.RunE = func(c *cobra.Command, args []string) error {
		if err := f.check(true); err != nil {
			return err
		}
		if id == "" {
			id = imd.NewID()
		} else if !protocol.ValidUUID(id) {
			return usagef("--id: %q is not a UUID of version 4 or 7 in lower case", id)
		}
		text := strings.Join(args, " ")
		if text == "-" {
			raw, err := io.ReadAll(io.LimitReader(c.InOrStdin(), protocol.MaxContent+1))
			if err != nil {
				return err
			}
			text = strings.TrimSuffix(string(raw), "\n")
		}
		if text == "" {
			return usagef("the text is empty")
		}
		if !utf8.ValidString(text) {
			return usagef("the text is not UTF-8")
		}
		return f.send(c, id, text)
	}
	return c
}

func (f *personFlags) send(c *cobra.Command, id, text string) error {
	ctx, cancel := f.app.bounded(c.Context())
	defer cancel()
	client, err := f.connect(ctx, imd.Options{SendOnly: true})
	if err != nil {
		return err
	}
	defer client.Close()
	began := time.Now()
	out := f.conversation(client).SendWithID(id, imd.Text(text))
	s, err := out.Acked(ctx)
	if refused := out.Refused(); errors.Is(err, context.DeadlineExceeded) && refused != nil {
		return clientFailure(refused)
	}
	if err != nil {
		return clientFailure(err)
	}
	took := time.Since(began)
	r := receipt{s.ConversationID, id, s.MessageID, s.Seq, s.PrevSeq, s.ServerTime.UTC(), s.Duplicate}
	return f.app.printer().data(r, func(w io.Writer) {
		note := ""
		if r.Duplicate {
			note = ", it was there before"
		}
		fmt.Fprintf(w, "stored as seq %d of %s, message %d (%.1f ms%s)\n", r.Seq, r.ConversationID, r.MessageID, float64(took)/1e6, note)
	})
}
