package drill

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/imdhq/imd/pkg/faultproxy"
)

// mesh is the network between the members of an etcd cluster, or between nodes with
// different roles: a fault proxy for each direction of each pair. Members know each other by the address of a front,
// which finds out who calls and sends the call through the proxy of that pair. So
// a member can be cut off from the others and still be reached by clients, and no
// rights are needed for it.
type mesh struct {
	fronts []net.Listener        // by member
	ways   [][]*faultproxy.Proxy // [from][to]; nil on the diagonal
	pid    func(member int) int  // of the running process; 0 = none
	wg     sync.WaitGroup        // of fronts and calls
	mu     sync.Mutex            // guards calls
	calls  map[net.Conn]struct{} // that are open
}

// newMesh opens the fronts at their addresses. targets are where the members
// listen for each other.
func newMesh(fronts, targets []string, pid func(int) int) (*mesh, error) {
	m := &mesh{pid: pid, calls: map[net.Conn]struct{}{}}
	for range fronts {
		m.ways = append(m.ways, make([]*faultproxy.Proxy, len(fronts)))
	}
	for from := range fronts {
		for to, target := range targets {
			if from == to {
				continue
			}
			p, err := faultproxy.Listen("127.0.0.1:0", target)
			if err != nil {
				m.close()
				return nil, err
			}
			m.ways[from][to] = p
		}
	}
	for to, address := range fronts {
		ln, err := net.Listen("tcp", address)
		if err != nil {
			m.close()
			return nil, fmt.Errorf("network of the drill: %w", err)
		}
		m.fronts = append(m.fronts, ln)
		m.wg.Go(func() { m.accept(ln, to) })
	}
	return m, nil
}

// isolate cuts a member off from all others, or heals that.
func (m *mesh) isolate(member int, cut bool) {
	for other := range m.ways {
		if other == member {
			continue
		}
		for _, p := range []*faultproxy.Proxy{m.ways[member][other], m.ways[other][member]} {
			p.Set(faultproxy.Mode{Blackhole: cut})
			if !cut {
				p.Reset() // the streams have holes
			}
		}
	}
}

// set changes how a member's ways to and from all others are.
func (m *mesh) set(member int, mode faultproxy.Mode) {
	for other := range m.ways {
		if other != member {
			m.ways[member][other].Set(mode)
			m.ways[other][member].Set(mode)
		}
	}
}

// close ends everything.
func (m *mesh) close() {
	for _, ln := range m.fronts {
		ln.Close()
	}
	m.mu.Lock()
	for c := range m.calls {
		c.Close()
	}
	m.mu.Unlock()
	for _, row := range m.ways {
		for _, p := range row {
			if p != nil {
				p.Close()
			}
		}
	}
	m.wg.Wait()
}

func (m *mesh) accept(ln net.Listener, to int) {
	for {
		c, err := ln.Accept()
		if err != nil {
			return // closed
		}
		m.wg.Go(func() { m.serve(c, to) })
	}
}

// serve joins a call with the proxy of its pair. Who is no member is turned away.
func (m *mesh) serve(c net.Conn, to int) {
	defer c.Close()
	from := m.caller(c)
	if from < 0 || from == to {
		return
	}
	way, err := net.Dial("tcp", m.ways[from][to].Address())
	if err != nil {
		return
	}
	defer way.Close()
	m.mu.Lock()
	m.calls[c], m.calls[way] = struct{}{}, struct{}{}
	m.mu.Unlock()
	var both sync.WaitGroup
	both.Go(func() { move(c, way) })
	both.Go(func() { move(way, c) })
	both.Wait()
	m.mu.Lock()
	delete(m.calls, c)
	delete(m.calls, way)
	m.mu.Unlock()
}

// move copies until one side ends, and ends both: what is left of a call to a
// member that is gone is of no use.
func move(dst, src net.Conn) {
	_, _ = io.Copy(dst, src)
	dst.Close()
	src.Close()
}

// caller finds the member at the other end of a connection by the socket that
// its process has open; -1 = none of them.
func (m *mesh) caller(c net.Conn) int {
	socket := socketOf(c.RemoteAddr().(*net.TCPAddr), c.LocalAddr().(*net.TCPAddr))
	if socket == "" {
		return -1
	}
	for i := range m.ways {
		pid := m.pid(i)
		if pid == 0 {
			continue
		}
		open, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
		for _, fd := range open {
			if to, err := os.Readlink(fd); err == nil && to == socket {
				return i
			}
		}
	}
	return -1
}

// socketOf names the socket of this machine with these ends as /proc names it;
// "" = there is none.
func socketOf(local, remote *net.TCPAddr) string {
	table, err := os.Open("/proc/net/tcp")
	if err != nil {
		return ""
	}
	defer table.Close()
	want := fmt.Sprintf("%s %s", hexAddress(local), hexAddress(remote))
	for in := bufio.NewScanner(table); in.Scan(); {
		if f := strings.Fields(in.Text()); len(f) > 9 && f[1]+" "+f[2] == want {
			return "socket:[" + f[9] + "]"
		}
	}
	return ""
}

// hexAddress is an IPv4 address and port as /proc/net/tcp has it.
func hexAddress(a *net.TCPAddr) string {
	ip := a.IP.To4()
	if ip == nil {
		return ""
	}
	return fmt.Sprintf("%02X%02X%02X%02X:%04X", ip[3], ip[2], ip[1], ip[0], a.Port)
}
