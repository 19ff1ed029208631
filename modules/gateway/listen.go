package gateway

import (
	"errors"
	"net"
	"sync"
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

// accept passes on what comes to one of the listeners. It stops at its end, not at
// an error that may go away.
func (m *merged) accept(ln net.Listener) {
	for {
		c, err := ln.Accept()
		select {
		case m.came <- accepted{c, err}:
		case <-m.done:
			if err == nil {
				_ = c.Close()
			}
			return
		}
		if errors.Is(err, net.ErrClosed) {
			return
		}
	}
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
