package cluster

import (
	"context"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/imdhq/imd/pkg/datadir"
	"github.com/imdhq/imd/pkg/testenv"
)

// ask reads a page of a node's ops listener; 0 if it does not answer.
func ask(n *testenv.Node, path string) (int, string) {
	e, err := datadir.ReadEndpoints(n.Dir)
	if err != nil || e.PID != n.PID() {
		return 0, ""
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+e.Ops+path, nil)
	if err != nil {
		return 0, ""
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, ""
	}
	defer res.Body.Close()
	body, _ := io.ReadAll(res.Body)
	return res.StatusCode, string(body)
}

// A node whose etcd is dead at its first start lives, is not ready, and names
// the endpoint; it is ready within 5 s of the return of etcd. At its next start
// without etcd it begins with what it knows, degraded.
func TestEtcdComesLater(t *testing.T) {
	t.Parallel()
	m := testenv.StartEtcd(t, 1).Members[0]
	m.Kill()
	n := &testenv.Node{Dir: filepath.Join(t.TempDir(), "data"), Args: []string{"--set", "controlplane.endpoints=" + m.URL, "--set", "controlplane.cluster=c"}}
	if err := n.Try(t); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the node names what it waits for", 20*time.Second, func() bool {
		status, body := ask(n, "/readyz")
		return status == http.StatusServiceUnavailable && strings.Contains(body, m.URL+" cannot be reached")
	})
	eventually(t, "the node lives", 5*time.Second, func() bool { status, _ := ask(n, "/livez"); return status == http.StatusOK })
	m.Start()
	m.Await(20 * time.Second)
	clock := testenv.NewClock(t)
	back := clock.Now()
	eventually(t, "the node is ready", 20*time.Second, func() bool { status, _ := ask(n, "/readyz"); return status == http.StatusOK })
	if took := clock.Since(back); took > 5*time.Second {
		t.Errorf("ready %v after the return of etcd", took)
	}
	other := start(t, options{id: "other", urls: []string{m.URL}})
	eventually(t, "the nodes see each other", 10*time.Second, func() bool {
		_, ok := other.handle.View().Node(n.Endpoints().Node)
		out, _ := imd(t, n, "nodes")
		return ok && strings.Contains(out, "other")
	})
	if status := n.Stop(); status != 0 {
		t.Errorf("the node ended with %d", status)
	}
	m.Kill()
	if err := n.Launch(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the node is degraded", 20*time.Second, func() bool {
		status, body := ask(n, "/readyz")
		return status == http.StatusOK && strings.Contains(body, `"degraded"`) && strings.Contains(body, "known before")
	})
	eventually(t, "without etcd the node lists what it knew", 5*time.Second, func() bool {
		out, status := imd(t, n, "nodes")
		return status == 0 && strings.Contains(out, "other") && strings.Contains(out, "may be old")
	})
	m.Start()
	m.Await(20 * time.Second)
	eventually(t, "all is well again", 20*time.Second, func() bool {
		_, body := ask(n, "/readyz")
		return strings.Contains(body, `"ready"`) && !strings.Contains(body, "degraded")
	})
}
