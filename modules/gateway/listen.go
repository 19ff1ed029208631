package gateway

import (
	"errors"
	"net"
	"sync"
	"syscall"
	"time"
)

// merged is several listeners of one address as one.
type merged struct {
	all  []net.Listener
	came chan accepted
	done chan struct{}
	wg   sync.WaitGroup
	end  func() error
}

// accepted is what a listener said.
type accepted struct {
	c   net.Conn
	err error
}

// merge accepts from all of the listeners until the one that it returns is closed.
func merge(all []net.Listener) net.Listener {
	m := &merged{all: all, came: make(chan accepted), done: make(chan struct{})}
	m.end = sync.OnceValue(m.close)
	for _, ln := range all {
		m.wg.Go(func() { m.accept(ln) })
	}
	return m
}

// accept passes on what comes to one of the listeners. It stops at an error that does
// not go away; after others it rests, and what nobody has asked for by then is stale and
// is not told.
func (m *merged) accept(ln net.Listener) {
	var pause acceptRest
	for {
		c, err := ln.Accept()
		if err != nil && passes(err) {
			if !m.rest(err, pause.next()) {
				return
			}
			continue
		}
		pause = 0
		select {
		case m.came <- accepted{c, err}:
		case <-m.done:
			if err == nil {
				_ = c.Close()
			}
			return
		}
		if err != nil {
			return
		}
	}
}

// rest waits, and tells of an error if somebody asks meanwhile; false = the listener was
// closed.
func (m *merged) rest(err error, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	came := m.came
	for {
		select {
		case came <- accepted{err: err}:
			came = nil
		case <-timer.C:
			return true
		case <-m.done:
			return false
		}
	}
}

// passes reports whether an error of accepting may go away by itself, as when the system is
// short of something.
func passes(err error) bool {
	if errors.Is(err, syscall.ENOBUFS) || errors.Is(err, syscall.ENOMEM) {
		return true
	}
	var t interface{ Temporary() bool }
	return errors.As(err, &t) && t.Temporary()
}

// acceptPause is how long nothing is accepted after an error that may go away, at most.
const acceptPause = time.Second

// acceptRest is the last pause of errors one after the other; 0 = there was none.
type acceptRest time.Duration

// next is the pause after one more.
func (r *acceptRest) next() time.Duration {
	*r = min(max(2**r, acceptRest(5*time.Millisecond)), acceptRest(acceptPause))
	return time.Duration(*r)
}

// Accept is net.Listener's.
func (m *merged) Accept() (net.Conn, error) {
	select {
	case a := <-m.came:
		return a.c, a.err
	case <-m.done:
		return nil, net.ErrClosed
	}
}

// Addr is net.Listener's.
func (m *merged) Addr() net.Addr { return m.all[0].Addr() }

// Close is net.Listener's. It waits for nobody but its own goroutines.
func (m *merged) Close() error { return m.end() }

func (m *merged) close() error {
	close(m.done)
	var errs []error
	for _, ln := range m.all {
		errs = append(errs, ln.Close())
	}
	m.wg.Wait()
	return errors.Join(errs...)
}
