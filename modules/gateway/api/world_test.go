package api

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
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
	"github.com/imdhq/imd/pkg/store/memory"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
	"github.com/imdhq/imd/proto/gen/internalv1/internalv1connect"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/gen/imdv1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	epoch   = time.UnixMilli(1_795_975_200_000)
	signKey = auth.Key{ID: "k1", Secret: []byte("0123456789abcdef0123456789abcdef")}
)

// world stands in for the state role: one group g_1 of owner, admin and member.
type world struct {
	internalv1connect.UnimplementedStateServiceHandler
	internalv1connect.UnimplementedDirectoryServiceHandler

	mu      sync.Mutex
	keys    map[string]*v1.ApiKey
	refused map[string]string // user -> reason
	seen    []proto.Message   // requests of State and Directory, save Admit and Keys
	answer  *clientv1.SendAck // of Submit; nil = OK
	asked   int               // look-ups of keys
	explode bool
}

var roles = map[string]clientv1.Role{
	"owner": clientv1.Role_ROLE_OWNER, "admin": clientv1.Role_ROLE_ADMIN, "member": clientv1.Role_ROLE_MEMBER, "": clientv1.Role_ROLE_OWNER,
}

func (w *world) note(m proto.Message) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen = append(w.seen, proto.Clone(m))
	if w.explode {
		panic("the secret of the house")
	}
}

func (w *world) last(t *testing.T) proto.Message {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.seen) == 0 {
		t.Fatal("nothing was called")
	}
	return w.seen[len(w.seen)-1]
}

func inGroup(user string) error {
	if roles[user] == clientv1.Role_ROLE_UNSPECIFIED {
		return im.Errorf(clientv1.Reason_REASON_NOT_MEMBER, "world", "not a member")
	}
	return nil
}

func (w *world) Change(_ context.Context, r *v1.ChangeRequest) (*v1.ChangeResponse, error) {
	w.note(r)
	if r.GetCreate() != nil {
		return &v1.ChangeResponse{ConversationId: "g_9", Seq: 1}, nil
	}
	if err := inGroup(r.UserId); err != nil {
		return nil, err
	}
	need := clientv1.Role_ROLE_MEMBER
	switch r.Change.(type) {
	case *v1.ChangeRequest_Rename, *v1.ChangeRequest_AddMembers, *v1.ChangeRequest_RemoveMembers:
		need = clientv1.Role_ROLE_ADMIN
	case *v1.ChangeRequest_Close, *v1.ChangeRequest_SetRole:
		need = clientv1.Role_ROLE_OWNER
	}
	if roles[r.UserId] < need {
		return nil, im.Errorf(clientv1.Reason_REASON_FORBIDDEN, "world", "the role does not allow it")
	}
	return &v1.ChangeResponse{ConversationId: r.ConversationId, Seq: 5}, nil
}

func (w *world) Submit(_ context.Context, r *v1.SubmitRequest) (*v1.SubmitResponse, error) {
	w.note(r)
	run := r.Runs[0]
	ack := w.answer
	if ack == nil {
		ack = &clientv1.SendAck{Status: clientv1.Ack_ACK_OK, ConversationId: run.ConversationId, MessageId: 301234567890123776, Seq: 6, PrevSeq: 5, ServerTimeMs: 9}
		if err := inGroup(run.UserId); err != nil && run.PeerId == "" {
			ack = &clientv1.SendAck{Status: clientv1.Ack_ACK_FAIL, Error: im.Wire(err)}
		}
	}
	return &v1.SubmitResponse{Runs: []*v1.RunResult{{Acks: []*clientv1.SendAck{ack}}}}, nil
}

func (w *world) Schedule(_ context.Context, r *v1.ScheduleRequest) (*v1.ScheduleResponse, error) {
	w.note(r)
	if err := inGroup(r.UserId); err != nil && r.PeerId == "" {
		return nil, err
	}
	return &v1.ScheduleResponse{Scheduled: &imdv1.ScheduledMessage{ScheduledId: 7, SendAtMs: r.SendAtMs}}, nil
}

func (w *world) ListScheduled(_ context.Context, r *v1.ListScheduledRequest) (*v1.ListScheduledResponse, error) {
	w.note(r)
	if r.AfterId == 0 {
		return &v1.ListScheduledResponse{Scheduled: []*imdv1.ScheduledMessage{{ScheduledId: 7, SendAtMs: 1234}}}, nil
	}
	return &v1.ListScheduledResponse{End: true}, nil
}

func (w *world) CancelScheduled(_ context.Context, r *v1.CancelScheduledRequest) (*v1.CancelScheduledResponse, error) {
	w.note(r)
	state := imdv1.ScheduledState_SCHEDULED_STATE_CANCELLED
	if r.ScheduledId == 8 {
		state = imdv1.ScheduledState_SCHEDULED_STATE_SENT
	}
	return &v1.CancelScheduledResponse{Scheduled: &imdv1.ScheduledMessage{ScheduledId: r.ScheduledId, State: state}}, nil
}

func (w *world) History(_ context.Context, r *v1.HistoryRequest) (*v1.HistoryResponse, error) {
	w.note(r)
	if err := inGroup(r.UserId); err != nil {
		return nil, err
	}
	return &v1.HistoryResponse{Result: &clientv1.HistoryResult{ConversationId: r.History.ConversationId, Page: &clientv1.Page{CompleteFrom: 1, CompleteTo: 5, End: true}}}, nil
}

func (w *world) Members(_ context.Context, r *v1.MembersRequest) (*v1.MembersResponse, error) {
	w.note(r)
	if err := inGroup(r.UserId); err != nil {
		return nil, err
	}
	out := &v1.MembersResponse{End: true}
	for _, id := range []string{"admin", "member", "owner"} {
		if id <= r.AfterUserId {
			continue
		}
		if len(out.Members) == int(r.Limit) {
			out.End = false
			break
		}
		out.Members = append(out.Members, &v1.Member{UserId: id, Role: roles[id]})
	}
	return out, nil
}

func (w *world) Sync(_ context.Context, r *v1.SyncRequest) (*v1.SyncResponse, error) {
	w.note(r)
	res := &clientv1.SyncResult{SyncToken: "t1", More: true, Conversations: []*clientv1.ConversationState{
		{ConversationId: "g_0"}, {ConversationId: "g_1", Role: clientv1.Role_ROLE_MEMBER}}}
	if r.SyncToken == "t1" {
		res = &clientv1.SyncResult{SyncToken: "t2", Conversations: []*clientv1.ConversationState{{ConversationId: "g_2", Role: clientv1.Role_ROLE_MEMBER}}}
	}
	return &v1.SyncResponse{Result: res}, nil
}

func (w *world) ClearHistory(_ context.Context, r *v1.ClearHistoryRequest) (*v1.ClearHistoryResponse, error) {
	w.note(r)
	if err := inGroup(r.UserId); err != nil {
		return nil, err
	}
	return &v1.ClearHistoryResponse{Start: r.UpToSeq}, nil
}

func (w *world) User(_ context.Context, r *v1.UserRequest) (*v1.UserResponse, error) {
	w.note(r)
	return &v1.UserResponse{UserId: r.UserId, CreatedMs: 5}, nil
}

func (w *world) SetUser(_ context.Context, r *v1.SetUserRequest) (*v1.SetUserResponse, error) {
	w.note(r)
	return &v1.SetUserResponse{}, nil
}

func (w *world) SetBlock(_ context.Context, r *v1.SetBlockRequest) (*v1.SetBlockResponse, error) {
	w.note(r)
	return &v1.SetBlockResponse{}, nil
}

func (w *world) SetMute(_ context.Context, r *v1.SetMuteRequest) (*v1.SetMuteResponse, error) {
	w.note(r)
	if err := inGroup(r.UserId); err != nil {
		return nil, err
	}
	return &v1.SetMuteResponse{}, nil
}

// Mutes has three conversations, one of them muted for good.
func (w *world) Mutes(_ context.Context, r *v1.MutesRequest) (*v1.MutesResponse, error) {
	w.note(r)
	out := &v1.MutesResponse{}
	for _, m := range []*v1.Mute{{ConversationId: "g_1", UntilMs: 5}, {ConversationId: "g_2", UntilMs: forGood}, {ConversationId: "g_3", UntilMs: 6}} {
		if m.ConversationId > r.AfterConversationId && len(out.Mutes) < int(r.Limit) {
			out.Mutes = append(out.Mutes, m)
		}
	}
	return out, nil
}

func (w *world) Visible(_ context.Context, r *v1.VisibleRequest) (*v1.VisibleResponse, error) {
	w.note(r)
	out := &v1.VisibleResponse{}
	for _, id := range r.UserIds {
		if roles[r.UserId] != 0 && roles[id] != 0 {
			out.UserIds = append(out.UserIds, id)
		}
	}
	return out, nil
}

func (w *world) LastSeen(_ context.Context, r *v1.LastSeenRequest) (*v1.LastSeenResponse, error) {
	w.note(r)
	return &v1.LastSeenResponse{Users: []*v1.LastSeen{{UserId: "owner", AtMs: 1234}}}, nil
}

func (w *world) Revoke(_ context.Context, r *v1.RevokeRequest) (*v1.RevokeResponse, error) {
	w.note(r)
	return &v1.RevokeResponse{}, nil
}

func (w *world) Admit(_ context.Context, r *v1.AdmitRequest) (*v1.AdmitResponse, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return &v1.AdmitResponse{RefusedReason: w.refused[r.UserId]}, nil
}

func (w *world) Keys(_ context.Context, r *v1.KeysRequest) (*v1.KeysResponse, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.asked++
	out := &v1.KeysResponse{}
	if k := w.keys[r.KeyId]; k != nil {
		out.Keys = append(out.Keys, proto.Clone(k).(*v1.ApiKey))
	}
	return out, nil
}

// fixture is an API in front of a world, reached over real HTTP.
type fixture struct {
	t   *testing.T
	w   *world
	api *API
	srv *httptest.Server
	now time.Time
	reg *prometheus.Registry
}

func start(t *testing.T, change func(*Deps)) *fixture {
	t.Helper()
	f := &fixture{t: t, w: &world{keys: map[string]*v1.ApiKey{}, refused: map[string]string{}}, now: epoch, reg: prometheus.NewRegistry()}
	peers := peer.NewSet("n1", zap.NewNop(), peer.WithParity())
	peers.ServeState(f.w)
	peers.ServeDirectory(f.w)
	keys := func() []auth.Key { return []auth.Key{signKey} }
	v, err := auth.NewVerifier(auth.DefaultConfig(), keys)
	if err != nil {
		t.Fatal(err)
	}
	d := Deps{State: peers.State(), Routes: func() (Routes, error) { return memory.New(), nil }, Directory: peers.Directory(), Verifier: v, Keys: keys, Log: zap.NewNop(), Reg: f.reg, Now: func() time.Time { return f.now }}
	if change != nil {
		change(&d)
	}
	if f.api, err = New(d); err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	f.api.Mount(mux.Handle)
	f.srv = httptest.NewUnstartedServer(mux)
	f.srv.Config.Protocols = new(http.Protocols)
	f.srv.Config.Protocols.SetHTTP1(true)
	f.srv.Config.Protocols.SetUnencryptedHTTP2(true)
	f.srv.Start()
	t.Cleanup(f.srv.Close)
	return f
}

// token makes a user's token.
func (f *fixture) token(user string) string {
	s, err := auth.Mint(signKey, auth.Claims{User: im.UserID(user), Login: "l1", IssuedAt: epoch, Expires: epoch.Add(time.Hour)}, "imd")
	if err != nil {
		f.t.Fatal(err)
	}
	return s
}

// key makes an API key with scopes.
func (f *fixture) key(scopes ...string) string {
	k := auth.NewAPIKey()
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	f.w.keys[k.ID] = &v1.ApiKey{KeyId: k.ID, Scopes: scopes, SecretHash: k.Hash()}
	return k.Text()
}

// answer is what a call gave.
type answer struct {
	status int
	header http.Header
	body   map[string]any
	raw    string
}

// reason is the stable reason of an error, "ok" if there is none.
func (a answer) reason() string {
	if a.status == http.StatusOK {
		return "ok"
	}
	details, _ := a.body["details"].([]any)
	for _, d := range details {
		m, _ := d.(map[string]any)
		debug, _ := m["debug"].(map[string]any)
		if r, ok := debug["reason"].(string); ok && m["type"] == "imd.client.v1.Error" {
			return r
		}
	}
	return "no reason in " + a.raw
}

// post sends what curl would send.
func (f *fixture) post(bearer, method, body string) answer {
	f.t.Helper()
	req, err := http.NewRequestWithContext(f.t.Context(), http.MethodPost, f.srv.URL+"/imd.v1."+method, strings.NewReader(body))
	if err != nil {
		f.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	if bearer != "" {
		req.Header.Set("Authorization", "Bearer "+bearer)
	}
	return f.do(req)
}

func (f *fixture) do(req *http.Request) answer {
	f.t.Helper()
	res, err := f.srv.Client().Do(req)
	if err != nil {
		f.t.Fatal(err)
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(res.Body)
	if err != nil {
		f.t.Fatal(err)
	}
	a := answer{status: res.StatusCode, header: res.Header, raw: string(raw)}
	if len(bytes.TrimSpace(raw)) > 0 {
		if err := json.Unmarshal(raw, &a.body); err != nil {
			f.t.Fatalf("%s %s: %d %q is no JSON", req.Method, req.URL.Path, res.StatusCode, raw)
		}
	}
	return a
}
