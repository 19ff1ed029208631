package testenv

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
)

// ownNetwork names, to the process that runs it, the test that has a network of
// its own.
const ownNetwork = "IMD_TEST_OWN_NETWORK"

// InOwnNetwork runs a test in a process whose network is its own, empty but for
// loopback, so that it may make interfaces and hosts; see NewNetwork. All of it
// ends with the process. Call it first in a test, which runs as root.
func InOwnNetwork(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	if os.Getenv(ownNetwork) == t.Name() {
		test(t)
		return
	}
	for _, tool := range []string{"ip", "nsenter"} {
		if _, err := exec.LookPath(tool); err != nil {
			Omit(t, tool, "apt-get install iproute2 util-linux")
		}
	}
	cmd := exec.Command(os.Args[0], "-test.run", "^"+regexp.QuoteMeta(t.Name())+"$", "-test.v", "-test.count", "1")
	cmd.Env = append(os.Environ(), ownNetwork+"="+t.Name(), "IMD_TEST_BIN="+Binary(t))
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	out := &syncBuffer{}
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		Omit(t, fmt.Sprintf("the right to make network namespaces (%v)", err), "run the tests as root")
	}
	err := cmd.Wait()
	t.Logf("in a network of its own:\n%s", out)
	if err != nil {
		t.Fatal(err)
	}
}

// Network is a switch with hosts, each of which has its own network namespace,
// and this process, which reaches them all.
type Network struct {
	t    testing.TB
	n    int
	keep bool // its hosts stay until the process ends
}

// hub is the address of this process in a Network.
const hub = "10.77.0.254"

// NewNetwork makes a switch without hosts. Only for use within InOwnNetwork.
func NewNetwork(t testing.TB) *Network {
	t.Helper()
	n := &Network{t: t}
	for _, line := range []string{
		"ip link set lo up", "ip link add hub type bridge", "ip addr add " + hub + "/24 dev hub", "ip link set hub up",
	} {
		n.run(line)
	}
	return n
}

func (n *Network) run(line string) {
	n.t.Helper()
	args := strings.Fields(line)
	if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
		n.t.Fatalf("%s: %v: %s", line, err, out)
	}
}

// Host is one host of a Network.
type Host struct {
	Address string

	n   *Network
	pid int // of the process that keeps the namespace
}

// Host adds a host.
func (n *Network) Host() *Host {
	n.t.Helper()
	keeper := exec.Command("sleep", "infinity")
	keeper.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	if err := keeper.Start(); err != nil {
		n.t.Fatal(err)
	}
	if !n.keep {
		n.t.Cleanup(func() { _ = keeper.Process.Kill(); _ = keeper.Wait() })
	}
	n.n++
	h := &Host{Address: fmt.Sprintf("10.77.0.%d", n.n), n: n, pid: keeper.Process.Pid}
	n.run(fmt.Sprintf("ip link add port%d type veth peer name eth0 netns %d", n.n, h.pid))
	n.run(fmt.Sprintf("ip link set port%d master hub up", n.n))
	h.run("ip link set lo up")
	h.run("ip addr add " + h.Address + "/24 dev eth0")
	h.run("ip link set eth0 up")
	return h
}

// Under starts a command on the host.
func (h *Host) Under() []string { return []string{"nsenter", "-t", fmt.Sprint(h.pid), "-n", "--"} }

func (h *Host) run(line string) {
	h.n.t.Helper()
	h.n.run(strings.Join(append(h.Under(), line), " "))
}

// nowhere is the address of no interface: what is sent there gets lost without a
// word.
const nowhere = "02:00:00:00:00:ff"

// Cut swallows everything between the host and others. No other host means this
// process.
func (h *Host) Cut(others ...*Host) {
	h.n.t.Helper()
	h.each(others, "ip neigh replace %s dev %s lladdr "+nowhere+" nud permanent")
}

// Heal undoes Cut.
func (h *Host) Heal(others ...*Host) {
	h.n.t.Helper()
	h.each(others, "ip neigh del %s dev %s")
}

// each runs a command about the other end, at both ends.
func (h *Host) each(others []*Host, line string) {
	h.n.t.Helper()
	if len(others) == 0 {
		h.run(fmt.Sprintf(line, hub, "eth0"))
		h.n.run(fmt.Sprintf(line, h.Address, "hub"))
	}
	for _, o := range others {
		h.run(fmt.Sprintf(line, o.Address, "eth0"))
		o.run(fmt.Sprintf(line, h.Address, "eth0"))
	}
}

// Etcd starts a cluster with one member on each of the hosts.
func (n *Network) Etcd(hosts ...*Host) *Etcd {
	n.t.Helper()
	var at []string
	for _, h := range hosts {
		at = append(at, h.Address)
	}
	c := newEtcd(n.t, at)
	for i, h := range hosts {
		c.Members[i].Under = h.Under()
	}
	c.start()
	return c
}
