package testenv

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/imdhq/imd/pkg/auth"
	"github.com/imdhq/imd/pkg/datadir"
	"github.com/imdhq/imd/pkg/failpoint"
	"github.com/imdhq/imd/pkg/im"
)

// binary builds the shipped binary once per test process, unless IMD_TEST_BIN names
// one. The flags are those of `make build`, so the compile is shared.
var binary = sync.OnceValues(func() (string, error) {
	if path := os.Getenv("IMD_TEST_BIN"); path != "" {
		return path, nil
	}
	dir, err := os.MkdirTemp("", "imd-bin")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "imd")
	args := []string{"build", "-trimpath", "-o", path}
	if failpoint.Built {
		args = append(args, "-tags", "drill")
	}
	cmd := exec.Command("go", append(args, "github.com/imdhq/imd")...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	return path, nil
})

// Binary is the path of the imd binary under test.
func Binary(t testing.TB) string {
	t.Helper()
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// Node is one imd process, started as a user would start it.
type Node struct {
	Dir  string // its data folder
	Args []string
	Env  []string
	// Under is a command that starts the process in its place, such as
	// {"sh", "-c", `ulimit -n 256; exec "$0" "$@"`}; nil = none.
	Under []string
	// Layout is how the roles are spread over processes; "" = that of
	// IMD_TEST_LAYOUT. A split node is driven through the process that clients
	// talk to.
	Layout string

	roles string // "" = all, or what the layout says
	etcd  string // URL; "" = the one inside the process
	rest  *rest  // nil unless split
	host  *Host  // where the process runs; nil = beside the test
	// shared are arguments that all processes of the node have.
	shared []string

	t    testing.TB
	cmd  *exec.Cmd
	done chan struct{} // closed when the process has ended
	err  error         // of the process; read after done
	log  *syncBuffer
}

// ReadyIn is how long a node may take to become ready in tests, where many
// processes share few processors.
const ReadyIn = 20 * time.Second

// stopsIn is how long a process may take to stop.
const stopsIn = 45 * time.Second

// Start starts `imd serve --roles=all` on ports of its own and a fresh data
// folder, and waits until it is ready. args are added to the command line. The
// node is killed at the end of the test.
func Start(t testing.TB, args ...string) *Node {
	t.Helper()
	n := &Node{Dir: filepath.Join(t.TempDir(), "data"), Args: args}
	n.Begin(t)
	return n
}

// Begin is Start for a node whose fields were filled in by hand.
func (n *Node) Begin(t testing.TB) {
	t.Helper()
	n.t = t
	n.Start()
}

// Try is Begin for a node that may not become ready: it does not wait.
func (n *Node) Try(t testing.TB) error {
	n.t = t
	return n.Launch()
}

// Start starts the process again after Kill or Stop, and waits until it is
// ready.
func (n *Node) Start() {
	n.t.Helper()
	if err := n.Launch(); err != nil {
		n.t.Fatal(err)
	}
	if err := n.WaitReady(ReadyIn); err != nil {
		n.t.Fatal(err)
	}
}

// Launch starts the process, or those of a split node, and does not wait.
func (n *Node) Launch() error {
	if n.whole() || chosen(n.Args) {
		return n.launch()
	}
	return n.launchSplit()
}

// launch starts this one process.
func (n *Node) launch() error {
	roles := n.roles
	switch {
	case roles == "" && n.Second() != nil:
		roles = "gateway"
	case roles == "" && n.rest != nil:
		roles = "gateway,push"
	case roles == "":
		roles = "all"
	}
	at, under := "127.0.0.1:0", slices.Clone(n.Under)
	if n.host != nil {
		at, under = n.host.Address+":0", append(n.host.Under(), under...)
	}
	args := []string{"serve", "--roles=" + roles, "--data-dir", n.Dir, "--listen", at, "--ops-listen", at}
	if n.etcd != "" {
		args = append(args, "--set", "controlplane.endpoints="+n.etcd, "--set", "peers.listen="+at)
	}
	args = append(append(args, n.shared...), n.Args...)
	line := append(append(under, Binary(n.t)), args...)
	n.cmd = exec.Command(line[0], line[1:]...)
	n.cmd.Env = append(os.Environ(), n.Env...)
	n.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	n.log = &syncBuffer{}
	n.cmd.Stdout, n.cmd.Stderr = n.log, n.log
	if err := n.cmd.Start(); err != nil {
		return err
	}
	done := make(chan struct{})
	n.done = done
	cmd := n.cmd
	go func() {
		n.err = cmd.Wait()
		close(done)
	}()
	n.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-done
		if n.t.Failed() {
			n.t.Logf("log of the node:\n%s", n.log)
		}
	})
	return nil
}

// WaitReady waits until /readyz says yes.
func (n *Node) WaitReady(limit time.Duration) error {
	if n.rest != nil {
		for _, p := range n.rest.nodes() {
			if err := p.WaitReady(limit); err != nil {
				return err
			}
		}
	}
	for l := NewLimit(limit); ; {
		if e, err := datadir.ReadEndpoints(n.Dir); err == nil && e.PID == n.PID() && n.get("http://"+e.Ops+"/readyz") == http.StatusOK {
			return nil
		}
		select {
		case <-n.done:
			return fmt.Errorf("the node ended: %v\n%s", n.err, n.log)
		case <-time.After(10 * time.Millisecond):
		}
		if l.Over() {
			return fmt.Errorf("the node is not ready after %v\n%s", limit, n.log)
		}
	}
}

func (n *Node) get(url string) int {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0
	}
	res.Body.Close()
	return res.StatusCode
}

// PID is the process's id.
func (n *Node) PID() int { return n.cmd.Process.Pid }

// Log is what the process, or those of a split node, have written so far.
func (n *Node) Log() string {
	if n.rest != nil {
		text := n.log.String()
		for _, p := range n.rest.nodes() {
			text += p.log.String()
		}
		return text
	}
	return n.log.String()
}

// AwaitLog waits until the process has written text: what it has done may be seen
// elsewhere a moment before its log says so.
func (n *Node) AwaitLog(text string) {
	n.t.Helper()
	for l := NewLimit(ReadyIn); !strings.Contains(n.Log(), text); time.Sleep(5 * time.Millisecond) {
		if l.Over() {
			n.t.Fatalf("the log does not say %q", text)
		}
	}
}

// Signal sends a signal to the process.
func (n *Node) Signal(s syscall.Signal) {
	n.t.Helper()
	if err := n.signal(s); err != nil {
		n.t.Fatal(err)
	}
}

// Kill ends the process, or those of a split node, as a crash would.
func (n *Node) Kill() {
	n.t.Helper()
	n.Signal(syscall.SIGKILL)
	<-n.done
	if n.rest != nil {
		for _, p := range n.rest.nodes() {
			p.Kill()
		}
	}
}

// Stop asks the process, or those of a split node, to stop and returns the exit
// status.
func (n *Node) Stop() int {
	n.t.Helper()
	if n.rest != nil {
		return n.stopAll()
	}
	return n.stop()
}

func (n *Node) stop() int {
	n.t.Helper()
	n.Signal(syscall.SIGTERM)
	return n.Wait(stopsIn)
}

// Wait waits until the process has ended and returns its exit status; it fails the
// test after limit, in the time of a Limit.
func (n *Node) Wait(limit time.Duration) int {
	n.t.Helper()
	for l := NewLimit(limit); ; {
		select {
		case <-n.done:
			return n.cmd.ProcessState.ExitCode()
		case <-time.After(20 * time.Millisecond):
		}
		if l.Over() {
			n.t.Fatalf("the node still runs after %v\n%s", limit, n.log)
		}
	}
}

// Endpoints says where the node listens.
func (n *Node) Endpoints() datadir.Endpoints {
	n.t.Helper()
	e, err := datadir.ReadEndpoints(n.Dir)
	if err != nil {
		n.t.Fatal(err)
	}
	return e
}

// URL is the base of the public listener, "http://127.0.0.1:...", with https if it
// speaks TLS.
func (n *Node) URL() string {
	e := n.Endpoints()
	if e.PublicTLS {
		return "https://" + e.Public
	}
	return "http://" + e.Public
}

// OpsURL is the base of the ops listener.
func (n *Node) OpsURL() string { return "http://" + n.Endpoints().Ops }

// AdminKey is the bearer token of the ops services.
func (n *Node) AdminKey() string {
	n.t.Helper()
	key, err := datadir.ReadAdminKey(n.Dir)
	if err != nil {
		n.t.Fatal(err)
	}
	return key
}

// Token mints a token for a new login of the user, good for an hour.
func (n *Node) Token(user string) string {
	n.t.Helper()
	return n.Mint(auth.Claims{User: im.UserID(user), Login: im.LoginID(uuid.NewString())}, time.Hour)
}

// Mint signs c for the given life; IssuedAt and Expires are filled in.
func (n *Node) Mint(c auth.Claims, life time.Duration) string {
	n.t.Helper()
	keys, err := datadir.ReadTokenKeys(n.Dir)
	if err != nil {
		n.t.Fatal(err)
	}
	c.IssuedAt = time.Now()
	c.Expires = c.IssuedAt.Add(life)
	token, err := auth.Mint(auth.Key{ID: keys[0].ID, Secret: keys[0].Secret}, c, auth.DefaultConfig().Audience)
	if err != nil {
		n.t.Fatal(err)
	}
	return token
}

// syncBuffer is a buffer that a process writes while the test reads.
type syncBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// NoLimits are flags that lift the rates of connections, users and
// conversations, for tests whose question is another.
func NoLimits() []string {
	var args []string
	for _, key := range []string{"connection", "user", "conversation"} {
		args = append(args, "--set", "gateway.limits."+key+"_rate=1000000", "--set", "gateway.limits."+key+"_burst=1000000")
	}
	return args
}
