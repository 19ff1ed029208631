package bench

import (
	"container/heap"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// loop is one epoll set and one heap of timers; everything in it runs on the
// goroutine that calls run.
type loop struct {
	epfd   int
	byFD   map[int32]*conn
	timers timerHeap
	read   []byte // shared by all connections: what arrives is consumed at once
	now    time.Time
	stop   bool
}

func newLoop() (*loop, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("epoll: %w", err)
	}
	return &loop{epfd: fd, byFD: map[int32]*conn{}, read: make([]byte, 256<<10), now: time.Now()}, nil
}

func (l *loop) close() {
	for _, c := range l.byFD {
		c.drop(errors.New("the run is over"))
	}
	unix.Close(l.epfd)
}

// at calls f at t, or as soon after it as the loop comes round.
func (l *loop) at(t time.Time, f func()) { heap.Push(&l.timers, timer{t, f}) }

// run works until stop is set or the deadline has passed.
func (l *loop) run(deadline time.Time) error {
	l.stop = false
	events := make([]unix.EpollEvent, 512)
	for !l.stop {
		l.now = time.Now()
		if !l.now.Before(deadline) {
			return nil
		}
		for len(l.timers) > 0 && !l.timers[0].at.After(l.now) {
			heap.Pop(&l.timers).(timer).f()
		}
		wait := deadline.Sub(l.now)
		if len(l.timers) > 0 {
			wait = min(wait, time.Until(l.timers[0].at))
		}
		n, err := epollWait(l.epfd, events, max(wait, 0))
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("epoll: %w", err)
		}
		l.now = time.Now()
		for _, e := range events[:max(n, 0)] {
			if c := l.byFD[e.Fd]; c != nil {
				c.ready(e.Events)
			}
		}
	}
	return nil
}

// epollWait waits with nanosecond resolution: a rate of thousands a second
// needs pauses below a millisecond.
func epollWait(fd int, events []unix.EpollEvent, wait time.Duration) (int, error) {
	if wait >= time.Millisecond || wait == 0 {
		return unix.EpollWait(fd, events, int(wait/time.Millisecond))
	}
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	ts := unix.NsecToTimespec(int64(wait))
	if n, err := unix.Ppoll(p, &ts, nil); n <= 0 || err != nil {
		return 0, err
	}
	return unix.EpollWait(fd, events, 0)
}

type timer struct {
	at time.Time
	f  func()
}

type timerHeap []timer

func (h timerHeap) Len() int           { return len(h) }
func (h timerHeap) Less(i, j int) bool { return h[i].at.Before(h[j].at) }
func (h timerHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *timerHeap) Push(x any)        { *h = append(*h, x.(timer)) }
func (h *timerHeap) Pop() any {
	old := *h
	t := old[len(old)-1]
	*h = old[:len(old)-1]
	return t
}
