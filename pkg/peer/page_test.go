package peer

import (
	"encoding/json"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/imdhq/imd/pkg/balance"
)

func TestPages(t *testing.T) {
	w := newWorld(t, "a", "b")
	if _, err := w.caller.State().Submit(t.Context(), submit("g_1")); err != nil {
		t.Fatal(err)
	}
	w.caller.UsePicker("state.History", balance.NameRandom)
	get := func(path, accept string) string {
		rec, r := httptest.NewRecorder(), httptest.NewRequest("GET", path, nil)
		r.Header.Set("Accept", accept)
		if strings.HasPrefix(path, "/statusz/ring") {
			w.caller.ServeRing(rec, r)
		} else {
			w.caller.ServePeers(rec, r)
		}
		return rec.Body.String()
	}
	var rep Report
	if err := json.Unmarshal([]byte(get("/statusz/peers", "")), &rep); err != nil || len(rep.Peers) != 2 || len(rep.Roles) != 3 || len(rep.Methods) != len(methods) {
		t.Errorf("%v %+v", err, rep)
	}
	for _, m := range rep.Methods {
		if want := map[string]string{"state.History": "random", "state.Submit": "consistent_hash", "gateway.Kick": "node"}[m.Name]; want != "" && m.Picker != want {
			t.Errorf("%s is picked by %s", m.Name, m.Picker)
		}
	}
	var r RingReport
	if err := json.Unmarshal([]byte(get("/statusz/ring?key=g_1", "")), &r); err != nil || r.Points != 320 || r.Key == nil || r.Key.Order[0] != w.home("g_1").name || len(r.Key.Order) != 2 {
		t.Errorf("%v %+v", err, r)
	}
	for path, want := range map[string]string{"/statusz/peers": "<h1>peers of caller", "/statusz/ring?role=push": "<h1>ring of push", "/statusz/ring?role=state&key=<b>": "&lt;b&gt;", "/statusz/ring": `<a href="/statusz/ring" aria-current="page">`} {
		if page := get(path, "text/html"); !strings.Contains(page, want) || !strings.Contains(page, "</html>") {
			t.Errorf("%s: %s", path, page)
		}
	}
	if page := get("/statusz/ring?role=gateway", ""); !strings.Contains(page, "only state and push") {
		t.Error(page)
	}
}

func TestParsePlace(t *testing.T) {
	place, err := ParsePlace("static://10.0.0.1:8422#3, h:1", "state")
	nodes := place.Nodes
	if err != nil || len(nodes) != 2 || nodes[0].Weight != 3 || nodes[1].Weight != 1 || nodes[1].Internal != "h:1" || !nodes[0].Has("state") {
		t.Errorf("%v %+v", err, nodes)
	}
	if p, err := ParsePlace("", "state"); p.Nodes != nil || p.Prefix != "" || err != nil {
		t.Errorf("%v %v", p, err)
	}
	if p, err := ParsePlace("etcd://a:1,b:2/names/state", "state"); err != nil || p.Prefix != "/names/state" || len(p.Hosts) != 2 || p.Hosts[1] != "b:2" {
		t.Errorf("%v %v", p, err)
	}
	if p, err := ParsePlace("etcd:///names", "state"); err != nil || p.Prefix != "/names" || p.Hosts != nil {
		t.Errorf("%v %v", p, err)
	}
	for _, bad := range []string{"10.0.0.1:1", "static://", "static://a", "static://a:1#0", "static://a:1#101", "static://a:1#x", "static://a:1,a:1", "static://:1", "etcd://a:1", "etcd://a:1/", "etcd://a/x"} {
		if _, err := ParsePlace(bad, "state"); err == nil {
			t.Errorf("%q is good", bad)
		}
	}
}
