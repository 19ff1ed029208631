package gateway

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/obs"
)

const (
	// yieldFiles is how many the yielders of the engine and of bulk have open at most.
	yieldFiles = 2 * 2 * maxShards
	// storeFiles is how many the stores, and what else listens and calls, are sure of.
	storeFiles = 50
	// spareFiles is how many descriptors the process needs besides clients'.
	spareFiles = 2*storeFiles + yieldFiles
	// filesLook is how often the limit of open files is looked at.
	filesLook = time.Second
)

// sockets counts the connections of the HTTP server that are not upgraded, and of
// those the ones that have not asked for anything yet: a request that is not whole
// is none. Safe for concurrent use.
type sockets struct {
	mostSilent, mostAddress int
	exempt                  func(netip.Addr) bool

	mu     sync.Mutex
	most   int // that may be open, upgraded or not
	plain  int
	silent map[net.Conn]netip.Addr
	byAddr map[netip.Addr]int // of silent ones; never 0
}

// open counts a new one. upgraded is how many there are of the others. If there is
// no room for it, refused says so for the metrics, and it is to be closed; that it
// was must be told to close all the same.
func (s *sockets) open(c net.Conn, upgraded int) (refused string) {
	addr := addrOf(c)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.plain++
	switch {
	case s.plain+upgraded > s.most: // it would take descriptors that the stores need
		return "no_files"
	case len(s.silent) >= s.mostSilent:
		return "silent_full"
	case s.byAddr[addr] >= s.mostAddress && !s.exempt(addr):
		return "address_full"
	}
	s.silent[c] = addr
	s.byAddr[addr]++
	return ""
}

// addrOf is the address at the other end of a connection; invalid if it has none.
func addrOf(c net.Conn) netip.Addr {
	if a, ok := c.RemoteAddr().(*net.TCPAddr); ok {
		return a.AddrPort().Addr().Unmap().WithZone("")
	}
	return parseAddr(c.RemoteAddr().String())
}

// heard notes that a connection has asked for something. silent = it had not
// before.
func (s *sockets) heard(c net.Conn) (silent bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hear(c)
}

// hear is heard for those who hold s.mu.
func (s *sockets) hear(c net.Conn) bool {
	addr, silent := s.silent[c]
	if !silent {
		return false
	}
	delete(s.silent, c)
	if s.byAddr[addr]--; s.byAddr[addr] <= 0 {
		delete(s.byAddr, addr)
	}
	return true
}

// close counts one less: it has ended, or is upgraded. silent = it never asked for
// anything.
func (s *sockets) close(c net.Conn) (silent bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.plain--
	return s.hear(c)
}

// waits is how many are not upgraded.
func (s *sockets) waits() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.plain
}

// setMost sets how many may be open in all.
func (s *sockets) setMost(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.most = n
}

// socketKey finds the connection of a request in its context.
type socketKey struct{}

// withSocket puts the connection into the context of its requests.
func withSocket(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, socketKey{}, c)
}

// heard notes that the connection of a context has asked for something.
func (g *Gateway) heard(ctx context.Context) {
	if c, ok := ctx.Value(socketKey{}).(net.Conn); ok {
		g.sockets.heard(c)
	}
}

// follow follows the sockets of the HTTP server, as its ConnState.
func (g *Gateway) follow(c net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		if refused := g.sockets.open(c, g.admission.count()); refused != "" {
			g.m.handshakes.WithLabelValues(refused).Inc()
			_ = c.Close()
		}
	case http.StateHijacked: // admission counts it from now on
		g.sockets.close(c)
	case http.StateClosed:
		t, secure := c.(*tls.Conn)
		if g.sockets.close(c) && secure && !t.ConnectionState().HandshakeComplete {
			g.m.handshakes.WithLabelValues("tls").Inc()
		}
	}
}

// doorstep is the public listener. It tells when the process may open no more
// files, which the HTTP server only waits out.
type doorstep struct {
	net.Listener
	full func(error)
}

// Accept takes the next connection.
func (d doorstep) Accept() (net.Conn, error) {
	c, err := d.Listener.Accept()
	if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) {
		d.full(err)
	}
	return c, err
}

// noFiles counts that no connection could be taken.
func (g *Gateway) noFiles(err error) {
	g.m.handshakes.WithLabelValues("no_files").Inc()
	if now := time.Now(); now.Sub(g.toldFiles) > time.Minute { // Accept is called by one goroutine
		g.toldFiles = now
		g.Log.Error("no connections are taken: the process may open no more files", obs.Err(err))
	}
}

// raiseFileLimit raises the soft limit of open files to the hard one and
// returns what holds then.
func raiseFileLimit() (uint64, error) {
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		return 0, err
	}
	if l.Cur < l.Max {
		raised := syscall.Rlimit{Cur: l.Max, Max: l.Max}
		if syscall.Setrlimit(syscall.RLIMIT_NOFILE, &raised) == nil {
			return raised.Cur, nil
		}
	}
	return l.Cur, nil
}

// fileLimit is how many files the process may open now.
func fileLimit() (uint64, error) {
	var l syscall.Rlimit
	err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l)
	return l.Cur, err
}

// setCeiling lets the process open as many files as it may and settles how many
// connections it takes. It says so if more are allowed than can be.
func (g *Gateway) setCeiling() {
	files, err := raiseFileLimit()
	if err != nil {
		g.Log.Warn("the limit of open files is not known", obs.Err(err))
		files = 1 << 10
	}
	g.files = files
	if most := g.ceiling(files); g.cfg.MaxConnections > most {
		g.Log.Warn("more connections are allowed than the process may open files; raise LimitNOFILE or lower gateway.max_connections",
			zap.Int("max_connections", g.cfg.MaxConnections), zap.Uint64("open_files", files), zap.Int("taken_at_most", most))
	}
}

// ceiling puts in force, and returns, how many connections are taken if the
// process may open so many files.
func (g *Gateway) ceiling(files uint64) int {
	open := int(min(files, 10_000_000))
	most := max(open-spareFiles, open/4) // with few files, each side has its share
	if g.cfg.MaxConnections > 0 {
		most = min(most, g.cfg.MaxConnections)
	}
	g.admission.setMost(most)
	if g.Capacity != nil {
		g.Capacity(most)
	}
	g.sockets.setMost(max(open-storeFiles-yieldFiles, open/2))
	return most
}

// followFiles keeps to the limit of open files, which others may change while the
// process runs.
func (g *Gateway) followFiles(ctx context.Context) {
	tick := time.NewTicker(filesLook)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		files, err := fileLimit()
		if err != nil || files == g.files {
			continue
		}
		g.Log.Warn("the limit of open files was changed", zap.Uint64("before", g.files), zap.Uint64("now", files), zap.Int("connections_at_most", g.ceiling(files)))
		g.files = files
	}
}
