package gateway

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"google.golang.org/protobuf/proto"

	"github.com/imdhq/imd/pkg/auth"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/peer"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/pkg/store/memory"
	"github.com/imdhq/imd/pkg/testenv"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
	"github.com/imdhq/imd/proto/gen/internalv1/internalv1connect"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a gateway with a state role that keeps everything in memory.
type world struct {
	t      testing.TB
	g      *Gateway
	peers  *peer.Set
	routes *memory.Routes
	state  *fakeState
	key    auth.Key
	stop   func()
}

const testNode = im.NodeID("n1")

// fast has times that suit tests; everything else is as shipped. Nothing is
// delivered again, and nobody sent away for want of a hello, in a test that is not
// about it, however slow the machine is.
func fast() Config {
	c := DefaultConfig()
	c.Listen, c.RedeliverAfter, c.HelloTimeout = "127.0.0.1:0", time.Minute, 30*time.Second
	c.Drain = DrainConfig{Delay: 50 * time.Millisecond, MinSpread: 100 * time.Millisecond, MaxSpread: time.Second, Grace: 300 * time.Millisecond}
	return c
}

// begin starts a gateway; it stops with the test.
func begin(t testing.TB, edit ...func(*Config)) *world {
	t.Helper()
	return beginTuned(t, func(*Gateway) {}, edit...)
}

// beginTuned is begin with a change to the gateway before it starts.
func beginTuned(t testing.TB, tune func(*Gateway), edit ...func(*Config)) *world {
	t.Helper()
	cfg := fast()
	for _, f := range edit {
		f(&cfg)
	}
	if err := cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, routes: memory.New(), key: auth.Key{ID: "k1", Secret: []byte("0123456789abcdef0123456789abcdef")}}
	// Calls have time, so that a machine that stands still for a moment fails none.
	w.peers = peer.NewSet(testNode, zap.NewNop(), append(parity(t), peer.WithPatience(testenv.Patience))...)
	w.state = &fakeState{w: w, convs: map[string]*fakeConv{}, epoch: "e1", refused: map[string]string{}, notes: map[string]note{}, poison: "-", bane: "-", gate: make(chan struct{})}
	close(w.state.gate)
	v, err := auth.NewVerifier(auth.DefaultConfig(), func() []auth.Key { return []auth.Key{w.key} })
	if err != nil {
		t.Fatal(err)
	}
	w.g, err = New(cfg, Deps{Node: testNode, Log: zap.NewNop(), Reg: prometheus.NewRegistry(),
		State: w.peers.State(), Directory: w.peers.Directory(), Verifier: v,
		Peer:   func(n im.NodeID) peerClient { return w.peers.Gateway(n) },
		Routes: func() (routes, error) { return w.state.routeStore(w.routes) },
		Public: func() http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("public")) })
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	w.peers.ServeState(w.state)
	w.peers.ServeDirectory(fakeDirectory{s: w.state})
	w.peers.ServeGateway(service{w.g})
	tune(w.g)
	if err := w.g.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.g.Run(ctx) }()
	w.stop = sync.OnceFunc(func() {
		cancel()
		took := testenv.Took(func() {
			if err := <-done; err != nil {
				t.Errorf("Run: %v", err)
			}
		})
		if took > lastWrites {
			t.Errorf("Run took %v to return", took)
		}
		if err := w.g.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	t.Cleanup(w.stop)
	return w
}

func (w *world) base() string { return "http://" + w.g.Addr().String() }

// token mints a token; change may alter what it says.
func (w *world) token(user string, change ...func(*auth.Claims)) string {
	w.t.Helper()
	now := time.Now()
	c := auth.Claims{User: im.UserID(user), Login: im.LoginID("l-" + user), IssuedAt: now, Expires: now.Add(time.Hour)}
	for _, f := range change {
		f(&c)
	}
	s, err := auth.Mint(w.key, c, "imd")
	if err != nil {
		w.t.Fatal(err)
	}
	return s
}

func login(id string) func(*auth.Claims) {
	return func(c *auth.Claims) { c.Login = im.LoginID(id) }
}

func expires(in time.Duration) func(*auth.Claims) {
	return func(c *auth.Claims) {
		c.Expires = time.Now().Add(in)
		c.IssuedAt = c.Expires.Add(-time.Hour)
	}
}

// session begins a session of a user on a device.
func (w *world) session(t *testing.T, enc protocol.Encoding, user, device string, change ...func(*auth.Claims)) *testenv.Client {
	t.Helper()
	return testenv.Login(t, w.base(), enc, w.token(user, change...), device)
}

// both runs a test for each encoding.
func both(t *testing.T, f func(t *testing.T, enc protocol.Encoding)) {
	for _, enc := range []protocol.Encoding{protocol.Proto, protocol.JSON} {
		t.Run(enc.String(), func(t *testing.T) { f(t, enc) })
	}
}

// eventually waits until ok holds.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: it does not happen", what)
		}
	}
}

// fakeConv is a log.
type fakeConv struct {
	entries []*clientv1.Entry
	members map[string]bool
	byKey   map[string]*clientv1.Entry // sender and client_message_id
}

// fakeState is state and push in memory: it stores, orders, and delivers.
type fakeState struct {
	internalv1connect.UnimplementedStateServiceHandler
	w *world

	mu      sync.Mutex
	convs   map[string]*fakeConv
	epoch   string
	gate    chan struct{}                 // Submit waits for it to close
	refuse  func(send *v1.RunSend) string // a reason to refuse a send; "" = store it
	mute    bool                          // nothing is delivered
	noRoute bool                          // the route store is away
	marks   []*v1.Mark
	calls   []int // sends of each Submit
	heads   []*v1.UserHead
	refused map[string]string // by login: why Admit refuses
	blocked map[string]bool   // users whom nobody sees
	notes   map[string]note   // by login and device
	onProve func() error      // called before a claim is noted
	onAdmit func(n int)       // called with the number of the call
	onSync  func(n int)       // called before a call with n syncs reads
	poison  string            // a user whose sync fails its call
	bane    string            // a user whose login does
	admits  int
}

func (s *fakeState) set(f func(*fakeState)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(s)
}

func (s *fakeState) routeStore(r *memory.Routes) (routes, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.noRoute {
		return nil, im.Errorf(clientv1.Reason_REASON_UNAVAILABLE, "test", "away")
	}
	return r, nil
}

// stall makes Submit wait until the function it returns is called.
func (s *fakeState) stall() (release func()) {
	gate := make(chan struct{})
	s.set(func(s *fakeState) { s.gate = gate })
	return sync.OnceFunc(func() { close(gate) })
}

func (s *fakeState) Submit(ctx context.Context, r *v1.SubmitRequest) (*v1.SubmitResponse, error) {
	s.mu.Lock()
	gate := s.gate
	s.mu.Unlock()
	select {
	case <-gate:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	res, n := &v1.SubmitResponse{}, 0
	for _, run := range r.Runs {
		out, behind := &v1.RunResult{}, false
		for _, x := range run.Sends {
			n++
			ack := s.store(run, x, behind)
			behind = behind || ack.Status == clientv1.Ack_ACK_RETRY
			out.Acks = append(out.Acks, ack)
		}
		res.Runs = append(res.Runs, out)
	}
	s.calls = append(s.calls, n)
	return res, nil
}

// note is what a state role knows of the sessions of a login and device.
type note struct {
	epoch uint64
	why   string // a session with a lower epoch has ended
}

func noteKey(user string, p *v1.SessionProof) string {
	return user + "/" + p.GetLoginId() + "/" + p.GetDeviceId()
}

func (s *fakeState) store(run *v1.Run, x *v1.RunSend, behind bool) *clientv1.SendAck {
	reason := ""
	if n := s.notes[noteKey(run.UserId, run.Proof)]; run.Proof != nil && n.epoch > run.Proof.RouteEpoch {
		return &clientv1.SendAck{Status: clientv1.Ack_ACK_RETRY, Error: protocol.NewError(n.why, "", 0)}
	}
	if s.refuse != nil {
		reason = s.refuse(x)
	}
	if behind {
		reason = "behind"
	}
	if reason != "" {
		e := protocol.NewError(reason, "", 0)
		return &clientv1.SendAck{Status: statusOf(e), Error: e}
	}
	c := s.convs[run.ConversationId]
	if c == nil {
		c = &fakeConv{members: map[string]bool{run.UserId: true, run.PeerId: true}, byKey: map[string]*clientv1.Entry{}}
		s.convs[run.ConversationId] = c
	}
	key := run.UserId + "/" + x.ClientMessageId
	e, duplicate := c.byKey[key]
	if !duplicate {
		n := int64(len(c.entries))
		e = &clientv1.Entry{Seq: n + 1, PrevSeq: n, Kind: x.Kind, MessageId: n + 100, ClientMessageId: x.ClientMessageId,
			Sender: run.UserId, ServerTimeMs: time.Now().UnixMilli(), Content: x.Content, Countable: true}
		c.byKey[key], c.entries = e, append(c.entries, e)
		if !s.mute {
			s.deliver(run.ConversationId, c, e, run.SessionId)
		}
	}
	return &clientv1.SendAck{Status: clientv1.Ack_ACK_OK, ConversationId: run.ConversationId, MessageId: e.MessageId, Seq: e.Seq,
		PrevSeq: e.PrevSeq, ServerTimeMs: e.ServerTimeMs, Duplicate: duplicate}
}

// deliver hands an entry to all sessions of the members but one.
func (s *fakeState) deliver(conv string, c *fakeConv, e *clientv1.Entry, except string) {
	frame, _ := proto.Marshal(&clientv1.ServerFrame{Kind: &clientv1.ServerFrame_Deliver{
		Deliver: &clientv1.Deliver{ConversationId: conv, Entries: []*clientv1.Entry{e}}}})
	d := &v1.Delivery{ConversationId: conv, Seq: e.Seq, Frame: frame, Acked: true, CommitNs: time.Now().UnixNano()}
	for m := range c.members {
		found, _ := s.w.routes.Lookup(context.Background(), []im.UserID{im.UserID(m)})
		for _, r := range found {
			if string(r.Session) != except {
				d.SessionIds = append(d.SessionIds, string(r.Session))
			}
		}
	}
	_, _ = s.w.peers.Gateway(testNode).Deliver(context.Background(), &v1.DeliverRequest{Deliveries: []*v1.Delivery{d}})
}

// post stores and delivers a text as if another node had.
func (s *fakeState) post(conv, sender, text string, members ...string) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.convs[conv]
	if c == nil {
		c = &fakeConv{members: map[string]bool{}, byKey: map[string]*clientv1.Entry{}}
		s.convs[conv] = c
	}
	for _, m := range members {
		c.members[m] = true
	}
	n := int64(len(c.entries))
	e := &clientv1.Entry{Seq: n + 1, PrevSeq: n, Kind: clientv1.EntryKind_ENTRY_KIND_MESSAGE, MessageId: n + 100, Sender: sender, Content: testenv.Text(text)}
	c.entries = append(c.entries, e)
	if !s.mute {
		s.deliver(conv, c, e, "")
	}
	return e.Seq
}

func (s *fakeState) Mark(_ context.Context, r *v1.MarkRequest) (*v1.MarkResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.marks = append(s.marks, r.Marks...)
	res := &v1.MarkResponse{}
	for _, m := range r.Marks {
		x := &v1.MarkResult{Receipt: &clientv1.Receipt{ConversationId: m.ConversationId, UserId: m.UserId, DeliveredSeq: m.Seq}}
		if m.Read {
			x.Receipt.ReadSeq, x.Receipt.UnreadCount = m.Seq, proto.Uint32(0)
		}
		if c := s.convs[m.ConversationId]; c == nil || !c.members[m.UserId] {
			x = &v1.MarkResult{Error: protocol.NewError("not_member", "", 0)}
		}
		res.Results = append(res.Results, x)
	}
	return res, nil
}

func (s *fakeState) SyncMany(_ context.Context, r *v1.SyncManyRequest) (*v1.SyncManyResponse, error) {
	s.mu.Lock()
	hook := s.onSync
	s.mu.Unlock()
	if hook != nil {
		hook(len(r.Requests))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	res := &v1.SyncManyResponse{}
	for _, q := range r.Requests {
		if q.UserId == s.poison {
			return nil, im.Errorf(clientv1.Reason_REASON_INTERNAL, "test", "poison")
		}
		res.Answers = append(res.Answers, &v1.SyncAnswer{Result: &clientv1.SyncResult{SyncToken: "t1", DataEpoch: s.epoch, Full: true}})
	}
	return res, nil
}

func (s *fakeState) History(_ context.Context, r *v1.HistoryRequest) (*v1.HistoryResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := r.History
	c := s.convs[h.ConversationId]
	if c == nil || !c.members[r.UserId] {
		return nil, im.Errorf(clientv1.Reason_REASON_NOT_MEMBER, "test", "not a member")
	}
	p := &clientv1.Page{CompleteFrom: h.AfterSeq + 1, CompleteTo: h.AfterSeq, End: true}
	size := 0
	for _, e := range c.entries {
		if e.Seq <= h.AfterSeq || h.BeforeSeq > 0 && e.Seq >= h.BeforeSeq {
			continue
		}
		n := protocol.Size(protocol.JSON, e) + 1
		if len(p.Entries) == int(h.Limit) || size+n > int(r.MaxBytes) {
			p.End = false
			break
		}
		size += n
		p.Entries, p.CompleteTo = append(p.Entries, e), e.Seq
	}
	return &v1.HistoryResponse{Result: &clientv1.HistoryResult{ConversationId: h.ConversationId, Page: p}}, nil
}

func (s *fakeState) Heads(context.Context, *v1.HeadsRequest) (*v1.HeadsResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &v1.HeadsResponse{Heads: s.heads, Version: "v", DataEpoch: s.epoch}, nil
}

func (s *fakeState) Members(_ context.Context, r *v1.MembersRequest) (*v1.MembersResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.convs[r.ConversationId]
	if c == nil || !c.members[r.UserId] {
		return nil, im.Errorf(clientv1.Reason_REASON_NOT_MEMBER, "test", "not a member")
	}
	res := &v1.MembersResponse{End: len(c.members) <= int(r.Limit), Kind: clientv1.ConversationKind_CONVERSATION_KIND_GROUP, MemberCount: int32(len(c.members))}
	if strings.HasPrefix(r.ConversationId, "d_") {
		res.Kind = clientv1.ConversationKind_CONVERSATION_KIND_DIRECT
	}
	for _, u := range slices.Sorted(maps.Keys(c.members)) {
		if len(res.Members) < int(r.Limit) {
			res.Members = append(res.Members, &v1.Member{UserId: u})
		}
	}
	return res, nil
}

func (s *fakeState) cursed(user string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return user == s.bane
}

type fakeDirectory struct {
	internalv1connect.UnimplementedDirectoryServiceHandler
	s *fakeState
}

func (d fakeDirectory) Admit(_ context.Context, r *v1.AdmitRequest) (*v1.AdmitResponse, error) {
	d.s.mu.Lock()
	d.s.admits++
	n, hook := d.s.admits, d.s.onAdmit
	d.s.mu.Unlock()
	if hook != nil {
		hook(n)
	}
	d.s.mu.Lock()
	defer d.s.mu.Unlock()
	return &v1.AdmitResponse{RefusedReason: d.s.refused[r.LoginId], DataEpoch: d.s.epoch}, nil
}

func (d fakeDirectory) AdmitMany(ctx context.Context, r *v1.AdmitManyRequest) (*v1.AdmitManyResponse, error) {
	res := &v1.AdmitManyResponse{}
	for _, q := range r.Requests {
		if d.s.cursed(q.UserId) {
			return nil, im.Errorf(clientv1.Reason_REASON_UNAVAILABLE, "test", "bane")
		}
		one, err := d.Admit(ctx, q)
		if err != nil {
			return nil, err
		}
		res.Answers = append(res.Answers, &v1.AdmitAnswer{Response: one})
	}
	return res, nil
}

func (d fakeDirectory) Revoke(_ context.Context, r *v1.RevokeRequest) (*v1.RevokeResponse, error) {
	d.s.mu.Lock()
	defer d.s.mu.Unlock()
	d.s.refused[r.LoginId] = r.Reason
	return &v1.RevokeResponse{}, nil
}

func (d fakeDirectory) Visible(_ context.Context, r *v1.VisibleRequest) (*v1.VisibleResponse, error) {
	d.s.mu.Lock()
	defer d.s.mu.Unlock()
	res := &v1.VisibleResponse{}
	for _, u := range r.UserIds {
		for _, c := range d.s.convs {
			if c.members[r.UserId] && c.members[u] && !d.s.blocked[u] && !slices.Contains(res.UserIds, u) {
				res.UserIds = append(res.UserIds, u)
			}
		}
	}
	return res, nil
}

func (d fakeDirectory) LastSeen(_ context.Context, r *v1.LastSeenRequest) (*v1.LastSeenResponse, error) {
	res := &v1.LastSeenResponse{}
	for _, u := range r.UserIds {
		res.Users = append(res.Users, &v1.LastSeen{UserId: u, AtMs: 77})
	}
	return res, nil
}

func (d fakeDirectory) Prove(_ context.Context, r *v1.ProveRequest) (*v1.ProveResponse, error) {
	d.s.mu.Lock()
	hook := d.s.onProve
	d.s.mu.Unlock()
	if hook != nil {
		if err := hook(); err != nil {
			return nil, err
		}
	}
	d.s.mu.Lock()
	defer d.s.mu.Unlock()
	k, epoch := noteKey(r.UserId, r.Session), r.Session.RouteEpoch
	if have := d.s.notes[k].epoch; r.Rank {
		epoch = max(epoch, have+1)
	} else {
		epoch = max(epoch, have)
	}
	d.s.notes[k] = note{epoch, "superseded"}
	for _, x := range r.Replaced {
		d.s.notes[noteKey(r.UserId, x)] = note{r.Session.RouteEpoch, "replaced"}
	}
	return &v1.ProveResponse{RouteEpoch: epoch}, nil
}

// routesOf is what the route store says of a user.
func (w *world) routesOf(user string) []store.Route {
	found, err := w.routes.Lookup(context.Background(), []im.UserID{im.UserID(user)})
	if err != nil {
		w.t.Fatal(err)
	}
	return found
}

func uuidOf(n int) string { return fmt.Sprintf("00000000-0000-4000-8000-%012d", n) }

func textOf(f *clientv1.ServerFrame) string {
	if d := f.GetDeliver(); d != nil && len(d.Entries) == 1 {
		return d.Entries[0].Content.GetText()
	}
	return ""
}

func isDeliver(f *clientv1.ServerFrame) bool { return f.GetDeliver() != nil }
func isHead(f *clientv1.ServerFrame) bool    { return f.GetHead() != nil }

type claims = auth.Claims

// nopRegisterer takes metrics and shows them nowhere.
type nopRegisterer struct{}

func (nopRegisterer) Register(prometheus.Collector) error  { return nil }
func (nopRegisterer) MustRegister(...prometheus.Collector) {}
func (nopRegisterer) Unregister(prometheus.Collector) bool { return true }

// parity makes calls between roles copy what they carry, except where that is
// what would be measured.
func parity(t testing.TB) []peer.Option {
	if _, ok := t.(*testing.B); ok {
		return nil
	}
	return []peer.Option{peer.WithParity()}
}
