package settings

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/failpoint"
)

// slow is how long a subscriber may take.
const slow = time.Second

// Source is where modules read settings.
type Source interface {
	// Current is the snapshot in force. It costs an atomic load.
	Current() *Snapshot
	// Subscribe has f called after each change, with the snapshot that f was
	// called with last and the newest one: changes that come while f works are
	// told as one. f has a second; then its context ends and a warning is logged.
	// Only before the node runs.
	Subscribe(name string, f func(ctx context.Context, old, now *Snapshot))
}

// Live is the settings of one process. The driver feeds it; modules read it.
// Safe for concurrent use.
type Live struct {
	reg *Registry
	log *zap.Logger
	cur atomic.Pointer[Snapshot]

	mu      sync.Mutex
	state   State
	heard   time.Time     // when the driver last heard from etcd
	changed chan struct{} // closed and replaced with each step that moved something
	subs    []*subscriber
	late    uint64
	docs    Documents // nil = not started
}

type subscriber struct {
	name string
	f    func(ctx context.Context, old, now *Snapshot)
	wake chan struct{} // holds one: there is something newer
	last *Snapshot     // of its goroutine
}

// NewLive makes the settings of a node; nothing is set yet.
func NewLive(reg *Registry, who Identity, log *zap.Logger) *Live {
	l := &Live{reg: reg, log: log, state: NewState(reg, who), changed: make(chan struct{})}
	l.cur.Store(&Snapshot{})
	return l
}

// Registry is all declarations.
func (l *Live) Registry() *Registry { return l.reg }

// Current is the snapshot in force; see Source. On a nil Live nothing is set.
func (l *Live) Current() *Snapshot {
	if l == nil {
		return nil
	}
	return l.cur.Load()
}

// Subscribe adds a subscriber; see Source.
func (l *Live) Subscribe(name string, f func(ctx context.Context, old, now *Snapshot)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.subs = append(l.subs, &subscriber{name: name, f: f, wake: make(chan struct{}, 1), last: l.cur.Load()})
}

// Feed takes in what the driver saw. A cause means that it must read everything
// again and feed that.
func (l *Live) Feed(ev Event) (cause string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	was, refused := l.state.applied, len(l.state.refused)
	count := l.state.counts.Refused
	next, eff := l.state.Step(ev)
	l.state, l.heard = next, time.Now()
	if next.counts.Refused > count {
		rev, reason := next.Refused()
		l.log.Error("a change of the settings was not taken; the old values stay", zap.Int64("rev", rev), zap.String("reason", reason))
	}
	if eff.Publish != nil {
		failpoint.Hit(failpoint.BeforeSwap)
		l.cur.Store(eff.Publish)
		for _, s := range l.subs {
			select {
			case s.wake <- struct{}{}:
			default:
			}
		}
	}
	if eff.Publish != nil || was != next.applied || refused != len(next.refused) || next.counts.Refused > count {
		close(l.changed)
		l.changed = make(chan struct{})
	}
	return eff.Reread
}

// State is the core as it is now.
func (l *Live) State() State {
	s, _ := l.Watch()
	return s
}

// Watch is the core as it is now, and a channel that is closed when it has
// changed.
func (l *Live) Watch() (State, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state, l.changed
}

// Await waits until the state has taken everything up to a revision of its
// documents into account, or ctx ends.
func (l *Live) Await(ctx context.Context, rev int64) error {
	for {
		s, changed := l.Watch()
		refused, _ := s.Refused()
		if max(s.applied, refused) >= rev {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// SetDocuments says where the documents are kept. The driver calls it.
func (l *Live) SetDocuments(d Documents) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.docs = d
}

// Documents is where the documents are kept; nil before the control plane has
// started.
func (l *Live) Documents() Documents {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.docs
}

// Stats is what the settings of one process know about themselves.
type Stats struct {
	Counts
	Revision int64     // of the newest change in force
	Refused  int64     // see Status
	Heard    time.Time // last sign of life of etcd; zero = none yet
	Late     uint64    // calls of subscribers that took too long
}

// Stats is a copy of the counters.
func (l *Live) Stats() Stats {
	l.mu.Lock()
	defer l.mu.Unlock()
	refused, _ := l.state.Refused()
	return Stats{Counts: l.state.counts, Revision: l.state.applied, Refused: refused, Heard: l.heard, Late: l.late}
}

// Run calls the subscribers until ctx is done. One that is still busy then is
// waited for no longer than its second.
func (l *Live) Run(ctx context.Context) {
	l.mu.Lock()
	subs := l.subs
	l.mu.Unlock()
	var wg sync.WaitGroup
	for _, s := range subs {
		wg.Go(func() { l.serve(ctx, s) })
	}
	wg.Wait()
}

func (l *Live) serve(ctx context.Context, s *subscriber) {
	done := make(chan struct{}, 1) // the call that is under way has ended
	busy, overdue := false, time.NewTimer(slow)
	defer overdue.Stop()
	pending := true // what was published before Run
	for {
		if now := l.cur.Load(); pending && !busy && now != s.last {
			busy = true
			overdue.Reset(slow)
			old := s.last
			s.last = now
			go func() {
				defer func() { done <- struct{}{} }()
				l.call(ctx, s, old, now)
			}()
		}
		pending = false
		select {
		case <-s.wake:
			pending = true
		case <-done:
			busy, pending = false, true
		case <-overdue.C:
			if busy {
				l.mu.Lock()
				l.late++
				l.mu.Unlock()
				l.log.Warn("a subscriber of the settings takes too long; its newest values wait", zap.String("subscriber", s.name))
			}
		case <-ctx.Done():
			if !busy {
				return
			}
			overdue.Reset(slow)
			select {
			case <-done:
			case <-overdue.C:
			}
			return
		}
	}
}

// call calls a subscriber and survives its panic.
func (l *Live) call(ctx context.Context, s *subscriber, old, now *Snapshot) {
	ctx, cancel := context.WithTimeout(ctx, slow)
	defer cancel()
	defer func() {
		if p := recover(); p != nil {
			l.log.Error("a subscriber of the settings failed", zap.String("subscriber", s.name), zap.String("error", fmt.Sprint(p)), zap.ByteString("stack", debug.Stack()))
		}
	}()
	s.f(ctx, old, now)
}

// Derived is a value computed from the snapshot in force, once for each
// snapshot. Reading costs two atomic loads.
type Derived[T any] struct {
	current func() *Snapshot
	build   func(*Snapshot) T
	cached  atomic.Pointer[derivation[T]]
}

type derivation[T any] struct {
	from  *Snapshot
	value T
}

// Derive makes a Derived. A nil source is one in which nothing is ever set.
// build must be pure.
func Derive[T any](s Source, build func(*Snapshot) T) *Derived[T] {
	d := &Derived[T]{build: build, current: func() *Snapshot { return nil }}
	if s != nil {
		d.current = s.Current
	}
	return d
}

// Get is the value for the snapshot in force. Read only.
func (d *Derived[T]) Get() *T {
	from := d.current()
	c := d.cached.Load()
	if c == nil || c.from != from {
		c = &derivation[T]{from, d.build(from)}
		d.cached.Store(c)
	}
	return &c.value
}
