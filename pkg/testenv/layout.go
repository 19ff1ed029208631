package testenv

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/imdhq/imd/pkg/datadir"
)

// The layouts in which a Node runs, as IMD_TEST_LAYOUT names them.
const (
	// AllInOne is one process with all roles; the default.
	AllInOne = "all"
	// Split is gateway and push in one process, state and scheduler in another,
	// and etcd in a third.
	Split = "split"
	// Wide is every role in two processes of its own, etcd in one, messages in
	// Postgres, and routes and acknowledged sends in Redis.
	Wide = "wide"
	// Hosts is Wide with each process on a host of its own, which the network alone
	// connects. The tests must run as root in a network of their own: see
	// test/layouts.
	Hosts = "hosts"
)

// layout is that of the environment.
func layout() string {
	if l := os.Getenv("IMD_TEST_LAYOUT"); l != "" {
		return l
	}
	return AllInOne
}

// rest is the processes of a split node beside the one that clients talk to.
type rest struct {
	etcd  *exec.Cmd
	url   string // of etcd
	side  *Node  // the second gateway; nil = there is one
	redis string
	cache *Redis  // the server that redis names
	back  *Node   // has state
	more  []*Node // further ones
	door  atomic.Int64
}

// nodes are all of them, gateways first.
func (r *rest) nodes() []*Node {
	all := append([]*Node{r.back}, r.more...)
	if r.side != nil {
		all = append([]*Node{r.side}, all...)
	}
	return all
}

// whole reports whether the node has all its roles in its one process.
func (n *Node) whole() bool {
	if n.Layout == "" {
		n.Layout = layout()
	}
	return n.Layout == AllInOne || n.roles != ""
}

// StartSQLite is Start for tests of the files in which messages are kept: where the
// layout has Postgres, the node is Split.
func StartSQLite(t testing.TB, args ...string) *Node {
	t.Helper()
	n := &Node{Dir: filepath.Join(t.TempDir(), "data"), Args: args, Layout: layout()}
	if n.Layout != AllInOne {
		n.Layout = Split
	}
	n.Begin(t)
	return n
}

// StoreDir is the folder in which messages are kept; only where they are in
// SQLite.
func (n *Node) StoreDir() string {
	if n.rest != nil {
		return n.rest.back.Dir
	}
	return n.Dir
}

// Back is the process with the state role of a split node; nil for others.
func (n *Node) Back() *Node {
	if n.rest == nil {
		return nil
	}
	return n.rest.back
}

// Second is the second gateway of a Wide or Hosts node, as a node of its own; nil
// for others.
func (n *Node) Second() *Node {
	if n.rest == nil {
		return nil
	}
	return n.rest.side
}

// RedisURL names the server with the routes of a Wide or Hosts node.
func (n *Node) RedisURL() string { return n.rest.redis }

// EtcdURL names the etcd of a node in several processes.
func (n *Node) EtcdURL() string { return n.etcd }

// FlushRedis empties that server.
func (n *Node) FlushRedis() {
	n.t.Helper()
	n.rest.cache.MustDo("FLUSHALL")
}

// Part is the process of a Wide or Hosts node that has the role, number 1 or 2.
func (n *Node) Part(role string, number int) *Node {
	n.t.Helper()
	for _, p := range append([]*Node{n}, n.rest.nodes()...) {
		if p.role(n) == role {
			if number--; number == 0 {
				return p
			}
		}
	}
	n.t.Fatalf("the node has no such process with %s", role)
	return nil
}

// role is what the process of the node whole does.
func (n *Node) role(whole *Node) string {
	if n == whole {
		return "gateway"
	}
	return n.roles
}

// Door is the base of a public listener: where the node has two, each in turn, so
// that what users of different doors do has to find its way between gateways.
func (n *Node) Door() string {
	if side := n.Second(); side != nil && n.rest.door.Add(1)%2 == 0 {
		return side.URL()
	}
	return n.URL()
}

// launchSplit starts what is not running of the processes.
func (n *Node) launchSplit() error {
	if n.rest == nil {
		r, err := n.startEtcd()
		if err != nil {
			return err
		}
		n.etcd = r.url
		if err := n.spread(r); err != nil {
			return err
		}
		n.rest = r
	}
	for _, p := range n.rest.nodes() {
		if p.running() {
			continue
		}
		if err := p.launch(); err != nil {
			return err
		}
	}
	return n.launch()
}

// running reports whether the process was started and has not ended.
func (n *Node) running() bool {
	if n.done == nil {
		return false
	}
	select {
	case <-n.done:
		return false
	default:
		return true
	}
}

// spread says which processes there are beside the one that clients talk to, and
// on which hosts all of them are.
func (n *Node) spread(r *rest) error {
	if n.Layout == Split {
		r.back = n.part("state,scheduler", "-state")
		return nil
	}
	cache := StartRedis(n.t, "--unixsocket", "redis.sock")
	n.shared = append(SharedPostgres(n.t).serve(n.t), "--set", "storage.routes=redis", "--set", "storage.dedup=redis")
	r.cache = cache
	r.redis = "unix://" + filepath.Join(cache.dir, "redis.sock") // as that of Postgres it is there on all hosts
	n.Env = append(slices.Clone(n.Env), "IMD_REDIS_URL="+r.redis)
	if n.Layout == Hosts {
		key := n.Dir + "-key"
		if err := os.WriteFile(key, []byte("a key that all processes of this cluster have\n"), 0o600); err != nil {
			return err
		}
		n.shared = append(n.shared, "--set", "peers.allow_plaintext=true", "--set", "peers.key_file="+key,
			"--set", "gateway.limits.failed_hellos=1000000", "--set", "gateway.limits.address_rate=1000000") // loopback is exempt; here the tests come from elsewhere
	}
	r.side, r.back = n.part("gateway", "-gateway2"), n.part("state", "-state")
	for _, role := range []string{"push", "push2", "state2", "scheduler", "scheduler2"} {
		r.more = append(r.more, n.part(strings.TrimSuffix(role, "2"), "-"+role))
	}
	if n.Layout == Hosts {
		for i, p := range append([]*Node{n}, r.nodes()...) {
			p.host = hosts(n.t)[i]
		}
	}
	return sameKeys(n.Dir, r.side.Dir)
}

// sameKeys makes the folders of two gateways that do not run yet, and lets both
// take the tokens of the first.
func sameKeys(first, second string) error {
	for _, dir := range []string{first, second} {
		d, err := datadir.Open(dir)
		if err != nil {
			return err
		}
		if err := d.Close(); err != nil {
			return err
		}
	}
	text, err := os.ReadFile(datadir.TokenKeyFile(first))
	if err != nil {
		return err
	}
	return os.WriteFile(datadir.TokenKeyFile(second), text, 0o600)
}

// CutHalf swallows what the second process of each role says and hears, to the
// others and to etcd; the stores they reach. heal undoes it. Only for a node in the
// layout Hosts.
func (n *Node) CutHalf() (heal func()) {
	n.t.Helper()
	var here, there []*Host
	for _, role := range []string{"gateway", "state", "push", "scheduler"} {
		here, there = append(here, n.Part(role, 1).host), append(there, n.Part(role, 2).host)
	}
	for _, h := range there {
		h.Cut()
		h.Cut(here...)
	}
	return func() {
		for _, h := range there {
			h.Heal()
			h.Heal(here...)
		}
	}
}

// part is a process of the node with the roles.
func (n *Node) part(roles, suffix string) *Node {
	return &Node{Dir: n.Dir + suffix, Args: n.Args, Env: n.Env, t: n.t, roles: roles, etcd: n.etcd, shared: n.shared}
}

// allHosts are the hosts of all nodes of the test process, which take turns on
// them: every process has ports of its own.
var allHosts struct {
	sync.Mutex
	all []*Host
}

func hosts(t testing.TB) []*Host {
	t.Helper()
	allHosts.Lock()
	defer allHosts.Unlock()
	if allHosts.all == nil {
		all, err := net.Interfaces()
		if err != nil || slices.ContainsFunc(all, func(i net.Interface) bool { return i.Flags&(net.FlagUp|net.FlagLoopback) == net.FlagUp }) {
			t.Fatalf("%s=%s is not for the network of the machine: run test/layouts (%v)", "IMD_TEST_LAYOUT", Hosts, err)
		}
		n := NewNetwork(t)
		n.keep = true
		for range 8 {
			allHosts.all = append(allHosts.all, n.Host())
		}
	}
	return allHosts.all
}

// startEtcd starts a server that lasts as long as the test.
func (n *Node) startEtcd() (*rest, error) {
	at := "127.0.0.1"
	if n.Layout == Hosts {
		hosts(n.t) // makes the switch, on which this process has an address
		at = hub
	}
	client, peer := FreeAddress(n.t, at), FreeAddress(n.t, at)
	r := &rest{url: "http://" + client}
	r.etcd = exec.Command(Binary(n.t), "etcd", "--data-dir", n.Dir+"-etcd", "--listen-client", r.url, "--listen-peer", "http://"+peer)
	r.etcd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out := &syncBuffer{}
	r.etcd.Stdout, r.etcd.Stderr = out, out
	if err := r.etcd.Start(); err != nil {
		return nil, err
	}
	ended := make(chan struct{})
	go func() { defer close(ended); _ = r.etcd.Wait() }()
	n.t.Cleanup(func() {
		_ = r.etcd.Process.Kill()
		<-ended
	})
	for l := NewLimit(ReadyIn); n.get(r.url+"/health") != http.StatusOK; time.Sleep(20 * time.Millisecond) {
		if l.Over() {
			return nil, fmt.Errorf("etcd is not ready after %v\n%s", ReadyIn, out)
		}
	}
	return r, nil
}

// chosen reports whether the arguments choose roles or a control plane of their
// own.
func chosen(args []string) bool {
	return slices.ContainsFunc(args, func(a string) bool {
		return strings.HasPrefix(a, "--roles") || strings.HasPrefix(a, "controlplane.endpoints=")
	})
}

// stopAll stops the processes of a split node, gateways first, and returns the
// first exit status that is not 0.
func (n *Node) stopAll() int {
	fronts, others := []*Node{n}, n.rest.nodes()
	if n.rest.side != nil {
		fronts, others = append(fronts, others[0]), others[1:]
	}
	status := 0
	for _, some := range [][]*Node{fronts, others} {
		for _, p := range some {
			p.Signal(syscall.SIGTERM)
		}
		for _, p := range some {
			if s := p.Wait(stopsIn); status == 0 {
				status = s
			}
		}
	}
	return status
}

// signal sends a signal to the process; one that has ended is no error.
func (n *Node) signal(s syscall.Signal) error {
	if err := n.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return nil
}

// Beside is another node of the same cluster with the roles, in a folder of its
// own; it does not run yet. Only for a split node.
func (n *Node) Beside(roles string) *Node {
	return &Node{Dir: filepath.Join(n.t.TempDir(), "data"), Args: n.Args, Env: n.Env, roles: roles, etcd: n.etcd, shared: n.shared, host: n.host, t: n.t}
}
