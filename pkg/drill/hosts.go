package drill

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// Addresses of the drill itself in a network of hosts: what it is for nodes, where they
// find etcd, and where the ways to Postgres and Redis begin. Each is reached by a
// route of its own.
const (
	hubHost    = "10.78.0.254"
	etcdHost   = "10.78.0.253"
	storesHost = "10.78.0.252"
)

// OwnNetwork reports whether the network of this process is its own and empty: not even
// loopback is up.
func OwnNetwork() bool {
	all, err := net.Interfaces()
	return err == nil && !slices.ContainsFunc(all, func(i net.Interface) bool { return i.Flags&net.FlagLoopback == 0 || i.Flags&net.FlagUp != 0 })
}

// hostsMissing says why there can be no hosts here; "" = there can.
func hostsMissing() string {
	for _, tool := range []string{"ip", "nsenter"} {
		if _, err := exec.LookPath(tool); err != nil {
			return "wants the program " + tool + ": apt-get install iproute2 util-linux"
		}
	}
	if os.Getuid() != 0 {
		return "wants network namespaces: run it as root"
	}
	return ""
}

// hosts is a switch in the network of this process, and hosts at it, each with a network
// namespace of its own in which one node runs. All of it ends with this process.
type hosts struct {
	d   *drill
	key string // the file with the key that nodes share
	all []*machine
}

// host is one of them.
type machine struct {
	node    *node
	address string
	keeper  *exec.Cmd // keeps the namespace
}

// newHosts makes the switch.
func newHosts(d *drill) (*hosts, error) {
	if !OwnNetwork() {
		return nil, errors.New("hosts want a process with a network of its own")
	}
	h := &hosts{d: d, key: filepath.Join(d.Dir, "peers.key")}
	if err := os.WriteFile(h.key, []byte("a key that all nodes of this drill have\n"), 0o600); err != nil {
		return nil, err
	}
	lines := []string{"ip link set lo up", "ip link add hub type bridge", "ip link set hub up"}
	for _, a := range []string{hubHost, etcdHost, storesHost} {
		lines = append(lines, "ip addr add "+a+"/24 dev hub")
	}
	return h, run(d.ctx, lines...)
}

// run runs commands until one fails.
func run(ctx context.Context, lines ...string) error {
	for _, line := range lines {
		args := strings.Fields(line)
		if out, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", line, err, out)
		}
	}
	return nil
}

// add makes the host of a node.
func (h *hosts) add(n *node) (*machine, error) {
	i := len(h.all) + 1
	x := &machine{node: n, address: fmt.Sprintf("10.78.0.%d", i), keeper: exec.Command("sleep", "infinity")}
	x.keeper.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	if err := h.d.start(x.keeper); err != nil {
		return nil, fmt.Errorf("make a network namespace: %w", err)
	}
	h.all = append(h.all, x)
	err := run(h.d.ctx, fmt.Sprintf("ip link add port%d type veth peer name eth0 netns %d", i, x.keeper.Process.Pid), fmt.Sprintf("ip link set port%d master hub up", i))
	if err != nil {
		return nil, err
	}
	return x, x.run(h.d.ctx, "ip link set lo up", "ip addr add "+x.address+"/24 dev eth0", "ip link set eth0 up")
}

// under starts a command on the host; the process is the command's.
func (x *machine) under() []string {
	return []string{"nsenter", "-t", fmt.Sprint(x.keeper.Process.Pid), "-n", "--"}
}

// run runs commands on the host.
func (x *machine) run(ctx context.Context, lines ...string) error {
	for i, line := range lines {
		lines[i] = strings.Join(append(x.under(), line), " ")
	}
	return run(ctx, lines...)
}

// close ends the hosts.
func (h *hosts) close() {
	for _, x := range h.all {
		_ = x.keeper.Process.Kill()
		_ = x.keeper.Wait() // it was killed
	}
}

// of is the host of a node.
func (h *hosts) of(n *node) *machine {
	return h.all[slices.IndexFunc(h.all, func(x *machine) bool { return x.node == n })]
}

// others are the addresses of all other hosts.
func (h *hosts) others(x *machine) (all []string) {
	for _, y := range h.all {
		if y != x {
			all = append(all, y.address)
		}
	}
	return all
}

// swallow makes what the host sends to addresses vanish, or heals that.
func (x *machine) swallow(ctx context.Context, on bool, addresses ...string) error {
	verb := "del"
	if on {
		verb = "add"
	}
	var lines []string
	for _, a := range addresses {
		lines = append(lines, "ip route "+verb+" blackhole "+a+"/32")
	}
	return x.run(ctx, lines...)
}

// cut lets nothing through between a node and all others, or heals that.
func (h *hosts) cut(ctx context.Context, n *node, on bool) error {
	x := h.of(n)
	errs := []error{x.swallow(ctx, on, h.others(x)...)}
	for _, y := range h.all {
		if y != x {
			errs = append(errs, y.swallow(ctx, on, x.address))
		}
	}
	return errors.Join(errs...)
}

// How a host is cut off by routes.
const (
	holeOut  = "out"  // what it says to the others
	holeIn   = "in"   // what the others say to it
	holeHalf = "half" // what every second host and the rest say to each other
	holeEtcd = "etcd" // what it says to etcd
)

// hostBlackhole cuts hosts off by routes that lead nowhere: nobody is told, and nothing
// is closed.
func (f *fault) hostBlackhole(ctx context.Context) error {
	err := f.b.hosts.hole(ctx, f, true)
	hold(ctx, f.For)
	heal, done := healing(ctx)
	defer done()
	return errors.Join(err, f.b.hosts.hole(heal, f, false))
}

func (h *hosts) hole(ctx context.Context, f *fault, on bool) error {
	x := h.of(f.n)
	var errs []error
	switch f.Level {
	case holeOut:
		return x.swallow(ctx, on, h.others(x)...)
	case holeEtcd:
		return x.swallow(ctx, on, etcdHost)
	case holeIn:
		for _, y := range h.all {
			if y != x {
				errs = append(errs, y.swallow(ctx, on, x.address))
			}
		}
	case holeHalf:
		for i, y := range h.all {
			for j, z := range h.all {
				if i%2 != j%2 {
					errs = append(errs, y.swallow(ctx, on, z.address))
				}
			}
		}
	}
	return errors.Join(errs...)
}

// cutOff lets nothing through between a node and all others, or heals that.
func (b *breaker) cutOff(ctx context.Context, n *node, on bool) error {
	if b.hosts != nil {
		heal, done := healing(ctx)
		defer done()
		return b.hosts.cut(heal, n, on)
	}
	b.network.cut(n, on)
	return nil
}
