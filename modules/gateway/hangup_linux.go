package gateway

import (
	"net"

	"golang.org/x/sys/unix"
)

// hungUp reports whether the other side has closed a connection, also if there are bytes
// before that which nobody has read: hello may be read long after its client has gone,
// where the process stood still.
func hungUp(c net.Conn) (over bool) {
	raw, _ := rawOf(c)
	if raw == nil {
		return false
	}
	err := raw.Control(func(fd uintptr) {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		n, err := unix.Poll(p, 0)
		over = err == nil && n > 0
	})
	return over || err != nil
}
