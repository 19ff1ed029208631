package gateway

import (
	"cmp"
	"context"
	"math"
	"os"
	"path"
	"runtime"
	"runtime/debug"
	runtimemetrics "runtime/metrics"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"
)

// Parts of the memory limit of the process.
const (
	collectAt = 0.80 // from here on the collector works harder
	calmAt    = 0.82 // newcomers are taken again
	refuseAt  = 0.85 // newcomers are refused
	shedAt    = 0.92 // the slowest connections are closed
)

const (
	// guardStep is how often the memory is looked at.
	guardStep = 200 * time.Millisecond
	// shedLeast is how many bytes must wait for a connection so that closing it
	// helps.
	shedLeast = 64 << 10
)

// guard decides what a gateway does about its memory. The zero value takes
// newcomers.
type guard struct{ full bool }

// step looks at what the process uses of limit, both in bytes, and sets full
// while newcomers are to be refused. It returns how many bytes the slowest
// connections have to give back; 0 = all may stay.
func (g *guard) step(used, limit uint64) (free uint64) {
	part := float64(used) / float64(limit)
	switch {
	case part >= refuseAt:
		g.full = true
	case part < calmAt:
		g.full = false
	}
	if part < shedAt {
		return 0
	}
	return used - uint64(float64(limit)*refuseAt)
}

// guardMemory keeps the process below its memory limit until ctx is done. Without
// a limit there is nothing to do.
func (g *Gateway) guardMemory(ctx context.Context) {
	if g.memoryLimit == 0 {
		return
	}
	tick := time.NewTicker(guardStep)
	defer tick.Stop()
	var d guard
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		used := g.memoryUsed()
		free := d.step(used, g.memoryLimit)
		g.m.memory.Set(float64(used) / float64(g.memoryLimit))
		if g.short.Swap(d.full) != d.full {
			g.Log.Warn("the memory limit is near: newcomers are refused, or taken again",
				zap.Bool("refused", d.full), zap.Uint64("used", used), zap.Uint64("limit", g.memoryLimit))
		}
		if free > 0 {
			g.shed(free)
		}
	}
}

// shed closes the connections for which most waits, until that is as much as is
// to be free.
func (g *Gateway) shed(free uint64) {
	type slow struct {
		s     *session
		waits int
	}
	var list []slow
	for _, s := range g.hub.all() {
		if n := s.q.waits(); n >= shedLeast {
			list = append(list, slow{s, n})
		}
	}
	slices.SortFunc(list, func(a, b slow) int { return cmp.Compare(b.waits, a.waits) })
	closed := 0
	for _, x := range list {
		if free == 0 {
			break
		}
		if x.s.end("slow", "the node is short of memory, and much waits to be read", 0) {
			closed++
			free -= min(free, uint64(x.waits))
		}
	}
	if closed == 0 {
		return
	}
	g.m.shed.Add(float64(closed))
	g.Log.Warn("the slowest connections were closed for want of memory", zap.Int("closed", closed))
	runtime.GC() // so that the next look sees what it brought
}

// setMemoryLimit settles the memory that the process may take, and has the
// collector work harder near it unless GOMEMLIMIT says something already.
func (g *Gateway) setMemoryLimit() {
	limit := uint64(g.cfg.MemoryLimit)
	if limit == 0 {
		limit = groupMemory(os.ReadFile)
	}
	g.memoryLimit = limit
	if limit == 0 {
		return
	}
	if debug.SetMemoryLimit(-1) == math.MaxInt64 {
		debug.SetMemoryLimit(int64(float64(limit) * collectAt))
	}
	g.Log.Info("the memory limit", zap.Uint64("bytes", limit))
}

// noLimit is more than any limit: version 1 of control groups writes the largest
// number of whole pages where there is none.
const noLimit = 1 << 60

// usedMemory is what the Go runtime has from the system now, in bytes.
func usedMemory() uint64 {
	samples := []runtimemetrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	runtimemetrics.Read(samples)
	return samples[0].Value.Uint64() - samples[1].Value.Uint64()
}

// groupMemory is the lowest memory limit of the control groups that the process is
// in, of version 2 or 1, in bytes; 0 = none.
func groupMemory(read func(file string) ([]byte, error)) (lowest uint64) {
	groups, err := read("/proc/self/cgroup")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(groups)) {
		top, file := "", ""
		_, rest, _ := strings.Cut(strings.TrimSpace(line), ":")
		kinds, dir, _ := strings.Cut(rest, ":")
		switch {
		case kinds == "":
			top, file = "/sys/fs/cgroup", "memory.max"
		case slices.Contains(strings.Split(kinds, ","), "memory"):
			top, file = "/sys/fs/cgroup/memory", "memory.limit_in_bytes"
		default:
			continue
		}
		for dir = path.Clean("/" + dir); ; dir = path.Dir(dir) {
			text, err := read(path.Join(top, dir, file))
			n, bad := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 63)
			// "max" is no number; version 1 writes one that no machine has.
			if err == nil && bad == nil && n > 0 && n < noLimit && (lowest == 0 || n < lowest) {
				lowest = n
			}
			if dir == "/" {
				break
			}
		}
	}
	return lowest
}
