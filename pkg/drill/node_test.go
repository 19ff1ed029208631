package drill

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/imdhq/imd/pkg/datadir"
)

// childVar makes the test program play a node.
const childVar = "IMD_TEST_CHILD"

func TestMain(m *testing.M) {
	if how := os.Getenv(childVar); how != "" {
		os.Exit(child(how))
	}
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("net/http.(*persistConn).readLoop"), goleak.IgnoreAnyFunction("net/http.(*persistConn).writeLoop"))
}

// child is a node that is ready at once; how says how it ends.
func child(how string) int {
	dir := ""
	for i, a := range os.Args {
		if a == "--data-dir" {
			dir = os.Args[i+1]
		}
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 3
	}
	data, err := json.Marshal(datadir.Endpoints{PID: os.Getpid(), Ops: ln.Addr().String(), Public: ln.Addr().String()})
	if err != nil {
		return 3
	}
	term := make(chan os.Signal, 1) // the first one counts
	signal.Notify(term, syscall.SIGTERM)
	// Whole from the first moment, as a node writes it.
	file := filepath.Join(dir, "endpoints.json")
	if os.WriteFile(file+".new", data, 0o600) != nil || os.Rename(file+".new", file) != nil {
		return 3
	}
	go func() {
		_ = http.Serve(ln, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/die" {
				os.Exit(9)
			}
		}))
	}()
	<-term
	if how == "badly" {
		fmt.Println("so it goes\nit is over")
		return 7
	}
	return 0
}

// deaths collects what died is told.
type deaths struct {
	mu  sync.Mutex
	why []string
}

func (d *deaths) all() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]string(nil), d.why...)
}

// startChild makes a node of the test program and starts it.
func startChild(t *testing.T, how string) (*node, *deaths) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir, s, told := t.TempDir(), newSpawner(), &deaths{}
	ctx, cancel := context.WithCancel(t.Context())
	n := &node{spec: NodeSpec{Name: "n1", Roles: "all"}, exe: exe, dir: dir, env: []string{childVar + "=" + how}, logPath: filepath.Join(dir, "log"),
		ctx: ctx, spawn: s.start, died: func(_ *node, why string, excused bool) {
			told.mu.Lock()
			defer told.mu.Unlock()
			if excused {
				why += ", excused"
			}
			told.why = append(told.why, why)
		}}
	n.args = nodeArgs(n.spec, "127.0.0.1", dir, []string{"a.b=c"})
	if err := n.begin(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		n.kill()
		n.revive.Wait()
		s.close()
	})
	return n, told
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal(what)
		}
	}
}

func TestNodesComeAndGo(t *testing.T) {
	n, told := startChild(t, "well")
	if got := strings.Join(n.args, " "); !strings.Contains(got, "--roles=all") || !strings.Contains(got, "--set a.b=c") {
		t.Errorf("started with %s", got)
	}
	first, _ := n.process()
	if err := n.begin(); err != nil {
		t.Fatal(err)
	}
	if again, _ := n.process(); again != first {
		t.Error("a second process was started beside a living one")
	}
	n.kill()
	if n.alive() {
		t.Fatal("it lives on after a kill")
	}
	if err := n.begin(); err != nil || !n.alive() {
		t.Fatalf("it does not come back: %v", err)
	}
	if err := n.end(); err != nil || n.alive() {
		t.Errorf("it does not end in order: %v", err)
	}
	if got := told.all(); len(got) > 0 {
		t.Errorf("told of deaths that were asked for: %v", got)
	}
}

// A node that ends by itself is told of and started again.
func TestNodesThatDieComeBack(t *testing.T) {
	n, told := startChild(t, "well")
	die := func() {
		pid := n.endpoints().PID
		if res, err := http.Get("http://" + n.endpoints().Public + "/die"); err == nil {
			res.Body.Close()
		}
		eventually(t, "it does not come back", func() bool { return n.alive() && n.endpoints().PID != pid })
	}
	die()
	over := n.mayDie()
	die()
	over()
	if got := strings.Join(told.all(), "; "); got != "exit status 9; exit status 9, excused" {
		t.Errorf("told %q", got)
	}
}

func TestNodesThatEndBadly(t *testing.T) {
	n, _ := startChild(t, "badly")
	if err := n.end(); err == nil || !strings.Contains(err.Error(), "exit status 7: it is over; see ") {
		t.Errorf("ended with %v", err)
	}
}

// No child outlives the spawner.
func TestChildrenEndWithTheSpawner(t *testing.T) {
	for range 20 { // on whatever thread it happens to begin
		endWithTheSpawner(t)
	}
}

func endWithTheSpawner(t *testing.T) {
	s := newSpawner()
	cmd := exec.Command("sleep", "60")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := s.start(cmd); err != nil {
		t.Fatal(err)
	}
	s.close()
	if err := cmd.Wait(); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("the child ended with %v", err)
	}
}
