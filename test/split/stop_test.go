package split

import (
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"github.com/imdhq/imd/pkg/testenv"
)

// A node of each role, on hosts of their own and under load, stops because an operator
// orders it, and the other one of each by a signal: all end well, and nothing is lost,
// doubled or out of order.
func TestEachRoleStopsInOrder(t *testing.T) {
	t.Parallel()
	testenv.InOwnNetwork(t, func(t *testing.T) {
		n := &testenv.Node{Dir: t.TempDir() + "/data", Layout: testenv.Hosts, Args: append(testenv.NoLimits(),
			"--set", "gateway.drain.delay=100ms", "--set", "gateway.drain.min_spread=500ms", "--set", "gateway.drain.grace=1s")}
		n.Begin(t)
		pace := newPace(t)
		dir := filepath.Join(t.TempDir(), "history")
		load := exec.CommandContext(t.Context(), testenv.Binary(t), "bench", "mix", "--data-dir", n.Dir, "--gateway", n.Endpoints().Public+","+n.Second().Endpoints().Public,
			"--conns", "40", "--users", "32", "--group-size", "5", "--rate", "100", "--duration", "7s", "--reconnect", "--record", dir)
		ended := make(chan error, 1)
		go func() {
			out, err := load.CombinedOutput()
			if err != nil {
				t.Logf("%s", out)
			}
			ended <- err
		}()
		stored := func() float64 {
			return n.Part("state", 1).Metric("imd_lane_batch_rows_sum") + n.Part("state", 2).Metric("imd_lane_batch_rows_sum")
		}
		until(t, "the load has begun, or ended", func() bool { return stored() > 50 || len(ended) > 0 })
		eachOf(n, []string{"scheduler", "push", "state"}, 1, func(role string, p *testenv.Node) {
			id := string(p.Endpoints().Node)
			if out, errOut, code := n.Command("node", "drain", id, "--wait"); code != 0 || out != id+" has left\n" {
				t.Errorf("%s: exit %d: %s%s", role, code, out, errOut)
			}
		})
		for _, role := range []string{"scheduler", "push", "state"} {
			endedWell(t, role, n.Part(role, 1))
			n.Part(role, 1).Start()
		}
		eachOf(n, []string{"scheduler", "push", "state", "gateway"}, 2, func(_ string, p *testenv.Node) { p.Signal(syscall.SIGTERM) })
		for _, role := range []string{"scheduler", "push", "state", "gateway"} {
			endedWell(t, role, n.Part(role, 2))
		}
		select {
		case err := <-ended:
			t.Log("on this busy machine the load was over before all had stopped")
			ended <- err
		default:
		}
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
		judgeLoad(t, dir, pace)
		id := string(n.Endpoints().Node) // the last gateway, asked itself
		if out, errOut, code := n.Command("node", "drain", id, "--wait"); code != 0 {
			t.Errorf("gateway: exit %d: %s%s", code, out, errOut)
		}
		endedWell(t, "gateway", n)
	})
}

// eachOf does something with the process of each role at the same time.
func eachOf(n *testenv.Node, roles []string, number int, do func(role string, p *testenv.Node)) {
	var wg sync.WaitGroup
	for _, role := range roles {
		p := n.Part(role, number)
		wg.Go(func() { do(role, p) })
	}
	wg.Wait()
}

func endedWell(t *testing.T, role string, p *testenv.Node) {
	t.Helper()
	if code := p.Wait(testenv.Patience); code != 0 {
		t.Errorf("%s: exit %d", role, code)
	}
}
