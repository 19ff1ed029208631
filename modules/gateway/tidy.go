package gateway

import (
	"context"
	"runtime"
	"runtime/debug"
	runtimemetrics "runtime/metrics"
	"time"
)

const (
	// tidyStep is how often it is looked whether memory can be given back, and
	// tidyPause the shortest time between two times that it is.
	tidyStep  = time.Second
	tidyPause = 20 * time.Second
	// tidyLeast is how large the heap must be for it, in bytes.
	tidyLeast = 64 << 20
	// tidyConns is how many connections there must be, or have been at the last time:
	// what few leave behind is little, and the rest of the process is not idle with them.
	tidyConns = 1000
	// tidyGrowth is how much more memory than after the last time makes it worth it.
	tidyGrowth = 1.1
)

// tidy decides when memory that logins and messages have left behind is given
// back to the system: once most connections are parked. Otherwise a node that
// stands idle keeps what its busiest minute took, for as long as nothing makes
// the collector run. It has no clock.
type tidy struct {
	conns  int       // at the last step
	before time.Time // when it was given back last
	had    int       // connections then
	kept   uint64    // bytes that were left then
	wave   bool      // many have come since
}

// step reports whether the time has come. resident is the heap that the system
// has given us, in bytes.
func (t *tidy) step(now time.Time, conns, parked int, resident uint64) bool {
	came := conns - t.conns
	t.conns = conns
	switch {
	case came > conns/100:
		t.wave = true
		return false // they still come
	case max(conns, t.had) < tidyConns:
		return false
	case parked < conns-conns/4:
		return false // busy
	case resident < tidyLeast || now.Sub(t.before) < tidyPause:
		return false
	}
	return float64(resident) > tidyGrowth*float64(t.kept) || conns < t.had/2
}

// done notes what was left.
func (t *tidy) done(now time.Time, resident uint64) {
	t.before, t.had, t.kept, t.wave = now, t.conns, resident, false
}

// tidyUp gives memory back, time after time, until ctx is done.
func (g *Gateway) tidyUp(ctx context.Context) {
	tick := time.NewTicker(tidyStep)
	defer tick.Stop()
	defer g.haste.end()
	defer g.sides.empty() // behind the last session
	var t tidy
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		g.haste.step(time.Now())
		parked := g.lot.Parked()
		g.m.parked.Set(float64(parked))
		g.groups.expire(time.Now())
		g.sides.trim()
		if t.step(time.Now(), g.hub.len(), parked, residentHeap()) {
			if t.wave {
				g.sides.empty()
				runtime.GC() // empties the pools, which the next one frees
			}
			debug.FreeOSMemory()
			t.done(time.Now(), residentHeap())
			g.m.tidied.Inc()
		}
	}
}

// residentHeap is the heap that the system has given us, in bytes.
func residentHeap() (sum uint64) {
	samples := []runtimemetrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/memory/classes/heap/unused:bytes"}, {Name: "/memory/classes/heap/free:bytes"}}
	runtimemetrics.Read(samples)
	for _, s := range samples {
		if s.Value.Kind() == runtimemetrics.KindUint64 {
			sum += s.Value.Uint64()
		}
	}
	return sum
}
