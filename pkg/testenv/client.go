package testenv

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// Patience is how long a client waits for a frame before the test fails, in the time of a Limit.
const Patience = 10 * time.Second

// shortestWait is how long a client waits at least before it tries again.
const shortestWait = 20 * time.Millisecond

// Client is one connection of a stock WebSocket client that knows the frames
// and nothing else: it answers pings, and hands over what comes.
type Client struct {
	Encoding protocol.Encoding
	Welcome  *clientv1.Welcome    // after Login
	Synced   *clientv1.SyncResult // after Login

	t      testing.TB
	ws     *websocket.Conn
	cancel context.CancelFunc
	ctx    context.Context

	mu     sync.Mutex
	nextID uint32
	inbox  []*clientv1.ServerFrame
	pings  int
	silent bool // leaves pings unanswered
	code   websocket.StatusCode
	text   string
	closed bool
	news   chan struct{} // capacity 1: the inbox or closed changed
}

// DialOptions change how Dial opens the connection.
type DialOptions struct {
	Header       http.Header
	Subprotocols []string     // nil = the encoding's
	Paused       bool         // read nothing until Resume
	HTTP         *http.Client // makes the connection; nil = http.DefaultClient
}

// TryDial opens a connection to base ("http://host:port"). res is the answer
// to the upgrade, whether it was refused or not.
func TryDial(t testing.TB, base string, enc protocol.Encoding, o DialOptions) (*Client, *http.Response, error) {
	t.Helper()
	if o.Subprotocols == nil {
		o.Subprotocols = []string{enc.Subprotocol()}
	}
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	ws, res, err := websocket.Dial(ctx, strings.Replace(base, "http", "ws", 1)+protocol.Path, &websocket.DialOptions{
		Subprotocols: o.Subprotocols, HTTPHeader: o.Header, HTTPClient: o.HTTP})
	if err != nil {
		return nil, res, err
	}
	ws.SetReadLimit(protocol.ClientReadLimit)
	c := &Client{Encoding: enc, t: t, ws: ws, news: make(chan struct{}, 1)}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	done := make(chan struct{})
	t.Cleanup(func() {
		c.cancel()
		_ = ws.CloseNow()
		<-done
	})
	if o.Paused {
		close(done)
		return c, res, nil
	}
	go func() {
		defer close(done)
		c.read()
	}()
	return c, res, nil
}

// Dial opens a connection; the test fails if it is refused.
func Dial(t testing.TB, base string, enc protocol.Encoding) *Client {
	t.Helper()
	c, _, err := TryDial(t, base, enc, DialOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Login opens a connection and begins a session with hello and sync in one
// envelope. A server that is busy is asked again when it says.
func Login(t testing.TB, base string, enc protocol.Encoding, token, device string) *Client {
	t.Helper()
	for l := NewLimit(Patience); ; {
		c, busy := tryLogin(t, base, enc, token, device)
		if busy == nil {
			return c
		}
		if l.Over() {
			t.Fatalf("hello was answered with %v", busy)
		}
		time.Sleep(time.Duration(busy.RetryAfterMs) * time.Millisecond)
	}
}

// tryLogin is Login once; busy is what a server says that wants to be asked later.
func tryLogin(t testing.TB, base string, enc protocol.Encoding, token, device string) (c *Client, busy *clientv1.Bye) {
	t.Helper()
	c = Dial(t, base, enc)
	hello, sync := c.ID(), c.ID()
	c.Write(
		&clientv1.ClientFrame{Id: hello, Kind: &clientv1.ClientFrame_Hello{Hello: &clientv1.Hello{
			Version: protocol.Version, Token: token, DeviceId: device, Class: "bot", Client: "testenv"}}},
		&clientv1.ClientFrame{Id: sync, Kind: &clientv1.ClientFrame_Sync{Sync: &clientv1.Sync{PageLimit: 20}}},
	)
	f := c.Answer(hello)
	if bye := f.GetBye(); bye.GetReason() == "busy" && bye.RetryAfterMs > 0 {
		return c, bye
	}
	if c.Welcome = f.GetWelcome(); c.Welcome == nil {
		t.Fatalf("hello was answered with %v", f)
	}
	f = c.Answer(sync)
	if c.Synced = f.GetSyncResult(); c.Synced == nil {
		if !f.GetError().GetRetryable() {
			t.Fatalf("sync was answered with %v", f)
		}
		c.Synced = c.Sync(&clientv1.Sync{PageLimit: 20})
	}
	return c, nil
}

func (c *Client) read() {
	for {
		_, data, err := c.ws.Read(c.ctx)
		if err != nil {
			c.ended(err)
			return
		}
		err = protocol.DecodeServerEnvelope(c.Encoding, data, protocol.ClientLimits(), func(f *clientv1.ServerFrame) error {
			if f.GetPing() != nil {
				c.mu.Lock()
				c.pings++
				silent := c.silent
				c.mu.Unlock()
				if !silent {
					_ = c.TryWrite(&clientv1.ClientFrame{Kind: &clientv1.ClientFrame_Pong{Pong: &clientv1.Pong{}}})
				}
				return nil
			}
			c.mu.Lock()
			c.inbox = append(c.inbox, f)
			c.mu.Unlock()
			c.signal()
			return nil
		})
		if err != nil {
			c.t.Errorf("the server wrote something that cannot be decoded: %v", err)
		}
	}
}

func (c *Client) ended(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed, c.code = true, -1
	var ce websocket.CloseError
	if errors.As(err, &ce) {
		c.code, c.text = ce.Code, ce.Reason
	}
	c.signal()
}

func (c *Client) signal() {
	select {
	case c.news <- struct{}{}:
	default:
	}
}

// ID is a fresh request id.
func (c *Client) ID() uint32 {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.nextID++
	return c.nextID
}

// TryWrite sends frames in one envelope.
func (c *Client) TryWrite(frames ...*clientv1.ClientFrame) error {
	var buf []byte
	var err error
	for _, f := range frames {
		if buf, err = protocol.AppendFrame(buf, c.Encoding, f); err != nil {
			return err
		}
	}
	return c.TryWriteRaw(c.Encoding == protocol.JSON, buf)
}

// Write is TryWrite; the test fails on an error.
func (c *Client) Write(frames ...*clientv1.ClientFrame) {
	c.t.Helper()
	if err := c.TryWrite(frames...); err != nil {
		c.t.Fatal(err)
	}
}

// TryWriteRaw sends one WebSocket message as it is.
func (c *Client) TryWriteRaw(text bool, data []byte) error {
	typ := websocket.MessageBinary
	if text {
		typ = websocket.MessageText
	}
	ctx, cancel := context.WithTimeout(c.ctx, Patience)
	defer cancel()
	return c.ws.Write(ctx, typ, data)
}

// Take waits for a frame that matches and takes it out of the inbox.
func (c *Client) Take(what string, match func(*clientv1.ServerFrame) bool) *clientv1.ServerFrame {
	c.t.Helper()
	if f := c.Await(Patience, match); f != nil {
		return f
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.t.Fatalf("%s did not come; waiting: %v; closed: %v (%d %s)", what, c.inbox, c.closed, c.code, c.text)
	return nil
}

// Await is Take with a limit of its own, in the time of a Limit; nil if nothing
// matched by then.
func (c *Client) Await(limit time.Duration, match func(*clientv1.ServerFrame) bool) *clientv1.ServerFrame {
	for l := NewLimit(limit); ; {
		over := l.Over() || c.Closed()
		if f := c.TakeWithin(20*time.Millisecond, match); f != nil || over {
			return f
		}
	}
}

// TakeWithin is Await in the time of a wall clock: for what should not come.
func (c *Client) TakeWithin(limit time.Duration, match func(*clientv1.ServerFrame) bool) *clientv1.ServerFrame {
	timeout := time.NewTimer(limit)
	defer timeout.Stop()
	for {
		c.mu.Lock()
		for i, f := range c.inbox {
			if match(f) {
				c.inbox = append(c.inbox[:i], c.inbox[i+1:]...)
				c.mu.Unlock()
				return f
			}
		}
		over := c.closed
		c.mu.Unlock()
		if over {
			return nil
		}
		select {
		case <-c.news:
		case <-timeout.C:
			return nil
		}
	}
}

// Answer waits for the answer to a request.
func (c *Client) Answer(id uint32) *clientv1.ServerFrame {
	c.t.Helper()
	return c.Take("the answer", func(f *clientv1.ServerFrame) bool { return f.Id == id })
}

// Request writes f under a fresh id and waits for its answer.
func (c *Client) Request(f *clientv1.ClientFrame) *clientv1.ServerFrame {
	c.t.Helper()
	f.Id = c.ID()
	c.Write(f)
	return c.Answer(f.Id)
}

// Send sends and waits for the answer, whatever it is. An empty
// client_message_id is filled in.
func (c *Client) Send(s *clientv1.Send) *clientv1.SendAck {
	c.t.Helper()
	if s.ClientMessageId == "" {
		s.ClientMessageId = uuid.NewString()
	}
	f := c.Request(&clientv1.ClientFrame{Kind: &clientv1.ClientFrame_Send{Send: s}})
	if f.GetSendAck() == nil {
		c.t.Fatalf("a send was answered with %v", f)
	}
	return f.GetSendAck()
}

// Decide is Send until the server has decided: one that says busy or unavailable, as
// one does that a slow machine has held up, gets it again, as from any client.
func (c *Client) Decide(s *clientv1.Send) *clientv1.SendAck {
	c.t.Helper()
	for l := NewLimit(Patience); ; {
		a := c.Send(s)
		if r := a.GetError().GetReason(); a.Status != clientv1.Ack_ACK_RETRY || r != "busy" && r != "unavailable" || l.Over() {
			return a
		}
		c.t.Logf("a send is made again: %v", a)
		time.Sleep(untilAgain(a.Error))
		s = proto.Clone(s).(*clientv1.Send) // the caller's stays as it is
		s.Resend = true
	}
}

// MustSend is Decide; the test fails unless the send is stored.
func (c *Client) MustSend(s *clientv1.Send) *clientv1.SendAck {
	c.t.Helper()
	a := c.Decide(s)
	if a.Status != clientv1.Ack_ACK_OK {
		c.t.Fatalf("the send was not stored: %v", a)
	}
	return a
}

// Ask is Request for what may be asked twice: a server that says busy or unavailable is
// asked again.
func (c *Client) Ask(f *clientv1.ClientFrame) *clientv1.ServerFrame {
	c.t.Helper()
	for l := NewLimit(Patience); ; {
		a := c.Request(f)
		if r := a.GetError().GetReason(); r != "busy" && r != "unavailable" || l.Over() {
			return a
		}
		c.t.Logf("it is asked again: %v", a)
		time.Sleep(untilAgain(a.GetError()))
	}
}

// untilAgain is how long to wait before what failed for now is tried again: as long as
// the server says, and never not at all.
func untilAgain(e *clientv1.Error) time.Duration {
	return max(time.Duration(e.GetRetryAfterMs())*time.Millisecond, shortestWait)
}

// Sync asks for one page of a sync; the test fails on an error.
func (c *Client) Sync(s *clientv1.Sync) *clientv1.SyncResult {
	c.t.Helper()
	f := c.Ask(&clientv1.ClientFrame{Kind: &clientv1.ClientFrame_Sync{Sync: s}})
	if f.GetSyncResult() == nil {
		c.t.Fatalf("sync was answered with %v", f)
	}
	return f.GetSyncResult()
}

// History reads one page; the test fails on an error.
func (c *Client) History(h *clientv1.History) *clientv1.Page {
	c.t.Helper()
	f := c.Ask(&clientv1.ClientFrame{Kind: &clientv1.ClientFrame_History{History: h}})
	if f.GetHistoryResult() == nil {
		c.t.Fatalf("history was answered with %v", f)
	}
	return f.GetHistoryResult().Page
}

// Walk reads the whole history of a conversation with pages of limit, and says
// how many calls it took.
func (c *Client) Walk(conv string, limit int32, backward bool) (all []*clientv1.Entry, calls int) {
	c.t.Helper()
	h := &clientv1.History{ConversationId: conv, Limit: limit, Backward: backward}
	for {
		p := c.History(h)
		calls++
		if backward {
			all = append(append([]*clientv1.Entry{}, p.Entries...), all...)
			h.BeforeSeq = p.CompleteFrom
		} else {
			all = append(all, p.Entries...)
			h.AfterSeq = p.CompleteTo
		}
		if p.End || calls > 10_000 {
			return all, calls
		}
	}
}

// SendAll writes sends without waiting, within the window of 32, and sends
// again by the rules until all are stored. It returns the seqs in order. Those
// without a client_message_id get one.
func (c *Client) SendAll(sends []*clientv1.Send) []int64 {
	c.t.Helper()
	seqs := make([]int64, len(sends))
	ids := map[uint32]int{}
	next, open, done, rewind := 0, 0, 0, -1
	for done < len(sends) {
		for open < protocol.ClientSendWindow && next < len(sends) && rewind < 0 {
			if sends[next].ClientMessageId == "" {
				sends[next].ClientMessageId = uuid.NewString()
			}
			id := c.ID()
			ids[id] = next
			c.Write(&clientv1.ClientFrame{Id: id, Kind: &clientv1.ClientFrame_Send{Send: sends[next]}})
			next++
			open++
		}
		f := c.Take("a send_ack", func(f *clientv1.ServerFrame) bool { _, ok := ids[f.Id]; return ok && f.GetSendAck() != nil })
		i := ids[f.Id]
		delete(ids, f.Id)
		open--
		switch a := f.GetSendAck(); a.Status {
		case clientv1.Ack_ACK_OK:
			if seqs[i] == 0 {
				done++
			}
			seqs[i] = a.Seq
		case clientv1.Ack_ACK_RETRY:
			if rewind < 0 || i < rewind {
				rewind = i
			}
			if open == 0 {
				time.Sleep(untilAgain(a.Error))
			}
		default:
			c.t.Fatalf("send %d: %v", i, a)
		}
		if rewind >= 0 && open == 0 {
			for _, m := range sends[rewind:next] {
				m.Resend = true
			}
			next, rewind = rewind, -1
		}
	}
	return seqs
}

// Entry waits for the deliver of an entry that matches.
func (c *Client) Entry(what string, match func(conv string, e *clientv1.Entry) bool) *clientv1.Entry {
	c.t.Helper()
	f := c.Take(what, func(f *clientv1.ServerFrame) bool {
		d := f.GetDeliver()
		return d != nil && len(d.Entries) == 1 && match(d.ConversationId, d.Entries[0])
	})
	return f.GetDeliver().Entries[0]
}

// Close ends the connection as a client would.
func (c *Client) Close() { _ = c.ws.Close(websocket.StatusNormalClosure, "") }

// Cut ends the connection without a word.
func (c *Client) Cut() { _ = c.ws.CloseNow() }

// WaitClosed waits until the server has closed, for a limit in the time of a Limit; it
// returns the close code, -1 without one, and its reason.
func (c *Client) WaitClosed(limit time.Duration) (int, string) {
	c.t.Helper()
	for l := NewLimit(limit); ; {
		c.mu.Lock()
		code, text, closed := int(c.code), c.text, c.closed
		c.mu.Unlock()
		if closed {
			return code, text
		}
		if l.Over() {
			c.t.Fatalf("the connection is still open after %v", limit)
		}
		select {
		case <-c.news:
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Closed reports whether the connection has ended.
func (c *Client) Closed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closed
}

// Silence leaves pings unanswered from now on.
func (c *Client) Silence() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.silent = true
}

// Pings is how many pings came.
func (c *Client) Pings() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.pings
}

// Text is a text content.
func Text(s string) *clientv1.Content {
	return &clientv1.Content{Value: &clientv1.Content_Text{Text: s}}
}

// ToUser is a send of text to a user.
func ToUser(user, text string) *clientv1.Send {
	return &clientv1.Send{To: &clientv1.Send_ToUser{ToUser: user}, Content: Text(text)}
}

// To is a send of text to a conversation.
func To(conv, text string) *clientv1.Send {
	return &clientv1.Send{To: &clientv1.Send_ConversationId{ConversationId: conv}, Content: Text(text)}
}
