package gateway

import (
	"runtime/debug"
	runtimemetrics "runtime/metrics"
	"sync"
	"time"
)

const (
	// waveGarbage is how much garbage, in percent of the memory in use, the collector
	// lets gather during a wave; usualGarbage is Go's default.
	waveGarbage  = 200
	usualGarbage = 100
	// waveRest is how long after the last sign of a wave it is over.
	waveRest = time.Second
)

// haste has the collector of garbage work half as often while a wave of logins is
// served. Each of them leaves some kilobytes behind, and the collector would look
// through all that many connections hold time after time. A limit of memory holds as
// before, and a share that the operator has chosen stays. Safe for concurrent use.
type haste struct {
	get func() (percent uint64)        // how much garbage may gather
	set func(percent int) (before int) // lets so much gather

	mu   sync.Mutex
	on   bool
	seen time.Time // the last sign of a wave
}

func newHaste() *haste { return &haste{get: gcPercent, set: debug.SetGCPercent} }

// gcPercent is how much garbage may gather now. To look it up by setting it could
// begin a collection.
func gcPercent() uint64 {
	s := []runtimemetrics.Sample{{Name: "/gc/gogc:percent"}}
	runtimemetrics.Read(s)
	if s[0].Value.Kind() != runtimemetrics.KindUint64 {
		return 0
	}
	return s[0].Value.Uint64()
}

// wave notes a sign of a wave: so many logins wait that a group of them was full.
func (h *haste) wave(now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.seen = now
	if h.on || h.get() != usualGarbage { // another share is not ours to change
		return
	}
	h.on = true
	h.set(waveGarbage)
}

// step ends a wave that is over.
func (h *haste) step(now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if now.Sub(h.seen) >= waveRest {
		h.endLocked()
	}
}

// end ends a wave that may not be over.
func (h *haste) end() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.endLocked()
}

func (h *haste) endLocked() {
	if h.on {
		h.on = false
		h.set(usualGarbage)
	}
}
