package etcd

import (
	"context"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// pulse asks etcd for a sign of life as long as the process has a watch. All
// watches of a client share one stream, and the answer goes to each of them, so
// one question serves them all. Whether an answer came is each watch's to judge.
// Safe for concurrent use.
type pulse struct {
	etcd  lister
	every time.Duration

	mu   sync.Mutex
	open int // watches
	stop context.CancelFunc
	done chan struct{} // closed when the goroutine has ended; nil = none was started
}

// join counts a watch in, until leave is called, which may wait for a call that
// is being given up.
func (p *pulse) join() (leave func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.open++; p.open == 1 {
		// What the contexts of the watches carry, or the answer goes to another stream.
		ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(context.Background()))
		before, done := p.done, make(chan struct{})
		p.stop, p.done = cancel, done
		go func() {
			defer close(done)
			if before != nil {
				<-before
			}
			p.beat(ctx)
		}()
	}
	return p.leave
}

func (p *pulse) leave() {
	p.mu.Lock()
	p.open--
	var done chan struct{}
	if p.open == 0 {
		p.stop()
		done = p.done
	}
	p.mu.Unlock()
	if done != nil {
		<-done
	}
}

// beat asks until ctx is done. An error needs no answer here: a stream that
// broke ends its watches, and so does silence.
func (p *pulse) beat(ctx context.Context) {
	tick := time.NewTicker(p.every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			call, cancel := context.WithTimeout(ctx, callLimit)
			_ = p.etcd.RequestProgress(call)
			cancel()
		case <-ctx.Done():
			return
		}
	}
}

// watches is how many watches the process has.
func (p *pulse) watches() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.open
}
