package status

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/control"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/settings"
	"github.com/imdhq/imd/pkg/store"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const evil = `"><script>alert(1)</script>`

// routes knows one session of alice.
type routes struct{ err error }

func (r routes) Lookup(_ context.Context, users []im.UserID) ([]store.Route, error) {
	if users[0] != "alice" {
		return nil, r.err
	}
	return []store.Route{{User: "alice", Session: "s1", Device: im.DeviceID(evil), Node: "n1", Epoch: 7, Since: time.Unix(1, 0)}}, r.err
}

func mounted(t *testing.T, change func(*Deps)) *http.ServeMux {
	t.Helper()
	reg, err := settings.NewRegistry([]string{"gateway"})
	if err != nil {
		t.Fatal(err)
	}
	h := &control.Handle{}
	h.SetView(&control.View{Revision: 12, Stale: true, Nodes: []control.Node{{ID: "n1", Roles: []string{"gateway"}, Version: evil, Cordon: "disk", State: control.Serving}}})
	h.SetLeaders(&control.Leaders{Revision: 9, All: []control.Leader{{Name: "scheduler", Node: "n1", Token: 4}}})
	d := Deps{Node: "n1", Roles: []string{"gateway"}, Version: "v1", State: func() control.State { return control.Serving }, Control: h,
		Settings: settings.NewLive(reg, settings.Identity{Node: "n1"}, zap.NewNop()),
		Tally: func() *v1.Tally {
			return &v1.Tally{AtMs: 1000, NodeId: evil, Nodes: []*v1.TallyNode{{NodeId: "n1", Gateway: true, Sessions: map[string]int64{"web": 2}, Users: 1}, {NodeId: "n2", Silent: "unavailable"}},
				Minutes: []*v1.TallyTotal{{Minute: 10, Stored: 4, Counted: true}, {Minute: 11, Stored: 8, Users: new(int64)}}}
		},
		Routes: func() (RouteLookup, error) { return routes{}, nil },
		Guard: func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Header.Get("Authorization") == "" {
					w.WriteHeader(http.StatusUnauthorized)
					return
				}
				next.ServeHTTP(w, r)
			})
		}}
	if change != nil {
		change(&d)
	}
	mux := http.NewServeMux()
	Mount(mux.Handle, d)
	return mux
}

func get(mux *http.ServeMux, path string, header ...string) (int, string) {
	r := httptest.NewRequest(http.MethodGet, path, nil)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	mux.ServeHTTP(w, r)
	body, _ := io.ReadAll(w.Body)
	return w.Code, string(body)
}

// What cannot be a user id is no user without sessions.
func TestRoutesOfNobody(t *testing.T) {
	if code, body := get(mounted(t, nil), "/statusz/routes/a%20b", "Authorization", "x"); code != http.StatusBadRequest || !strings.Contains(body, "a user id is") {
		t.Errorf("%d %s", code, body)
	}
}

// Every page is JSON for programs and escaped tables for people.
func TestPages(t *testing.T) {
	mux := mounted(t, nil)
	for path, wants := range map[string][]string{
		"/statusz/": {`"leads":["scheduler"]`, "scheduler"}, "/statusz/nodes": {`"cordon":"disk"`, "&lt;script&gt;"},
		"/statusz/leaders": {`"token":4`, "<td>4"}, "/statusz/settings": {`"revision":0`, "settings, revision 0"},
		"/statusz/stats":        {`"silent":"unavailable"`, `<rect x="0" y="40"`},
		"/statusz/routes/alice": {`"route_epoch":"7"`, "&lt;script&gt;"},
	} {
		code, body := get(mux, path, "Authorization", "x")
		if code != http.StatusOK || !json.Valid([]byte(body)) || !strings.Contains(body, wants[0]) {
			t.Errorf("%s: %d %s", path, code, body)
		}
		code, body = get(mux, path, "Authorization", "x", "Accept", "text/html,*/*")
		if code != http.StatusOK || !strings.Contains(body, wants[1]) || strings.Contains(body, "<script>") || !strings.Contains(body, "</html>") {
			t.Errorf("%s as a page: %d %s", path, code, body)
		}
	}
}

// Who may not know about users learns nothing, and a store that is away is no
// user without sessions.
func TestRoutesAreGuarded(t *testing.T) {
	if code, body := get(mounted(t, nil), "/statusz/routes/alice"); code != http.StatusUnauthorized || body != "" {
		t.Errorf("without a proof: %d %s", code, body)
	}
	if code, body := get(mounted(t, nil), "/statusz/routes/bob", "Authorization", "x"); code != http.StatusOK || !strings.Contains(body, `"routes":[]`) {
		t.Errorf("no sessions: %d %s", code, body)
	}
	away := mounted(t, func(d *Deps) {
		d.Routes = func() (RouteLookup, error) { return routes{errors.New("away")}, nil }
	})
	if code, _ := get(away, "/statusz/routes/alice", "Authorization", "x"); code != http.StatusServiceUnavailable {
		t.Errorf("the store is away: %d", code)
	}
	none := mounted(t, func(d *Deps) { d.Routes = func() (RouteLookup, error) { return nil, errors.New("none") } })
	if code, _ := get(none, "/statusz/routes/alice", "Authorization", "x"); code != http.StatusNotFound {
		t.Errorf("no store: %d", code)
	}
}
