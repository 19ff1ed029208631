package split

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/imdhq/imd/pkg/status"
	"github.com/imdhq/imd/pkg/status/look"
	"github.com/imdhq/imd/pkg/testenv"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// fetch reads a page of an ops listener.
func fetch(t *testing.T, url, accept string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(context.Background(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept", accept)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(body)
}

// Each process has the pages of its roles, all linked pages are there, and what
// is about single users is told to who has the admin key only.
func TestPagesOfEachRole(t *testing.T) {
	t.Parallel()
	n := start(t)
	for url, absent := range map[string][]string{n.OpsURL(): {"/statusz/lanes", "/statusz/jobs"}, n.Back().OpsURL(): {"/statusz/gateway"}} {
		for _, l := range look.Links {
			want := http.StatusOK
			if slices.Contains(absent, l.Path) {
				want = http.StatusNotFound
			}
			if code, body := fetch(t, url+l.Path, "*/*"); code != want || want == http.StatusOK && !json.Valid([]byte(body)) {
				t.Errorf("%s: %d %s", l.Path, code, body)
			}
			code, body := fetch(t, url+l.Path, "text/html")
			if code != want || want == http.StatusOK && !strings.Contains(body, "</html>") {
				t.Errorf("%s as a page: %d %s", l.Path, code, body)
			}
			for _, other := range look.Links {
				if want == http.StatusOK && strings.Contains(body, `href="`+other.Path+`"`) == slices.Contains(absent, other.Path) {
					t.Errorf("%s: its links are not those of this process: %s", l.Path, other.Path)
				}
			}
		}
	}
	testenv.Login(t, n.URL(), protocol.Proto, n.Token("ann"), "phone")
	if code, body := fetch(t, n.OpsURL()+"/statusz/routes/ann", "*/*"); code != http.StatusUnauthorized || strings.Contains(body, "phone") {
		t.Errorf("without the key: %d %s", code, body)
	}
	out, errOut, code := n.Command("route", "show", "ann", "-o", "json")
	var r status.RoutesStatus
	if err := json.Unmarshal([]byte(out), &r); err != nil || code != 0 || len(r.Routes) != 1 || r.Routes[0].Device != "phone" || r.Routes[0].Node != string(n.Endpoints().Node) {
		t.Errorf("exit %d, %v: %s%s", code, err, out, errOut)
	}
	if out, _, code := n.Command("route", "show", "nobody"); code != 0 || !strings.Contains(out, "has no sessions") {
		t.Errorf("exit %d: %s", code, out)
	}
	if _, errOut, code := n.Back().Command("route", "show", "ann"); code != 3 || !strings.Contains(errOut, "no route store") {
		t.Errorf("a process without routes: exit %d: %s", code, errOut)
	}
}
