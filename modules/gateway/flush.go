package gateway

import (
	"runtime"
	"sync"
)

const (
	// flushPart is how many sessions one goroutine flushes at least; more are
	// spread over the processors, because each is a system call.
	flushPart = 256
	// yieldEvery is after how many of them others get the processor, so that a
	// message to thousands does not hold up one to a few.
	yieldEvery = 32
)

// flush lets leave what was delivered to the sessions, and returns when each
// has been looked at.
func flush(sessions []*session) {
	parts := min(len(sessions)/flushPart+1, runtime.GOMAXPROCS(0))
	each := (len(sessions) + parts - 1) / parts
	var wg sync.WaitGroup
	for ; len(sessions) > each; sessions = sessions[each:] {
		part := sessions[:each]
		wg.Go(func() { flushPartOf(part) })
	}
	flushPartOf(sessions)
	wg.Wait()
}

func flushPartOf(sessions []*session) {
	for i, x := range sessions {
		x.q.flush()
		if i%yieldEvery == yieldEvery-1 {
			runtime.Gosched()
		}
	}
}
