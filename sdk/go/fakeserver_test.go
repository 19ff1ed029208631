package imd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"
	"google.golang.org/protobuf/proto"

	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// fakeServer speaks the protocol well enough to test a client: logs in memory,
// dedup, runs, live delivery, history and sync. Its fields named after faults
// make it misbehave.
type fakeServer struct {
	mu       sync.Mutex
	epoch    string
	logs     map[string]*fakeLog
	sessions map[*fakeSession]struct{}
	counter  int
	hellos   []*clientv1.Hello
	syncs    []*clientv1.Sync
	sends    []*clientv1.Send
	acks     []*clientv1.AckRange
	reads    []*clientv1.Read
	history  int
	tokens   []string // refreshed
	dials    int

	refuseHello func(*clientv1.Hello) *clientv1.Bye
	tokenLife   time.Duration
	silent      bool                                                               // answers nothing after welcome
	onSync      func(*fakeSession, *clientv1.Sync) bool                            // false = it is not answered
	answerSync  func(*fakeSession, *clientv1.Sync) *clientv1.SyncResult            // nil = as sync does
	onSend      func(*fakeSession, *clientv1.Send) (*clientv1.Error, clientv1.Ack) // refuses a send
	lose        func() bool                                                        // a deliver is lost
	hold        func(*clientv1.Send) bool                                          // a send is taken and never answered
	later       func(in *clientv1.ClientFrame, answer func()) bool                 // true = it keeps the answer to a hello or sync
	breakAt     func() bool                                                        // the connection breaks around a send
	headsOnly   bool
	refuseSyncs int // answers so many with unavailable

	watches     []*clientv1.WatchPresence
	online      []*clientv1.UserPresence
	refuseWatch *clientv1.Error
	typed       int
}

type fakeLog struct {
	members []string
	entries []*clientv1.Entry
	ids     map[string]*clientv1.Entry // sender + client message id
	read    map[string]int64
}

type fakeSession struct {
	server *fakeServer
	user   string
	conn   *pipe
	held   map[string]string // conversation → refused client message id
}

func newFakeServer() *fakeServer {
	return &fakeServer{epoch: "e1", logs: map[string]*fakeLog{}, sessions: map[*fakeSession]struct{}{}, tokenLife: time.Hour}
}

// pipe is one connection in memory, good in a synctest bubble.
type pipe struct {
	toClient chan []*clientv1.ServerFrame
	toServer chan []*clientv1.ClientFrame
	once     sync.Once
	gone     chan struct{}
	code     int
}

func newPipe() *pipe {
	return &pipe{
		toClient: make(chan []*clientv1.ServerFrame, 4096),
		toServer: make(chan []*clientv1.ClientFrame, 4096),
		gone:     make(chan struct{}),
	}
}

func (p *pipe) Read(ctx context.Context) ([]*clientv1.ServerFrame, error) {
	select {
	case f := <-p.toClient:
		return f, nil
	default:
	}
	select {
	case f := <-p.toClient:
		return f, nil
	case <-p.gone:
		select {
		case f := <-p.toClient:
			return f, nil
		default:
		}
		if p.code != 0 {
			return nil, fromClose(p.code, "")
		}
		return nil, io.EOF
	case <-ctx.Done():
		p.close(0)
		return nil, ctx.Err()
	}
}

func (p *pipe) Write(ctx context.Context, frames ...*clientv1.ClientFrame) error {
	select {
	case <-p.gone:
		return io.ErrClosedPipe
	default:
	}
	for _, f := range frames {
		if _, err := protocol.EncodeClient(protocol.JSON, f); err != nil {
			return err
		}
	}
	select {
	case p.toServer <- frames:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (p *pipe) isGone() bool {
	select {
	case <-p.gone:
		return true
	default:
		return false
	}
}

func (p *pipe) close(code int) {
	p.once.Do(func() {
		p.code = code
		close(p.gone)
	})
}

func (p *pipe) Close(int, string) error { p.close(0); return nil }
func (p *pipe) CloseNow() error         { p.close(0); return nil }

// dial is Options.dial.
func (f *fakeServer) dial(context.Context) (transport, error) {
	f.mu.Lock()
	f.dials++
	f.mu.Unlock()
	p := newPipe()
	go f.serve(p)
	return p, nil
}

// options returns client options that reach the server in memory.
func (f *fakeServer) options(user string) Options {
	return Options{Token: user, dial: f.dial}
}

// serve handles one connection until it is gone.
func (f *fakeServer) serve(p *pipe) {
	s := &fakeSession{server: f, conn: p, held: map[string]string{}}
	defer func() {
		f.mu.Lock()
		delete(f.sessions, s)
		f.mu.Unlock()
	}()
	for {
		select {
		case frames := <-p.toServer:
			f.mu.Lock()
			for _, fr := range frames {
				if !p.isGone() { // what comes behind a break must not be stored
					f.handle(s, fr)
				}
			}
			f.mu.Unlock()
		case <-p.gone:
			return
		}
	}
}

func (s *fakeSession) send(frames ...*clientv1.ServerFrame) {
	select {
	case <-s.conn.gone:
	case s.conn.toClient <- frames:
	default:
		panic("the client does not read")
	}
}

func (s *fakeSession) bye(b *clientv1.Bye) {
	s.send(&clientv1.ServerFrame{Kind: &clientv1.ServerFrame_Bye{Bye: b}})
	s.conn.close(int(b.CloseCode))
}

func (f *fakeServer) handle(s *fakeSession, fr *clientv1.ClientFrame) {
	switch k := fr.Kind.(type) {
	case *clientv1.ClientFrame_Hello:
		f.say(fr, func() { f.hello(s, fr.Id, k.Hello) })
	case *clientv1.ClientFrame_Ack:
		f.acks = append(f.acks, k.Ack.Ranges...)
	case *clientv1.ClientFrame_Sync:
		f.syncs = append(f.syncs, k.Sync)
		if f.refuseSyncs > 0 {
			f.refuseSyncs--
			s.send(&clientv1.ServerFrame{Id: fr.Id, Kind: &clientv1.ServerFrame_Error{Error: protocol.NewError(protocol.ReasonUnavailable, "", 0)}})
		} else if !f.silent && (f.onSync == nil || f.onSync(s, k.Sync)) {
			f.say(fr, func() {
				r := f.sync(s.user, k.Sync)
				if f.answerSync != nil {
					r = f.answerSync(s, k.Sync)
				}
				s.send(&clientv1.ServerFrame{Id: fr.Id, Kind: &clientv1.ServerFrame_SyncResult{SyncResult: r}})
			})
		}
	case *clientv1.ClientFrame_Send:
		f.sends = append(f.sends, k.Send)
		f.send(s, fr.Id, k.Send)
	case *clientv1.ClientFrame_History:
		f.history++
		if f.silent {
			return
		}
		log := f.logs[k.History.ConversationId]
		if log == nil || !slices.Contains(log.members, s.user) {
			s.send(&clientv1.ServerFrame{Id: fr.Id, Kind: &clientv1.ServerFrame_Error{Error: protocol.NewError("not_member", "", 0)}})
			return
		}
		s.send(&clientv1.ServerFrame{Id: fr.Id, Kind: &clientv1.ServerFrame_HistoryResult{HistoryResult: &clientv1.HistoryResult{
			ConversationId: k.History.ConversationId, Page: log.page(k.History)}}})
	case *clientv1.ClientFrame_Read:
		f.reads = append(f.reads, k.Read)
		log := f.logs[k.Read.ConversationId]
		log.read[s.user] = max(log.read[s.user], k.Read.Seq)
		unread := uint32(len(log.entries)) - uint32(log.read[s.user])
		s.send(&clientv1.ServerFrame{Id: fr.Id, Kind: &clientv1.ServerFrame_Receipt{Receipt: &clientv1.Receipt{
			ConversationId: k.Read.ConversationId, UserId: s.user, ReadSeq: log.read[s.user], UnreadCount: &unread}}})
		f.toOthers(log, s, &clientv1.ServerFrame{Kind: &clientv1.ServerFrame_Receipt{Receipt: &clientv1.Receipt{
			ConversationId: k.Read.ConversationId, UserId: s.user, ReadSeq: log.read[s.user]}}})
	case *clientv1.ClientFrame_WatchPresence:
		f.watches = append(f.watches, k.WatchPresence)
		if f.refuseWatch != nil {
			s.send(&clientv1.ServerFrame{Id: fr.Id, Kind: &clientv1.ServerFrame_Error{Error: f.refuseWatch}})
			return
		}
		f.tellPresence(s, fr.Id)
	case *clientv1.ClientFrame_Typing:
		f.typed++
		f.toOthers(f.logs[k.Typing.ConversationId], s, &clientv1.ServerFrame{Kind: &clientv1.ServerFrame_Typing{Typing: &clientv1.Typing{
			ConversationId: k.Typing.ConversationId, UserId: s.user}}})
	case *clientv1.ClientFrame_RefreshToken:
		f.tokens = append(f.tokens, k.RefreshToken.Token)
		s.send(&clientv1.ServerFrame{Id: fr.Id, Kind: &clientv1.ServerFrame_RefreshResult{RefreshResult: &clientv1.RefreshResult{
			TokenExpireMs: time.Now().Add(f.tokenLife).UnixMilli()}}})
	}
}

// say answers a frame now or later.
func (f *fakeServer) say(in *clientv1.ClientFrame, answer func()) {
	if f.later == nil || !f.later(in, answer) {
		answer()
	}
}

// tellPresence says who is online; id 0 = unasked.
func (f *fakeServer) tellPresence(s *fakeSession, id uint32) {
	s.send(&clientv1.ServerFrame{Id: id, Kind: &clientv1.ServerFrame_Presence{Presence: &clientv1.Presence{Users: f.online}}})
}

func (f *fakeServer) hello(s *fakeSession, id uint32, h *clientv1.Hello) {
	f.hellos = append(f.hellos, h)
	if f.refuseHello != nil {
		if b := f.refuseHello(h); b != nil {
			s.bye(b)
			return
		}
	}
	s.user, _, _ = strings.Cut(h.Token, "/")
	f.counter++
	for other := range f.sessions {
		if other.user == s.user && h.DeviceId != "" && other.deviceIs(h.DeviceId) {
			other.bye(protocol.NewBye("superseded", "", 0))
		}
	}
	s.held["device"] = h.DeviceId
	f.sessions[s] = struct{}{}
	s.send(&clientv1.ServerFrame{Id: id, Kind: &clientv1.ServerFrame_Welcome{Welcome: &clientv1.Welcome{
		Version: 1, SessionId: fmt.Sprint("s", f.counter), UserId: s.user, DeviceId: h.DeviceId, DataEpoch: f.epoch,
		ServerTimeMs: time.Now().UnixMilli(), TokenExpireMs: time.Now().Add(f.tokenLife).UnixMilli(),
		PingIntervalMs: 25000, PongTimeoutMs: 10000,
	}}})
}

func (s *fakeSession) deviceIs(id string) bool { return s.held["device"] == id }

// sync answers everything each time, one page of at most 3 states.
func (f *fakeServer) sync(user string, in *clientv1.Sync) *clientv1.SyncResult {
	from := 0
	if rest, ok := strings.CutPrefix(in.SyncToken, "more"); ok {
		_, _ = fmt.Sscan(rest, &from)
	}
	var ids []string
	for id, log := range f.logs {
		if slices.Contains(log.members, user) && len(log.entries) > 0 {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	out := &clientv1.SyncResult{DataEpoch: f.epoch, Full: true, SyncToken: "end"}
	for i, id := range ids[min(from, len(ids)):] {
		if i == 3 {
			out.More, out.SyncToken = true, fmt.Sprint("more", from+3)
			break
		}
		log := f.logs[id]
		st := &clientv1.ConversationState{ConversationId: id, Kind: clientv1.ConversationKind_CONVERSATION_KIND_GROUP, Role: clientv1.Role_ROLE_MEMBER,
			HeadSeq: log.head(), ReadSeq: log.read[user], MemberCount: uint32(len(log.members)), LastMessage: log.entries[len(log.entries)-1]}
		h := &clientv1.History{Backward: true, Limit: in.PageLimit}
		for _, c := range in.Cursors {
			if c.ConversationId == id {
				h = &clientv1.History{AfterSeq: c.Have, Limit: in.PageLimit}
			}
		}
		st.Page = log.page(h)
		out.Conversations = append(out.Conversations, st)
	}
	return out
}

func (l *fakeLog) head() int64 {
	if len(l.entries) == 0 {
		return 0
	}
	return l.entries[len(l.entries)-1].Seq
}

func (l *fakeLog) page(h *clientv1.History) *clientv1.Page {
	limit := int(h.Limit)
	if limit == 0 || limit > 50 {
		limit = 50
	}
	before := h.BeforeSeq
	if before == 0 {
		before = l.head() + 1
	}
	var in []*clientv1.Entry
	for _, e := range l.entries {
		if e.Seq > h.AfterSeq && e.Seq < before {
			in = append(in, e)
		}
	}
	p := &clientv1.Page{CompleteFrom: h.AfterSeq + 1, CompleteTo: min(before-1, max(l.head(), h.AfterSeq)), End: true}
	if n := len(in); n > limit {
		p.End = false
		if h.Backward {
			in = in[n-limit:]
			p.CompleteFrom = in[0].Seq
		} else {
			in = in[:limit]
			p.CompleteTo = in[limit-1].Seq
		}
	}
	p.Entries = in
	return p
}

// log returns a conversation's log with at least these members.
func (f *fakeServer) log(id string, members ...string) *fakeLog {
	l := f.logs[id]
	if l == nil {
		l = &fakeLog{ids: map[string]*clientv1.Entry{}, read: map[string]int64{}}
		f.logs[id] = l
	}
	for _, m := range members {
		if !slices.Contains(l.members, m) {
			l.members = append(l.members, m)
		}
	}
	return l
}

// post appends a message from outside and delivers it.
func (f *fakeServer) post(id, sender, text string) *clientv1.Entry {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.append(f.logs[id], id, nil, &clientv1.Entry{Sender: sender, Content: Text(text), ClientMessageId: NewID()})
}

func (f *fakeServer) append(l *fakeLog, id string, from *fakeSession, e *clientv1.Entry) *clientv1.Entry {
	e.PrevSeq = l.head()
	e.Seq = e.PrevSeq + 1
	if f.lose != nil && rand.IntN(4) == 0 {
		e.Seq += 7 // holes are legal
	}
	e.Kind, e.MessageId, e.ServerTimeMs, e.Countable = clientv1.EntryKind_ENTRY_KIND_MESSAGE, 1000+e.Seq, time.Now().UnixMilli(), true
	l.entries = append(l.entries, e)
	l.ids[e.Sender+e.ClientMessageId] = e
	frame := &clientv1.ServerFrame{Kind: &clientv1.ServerFrame_Deliver{Deliver: &clientv1.Deliver{ConversationId: id, Entries: []*clientv1.Entry{e}}}}
	if f.headsOnly {
		frame = &clientv1.ServerFrame{Kind: &clientv1.ServerFrame_Head{Head: &clientv1.Head{ConversationId: id, Seq: e.Seq}}}
	}
	f.toOthers(l, from, frame)
	return e
}

func (f *fakeServer) toOthers(l *fakeLog, from *fakeSession, frame *clientv1.ServerFrame) {
	for s := range f.sessions {
		if s != from && slices.Contains(l.members, s.user) && (f.lose == nil || !f.lose()) {
			s.send(proto.CloneOf(frame))
		}
	}
}

func (f *fakeServer) send(s *fakeSession, frameID uint32, in *clientv1.Send) {
	id := in.GetConversationId()
	if to := in.GetToUser(); to != "" {
		id = protocol.DirectID(s.user, to)
		f.log(id, s.user, to)
	}
	ack := &clientv1.SendAck{ClientMessageId: in.ClientMessageId}
	answer := func() {
		s.send(&clientv1.ServerFrame{Id: frameID, Kind: &clientv1.ServerFrame_SendAck{SendAck: ack}})
	}
	if f.silent || f.hold != nil && f.hold(in) {
		return
	}
	l := f.logs[id]
	if l == nil || !slices.Contains(l.members, s.user) {
		ack.Status, ack.Error = clientv1.Ack_ACK_FAIL, protocol.NewError("not_member", "", 0)
		answer()
		return
	}
	if held := s.held[id]; held != "" && held != in.ClientMessageId && !in.RunStart {
		ack.Status, ack.Error = clientv1.Ack_ACK_RETRY, protocol.NewError("behind", "", 0)
		answer()
		return
	}
	delete(s.held, id)
	if f.onSend != nil {
		if err, status := f.onSend(s, in); err != nil {
			if status == clientv1.Ack_ACK_RETRY {
				s.held[id] = in.ClientMessageId
			}
			ack.Status, ack.Error = status, err
			answer()
			return
		}
	}
	if f.breakAt != nil && f.breakAt() {
		s.conn.close(0)
		return
	}
	e, dup := l.ids[s.user+in.ClientMessageId]
	if !dup {
		e = f.append(l, id, s, &clientv1.Entry{Sender: s.user, Content: in.Content, ClientMessageId: in.ClientMessageId})
	}
	if f.breakAt != nil && f.breakAt() {
		s.conn.close(0)
		return
	}
	ack.Status, ack.ConversationId, ack.MessageId, ack.Seq, ack.PrevSeq = clientv1.Ack_ACK_OK, id, e.MessageId, e.Seq, e.PrevSeq
	ack.ServerTimeMs, ack.Duplicate = e.ServerTimeMs, dup
	answer()
}

// each calls a function for every session.
func (f *fakeServer) each(do func(*fakeSession)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for s := range f.sessions {
		do(s)
	}
}

// snapshot reads under the lock.
func snapshot[T any](f *fakeServer, read func() T) T {
	f.mu.Lock()
	defer f.mu.Unlock()
	return read()
}

// listen serves the same over real WebSockets.
func (f *fakeServer) listen(t *testing.T) *httptest.Server {
	t.Helper()
	srv := httptest.NewServer(f.handler())
	t.Cleanup(srv.Close)
	return srv
}

func (f *fakeServer) handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ws, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{protocol.SubprotocolProto, protocol.SubprotocolJSON}})
		if err != nil {
			return
		}
		defer ws.CloseNow()
		ws.SetReadLimit(protocol.MaxTextEnvelope)
		enc, _ := protocol.EncodingOf(ws.Subprotocol())
		f.bridge(r.Context(), ws, enc)
	})
}

// bridge carries frames between a socket and a pipe.
func (f *fakeServer) bridge(ctx context.Context, ws *websocket.Conn, enc protocol.Encoding) {
	p := newPipe()
	var wg sync.WaitGroup
	wg.Go(func() { f.serve(p) })
	wg.Go(func() {
		for {
			frames, err := p.Read(ctx)
			if err != nil {
				var e *Error
				if errors.As(err, &e) {
					_ = ws.Close(websocket.StatusCode(e.CloseCode), e.Reason)
				}
				_ = ws.CloseNow()
				return
			}
			var out []byte
			for _, fr := range frames {
				out, _ = protocol.AppendFrame(out, enc, fr)
			}
			typ := websocket.MessageBinary
			if enc == protocol.JSON {
				typ = websocket.MessageText
			}
			if ws.Write(ctx, typ, out) != nil {
				p.close(0)
			}
		}
	})
	for {
		_, data, err := ws.Read(ctx)
		if err != nil {
			break
		}
		var frames []*clientv1.ClientFrame
		if err := protocol.DecodeClientEnvelope(enc, data, protocol.ServerLimits(enc), func(fr *clientv1.ClientFrame) error {
			frames = append(frames, fr)
			return nil
		}); err != nil {
			break
		}
		p.toServer <- frames
	}
	p.close(0)
	wg.Wait()
}
