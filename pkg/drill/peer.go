package drill

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

const (
	dialLimit = 2 * time.Second
	stepLimit = 3 * time.Second // of a step of the handshake
)

// peer is a raw connection to a node that keeps to the rules only as far as its
// method says.
type peer struct {
	net.Conn
	in     *bufio.Reader
	frames []*clientv1.ServerFrame // read and not looked at
}

// reach opens a connection and does nothing more.
func reach(ctx context.Context, address string) (*peer, error) {
	d := net.Dialer{Timeout: dialLimit}
	c, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	return &peer{Conn: c, in: bufio.NewReaderSize(c, 512)}, nil
}

// upgrade makes a WebSocket of it.
func (p *peer) upgrade() error {
	_ = p.SetDeadline(time.Now().Add(stepLimit))
	if _, err := fmt.Fprintf(p, "GET /v1/ws HTTP/1.1\r\nHost: drill\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"+
		"Sec-WebSocket-Key: ZHJpbGwtZHJpbGwtZHJpbA==\r\nSec-WebSocket-Protocol: %s\r\n\r\n", protocol.JSON.Subprotocol()); err != nil {
		return err
	}
	res, err := http.ReadResponse(p.in, nil)
	if err != nil {
		return err
	}
	if res.StatusCode != http.StatusSwitchingProtocols {
		return fmt.Errorf("no upgrade: %s", res.Status)
	}
	return p.SetDeadline(time.Time{})
}

// login says hello and waits for the first bytes of the answer.
func (p *peer) login(token, device string) error {
	hello, err := protocol.AppendFrame(nil, protocol.JSON, &clientv1.ClientFrame{Id: 1, Kind: &clientv1.ClientFrame_Hello{Hello: &clientv1.Hello{
		Version: protocol.Version, Token: token, DeviceId: device, Class: "phone", Client: "imd-drill"}}})
	if err != nil {
		return err
	}
	_ = p.SetDeadline(time.Now().Add(stepLimit))
	if _, err := p.Write(message(true, opText, hello)); err != nil {
		return err
	}
	if _, err := p.in.Peek(1); err != nil {
		return err
	}
	return p.SetDeadline(time.Time{})
}

// enter says hello and waits for the answer; "" = it is let in, else why not.
func (p *peer) enter(token, device string) (refused string, err error) {
	if err := p.login(token, device); err != nil {
		return "", err
	}
	_ = p.SetDeadline(time.Now().Add(stepLimit))
	for {
		frame, err := p.frame()
		switch {
		case err != nil:
			return "", err
		case frame.GetWelcome() != nil:
			return "", p.SetDeadline(time.Time{})
		case frame.GetBye() != nil:
			return frame.GetBye().GetReason(), nil
		}
	}
}

// stay answers what wants an answer until the session ends, and says why it did; "" =
// nobody said so.
func (p *peer) stay() (why string) {
	for {
		frame, err := p.frame()
		switch {
		case err != nil:
			return why
		case frame.GetBye() != nil:
			why = frame.GetBye().GetReason()
		case frame.GetPing() != nil:
			pong, err := protocol.AppendFrame(nil, protocol.JSON, &clientv1.ClientFrame{Kind: &clientv1.ClientFrame_Pong{Pong: &clientv1.Pong{}}})
			if err == nil {
				_, _ = p.Write(message(true, opText, pong)) // a dead connection is seen by the reader
			}
		}
	}
}

// leave ends the session as a device does.
func (p *peer) leave() { _, _ = p.Write(message(true, opClose, []byte{0x03, 0xe8})) }

// frame reads the next frame. Frames that come together are read one by one.
func (p *peer) frame() (*clientv1.ServerFrame, error) {
	for len(p.frames) == 0 {
		op, payload, err := p.read()
		if err != nil {
			return nil, err
		}
		switch op {
		case opClose:
			return nil, io.EOF
		case opPing:
			_, _ = p.Write(message(true, opPong, payload)) // as above
		case opText:
			err = protocol.DecodeServerEnvelope(protocol.JSON, payload, protocol.ClientLimits(), func(f *clientv1.ServerFrame) error {
				p.frames = append(p.frames, f)
				return nil
			})
			if err != nil {
				return nil, err
			}
		}
	}
	f := p.frames[0]
	p.frames = p.frames[1:]
	return f, nil
}

// read reads a WebSocket message as servers send it, in one piece.
func (p *peer) read() (op byte, payload []byte, err error) {
	var head [2]byte
	if _, err := io.ReadFull(p.in, head[:]); err != nil {
		return 0, nil, err
	}
	length := uint64(head[1] & 0x7f)
	for n := map[uint64]int{126: 2, 127: 8}[length]; n > 0; {
		more := make([]byte, n)
		if _, err := io.ReadFull(p.in, more); err != nil {
			return 0, nil, err
		}
		length, n = 0, 0
		for _, b := range more {
			length = length<<8 | uint64(b)
		}
	}
	if length > protocol.ClientReadLimit {
		return 0, nil, fmt.Errorf("a message of %d bytes", length)
	}
	payload = make([]byte, length)
	_, err = io.ReadFull(p.in, payload)
	return head[0] & 0x0f, payload, err
}

// member opens a connection and logs in.
func member(ctx context.Context, address, token string) (*peer, error) {
	p, err := reach(ctx, address)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(p.upgrade(), p.login(token, "drill-"+uuid.NewString())); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

// Opcodes of WebSocket messages.
const (
	opContinue = 0
	opText     = 1
	opClose    = 8
	opPing     = 9
	opPong     = 10
)

// message is a WebSocket frame as clients send it, under a mask of zeros.
func message(final bool, op byte, payload []byte) []byte {
	if final {
		op |= 0x80
	}
	b := []byte{op}
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

// garbage is one of the things that a peer must not say.
func garbage(rng *rand.Rand) []byte {
	switch rng.IntN(9) {
	case 0: // a length nobody can mean
		return append([]byte{0x81, 0xff, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, 0, 0, 0, 0, 'x')
	case 1: // no end of fragments
		b := message(false, opText, []byte("{"))
		for range 20_000 {
			b = append(b, message(false, opContinue, []byte(" "))...)
		}
		return b
	case 2: // a control frame that is too long
		return message(true, opPing, make([]byte, 200))
	case 3: // a reserved bit
		return []byte{0xf1, 0x80, 0, 0, 0, 0}
	case 4: // a message above the limit
		return message(true, opText, []byte(strings.Repeat(" ", 200_000)))
	case 5: // nesting without end
		return message(true, opText, []byte(`{"send":`+strings.Repeat(`{"a":[`, 30_000)))
	case 6: // no text
		return message(true, opText, []byte{0xc3, 0x28, 0xff})
	case 7: // many small questions
		var b []byte
		for range 5_000 {
			b = append(b, message(true, opPing, []byte("?"))...)
		}
		return b
	default: // noise
		b := make([]byte, 1+rng.IntN(4000))
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		return b
	}
}

// misbehave says what must not be said, at some step of the handshake, and
// waits until the node has had enough.
func misbehave(ctx context.Context, rng *rand.Rand, address, token string) {
	p, err := reach(ctx, address)
	if err != nil {
		return
	}
	defer p.Close()
	defer context.AfterFunc(ctx, func() { p.Close() })()
	if step := rng.IntN(4); step > 0 {
		if p.upgrade() != nil {
			return
		}
		if step > 1 && p.login(token, "hostile") != nil {
			return
		}
	}
	_ = p.SetDeadline(time.Now().Add(stepLimit))
	said := garbage(rng)
	done := make(chan struct{})
	go func() { // both ways at once, else both sides wait for each other
		defer close(done)
		_, _ = p.Write(said)
	}()
	_, _ = io.Copy(io.Discard, p.in)
	<-done
}
