package park

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
)

const (
	// batch is how many events are taken at once.
	batch = 256
	// once has a descriptor watched for one event; hanging up and errors are
	// always told.
	once = syscall.EPOLLIN | syscall.EPOLLRDHUP | oneShot
	// oneShot is EPOLLONESHOT.
	oneShot = 1 << 30
)

// Lot watches the descriptors of parked connections. Safe for concurrent use.
type Lot struct {
	parked atomic.Int64
	epfd   int
	bell   *os.File // a byte written to it ends Run
	ear    *os.File

	mu    sync.Mutex
	last  int32   // generation given out
	spots []*Spot // by descriptor
}

// New makes an empty lot. Run must be called for it to wake anybody, and Close
// at the end. An error means that the process may open no more files.
func New() (*Lot, error) {
	epfd, err := syscall.EpollCreate1(syscall.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make an epoll set: %w", err)
	}
	ear, bell, err := os.Pipe()
	if err != nil {
		_ = syscall.Close(epfd)
		return nil, fmt.Errorf("make a pipe: %w", err)
	}
	l := &Lot{epfd: epfd, bell: bell, ear: ear}
	raw, err := ear.SyscallConn()
	if err == nil {
		err = control(raw, func(fd int) error {
			return syscall.EpollCtl(epfd, syscall.EPOLL_CTL_ADD, fd, &syscall.EpollEvent{Events: syscall.EPOLLIN, Fd: -1})
		})
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("watch a pipe: %w", err), l.Close())
	}
	return l, nil
}

// control calls f with the descriptor, which stays open meanwhile.
func control(raw syscall.RawConn, f func(fd int) error) error {
	var err error
	if no := raw.Control(func(fd uintptr) { err = f(int(fd)) }); no != nil {
		return no
	}
	return err
}

// Parked is how many connections are parked.
func (l *Lot) Parked() int { return int(l.parked.Load()) }

func (l *Lot) works() bool { return true }

// arm watches the spot's descriptor for one event.
func (l *Lot) arm(s *Spot) error {
	return control(s.raw, func(fd int) error {
		op := syscall.EPOLL_CTL_MOD
		if s.generation == 0 {
			op = syscall.EPOLL_CTL_ADD
			l.enter(s, fd)
		}
		return syscall.EpollCtl(l.epfd, op, fd, &syscall.EpollEvent{Events: once, Fd: int32(fd), Pad: s.generation})
	})
}

// enter gives the spot a generation.
func (l *Lot) enter(s *Spot, fd int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.last++; l.last == 0 {
		l.last++ // after four thousand million connections
	}
	s.fd, s.generation = int32(fd), l.last
	for len(l.spots) <= fd {
		l.spots = append(l.spots, nil)
	}
	l.spots[fd] = s
}

// forget takes the spot out, unless its descriptor has another one by now.
func (l *Lot) forget(s *Spot) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.spots[s.fd] == s {
		l.spots[s.fd] = nil
	}
}

// find is the spot of an event; nil if it is not there any more.
func (l *Lot) find(e *syscall.EpollEvent) *Spot {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e.Fd < 0 || int(e.Fd) >= len(l.spots) {
		return nil
	}
	if s := l.spots[e.Fd]; s != nil && s.generation == e.Pad {
		return s
	}
	return nil
}

// Run wakes connections until Stop is called.
func (l *Lot) Run() error {
	events := make([]syscall.EpollEvent, batch)
	for {
		n, err := syscall.EpollWait(l.epfd, events, -1)
		if err != nil && !errors.Is(err, syscall.EINTR) {
			return fmt.Errorf("wait for parked connections: %w", err)
		}
		for i := range max(n, 0) {
			if events[i].Fd == -1 {
				return nil
			}
			if s := l.find(&events[i]); s != nil {
				s.Wake()
			}
		}
	}
}

// Stop ends Run. Connections that are still parked are woken by nobody.
func (l *Lot) Stop() { _, _ = l.bell.Write([]byte{0}) }

// Close frees the set, after Run has returned.
func (l *Lot) Close() error {
	return errors.Join(syscall.Close(l.epfd), l.ear.Close(), l.bell.Close())
}
