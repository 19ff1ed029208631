package gateway

import (
	"fmt"
	"io/fs"
	"math"
	"net"
	"net/http"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/testenv"
	"github.com/imdhq/imd/sdk/go/protocol"
)

func TestGuardSteps(t *testing.T) {
	var g guard
	for i, step := range []struct {
		used uint64
		full bool
		free uint64
	}{
		{500, false, 0}, {849, false, 0}, {850, true, 0}, {830, true, 0}, {819, false, 0}, {840, false, 0},
		{919, true, 0}, {920, true, 70}, {1200, true, 350}, {820, true, 0}, {100, false, 0},
	} {
		if free := g.step(step.used, 1000); free != step.free || g.full != step.full {
			t.Errorf("step %d, %d of 1000 used: full %v, %d to free; want %v, %d", i, step.used, g.full, free, step.full, step.free)
		}
	}
}

func TestMemoryLimitOfControlGroups(t *testing.T) {
	for name, tt := range map[string]struct {
		files map[string]string
		want  uint64
	}{
		"no groups":         {nil, 0},
		"no limit":          {map[string]string{"/proc/self/cgroup": "0::/a\n", "/sys/fs/cgroup/a/memory.max": "max\n"}, 0},
		"its own":           {map[string]string{"/proc/self/cgroup": "0::/a/b\n", "/sys/fs/cgroup/a/b/memory.max": "1000\n", "/sys/fs/cgroup/a/memory.max": "2000\n"}, 1000},
		"one further up":    {map[string]string{"/proc/self/cgroup": "1:cpu:/x\n0::/a/b\n", "/sys/fs/cgroup/a/b/memory.max": "max\n", "/sys/fs/cgroup/a/memory.max": "2000\n"}, 2000},
		"of a container":    {map[string]string{"/proc/self/cgroup": "0::/\n", "/sys/fs/cgroup/memory.max": "3000\n"}, 3000},
		"version 1":         {map[string]string{"/proc/self/cgroup": "4:cpu,cpuacct:/b\n3:memory:/a\n", "/sys/fs/cgroup/memory/a/memory.limit_in_bytes": "4000\n", "/sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"}, 4000},
		"1, in a container": {map[string]string{"/proc/self/cgroup": "3:memory:/docker/x\n", "/sys/fs/cgroup/memory/memory.limit_in_bytes": "5000\n"}, 5000},
		"1, without one":    {map[string]string{"/proc/self/cgroup": "3:memory:/\n0::/\n", "/sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"}, 0},
		"nonsense in place": {map[string]string{"/proc/self/cgroup": "0::\n", "/sys/fs/cgroup/memory.max": "-1"}, 0},
	} {
		got := groupMemory(func(file string) ([]byte, error) {
			if text, ok := tt.files[file]; ok {
				return []byte(text), nil
			}
			return nil, fs.ErrNotExist
		})
		if got != tt.want {
			t.Errorf("%s: %d, want %d", name, got, tt.want)
		}
	}
}

// Near its memory limit a gateway refuses newcomers, then closes those for whom
// most waits and nobody else, and takes newcomers again when there is room.
func TestMemoryGuard(t *testing.T) {
	was := debug.SetMemoryLimit(-1)
	t.Cleanup(func() { debug.SetMemoryLimit(was) })
	var used atomic.Uint64
	const limit = 1 << 40
	w := beginTuned(t, func(g *Gateway) { g.memoryUsed = used.Load }, func(c *Config) { c.MemoryLimit = limit })
	if now := debug.SetMemoryLimit(-1); was == math.MaxInt64 && now >= limit {
		t.Errorf("the collector's limit is %d", now)
	}
	honest := w.session(t, protocol.Proto, "honest", "d")
	for i := range 2 {
		user := fmt.Sprintf("stalled%d", i)
		hello, _ := protocol.EncodeClient(protocol.JSON, helloWith(w.token(user)))
		c, err := dialer{w, t.Context()}.rawOpen(masked(1, string(hello)))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_ = c.(*net.TCPConn).SetReadBuffer(4096)
		eventually(t, "it is online", func() bool { return len(w.g.hub.of(im.UserID(user))) == 1 })
		s := w.g.hub.of(im.UserID(user))[0]
		for n := 0; s.q.waits() < (i+2)*shedLeast; n++ {
			if n == 1000 {
				t.Fatalf("only %d bytes wait for it", s.q.waits())
			}
			w.state.post("g_"+user, "someone", strings.Repeat("x", 12_000), user)
		}
	}
	first, second := w.g.hub.of("stalled0")[0], w.g.hub.of("stalled1")[0]

	used.Store(limit / 100 * 86)
	eventually(t, "newcomers are refused", w.g.short.Load)
	if res := refusedWith(t, w, testenv.DialOptions{}, http.StatusServiceUnavailable, "memory"); res.Header.Get("Retry-After") == "" {
		t.Error("they are not told when to come back")
	}
	if !first.live() || !second.live() {
		t.Error("one who is slow is closed too early")
	}

	w.g.shed(1)
	if second.live() || !first.live() {
		t.Errorf("the slowest is still there: %v; the other: %v", second.live(), first.live())
	}
	used.Store(limit / 100 * 95)
	eventually(t, "the other is closed", func() bool { return !first.live() })
	eventually(t, "both are counted", func() bool { return testutil.ToFloat64(w.g.m.shed) == 2 })
	used.Store(limit / 2)
	eventually(t, "newcomers are taken", func() bool { return !w.g.short.Load() })
	w.session(t, protocol.JSON, "late", "d").Close()
	if honest.Closed() {
		t.Error("one who reads was closed")
	}
	if used := usedMemory(); used < 1<<20 || used > 1<<40 {
		t.Errorf("the process uses %d bytes", used)
	}
}
