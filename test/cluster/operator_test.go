package cluster

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/imdhq/imd/pkg/testenv"
)

// imd runs the command line beside a node and gives what it printed and its
// exit status.
func imd(t *testing.T, n *testenv.Node, args ...string) (string, int) {
	t.Helper()
	cmd := exec.Command(testenv.Binary(t), append(args, "--data-dir", n.Dir)...)
	out, err := cmd.CombinedOutput()
	if err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

// ready is the status of a node's /readyz.
func ready(n *testenv.Node) int {
	res, err := http.Get(n.OpsURL() + "/readyz")
	if err != nil {
		return 0
	}
	res.Body.Close()
	return res.StatusCode
}

// An operator sees a node, keeps work away from it, and makes it stop in order,
// through any node's registry.
func TestOperator(t *testing.T) {
	m := testenv.StartEtcd(t, 1).Members[0]
	other := start(t, options{id: "other", urls: []string{m.URL}})
	n := testenv.Start(t, "--set", "controlplane.endpoints="+m.URL, "--set", "controlplane.cluster=c", "--set", "controlplane.zone=rack1", "--node-name", "n1")
	watch := exec.CommandContext(t.Context(), testenv.Binary(t), "nodes", "--watch", "-o", "json", "--data-dir", n.Dir)
	pipe, err := watch.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := watch.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = watch.Process.Kill(); _ = watch.Wait() }()
	lines := make(chan string, 100)
	go func() {
		for s := bufio.NewScanner(pipe); s.Scan(); {
			lines <- s.Text()
		}
	}()
	// shows waits until the watching command prints a list that holds text.
	shows := func(text string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		for {
			select {
			case l := <-lines:
				if !json.Valid([]byte(l)) {
					t.Fatalf("not JSON: %s", l)
				}
				if strings.Contains(l, text) {
					return
				}
			case <-ctx.Done():
				t.Fatalf("the list never held %s", text)
			}
		}
	}
	shows(`"node_id":"other"`)
	if out, status := imd(t, n, "node", "show", "n1"); status != 0 || !strings.Contains(out, "rack1") || !strings.Contains(out, "of 10 s left") || !strings.Contains(out, " at most") {
		t.Errorf("show: %d\n%s", status, out)
	}
	if out, status := imd(t, n, "nodes"); status != 0 || !strings.Contains(out, "/10s") {
		t.Errorf("nodes: %d\n%s", status, out)
	}
	if _, status := imd(t, n, "node", "show", "nobody"); status != 3 {
		t.Errorf("an unknown node: %d", status)
	}
	if out, status := imd(t, n, "node", "cordon", "n1", "--reason", "new disk"); status != 0 {
		t.Fatalf("cordon: %d\n%s", status, out)
	}
	shows(`"cordon":"new disk"`)
	eventually(t, "load balancers are told", 5*time.Second, func() bool { return ready(n) == http.StatusServiceUnavailable })
	eventually(t, "others give it no work", 5*time.Second, func() bool { return !usable(other, "n1") })
	if out, status := imd(t, n, "node", "uncordon", "n1"); status != 0 {
		t.Fatalf("uncordon: %d\n%s", status, out)
	}
	eventually(t, "it gets work again", 5*time.Second, func() bool { return ready(n) == http.StatusOK && usable(other, "n1") })
	if out, status := imd(t, n, "node", "drain", "n1"); status != 0 {
		t.Fatalf("drain: %d\n%s", status, out)
	}
	if status := n.Wait(45 * time.Second); status != 0 {
		t.Errorf("the drained node ended with %d", status)
	}
	eventually(t, "it is out of the list", 5*time.Second, func() bool { _, ok := other.handle.View().Node("n1"); return !ok })
}
