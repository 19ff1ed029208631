package testenv

import (
	"net"
	"testing"
)

func TestFreeAddress(t *testing.T) {
	seen := map[string]bool{}
	for range 50 {
		addr := FreeAddress(t, "127.0.0.1")
		if seen[addr] {
			t.Fatalf("%s is given twice", addr)
		}
		seen[addr] = true
		l, err := net.Listen("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestEtcdHosts(t *testing.T) {
	seen := map[string]bool{}
	for range 50 {
		hosts, err := etcdHosts(8)
		if err != nil {
			t.Fatal(err)
		}
		for _, h := range hosts {
			if ip := net.ParseIP(h); seen[h] || ip == nil || !ip.IsLoopback() {
				t.Fatalf("%s is given, after %d others", h, len(seen))
			}
			seen[h] = true
		}
	}
}
