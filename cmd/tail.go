package cmd

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"

	"github.com/spf13/cobra"

	imd "github.com/imdhq/imd/sdk/go"
)

func newTail(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:   "tail",
		Short: "Print messages as they come",
		Long: `Tail prints the entries of one conversation, or of all conversations of the user,
as they come: each once, in order, without gaps, over any loss of the connection.
With -o json each entry is one JSON object on a line. It ends at an interrupt, or
after --count entries.`,
		Example: "  imd tail --as bob\n  imd tail --as bob --to alice --after 0\n  imd tail --as bob -o json --count 1",
		Args:    cobra.NoArgs,
	}
	f := addPerson(a, c)
	var after int64
	var count int
	c.Flags().Int64Var(&after, "after", -1, "begin behind this seq of the conversation (default: what comes from now on)")
	c.Flags().IntVar(&count, "count", 0, "end after so many entries; 0 = never")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if err := f.check(false); err != nil {
			return err
		}
		if after >= 0 && f.to == "" && f.conv == "" {
			return usagef("--after needs --to or --conversation")
		}
		ctx, cancel := untilInterrupted(c)
		defer cancel()
		return f.tail(ctx, after, count)
	}
	return c
}

func (f *personFlags) tail(ctx context.Context, after int64, count int) error {
	first, cancel := context.WithTimeout(ctx, f.app.timeout)
	defer cancel()
	client, err := f.connect(first, imd.Options{OnState: f.connectionLine})
	if err != nil {
		return err
	}
	defer client.Close()
	events := client.Events(ctx)
	if f.to != "" || f.conv != "" {
		events = conversationEvents(ctx, f.conversation(client), after)
	}
	printed := 0
	for ev, err := range events {
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return clientFailure(err)
		}
		e, ok := ev.(*imd.EntryEvent)
		if !ok {
			continue
		}
		f.printEntry(showEntry(e.ConversationID, e.Entry))
		if printed++; printed == count {
			return nil
		}
	}
	if ctx.Err() != nil {
		return nil
	}
	return clientFailure(client.Err())
}

func conversationEvents(ctx context.Context, c *imd.Conversation, after int64) iter.Seq2[imd.Event, error] {
	if after >= 0 {
		return c.Events(ctx, imd.After(after))
	}
	return c.Events(ctx)
}

func (f *personFlags) printEntry(s shown) {
	if f.app.format == asJSON {
		enc := json.NewEncoder(f.app.out)
		enc.SetEscapeHTML(false)
		_ = enc.Encode(s)
		return
	}
	at := s.ServerTime.Local().Format("15:04:05")
	fmt.Fprintf(f.app.out, "%s  %s #%d  %s\n", at, s.ConversationID, s.Seq, s.line())
}

// connectionLine tells people, on stderr, when the connection comes and goes.
func (f *personFlags) connectionLine(s imd.StateChange) {
	if f.app.format == asJSON {
		return
	}
	switch s.To {
	case imd.Waiting:
		fmt.Fprintf(f.app.errOut, "connection lost (%v); trying again in %.1f s\n", s.Err, s.RetryIn.Seconds())
	case imd.Online:
		if s.From != imd.Idle {
			fmt.Fprintln(f.app.errOut, "connected")
		}
	}
}
