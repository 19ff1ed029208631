package gateway

import (
	"context"
	"errors"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// ears is how many sockets listen on the client port. The system keeps up to
// net.core.somaxconn connections for each until they are accepted, and what finds
// that full comes back by itself after one second or three.
const ears = 4

// listenWide takes an address with several sockets, among which the system spreads
// those who connect. The first takes it alone, so that a port in use is an error, and
// lets the others join then. Where they cannot, it listens alone.
func listenWide(ctx context.Context, address string) (net.Listener, error) {
	var lc net.ListenConfig
	first, err := lc.Listen(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	sc, ok := first.(syscall.Conn)
	if !ok {
		return first, nil
	}
	raw, err := sc.SyscallConn()
	if err != nil || share(raw) != nil {
		return first, nil
	}
	lc.Control = func(_, _ string, c syscall.RawConn) error { return share(c) }
	all := []net.Listener{first}
	for len(all) < ears {
		ln, err := lc.Listen(ctx, "tcp", first.Addr().String())
		if err != nil {
			break
		}
		all = append(all, ln)
	}
	return merge(all), nil
}

// share lets other sockets of this user listen on the same address.
func share(c syscall.RawConn) error {
	var set error
	err := c.Control(func(fd uintptr) { set = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1) })
	return errors.Join(err, set)
}
