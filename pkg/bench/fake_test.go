package bench

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"
	"go.uber.org/goleak"

	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fake is a server in memory that speaks the protocol as far as bench uses it.
// The token of a user is the user's id.
type fake struct {
	t      testing.TB
	http   *httptest.Server
	beside *httptest.Server // drain: the other gateway

	mu     sync.Mutex
	convs  map[string]*fakeConv
	online map[*fakeConn]bool
	sends  []string // client message ids in the order of arrival
	next   int64
	refuse atomic.Bool // every upgrade, for good

	// Set before options is called. All may be nil.
	judge  func(n int, c *fakeConn, s *clientv1.Send) *clientv1.SendAck // an answer other than ACK_OK; n counts all sends from 1
	silent func(n int) bool                                             // swallow the send
	lose   func(conv string, seq int64) bool                            // do not deliver
	cut    int                                                          // cut the connection after so many sends, once
	forget string                                                       // a conversation that sync does not tell of
	page   func(e *clientv1.Entry) bool                                 // tell of the entry in pages
	twice  int                                                          // store that send twice
	heals  bool                                                         // tell of what was lost a little later, as a comparison of heads does
	hint   func(conv string, seq int64) bool                            // write a head in place of a deliver
	drain  int                                                          // write drain at that send
	life   time.Duration                                                // of tokens; 0 = for ever
	epochs func(welcomes int) string                                    // data_epoch; nil = always e

	refreshed func() // called after each refresh of a token

	welcomes, refreshes int
	watches             map[*fakeConn]string // whom a connection watches
}

type fakeConv struct {
	users   []string
	entries []*clientv1.Entry
}

type fakeConn struct {
	f    *fake
	ws   *websocket.Conn
	enc  protocol.Encoding
	user string
	host string // which gateway
}

func newFake(t testing.TB) *fake {
	f := &fake{t: t, convs: map[string]*fakeConv{}, online: map[*fakeConn]bool{}, watches: map[*fakeConn]string{}}
	f.http = httptest.NewUnstartedServer(http.HandlerFunc(f.serve))
	t.Cleanup(func() {
		f.drop()
		f.http.Close()
	})
	return f
}

func (f *fake) addr() netip.AddrPort {
	return netip.MustParseAddrPort(f.http.Listener.Addr().String())
}

// drop cuts all connections.
func (f *fake) drop() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for c := range f.online {
		_ = c.ws.CloseNow()
	}
}

func (f *fake) serve(w http.ResponseWriter, r *http.Request) {
	if f.refuse.Load() {
		http.Error(w, "no", http.StatusUnauthorized)
		return
	}
	ws, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{protocol.SubprotocolProto, protocol.SubprotocolJSON}})
	if err != nil {
		return
	}
	defer ws.CloseNow()
	ws.SetReadLimit(1 << 20)
	enc, _ := protocol.EncodingOf(ws.Subprotocol())
	c := &fakeConn{f: f, ws: ws, enc: enc, host: r.Host}
	defer func() {
		f.mu.Lock()
		delete(f.online, c)
		delete(f.watches, c)
		f.show(c.user, 0, nil)
		f.mu.Unlock()
	}()
	for {
		_, data, err := ws.Read(context.Background())
		if err != nil {
			return
		}
		if protocol.DecodeClientEnvelope(enc, data, protocol.ServerLimits(enc), func(m *clientv1.ClientFrame) error {
			f.mu.Lock()
			defer f.mu.Unlock()
			c.frame(m)
			return nil
		}) != nil {
			return
		}
	}
}

func (c *fakeConn) write(frames ...*clientv1.ServerFrame) {
	var env []byte
	for _, m := range frames {
		env, _ = protocol.AppendFrame(env, c.enc, m)
	}
	typ := websocket.MessageBinary
	if c.enc == protocol.JSON {
		typ = websocket.MessageText
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_ = c.ws.Write(ctx, typ, env)
}

func (c *fakeConn) frame(m *clientv1.ClientFrame) {
	switch k := m.Kind.(type) {
	case *clientv1.ClientFrame_Hello:
		c.user = k.Hello.Token
		c.f.supersede(c)
		c.f.online[c] = true
		c.f.show(c.user, 0, nil)
		c.f.welcomes++
		w := &clientv1.Welcome{Version: 1, UserId: c.user, DataEpoch: "e", ServerTimeMs: time.Now().UnixMilli(), PingIntervalMs: 25000, PongTimeoutMs: 10000}
		if c.f.epochs != nil {
			w.DataEpoch = c.f.epochs(c.f.welcomes)
		}
		if c.f.life > 0 {
			w.TokenExpireMs = w.ServerTimeMs + c.f.life.Milliseconds()
		}
		c.write(&clientv1.ServerFrame{Id: m.Id, Kind: &clientv1.ServerFrame_Welcome{Welcome: w}})
	case *clientv1.ClientFrame_WatchPresence:
		c.f.watches[c] = k.WatchPresence.UserIds[0]
		c.f.show(c.f.watches[c], m.Id, c)
	case *clientv1.ClientFrame_RefreshToken:
		c.f.refreshes++
		if c.f.refreshed != nil {
			c.f.refreshed()
		}
		c.write(&clientv1.ServerFrame{Id: m.Id, Kind: &clientv1.ServerFrame_RefreshResult{RefreshResult: &clientv1.RefreshResult{TokenExpireMs: time.Now().Add(c.f.life).UnixMilli()}}})
	case *clientv1.ClientFrame_Send:
		c.send(m.Id, k.Send)
	case *clientv1.ClientFrame_Sync:
		c.sync(m.Id)
	case *clientv1.ClientFrame_History:
		c.history(m.Id, k.History)
	case *clientv1.ClientFrame_Read:
		c.write(&clientv1.ServerFrame{Id: m.Id, Kind: &clientv1.ServerFrame_Receipt{Receipt: &clientv1.Receipt{ConversationId: k.Read.ConversationId}}})
	}
}

// supersede ends the connection that a user has at the other gateway.
func (f *fake) supersede(c *fakeConn) {
	for o := range f.online {
		if o.user == c.user && o.host != c.host {
			o.write(&clientv1.ServerFrame{Kind: &clientv1.ServerFrame_Bye{Bye: protocol.NewBye(protocol.ReasonSuperseded, "", 0)}})
			delete(f.online, o)
			_ = o.ws.CloseNow()
		}
	}
}

// sendAway asks all connections of the first gateway to move.
func (f *fake) sendAway(context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for c := range f.online {
		if c.host == f.addr().String() {
			c.write(&clientv1.ServerFrame{Kind: &clientv1.ServerFrame_Drain{Drain: &clientv1.Drain{ReconnectAfterMs: uint32(len(f.online)), CloseAfterMs: closeAfter}}})
		}
	}
	return nil
}

// show tells those who watch a user whether it is online, at once; or, as an
// answer, one of them.
func (f *fake) show(user string, id uint32, only *fakeConn) {
	p := &clientv1.Presence{Users: []*clientv1.UserPresence{{UserId: user}}}
	for c := range f.online {
		p.Users[0].Online = p.Users[0].Online || c.user == user
	}
	for c, whom := range f.watches {
		if whom == user && (only == nil || only == c) {
			c.write(&clientv1.ServerFrame{Id: id, Kind: &clientv1.ServerFrame_Presence{Presence: p}})
		}
	}
}

func (f *fake) conv(id string, users ...string) *fakeConv {
	v := f.convs[id]
	if v == nil {
		v = &fakeConv{users: users}
		f.convs[id] = v
	}
	return v
}

func (c *fakeConn) send(id uint32, s *clientv1.Send) {
	f := c.f
	f.sends = append(f.sends, s.ClientMessageId)
	n := len(f.sends)
	if f.cut > 0 && n >= f.cut {
		f.cut = 0
		_ = c.ws.CloseNow()
		return
	}
	if n == f.drain {
		c.write(&clientv1.ServerFrame{Kind: &clientv1.ServerFrame_Drain{Drain: &clientv1.Drain{ReconnectAfterMs: 20, CloseAfterMs: closeAfter}}})
	}
	if f.silent != nil && f.silent(n) {
		return
	}
	if f.judge != nil {
		if a := f.judge(n, c, s); a != nil {
			a.ClientMessageId = s.ClientMessageId
			c.write(&clientv1.ServerFrame{Id: id, Kind: &clientv1.ServerFrame_SendAck{SendAck: a}})
			return
		}
	}
	conv := s.GetConversationId()
	if u := s.GetToUser(); u != "" {
		conv = protocol.DirectID(c.user, u)
		f.conv(conv, c.user, u)
	}
	v := f.conv(conv)
	e, dup := v.append(f, c.user, s)
	c.write(&clientv1.ServerFrame{Id: id, Kind: &clientv1.ServerFrame_SendAck{SendAck: &clientv1.SendAck{ClientMessageId: s.ClientMessageId,
		Status: clientv1.Ack_ACK_OK, ConversationId: conv, MessageId: e.MessageId, Seq: e.Seq, PrevSeq: e.PrevSeq, Duplicate: dup}}})
	if dup {
		return
	}
	if n == f.twice {
		s.ClientMessageId = "again"
		defer c.send(0, s)
	}
	if f.lose != nil && f.lose(conv, e.Seq) {
		if f.heals {
			time.AfterFunc(200*time.Millisecond, func() { f.tell(v, conv, e.Seq) })
		}
		return
	}
	for o := range f.online {
		if o == c || !slices.Contains(v.users, o.user) {
			continue
		}
		if f.hint != nil && f.hint(conv, e.Seq) {
			o.write(&clientv1.ServerFrame{Kind: &clientv1.ServerFrame_Head{Head: &clientv1.Head{ConversationId: conv, Seq: e.Seq}}})
		} else {
			o.write(&clientv1.ServerFrame{Kind: &clientv1.ServerFrame_Deliver{Deliver: &clientv1.Deliver{ConversationId: conv, Entries: []*clientv1.Entry{e}}}})
		}
	}
}

// tell writes a head to everybody in the conversation.
func (f *fake) tell(v *fakeConv, conv string, seq int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for o := range f.online {
		if slices.Contains(v.users, o.user) {
			o.write(&clientv1.ServerFrame{Kind: &clientv1.ServerFrame_Head{Head: &clientv1.Head{ConversationId: conv, Seq: seq}}})
		}
	}
}

func (v *fakeConv) append(f *fake, user string, s *clientv1.Send) (e *clientv1.Entry, dup bool) {
	for _, e := range v.entries {
		if e.ClientMessageId == s.ClientMessageId {
			return e, true
		}
	}
	f.next++
	seq := int64(len(v.entries))
	e = &clientv1.Entry{Seq: seq + 1, PrevSeq: seq, Kind: clientv1.EntryKind_ENTRY_KIND_MESSAGE, MessageId: f.next, ClientMessageId: s.ClientMessageId,
		Sender: user, Content: s.Content, Countable: true}
	v.entries = append(v.entries, e)
	return e, false
}

func (c *fakeConn) sync(id uint32) {
	r := &clientv1.SyncResult{SyncToken: "t", DataEpoch: "e"}
	for conv, v := range c.f.convs {
		if slices.Contains(v.users, c.user) {
			st := &clientv1.ConversationState{ConversationId: conv, HeadSeq: int64(len(v.entries)), Role: clientv1.Role_ROLE_MEMBER}
			for _, u := range v.users {
				if u != c.user && len(v.users) == 2 {
					st.PeerId = u
				}
			}
			if c.f.forget != conv {
				r.Conversations = append(r.Conversations, st)
			}
		}
	}
	c.write(&clientv1.ServerFrame{Id: id, Kind: &clientv1.ServerFrame_SyncResult{SyncResult: r}})
}

func (c *fakeConn) history(id uint32, h *clientv1.History) {
	v := c.f.convs[h.ConversationId]
	if v == nil || !slices.Contains(v.users, c.user) {
		c.write(&clientv1.ServerFrame{Id: id, Kind: &clientv1.ServerFrame_Error{Error: protocol.NewError(protocol.ReasonNotMember, "", 0)}})
		return
	}
	page := v.page(h.AfterSeq)
	page.Entries = slices.DeleteFunc(slices.Clone(page.Entries), func(e *clientv1.Entry) bool { return c.f.page != nil && !c.f.page(e) })
	c.write(&clientv1.ServerFrame{Id: id, Kind: &clientv1.ServerFrame_HistoryResult{HistoryResult: &clientv1.HistoryResult{ConversationId: h.ConversationId, Page: page}}})
}

// page is what follows an entry, as much as one frame may hold.
func (v *fakeConv) page(after int64) *clientv1.Page {
	n := int64(len(v.entries))
	from := min(after, n)
	to := min(from+protocol.MaxHistoryLimit, n)
	return &clientv1.Page{Entries: v.entries[from:to], CompleteFrom: after + 1, CompleteTo: to, End: to == n}
}

// options starts the server and gives those of a short run against it.
func (f *fake) options(scenario string, conns int) Options {
	f.http.Start()
	rate := 0.0
	switch scenario {
	case "hot", "slow":
		rate = 40
	case "drain":
		rate = 400
	}
	o := Options{least: 1, Rate: rate, Senders: conns / 2, Scenario: scenario, Addresses: []netip.AddrPort{f.addr()}, Conns: conns, Outstanding: 1, Duration: 400 * time.Millisecond,
		Settle: 20 * time.Second, Size: 64, Seed: 1, Prefix: "u", Page: 10, Entries: 5, Conversations: 2, GroupSize: 4, Pairs: 1, Flaps: 2, Within: 40 * time.Millisecond,
		Token: func(_ context.Context, user string) (string, error) { return user, nil },
		Group: func(_ context.Context, owner string, members []string) (string, error) {
			f.mu.Lock()
			defer f.mu.Unlock()
			id := "g_" + owner
			f.conv(id, append([]string{owner}, members...)...)
			return id, nil
		},
		Log: func(_ context.Context, conv string, after int64, _ int) (*clientv1.Page, error) {
			f.mu.Lock()
			defer f.mu.Unlock()
			return f.conv(conv).page(after), nil
		}}
	if scenario == "drain" {
		f.beside = httptest.NewServer(http.HandlerFunc(f.serve))
		f.t.Cleanup(func() {
			f.drop()
			f.beside.Close()
		})
		o.Addresses = append(o.Addresses, netip.MustParseAddrPort(f.beside.Listener.Addr().String()))
		o.Others, o.Drain = 2, f.sendAway
	}
	return o
}

// deadAddr is an address at which nobody listens.
func deadAddr(t *testing.T) netip.AddrPort {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return netip.MustParseAddrPort(l.Addr().String())
}
