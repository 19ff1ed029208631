package gateway

import (
	"encoding/binary"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/imdhq/imd/pkg/testenv"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// onSocket is a queue on a real socket with small buffers, and its other end.
func onSocket(t *testing.T, wg *sync.WaitGroup) (*queue, net.Conn) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	client, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	c, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(); _ = client.Close() })
	_ = c.(*net.TCPConn).SetWriteBuffer(64 << 10)
	_ = client.(*net.TCPConn).SetReadBuffer(64 << 10)
	raw, plain := rawOf(c)
	if !plain {
		t.Fatal("a TCP connection cannot be written to directly")
	}
	return &queue{cfg: &queueConfig{enc: protocol.Proto, frames: 1 << 20, bytes: 1 << 30, timeout: 10 * time.Second,
		m: newMetrics(prometheus.NewRegistry()), run: wg.Go, now: time.Now}, conn: c, raw: raw, lost: func(err error) { t.Error(err) }, room: func() {}}, client
}

// Frames that several write at once, in portions, to a socket that takes them
// now and then, arrive whole, each once, and those of each writer in order.
func TestFramesStayWholeAndInOrder(t *testing.T) {
	const writers, each = 4, 300
	var wg sync.WaitGroup
	q, client := onSocket(t, &wg)
	var writing sync.WaitGroup
	for w := range writers {
		writing.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(w), 1))
			for n := range each {
				data := make([]byte, 8+rng.IntN(1+rng.IntN(3)*rng.IntN(3000)))
				binary.BigEndian.PutUint32(data, uint32(w))
				binary.BigEndian.PutUint32(data[4:], uint32(n))
				q.deliver(outFrame{data: protocol.PrefixProto(data), kind: kindDeliver})
				if rng.IntN(3) > 0 || n == each-1 {
					q.flush()
				}
				if rng.IntN(20) == 0 {
					q.control([]byte{0x8a, 1, byte(n)})
				}
			}
		})
	}
	arrived, ended := 0, false
	var next [writers]int
	rng := rand.New(rand.NewPCG(9, 9))
	slow := &pausing{Reader: client, rng: rng}
	for {
		op, payload, err := readUnit(slow)
		if err != nil {
			t.Fatal(err)
		}
		if op == opClose {
			break
		}
		for op == opBinary && len(payload) > 0 {
			n, size := binary.Uvarint(payload)
			frame := payload[size : size+int(n)]
			payload = payload[size+int(n):]
			w, k := binary.BigEndian.Uint32(frame), binary.BigEndian.Uint32(frame[4:])
			if int(k) != next[w] {
				t.Fatalf("frame %d of writer %d in place of %d", k, w, next[w])
			}
			next[w]++
			arrived++
		}
		if arrived == writers*each && !ended {
			ended = true
			writing.Wait()
			q.end(nil, 1000, "", false)
		}
	}
	for w, n := range next {
		if n != each {
			t.Errorf("%d frames of writer %d arrived", n, w)
		}
	}
	wg.Wait()
	if q.n != 0 || q.bytes != 0 || q.state != idle || q.waiting != nil || q.more != nil {
		t.Errorf("%d frames of %d bytes still count, state %d", q.n, q.bytes, q.state)
	}
}

// pausing reads a little at a time.
type pausing struct {
	io.Reader
	rng *rand.Rand
}

func (p *pausing) Read(b []byte) (int, error) {
	if p.rng.IntN(200) == 0 {
		time.Sleep(time.Duration(p.rng.IntN(3000)) * time.Microsecond)
	}
	return p.Reader.Read(b[:min(len(b), 1+p.rng.IntN(4000))])
}

// readUnit reads one WebSocket frame of a server.
func readUnit(r io.Reader) (op byte, payload []byte, err error) {
	head := make([]byte, 2)
	if _, err := io.ReadFull(r, head); err != nil {
		return 0, nil, err
	}
	n := uint64(head[1])
	ext := map[uint64]int{126: 2, 127: 8}[n]
	long := make([]byte, 8)
	if _, err := io.ReadFull(r, long[8-ext:]); err != nil {
		return 0, nil, err
	}
	if ext > 0 {
		n = binary.BigEndian.Uint64(long)
	}
	payload = make([]byte, n)
	_, err = io.ReadFull(r, payload)
	return head[0], payload, err
}

// Idle sockets are written to at once, without a goroutine, and all that was
// added before a flush leaves in one message.
func TestIdleSocketsAreWrittenToDirectly(t *testing.T) {
	var wg sync.WaitGroup
	q, client := onSocket(t, &wg)
	q.cfg.run = func(func()) { t.Error("a goroutine was started") }
	for range 3 {
		for range 5 {
			q.deliver(frameOf(100))
		}
		q.answer(frameOf(50))
		q.flush()
		op, payload, err := readUnit(client)
		if err != nil || op != opBinary || len(payload) != 550 {
			t.Fatalf("%x with %d bytes, %v", op, len(payload), err)
		}
	}
	q.flush() // nothing
	n := testing.AllocsPerRun(100, func() {
		q.deliver(outFrame{data: onePiece, kind: kindDeliver})
		q.flush()
		_, _ = io.ReadFull(client, swallowed)
	})
	if n > 0 && !raceEnabled {
		t.Errorf("%v allocations to write a frame", n)
	}
}

var (
	onePiece  = frameOf(100).data
	swallowed = make([]byte, 102)
)

// What a socket does not take is left to a goroutine, and comes first.
func TestWhatASocketDoesNotTake(t *testing.T) {
	var wg sync.WaitGroup
	q, client := onSocket(t, &wg)
	big := 2 << 20 // more than the kernel takes
	took := testenv.Took(func() {
		q.deliver(frameOf(big))
		q.flush()
		q.deliver(frameOf(100))
		q.flush()
	})
	if took > time.Second {
		t.Errorf("whoever flushed waited %v", took)
	}
	if q.fill() == 0 {
		t.Error("what has left in part does not count")
	}
	for _, want := range []int{big, 100} {
		if _, payload, err := readUnit(client); err != nil || len(payload) != want {
			t.Fatalf("%d bytes in place of %d, %v", len(payload), want, err)
		}
	}
	wg.Wait()
	if q.fill() != 0 || q.state != idle {
		t.Errorf("fill %v, state %d", q.fill(), q.state)
	}
	q.deliver(frameOf(100)) // directly again
	q.flush()
	if _, _, err := readUnit(client); err != nil {
		t.Error(err)
	}
}
