package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/control/embedded"
	"github.com/imdhq/imd/pkg/datadir"
	"github.com/imdhq/imd/pkg/obs"
	"github.com/imdhq/imd/pkg/testenv"
)

var addresses atomic.Int32

// address is a host and port of this process's own: all of 127.0.0.0/8 is loopback.
func address() string {
	return fmt.Sprintf("127.10.%d.%d:2379", os.Getpid()&255, addresses.Add(1))
}

// ask reads a page of a node's ops listener; "" if it does not answer.
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

func eventually(t *testing.T, what string, limit time.Duration, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	end := time.NewTimer(limit)
	defer end.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-end.C:
			t.Fatalf("waited %v in vain: %s", limit, what)
		}
	}
}

// A node whose etcd is dead at the start lives, is not ready, names the
// endpoint, and its control plane is ready within 5 s of the return of etcd.
func TestEtcdComesLater(t *testing.T) {
	at, dir := address(), t.TempDir()
	n := &testenv.Node{Dir: filepath.Join(t.TempDir(), "data")}
	n.Args = []string{"--roles=scheduler", "--set", "controlplane.endpoints=http://" + at}
	if err := n.Try(t); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the node names what it waits for", 15*time.Second, func() bool {
		status, body := ask(n, "/readyz")
		return status == http.StatusServiceUnavailable && strings.Contains(body, at) && strings.Contains(body, `"controlplane"`)
	})
	if status, _ := ask(n, "/livez"); status != http.StatusOK {
		t.Errorf("/livez answers %d", status)
	}
	s, err := embedded.Start(context.Background(), dir, zap.NewNop(), embedded.Listen(at))
	if err != nil {
		t.Fatal(err)
	}
	back := time.Now()
	t.Cleanup(func() { s.Close() })
	eventually(t, "the control plane is ready", 15*time.Second, func() bool {
		_, body := ask(n, "/readyz/controlplane")
		var st obs.Report
		return json.Unmarshal([]byte(body), &st) == nil && strings.Contains(body, `"ready":true`)
	})
	if took := time.Since(back); took > 5*time.Second {
		t.Errorf("ready %v after the return of etcd", took)
	}
}
