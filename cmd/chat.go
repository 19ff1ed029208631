package cmd

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	imd "github.com/imdhq/imd/sdk/go"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

func newChat(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:   "chat",
		Short: "Talk from the terminal, line by line",
		Long: `Chat prints what comes and sends each line you type. Lines that begin with / are
commands:

  /to USER            write to a user
  /group NAME USERS   make a group and write to it
  /open ID            write to a conversation
  /list               your conversations, the newest last
  /history [N]        the last N entries, 20 if not told
  /quit               leave (so does the end of the input)`,
		Example: "  imd chat --as alice --to bob",
		Args:    cobra.NoArgs,
	}
	f := addPerson(a, c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		if err := f.check(false); err != nil {
			return err
		}
		if a.format == asJSON {
			return usagef("chat is for people; use imd send and imd tail with -o json")
		}
		ctx, cancel := untilInterrupted(c)
		defer cancel()
		return f.chat(ctx, c.InOrStdin())
	}
	return c
}

// talk is one chat: what is typed goes to the conversation that is open.
type talk struct {
	f      *personFlags
	client *imd.Client
	mu     sync.Mutex // guards the terminal and open
	open   *imd.Conversation
}

func (f *personFlags) chat(ctx context.Context, in io.Reader) error {
	first, cancel := context.WithTimeout(ctx, f.app.timeout)
	defer cancel()
	client, err := f.connect(first, imd.Options{OnState: f.connectionLine})
	if err != nil {
		return err
	}
	t := &talk{f: f, client: client}
	ctx, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer client.Close()
	defer stop()
	if f.to != "" || f.conv != "" {
		t.open = f.conversation(client)
	}
	t.say("you are %s; /quit leaves, imd chat --help names the other commands", client.UserID())
	wg.Go(func() { t.receive(ctx) })
	lines := make(chan string)
	go readLines(ctx, in, lines)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-client.Done():
			return clientFailure(client.Err())
		case line, ok := <-lines:
			if !ok || line == "/quit" {
				return t.flush(ctx)
			}
			t.line(ctx, line)
		}
	}
}

// readLines reads the input to its end. Reading a terminal cannot be stopped, so
// nobody waits for this goroutine: it ends with the input or the process.
func readLines(ctx context.Context, in io.Reader, out chan<- string) {
	defer close(out)
	s := bufio.NewScanner(in)
	s.Buffer(make([]byte, 4096), 4*protocol.MaxContent)
	for s.Scan() {
		select {
		case out <- s.Text():
		case <-ctx.Done():
			return
		}
	}
}

func (t *talk) say(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	fmt.Fprintf(t.f.app.out, format+"\n", args...)
}

// flush waits for what is not stored yet, as long as --timeout.
func (t *talk) flush(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, t.f.app.timeout)
	defer cancel()
	for t.client.OutboxLen() > 0 {
		select {
		case <-ctx.Done():
			return newFailure(exitUnavailable, "timeout", fmt.Sprintf("%d messages were not stored", t.client.OutboxLen()), "send them again")
		case <-t.client.Done():
			return clientFailure(t.client.Err())
		case <-time.After(10 * time.Millisecond):
		}
	}
	return nil
}

// receive prints what others write, and marks as read what is open.
func (t *talk) receive(ctx context.Context) {
	for ev, err := range t.client.Events(ctx) {
		if err != nil {
			return
		}
		e, ok := ev.(*imd.EntryEvent)
		if !ok || e.IsMessage() && e.Entry.Sender == t.client.UserID() {
			continue
		}
		t.say("[%s] %s", t.title(e.ConversationID), showEntry(e.ConversationID, e.Entry).line())
		t.mu.Lock()
		open := t.open != nil && t.open.ID() == e.ConversationID
		t.mu.Unlock()
		if open {
			_ = t.client.Conversation(e.ConversationID).MarkRead(ctx, e.Entry.Seq)
		}
	}
}

// title is how a conversation is called in front of its lines.
func (t *talk) title(id string) string {
	info, ok := t.client.Conversation(id).Info()
	switch {
	case ok && info.Name != "":
		return printable(info.Name)
	case ok && info.PeerID != "":
		return info.PeerID
	}
	return id
}

func (t *talk) line(ctx context.Context, line string) {
	word, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
	rest = strings.TrimSpace(rest)
	switch {
	case word == "":
	case word == "/to" && protocol.ValidID(rest):
		t.turn(t.client.Direct(rest), rest)
	case word == "/open" && rest != "":
		t.turn(t.client.Conversation(rest), rest)
	case word == "/group":
		t.group(ctx, strings.Fields(rest))
	case word == "/list":
		t.list()
	case word == "/history":
		t.history(ctx, rest)
	case strings.HasPrefix(word, "/") && !strings.HasPrefix(word, "//"):
		t.say("I do not know %s; imd chat --help names the commands", printable(word))
	default:
		t.send(ctx, strings.TrimPrefix(line, "/"))
	}
}

func (t *talk) turn(c *imd.Conversation, name string) {
	t.mu.Lock()
	t.open = c
	t.mu.Unlock()
	t.say("-- you write to %s", name)
}

// send puts a line into the outbox; it says so only if it fails.
func (t *talk) send(ctx context.Context, text string) {
	t.mu.Lock()
	open := t.open
	t.mu.Unlock()
	if open == nil {
		t.say("to whom? /to USER")
		return
	}
	out := open.Send(imd.Text(text))
	go func() {
		if _, err := out.Acked(ctx); err != nil && ctx.Err() == nil {
			t.say("!! not stored: %v", clientFailure(err))
		}
	}()
}

func (t *talk) group(ctx context.Context, words []string) {
	if len(words) < 2 {
		t.say("/group NAME USER...")
		return
	}
	ctx, cancel := context.WithTimeout(ctx, t.f.app.timeout)
	defer cancel()
	c, err := t.client.API().CreateGroup(ctx, words[0], words[1:]...)
	if err != nil {
		t.say("!! %v", clientFailure(err))
		return
	}
	t.turn(c, words[0])
}

func (t *talk) list() {
	all := t.client.Conversations()
	slices.SortFunc(all, func(a, b imd.ConversationInfo) int {
		return int(a.LastMessage.GetServerTimeMs() - b.LastMessage.GetServerTimeMs())
	})
	for _, c := range all {
		last := ""
		if c.LastMessage != nil {
			last = showEntry(c.ID, c.LastMessage).line()
		}
		t.say("%s  %s  %d unread  %s", c.ID, t.title(c.ID), c.Unread, last)
	}
	if len(all) == 0 {
		t.say("no conversations yet; /to USER begins one")
	}
}

func (t *talk) history(ctx context.Context, count string) {
	n := 20
	if count != "" {
		if _, err := fmt.Sscan(count, &n); err != nil || n < 1 {
			t.say("/history [N]")
			return
		}
	}
	t.mu.Lock()
	open := t.open
	t.mu.Unlock()
	if open == nil {
		t.say("of what? /to USER")
		return
	}
	ctx, cancel := context.WithTimeout(ctx, t.f.app.timeout)
	defer cancel()
	var all []*clientv1.Entry
	for e, err := range open.History(ctx, imd.Backward(), imd.Limit(min(n, 500))) {
		if err != nil {
			t.say("!! %v", clientFailure(err))
			return
		}
		if all = append(all, e); len(all) == n {
			break
		}
	}
	for _, e := range slices.Backward(all) {
		t.say("%s", showEntry(open.ID(), e).line())
	}
}
