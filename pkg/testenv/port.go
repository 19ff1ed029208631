package testenv

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"sync"
	"testing"
)

// The ports of servers that cannot choose one themselves. They are below those that
// the system gives to whoever asks for any port, also to each connection: of these
// one may be taken between its choice and its use, or while its server is away.
const firstPort, lastPort = 20000, 32000

// fewestPorts is how many there must be to choose from, and lowestPort the first one
// that needs no rights.
const fewestPorts, lowestPort = 1000, 1024

// ports are those to choose from.
var ports = sync.OnceValue(func() []int {
	text, _ := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range") // where there is none, the ports are as usual
	return portsBeside(string(text))
})

// portsBeside are the ports to choose from where the system gives those of the range,
// "first last", to whoever asks for any: from firstPort to lastPort but for these, or
// all below these if few are left.
func portsBeside(given string) []int {
	var low, high int
	if _, err := fmt.Sscan(given, &low, &high); err != nil {
		low, high = lastPort, lastPort
	}
	list := func(from, to int) (list []int) {
		for p := from; p < to; p++ {
			if p < low || p > high {
				list = append(list, p)
			}
		}
		return list
	}
	if usual := list(firstPort, lastPort); len(usual) >= fewestPorts {
		return usual
	}
	if below := list(lowestPort, low); len(below) >= fewestPorts {
		return below
	}
	low, high = 0, 0 // the system gives nearly all: take part
	return list(firstPort, lastPort)
}

// claims holds what keeps other test processes from the ports of this one, until it
// ends.
var claims struct {
	sync.Mutex
	held []net.Listener
}

// FreeAddress is an address of this machine, as host:port, for a server of the test.
// No test is given the same as long as this process lives, so the server may go and
// come back there.
func FreeAddress(t testing.TB, ip string) string {
	t.Helper()
	port, err := freePort(ip)
	if err != nil {
		t.Fatal(err)
	}
	return net.JoinHostPort(ip, strconv.Itoa(port))
}

// etcdHosts are n loopback addresses, 8 at most, which no other cluster of etcd has as
// long as this process lives.
func etcdHosts(n int) (hosts []string, err error) {
	claims.Lock()
	defer claims.Unlock()
	var last error
	for range 1000 {
		third, block := rand.IntN(256), 1+rand.IntN(31)
		claim, err := net.Listen("unix", fmt.Sprintf("@imd-test-etcd-%d-%d", third, block))
		if err != nil {
			last = err
			continue
		}
		claims.held = append(claims.held, claim)
		for i := range n {
			hosts = append(hosts, fmt.Sprintf("127.12.%d.%d", third, 8*block+i))
		}
		return hosts, nil
	}
	return nil, fmt.Errorf("no addresses are free: %w", last)
}

// freePort is the port of FreeAddress.
func freePort(ip string) (int, error) {
	claims.Lock()
	defer claims.Unlock()
	var last error
	for range 1000 {
		port := ports()[rand.IntN(len(ports()))]
		// The name is in no folder, belongs to the network of the process as the port
		// does, and goes with the process.
		claim, err := net.Listen("unix", fmt.Sprintf("@imd-test-port-%d", port))
		if err != nil {
			last = err
			continue
		}
		l, err := net.Listen("tcp", net.JoinHostPort(ip, strconv.Itoa(port)))
		if err != nil {
			last = err
			_ = claim.Close() // nobody uses it
			continue
		}
		claims.held = append(claims.held, claim)
		return port, l.Close()
	}
	return 0, fmt.Errorf("no port is free: %w", last)
}
