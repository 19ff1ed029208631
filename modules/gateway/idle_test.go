package gateway

import (
	"fmt"
	"net"
	"runtime"
	"testing"
	"time"
	"unsafe"

	"github.com/imdhq/imd/sdk/go/protocol"
)

// A session fits into a block of 1 KiB of the allocator's; the next one is a quarter
// larger.
func TestASessionFitsIntoItsBlock(t *testing.T) {
	if n := unsafe.Sizeof(session{}); n > 1024 {
		t.Errorf("a session has %d bytes", n)
	}
}

// What an idle session costs, the clients' sockets included.
func TestIdleSessionsAreCheap(t *testing.T) {
	n := 2000
	if raceEnabled {
		t.Log("the race detector has its own costs; nothing is measured")
		n = 200
	}
	w := begin(t, func(c *Config) { c.MaxUnauthenticated = 10_000 })
	w.g.Limits().SetOff(true)
	d := dialer{w, t.Context()}
	memory := func() uint64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc + m.StackInuse
	}
	before := memory()
	var all []net.Conn
	for i := range n {
		data, _ := protocol.EncodeClient(protocol.JSON, helloWith(w.token(fmt.Sprint("u", i))))
		c, err := d.rawOpen(masked(1, string(data)))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, c)
	}
	eventually(t, "all are online", func() bool { return len(w.g.hub.online()) == n })
	time.Sleep(200 * time.Millisecond)
	each := (memory() - before) / uint64(n)
	t.Logf("%d bytes a session, goroutines %d", each, runtime.NumGoroutine())
	if !raceEnabled && each > 20<<10 {
		t.Errorf("%d bytes for each idle session", each)
	}
	for _, c := range all {
		reset(c)
	}
}
