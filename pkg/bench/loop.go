package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// loop is one epoll set and one heap of timers; everything in it runs on the
// goroutine that calls run, except post. Times are durations since base.
type loop struct {
	epfd   int
	wakefd int // an eventfd, written by post
	base   time.Time
	now    time.Duration
	conns  []*conn // by descriptor
	open   int
	serial int32 // tells a connection from a former one of the same descriptor
	timers []timer
	order  uint64
	read   []byte // shared by all connections: what arrives is consumed at once
	dirty  []*conn
	bufs   [][]byte // free write buffers
	stop   bool
	coarse bool // the kernel has no epoll_pwait2

	mu     sync.Mutex
	posted []func()
}

func newLoop() (*loop, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("epoll: %w", err)
	}
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err == nil {
		err = unix.EpollCtl(fd, unix.EPOLL_CTL_ADD, wake, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(wake)})
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("eventfd: %w", err)
	}
	return &loop{epfd: fd, wakefd: wake, base: time.Now(), read: make([]byte, 256<<10)}, nil
}

// errOver is what connections end with that the loop's end closes.
var errOver = errors.New("the run is over")

// close ends all connections. Nothing may be posted afterwards.
func (l *loop) close() {
	for _, c := range l.conns {
		if c != nil {
			c.onClose = nil
			c.drop(errOver)
		}
	}
	unix.Close(l.wakefd)
	unix.Close(l.epfd)
}

// at calls f at t, or as soon after it as the loop comes round. Timers of one
// time run in the order in which they were set.
func (l *loop) at(t time.Duration, f func()) {
	l.order++
	l.timers = append(l.timers, timer{t, l.order, f})
	for i := len(l.timers) - 1; i > 0; {
		up := (i - 1) / 2
		if !l.timers[i].before(l.timers[up]) {
			break
		}
		l.timers[i], l.timers[up] = l.timers[up], l.timers[i]
		i = up
	}
}

// after calls f when d has passed.
func (l *loop) after(d time.Duration, f func()) { l.at(l.now+d, f) }

// pop takes the earliest timer.
func (l *loop) pop() timer {
	t, n := l.timers[0], len(l.timers)-1
	l.timers[0] = l.timers[n]
	l.timers[n] = timer{}
	l.timers = l.timers[:n]
	for i := 0; ; {
		c := 2*i + 1
		if c >= n {
			return t
		}
		if c+1 < n && l.timers[c+1].before(l.timers[c]) {
			c++
		}
		if !l.timers[c].before(l.timers[i]) {
			return t
		}
		l.timers[i], l.timers[c] = l.timers[c], l.timers[i]
		i = c
	}
}

type timer struct {
	at    time.Duration
	order uint64
	f     func()
}

func (t timer) before(u timer) bool { return t.at < u.at || t.at == u.at && t.order < u.order }

// post runs f on the loop. Safe for concurrent use.
func (l *loop) post(f func()) {
	l.mu.Lock()
	l.posted = append(l.posted, f)
	l.mu.Unlock()
	_, _ = unix.Write(l.wakefd, []byte{1, 0, 0, 0, 0, 0, 0, 0})
}

func (l *loop) runPosted() {
	var buf [8]byte
	_, _ = unix.Read(l.wakefd, buf[:])
	l.mu.Lock()
	todo := l.posted
	l.posted = nil
	l.mu.Unlock()
	for _, f := range todo {
		f()
	}
}

// stopWith ends run when ctx is done. The returned function undoes it and waits
// for what is under way.
func (l *loop) stopWith(ctx context.Context, say func(error)) (release func()) {
	done := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(done)
		l.post(func() { say(ctx.Err()); l.stop = true })
	})
	return func() {
		if !stop() {
			<-done
		}
	}
}

// run works until stop is set or the time is end.
func (l *loop) run(end time.Duration) error {
	l.stop = false
	events := make([]unix.EpollEvent, 512)
	l.tick()
	for !l.stop {
		for len(l.timers) > 0 && l.timers[0].at <= l.now {
			l.pop().f()
		}
		l.flush()
		if l.now >= end || l.stop { // and what was due before the end has begun, however late, also if one of them stops it
			break
		}
		l.tick()
		wait := end - l.now
		if len(l.timers) > 0 {
			wait = min(wait, l.timers[0].at-l.now)
		}
		n, err := l.wait(events, max(wait, 0))
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("epoll: %w", err)
		}
		l.tick()
		for i := range max(n, 0) {
			l.event(&events[i])
		}
		l.flush()
	}
	l.flush()
	return nil
}

func (l *loop) tick() { l.now = time.Since(l.base) }

func (l *loop) event(e *unix.EpollEvent) {
	if int(e.Fd) == l.wakefd {
		l.runPosted()
		return
	}
	if int(e.Fd) < len(l.conns) {
		if c := l.conns[e.Fd]; c != nil && c.serial == e.Pad {
			c.ready(e.Events)
		}
	}
}

// flush writes what the connections have queued since the last time.
func (l *loop) flush() {
	for i := 0; i < len(l.dirty); i++ { // it may grow
		c := l.dirty[i]
		l.dirty[i] = nil
		c.dirty = false
		if c.phase == open {
			c.flush()
		}
	}
	l.dirty = l.dirty[:0]
}

// wait waits with nanosecond resolution: a rate of thousands a second needs
// pauses below a millisecond.
func (l *loop) wait(events []unix.EpollEvent, wait time.Duration) (int, error) {
	if !l.coarse {
		ts := unix.NsecToTimespec(int64(wait))
		n, _, errno := unix.Syscall6(unix.SYS_EPOLL_PWAIT2, uintptr(l.epfd), uintptr(unsafe.Pointer(&events[0])), uintptr(len(events)),
			uintptr(unsafe.Pointer(&ts)), 0, 0)
		if errno == 0 {
			return int(n), nil
		}
		if errno != unix.ENOSYS {
			return 0, errno
		}
		l.coarse = true
	}
	return unix.EpollWait(l.epfd, events, int((wait+time.Millisecond-1)/time.Millisecond))
}

// buf is an empty write buffer with room for a frame's header.
func (l *loop) buf() []byte {
	if n := len(l.bufs); n > 0 {
		b := l.bufs[n-1]
		l.bufs = l.bufs[:n-1]
		return b[:headerRoom]
	}
	return make([]byte, headerRoom, 1<<10)
}

func (l *loop) free(b []byte) {
	if cap(b) <= 128<<10 && len(l.bufs) < 4096 {
		l.bufs = append(l.bufs, b)
	}
}
