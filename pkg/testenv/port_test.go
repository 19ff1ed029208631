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

// The ports are outside of those that the system gives to connections.
func TestPortsBesideThoseOfTheSystem(t *testing.T) {
	for given, want := range map[string]struct{ first, last, many int }{
		"32768\t60999\n": {20000, 31999, 12000},
		"":               {20000, 31999, 12000},
		"odd":            {20000, 31999, 12000},
		"30000 60999":    {20000, 29999, 10000},
		"1024 25000":     {25001, 31999, 6999},
		"22000 23999":    {20000, 31999, 10000},
		"15000 65000":    {1024, 14999, 13976},
		"20500 65000":    {1024, 20499, 19476},
		"1024 65535":     {20000, 31999, 12000},
	} {
		got := portsBeside(given)
		if first, last := got[0], got[len(got)-1]; first != want.first || last != want.last || len(got) != want.many {
			t.Errorf("%q: %d ports from %d to %d, want %+v", given, len(got), first, last, want)
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
