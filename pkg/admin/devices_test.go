package admin

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/control"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/peer"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/pkg/store/memory"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// endingDirectory notes what was revoked.
type endingDirectory struct {
	keyDirectory
	ended []*v1.RevokeRequest
}

func (d *endingDirectory) Revoke(_ context.Context, r *v1.RevokeRequest) (*v1.RevokeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ended = append(d.ended, r)
	return &v1.RevokeResponse{Ended: 2, NotTold: []string{"n9"}}, nil
}

func (d *endingDirectory) LastSeen(_ context.Context, r *v1.LastSeenRequest) (*v1.LastSeenResponse, error) {
	return &v1.LastSeenResponse{Users: []*v1.LastSeen{{UserId: r.UserIds[0], AtMs: 77}}}, nil
}

func TestDevices(t *testing.T) {
	routes, dir := memory.New(), &endingDirectory{}
	for _, s := range []im.SessionID{"s1", "s2"} {
		r := store.Route{User: "alice", Session: s, Login: im.LoginID("l-" + s), Device: "d", Class: im.Web, Node: "n7", Boot: "b7", Since: time.UnixMilli(9)}
		if _, err := routes.Claim(t.Context(), r, store.Policy{}); err != nil {
			t.Fatal(err)
		}
	}
	peers := peer.NewSet("n1", zap.NewNop(), peer.WithParity())
	peers.ServeDirectory(dir)
	away := false
	a := New(Deps{Node: "n1", Control: seen(&control.View{}), Directory: peers.Directory(), Log: zap.NewNop(), Reg: prometheus.NewRegistry(),
		Routes: func() (Routes, error) {
			if away {
				return nil, im.Errorf(clientv1.Reason_REASON_UNAVAILABLE, "test", "away")
			}
			return routes, nil
		}})
	mux := http.NewServeMux()
	a.Mount(mux.Handle, adminKey)
	srv := httptest.NewServer(mux)
	t.Cleanup(srv.Close)
	status, body := post(t, srv, adminKey, "DeviceService/ListDevices", `{"userId":"alice"}`)
	list, _ := body["devices"].([]any)
	if status != http.StatusOK || len(list) != 2 {
		t.Fatalf("%d %v", status, body)
	}
	if d := list[0].(map[string]any); d["sessionId"] != "s1" || d["loginId"] != "l-s1" || d["nodeId"] != "n7" || d["bootId"] != "b7" || d["class"] != "web" || d["sinceMs"] != "9" {
		t.Errorf("the oldest: %v", d)
	}
	status, body = post(t, srv, adminKey, "DeviceService/EndLogins", `{"userId":"alice","loginId":"l-s1","reason":"kicked"}`)
	if away, _ := body["notTold"].([]any); status != http.StatusOK || body["ended"] != 2.0 || len(away) != 1 || away[0] != "n9" {
		t.Errorf("kick: %d %v", status, body)
	}
	if len(dir.ended) != 1 || dir.ended[0].LoginId != "l-s1" || dir.ended[0].Reason != "kicked" {
		t.Errorf("ended %v", dir.ended)
	}
	for method, body := range map[string]string{"ListDevices": `{"userId":"no user"}`, "ListPresence": `{"userIds":["no user"]}`, "EndLogins": `{"userId":"alice","reason":"tired"}`} {
		if status, got := post(t, srv, adminKey, "DeviceService/"+method, body); status != http.StatusBadRequest {
			t.Errorf("%s: %d %v", method, status, got)
		}
	}
	status, body = post(t, srv, adminKey, "DeviceService/ListPresence", `{"userIds":["bob","alice"]}`)
	list, _ = body["users"].([]any)
	if status != http.StatusOK || len(list) != 2 {
		t.Fatalf("%d %v", status, body)
	}
	bob, alice := list[0].(map[string]any), list[1].(map[string]any)
	if bob["online"] != nil || bob["lastSeenMs"] != "77" || alice["online"] != true || len(alice["classes"].([]any)) != 1 {
		t.Errorf("presence: %v", list)
	}
	away = true
	if status, got := post(t, srv, adminKey, "DeviceService/ListDevices", `{"userId":"alice"}`); status != http.StatusServiceUnavailable {
		t.Errorf("without routes: %d %v", status, got)
	}
}
