package requirements

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/imdhq/imd/pkg/testenv"
)

// rawConn is a WebSocket connection without a library, for what one would not
// write.
type rawConn struct {
	net.Conn
	br *bufio.Reader
}

// dialFrom connects from an address of this machine; "" = any.
func dialFrom(t *testing.T, n *testenv.Node, address string) net.Conn {
	t.Helper()
	d := net.Dialer{Timeout: testenv.Patience}
	if address != "" {
		d.LocalAddr = &net.TCPAddr{IP: net.ParseIP(address)}
	}
	c, err := d.DialContext(t.Context(), "tcp", n.Endpoints().Public)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// handshake asks for a WebSocket connection and returns the status.
func handshake(t *testing.T, c net.Conn, header string) (*rawConn, int) {
	t.Helper()
	fmt.Fprintf(c, "GET /v1/ws HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"+
		"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: imd.v1.json\r\n%s\r\n", header)
	br := bufio.NewReader(c)
	_ = c.SetReadDeadline(time.Now().Add(testenv.Patience))
	res, err := http.ReadResponse(br, nil)
	if err != nil {
		t.Fatal(err)
	}
	return &rawConn{c, br}, res.StatusCode
}

// deviceNumber names devices, so that no session takes another's place.
var deviceNumber atomic.Int64

// rawUpgradeFrom opens a connection from an address of this machine, "" = any, and
// writes hello.
func rawUpgradeFrom(t *testing.T, n *testenv.Node, address, token string) *rawConn {
	t.Helper()
	c, status := handshake(t, dialFrom(t, n, address), "")
	if status != http.StatusSwitchingProtocols {
		t.Fatalf("the upgrade is answered with %d", status)
	}
	_, _ = c.Write(wsFrame(true, 1, fmt.Appendf(nil, `{"id":1,"hello":{"version":1,"token":"%s","deviceId":"r%d"}}`, token, deviceNumber.Add(1))))
	return c
}

// rawUpgrade is rawUpgradeFrom any address.
func rawUpgrade(t *testing.T, n *testenv.Node, token string) *rawConn {
	t.Helper()
	return rawUpgradeFrom(t, n, "", token)
}

// wsFrame is a WebSocket frame with a mask of zeros.
func wsFrame(fin bool, op byte, payload []byte) []byte {
	b := []byte{op}
	if fin {
		b[0] |= 0x80
	}
	switch n := len(payload); {
	case n < 126:
		b = append(b, 0x80|byte(n))
	case n < 1<<16:
		b = binary.BigEndian.AppendUint16(append(b, 0x80|126), uint16(n))
	default:
		b = binary.BigEndian.AppendUint64(append(b, 0x80|127), uint64(n))
	}
	return append(append(b, 0, 0, 0, 0), payload...)
}

// limitReads makes what reads from a connection fail once a limit is over, which goes
// by as a testenv.Limit does, until stop is called; afterwards they have no limit.
func limitReads(c net.Conn, limit time.Duration) (stop func()) {
	_ = c.SetReadDeadline(time.Time{}) // of a former limit
	stopping, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for l := testenv.NewLimit(limit); !l.Over(); {
			select {
			case <-stopping:
				return
			case <-time.After(100 * time.Millisecond):
			}
		}
		_ = c.SetReadDeadline(time.Now()) // it may be closed
	}()
	return func() {
		close(stopping)
		<-stopped
		_ = c.SetReadDeadline(time.Time{})
	}
}

// closeCode reads until the connection ends and returns the close code; 0 = it
// was cut without one, -1 = it is still open after limit, in the time of a
// testenv.Limit.
func (c *rawConn) closeCode(limit time.Duration) int {
	defer limitReads(c, limit)()
	for {
		op, payload, err := c.frame()
		switch {
		case err != nil:
			var ne net.Error
			if errors.As(err, &ne) && ne.Timeout() {
				return -1
			}
			return 0
		case op == 8 && len(payload) < 2:
			return 1005
		case op == 8:
			return int(binary.BigEndian.Uint16(payload))
		}
	}
}

// frame reads one WebSocket frame.
func (c *rawConn) frame() (op byte, payload []byte, err error) {
	head := make([]byte, 2, 10)
	if _, err := io.ReadFull(c.br, head); err != nil {
		return 0, nil, err
	}
	n := uint64(head[1] & 127)
	if n >= 126 {
		ext := make([]byte, map[uint64]int{126: 2, 127: 8}[n])
		if _, err := io.ReadFull(c.br, ext); err != nil {
			return 0, nil, err
		}
		n = 0
		for _, b := range ext {
			n = n<<8 | uint64(b)
		}
	}
	payload = make([]byte, n)
	_, err = io.ReadFull(c.br, payload)
	return head[0] & 15, payload, err
}
