package admin

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/control"
	"github.com/imdhq/imd/pkg/im"
)

// plane is elections and locks of a test. A transfer is obeyed at once.
type plane struct {
	control.Elector
	control.Locker
	handle *control.Handle
	err    error
}

func (p *plane) Transfer(_ context.Context, name string, to im.NodeID) (control.Leader, error) {
	if p.err != nil {
		return control.Leader{}, p.err
	}
	if to == "" {
		to = "n2"
	}
	p.handle.SetLeaders(&control.Leaders{All: []control.Leader{{Name: name, Node: to, Token: 8}}})
	return control.Leader{Name: name, Node: "n1", Token: 7}, nil
}

func (p *plane) Locks(context.Context) ([]control.LockInfo, error) {
	return []control.LockInfo{{Name: "migrate", Node: "n1", BootID: "b1", Purpose: "to schema 7", Asked: time.UnixMilli(5), Token: 9, Held: true}}, p.err
}

func electing(t *testing.T) (*httptest.Server, *plane) {
	h := &control.Handle{}
	h.SetView(&control.View{Nodes: []control.Node{{ID: "n1"}, {ID: "n2"}}})
	h.SetLeaders(&control.Leaders{Revision: 7, All: []control.Leader{
		{Name: "scheduler", Node: "n1", BootID: "b1", Address: "127.0.0.1:1", Token: 7, Since: time.UnixMilli(5)}, {Name: "old", Node: "n2", Gone: true},
	}})
	p := &plane{handle: h}
	a := New(Deps{Node: "n1", Control: h, Log: zap.NewNop(), Reg: prometheus.NewRegistry()})
	mux := http.NewServeMux()
	a.Mount(mux.Handle, adminKey)
	srv := httptest.NewServer(mux)
	t.Cleanup(srv.Close)
	return srv, p
}

func TestListLeaders(t *testing.T) {
	srv, _ := electing(t)
	_, body := post(t, srv, adminKey, "ElectionService/ListLeaders", "{}")
	all, _ := body["leaders"].([]any)
	if len(all) != 2 || body["revision"] != "7" {
		t.Fatalf("%v", body)
	}
	first, second := all[0].(map[string]any), all[1].(map[string]any)
	if first["name"] != "scheduler" || first["nodeId"] != "n1" || first["token"] != "7" || first["self"] != true || first["sinceMs"] != "5" || second["gone"] != true {
		t.Errorf("%v", all)
	}
}

func TestTransferLeader(t *testing.T) {
	srv, p := electing(t)
	const method = "ElectionService/TransferLeader"
	if status, body := post(t, srv, adminKey, method, `{"name":"scheduler"}`); status != http.StatusServiceUnavailable {
		t.Errorf("before the control plane has started: %d %v", status, body)
	}
	p.handle.SetElector(p)
	for _, to := range []string{"", "n2"} {
		status, body := post(t, srv, adminKey, method, fmt.Sprintf(`{"name":"scheduler","toNodeId":%q}`, to))
		leader, _ := body["leader"].(map[string]any)
		if status != http.StatusOK || leader["nodeId"] != "n2" || leader["token"] != "8" {
			t.Errorf("to %q: %d %v", to, status, body)
		}
	}
	for _, tt := range []struct {
		body   string
		err    error
		status int
	}{
		{body: `{"name":"A/b"}`, status: 400},
		{body: `{"name":"scheduler","toNodeId":"n3"}`, status: 404},
		{body: `{"name":"scheduler"}`, err: control.ErrNoLeader, status: 404},
		{body: `{"name":"scheduler"}`, err: errors.New("etcd is away"), status: 503},
	} {
		p.err = tt.err
		if status, body := post(t, srv, adminKey, method, tt.body); status != tt.status {
			t.Errorf("%s, %v: %d %v, want %d", tt.body, tt.err, status, body, tt.status)
		}
	}
}

func TestListLocks(t *testing.T) {
	srv, p := electing(t)
	if status, _ := post(t, srv, adminKey, "LockService/ListLocks", "{}"); status != http.StatusServiceUnavailable {
		t.Errorf("before the control plane has started: %d", status)
	}
	p.handle.SetLocker(p)
	_, body := post(t, srv, adminKey, "LockService/ListLocks", "{}")
	all, _ := body["locks"].([]any)
	if len(all) != 1 {
		t.Fatalf("%v", body)
	}
	if l := all[0].(map[string]any); l["name"] != "migrate" || l["held"] != true || l["token"] != "9" || l["purpose"] != "to schema 7" {
		t.Errorf("%v", l)
	}
	p.err = errors.New("etcd is away")
	if status, _ := post(t, srv, adminKey, "LockService/ListLocks", "{}"); status != http.StatusServiceUnavailable {
		t.Errorf("with etcd away: %d", status)
	}
}
