package admin

import (
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

	"github.com/imdhq/imd/pkg/auth"
	"github.com/imdhq/imd/pkg/control"
	"github.com/imdhq/imd/pkg/peer"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
	"github.com/imdhq/imd/proto/gen/internalv1/internalv1connect"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// keyDirectory keeps API keys in memory.
type keyDirectory struct {
	internalv1connect.UnimplementedDirectoryServiceHandler
	mu   sync.Mutex
	keys []*v1.ApiKey
}

func (d *keyDirectory) PutKey(_ context.Context, r *v1.PutKeyRequest) (*v1.PutKeyResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i, k := range d.keys {
		if k.KeyId == r.Key.KeyId {
			d.keys[i] = r.Key
			return &v1.PutKeyResponse{}, nil
		}
	}
	d.keys = append(d.keys, r.Key)
	return &v1.PutKeyResponse{}, nil
}

func (d *keyDirectory) Keys(_ context.Context, r *v1.KeysRequest) (*v1.KeysResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := &v1.KeysResponse{}
	for _, k := range d.keys {
		if r.KeyId == "" || r.KeyId == k.KeyId {
			out.Keys = append(out.Keys, k)
		}
	}
	return out, nil
}

const adminKey = "a-key-for-the-test"

// post calls a method as curl would and gives status and answer.
func post(t *testing.T, srv *httptest.Server, key, method, body string) (int, map[string]any) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, srv.URL+"/imd.admin.v1."+method, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	res, err := srv.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	var out map[string]any
	if err := json.Unmarshal(raw, &out); err != nil {
		t.Fatalf("%s: %q", method, raw)
	}
	return res.StatusCode, out
}

func serve(t *testing.T, key string) (*httptest.Server, *keyDirectory) {
	t.Helper()
	dir := &keyDirectory{}
	peers := peer.NewSet("n1", zap.NewNop(), peer.WithParity())
	peers.ServeDirectory(dir)
	view := &control.View{Revision: 7, Nodes: []control.Node{
		{ID: "n1", BootID: "b1", Roles: []string{"gateway", "state"}, State: control.Serving, Public: "127.0.0.1:1", Weight: 100, Started: time.UnixMilli(5)},
		{ID: "n2", State: control.Draining},
	}}
	ctl := &control.Handle{}
	ctl.SetView(view)
	a := New(Deps{Node: "n1", Control: ctl, Directory: peers.Directory(), Log: zap.NewNop(), Reg: prometheus.NewRegistry(),
		Now: func() time.Time { return time.UnixMilli(1000) }})
	mux := http.NewServeMux()
	a.Mount(mux.Handle, key)
	srv := httptest.NewServer(mux)
	t.Cleanup(srv.Close)
	return srv, dir
}

func TestOnlyTheAdminKeyPasses(t *testing.T) {
	srv, _ := serve(t, adminKey)
	for _, key := range []string{"", "wrong", adminKey + "x", adminKey[:5]} {
		status, body := post(t, srv, key, "ClusterService/ListNodes", "{}")
		if status != http.StatusUnauthorized || body["code"] != "unauthenticated" {
			t.Errorf("%q: %d %v", key, status, body)
		}
	}
	if status, _ := post(t, srv, adminKey, "ClusterService/ListNodes", "{}"); status != http.StatusOK {
		t.Errorf("the right key: %d", status)
	}
	open, _ := serve(t, "")
	if status, _ := post(t, open, " ", "ClusterService/ListNodes", "{}"); status != http.StatusUnauthorized {
		t.Errorf("an empty key lets in: %d", status)
	}
}

func TestListNodes(t *testing.T) {
	srv, _ := serve(t, adminKey)
	_, body := post(t, srv, adminKey, "ClusterService/ListNodes", "{}")
	nodes, _ := body["nodes"].([]any)
	if len(nodes) != 2 || body["revision"] != "7" {
		t.Fatalf("%v", body)
	}
	n := nodes[0].(map[string]any)
	if n["nodeId"] != "n1" || n["self"] != true || n["state"] != "serving" || n["startedMs"] != "5" || n["publicAddress"] != "127.0.0.1:1" {
		t.Errorf("%v", n)
	}
}

func TestKeyLife(t *testing.T) {
	srv, dir := serve(t, adminKey)
	status, body := post(t, srv, adminKey, "KeyService/CreateKey", `{"name":"shop","scopes":["tokens","messages","tokens"]}`)
	secret, _ := body["secret"].(string)
	key, err := auth.ParseAPIKey(secret)
	if status != http.StatusOK || err != nil {
		t.Fatalf("%d %v: %v", status, body, err)
	}
	if !key.Matches(dir.keys[0].SecretHash) || len(dir.keys[0].Scopes) != 2 {
		t.Errorf("stored %v", dir.keys[0])
	}
	_, body = post(t, srv, adminKey, "KeyService/ListKeys", "{}")
	if s, _ := json.Marshal(body); strings.Contains(string(s), "ecret") || strings.Contains(string(s), "ash") || !strings.Contains(string(s), key.ID) {
		t.Errorf("list: %s", s)
	}
	for range 2 {
		if status, body := post(t, srv, adminKey, "KeyService/RevokeKey", `{"keyId":"`+key.ID+`"}`); status != http.StatusOK {
			t.Errorf("revoke: %d %v", status, body)
		}
	}
	if dir.keys[0].RevokedMs != 1000 || !key.Matches(dir.keys[0].SecretHash) {
		t.Errorf("after revoking: %v", dir.keys[0])
	}
}

func TestKeyServiceRefuses(t *testing.T) {
	srv, _ := serve(t, adminKey)
	for _, tt := range []struct {
		method, body string
		status       int
	}{
		{"KeyService/CreateKey", `{"scopes":["everything"]}`, 400},
		{"KeyService/CreateKey", `{"name":"` + strings.Repeat("n", 129) + `"}`, 400},
		{"KeyService/CreateKey", `{"nam":"x"}`, 400},
		{"KeyService/CreateKey", `{"name":"a\nb"}`, 400},
		{"KeyService/RevokeKey", `{}`, 400},
		{"KeyService/RevokeKey", `{"keyId":"nobody"}`, 404},
		{"KeyService/Nothing", `{}`, 501},
	} {
		if status, body := post(t, srv, adminKey, tt.method, tt.body); status != tt.status {
			t.Errorf("%s %s: %d %v, want %d", tt.method, tt.body, status, body, tt.status)
		}
	}
}
