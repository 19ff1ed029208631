package cmd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/imdhq/imd/pkg/datadir"
	"github.com/imdhq/imd/pkg/obs"
	imd "github.com/imdhq/imd/sdk/go"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// personFlags are those of commands that act as a user, through the SDK alone.
type personFlags struct {
	*serverFlags
	as, to, conv string
}

// addPerson gives a command the flags that say who acts, and toward whom.
func addPerson(a *app, c *cobra.Command) *personFlags {
	f := addActor(a, c)
	c.Flags().StringVar(&f.to, "to", "", "user at the other end of a direct conversation")
	c.Flags().StringVar(&f.conv, "conversation", "", "conversation id, instead of --to")
	return f
}

// addActor gives a command the flags that say who acts.
func addActor(a *app, c *cobra.Command) *personFlags {
	f := &personFlags{serverFlags: addServer(a, c, "public listener")}
	c.Flags().StringVar(&f.as, "as", "", "user who acts; not needed with a user's token in --token-file")
	return f
}

// check finds what is wrong with the flags; need says that a conversation must
// be named.
func (f *personFlags) check(need bool) error {
	switch {
	case f.to != "" && f.conv != "":
		return usagef("give --to or --conversation, not both")
	case need && f.to == "" && f.conv == "":
		return usagef("give --to USER or --conversation ID")
	case f.to != "" && !protocol.ValidID(f.to):
		return usagef("--to: %q is not 1 to 64 of a-z A-Z 0-9 . _ - @ +", f.to)
	case f.as != "" && !protocol.ValidID(f.as):
		return usagef("--as: %q is not 1 to 64 of a-z A-Z 0-9 . _ - @ +", f.as)
	}
	return nil
}

// connect begins a session. Each run is a device and a login of its own.
func (f *personFlags) connect(ctx context.Context, o imd.Options) (*imd.Client, error) {
	cred, err := f.credential()
	if err != nil {
		return nil, err
	}
	if f.as == "" && cred.ring != nil {
		return nil, usagef("give --as USER")
	}
	login := newLogin()
	o.TokenFunc = func(ctx context.Context) (string, error) { return cred.token(ctx, f.as, login) }
	if cred.own {
		o.HTTPClient = cred.client()
	}
	o.Device, o.Class, o.Name = datadir.RandomID("cli-", 5), "desktop", "imd-cli/"+obs.ThisBuild().Version
	client, err := imd.Connect(ctx, cred.base, o)
	return client, clientFailure(err)
}

// conversation is the one that the flags name.
func (f *personFlags) conversation(c *imd.Client) *imd.Conversation {
	if f.conv != "" {
		return c.Conversation(f.conv)
	}
	return c.Direct(f.to)
}

// clientFailure turns an error of the SDK into what the user sees.
func clientFailure(err error) error {
	var e *imd.Error
	if err == nil || !errors.As(err, &e) {
		if f := notReached(err); f != nil { // how the last try of many ended, within the time
			return f
		}
		if errors.Is(err, context.DeadlineExceeded) {
			return newFailure(exitUnavailable, "timeout", "the server did not answer in time", "is it running? imd check ready")
		}
		return err
	}
	exit := exitFailed
	switch e.Code {
	case "permission_denied", "unauthenticated":
		exit = exitNotAllowed
	case "not_found":
		exit = exitNotFound
	case "already_exists", "failed_precondition", "aborted":
		exit = exitConflict
	case "unavailable", "resource_exhausted", "deadline_exceeded":
		exit = exitUnavailable
	}
	if e.Code == "" && e.CloseCode >= 4500 {
		exit = exitNotAllowed
	}
	if other := otherListener(e.Message); other != nil {
		return other
	}
	out := newFailure(exit, e.Reason, e.Message, "")
	out.Retryable = e.Retryable
	return out
}

// untilInterrupted is a context that ends with the first SIGINT or SIGTERM.
func untilInterrupted(c *cobra.Command) (context.Context, context.CancelFunc) {
	return signal.NotifyContext(c.Context(), os.Interrupt, syscall.SIGTERM)
}

// shown is an entry as commands print it.
type shown struct {
	ConversationID  string            `json:"conversation_id"`
	Seq             int64             `json:"seq,string"`
	PrevSeq         int64             `json:"prev_seq,string"`
	Kind            string            `json:"kind"`
	MessageID       int64             `json:"message_id,string"`
	ClientMessageID string            `json:"client_message_id,omitempty"`
	Sender          string            `json:"sender,omitempty"`
	ServerTime      time.Time         `json:"server_time"`
	Type            string            `json:"type,omitempty"`
	Text            string            `json:"text,omitempty"`
	Data            []byte            `json:"data,omitempty"`
	Attributes      map[string]string `json:"attributes,omitempty"`
	Recalled        bool              `json:"recalled,omitempty"`
	Change          string            `json:"change,omitempty"` // what happened, in words
}

func showEntry(conv string, e *clientv1.Entry) shown {
	s := shown{ConversationID: conv, Seq: e.Seq, PrevSeq: e.PrevSeq, MessageID: e.MessageId, ClientMessageID: e.ClientMessageId,
		Kind:   strings.ToLower(strings.TrimPrefix(e.Kind.String(), "ENTRY_KIND_")),
		Sender: e.Sender, ServerTime: time.UnixMilli(e.ServerTimeMs).UTC(), Change: changeInWords(e)}
	if c := e.Content; c != nil {
		s.Type, s.Text, s.Data, s.Attributes = c.Type, c.GetText(), c.GetData(), c.Attributes
	}
	s.Recalled = e.Kind == clientv1.EntryKind_ENTRY_KIND_MESSAGE && e.Content == nil
	return s
}

// changeInWords tells what happened to a conversation; "" for messages.
func changeInWords(e *clientv1.Entry) string {
	who := e.Sender
	if who == "" {
		who = "the system"
	}
	if m := e.MemberChange; m != nil {
		names := strings.Join(m.UserIds, ", ")
		switch m.Action {
		case clientv1.MemberAction_MEMBER_ACTION_ADDED:
			return who + " added " + names
		case clientv1.MemberAction_MEMBER_ACTION_REMOVED:
			return who + " removed " + names
		case clientv1.MemberAction_MEMBER_ACTION_LEFT:
			return names + " left"
		case clientv1.MemberAction_MEMBER_ACTION_ROLE:
			return fmt.Sprintf("%s made %s %s", who, names, strings.ToLower(strings.TrimPrefix(m.Role.String(), "ROLE_")))
		}
	}
	if c := e.ConversationChange; c != nil {
		switch {
		case c.GetClosed():
			return who + " closed the conversation"
		case c.Name != nil:
			return fmt.Sprintf("%s named the conversation %q", who, c.GetName())
		}
	}
	return ""
}

// line is an entry for people; control characters cannot reach the terminal.
func (s shown) line() string {
	text := s.Text
	switch {
	case s.Change != "":
		return "-- " + printable(s.Change)
	case s.Recalled:
		text = "(recalled)"
	case s.Data != nil:
		text = fmt.Sprintf("(%d bytes of %s)", len(s.Data), s.Type)
	}
	who := s.Sender
	if who == "" {
		who = "system"
	}
	return who + ": " + printable(text)
}

// printable replaces control characters, which could move the cursor or worse.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' {
			return ' '
		}
		if r < 0x20 || r == 0x7f || r >= 0x80 && r < 0xa0 || r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069 {
			return '\ufffd'
		}
		return r
	}, s)
}
