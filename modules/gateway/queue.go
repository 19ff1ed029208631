package gateway

import (
	"encoding/binary"
	"net"
	"sync"
	"time"

	"github.com/imdhq/imd/pkg/failpoint"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

const (
	// reserveFrames and reserveBytes are on top of the queue's bounds for what
	// answers the client: acks, results, pings, drain and bye. They cover all
	// answers that a connection can be owed at once.
	reserveFrames = 256
	reserveBytes  = 2 << 20
	// maxHeads is how many conversations can have a head hint waiting.
	maxHeads = 4096
	// lastWrites bounds what is still written once a connection ends.
	lastWrites = 2 * time.Second
	// closeWait is how long the client's own close is waited for.
	closeWait = time.Second
	// headerRoom is the longest header of a message from a server.
	headerRoom = 10
)

// Opcodes of WebSocket frames that end a message.
const (
	opText   = 0x81
	opBinary = 0x82
	opClose  = 0x88
)

// outFrame is one frame that waits for its connection.
type outFrame struct {
	data     []byte // ready to be concatenated; shared, read only
	kind     kind
	commitNS int64 // of the entry, for the delivery time; 0 = not measured
}

// queueConfig bounds a queue.
type queueConfig struct {
	enc     protocol.Encoding
	frames  int
	bytes   int
	timeout time.Duration // of one write
}

// queue is the way out of one connection. Frames leave in order, and all that
// wait leave in one message. A goroutine writes only while something waits.
// Nothing here blocks but that goroutine. Safe for concurrent use.
type queue struct {
	cfg  queueConfig
	conn net.Conn
	m    *metrics
	run  func(func()) // starts a goroutine that the gateway waits for
	lost func(error)  // a write failed or took too long; called at most once
	room func()       // called after a write if askRoom was
	now  func() time.Time

	mu         sync.Mutex
	waiting    []outFrame
	n, bytes   int // frames and bytes that wait or are being written
	heads      map[string]int64
	headOrder  []string
	pong       []byte // answer to the newest WebSocket ping
	closeFrame []byte
	wantRoom   bool
	writing    bool
	ending     bool // no more frames are taken
	failed     bool // the socket cannot be written to any more
	endBy      time.Time
	taken      []outFrame    // what is being written; the writer's own
	idle       chan struct{} // closed when ending and everything has left; made by end
}

// fill is how full the queue is, 0 to above 1.
func (q *queue) fill() float64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.level()
}

func (q *queue) level() float64 {
	return max(float64(q.n)/float64(q.cfg.frames), float64(q.bytes)/float64(q.cfg.bytes))
}

// deliver queues a frame that nobody asked for. full = it does not fit and the
// connection has to go.
func (q *queue) deliver(f outFrame) (full bool) {
	return q.push(f, q.cfg.frames, q.cfg.bytes)
}

// answer queues a frame that the client waits for, within the reserve.
func (q *queue) answer(f outFrame) (full bool) {
	return q.push(f, q.cfg.frames+reserveFrames, q.cfg.bytes+reserveBytes)
}

func (q *queue) push(f outFrame, frames, bytes int) (full bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.ending {
		return false
	}
	if q.n >= frames || q.bytes+len(f.data) > bytes && q.n > 0 {
		return true
	}
	q.waiting = append(q.waiting, f)
	q.n++
	q.bytes += len(f.data)
	q.wake()
	return false
}

// head queues a hint that a conversation has entries up to seq. Hints for one
// conversation that wait at once become one.
func (q *queue) head(conv string, seq int64) (full bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.ending {
		return false
	}
	old, there := q.heads[conv]
	if !there {
		if len(q.heads) >= maxHeads {
			return true
		}
		if q.heads == nil {
			q.heads = make(map[string]int64)
		}
		q.headOrder = append(q.headOrder, conv)
	}
	q.heads[conv] = max(old, seq)
	q.wake()
	return false
}

// control takes a control frame of the WebSocket library: a pong, of which
// only the newest counts, or a close, after which nothing follows.
func (q *queue) control(frame []byte) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.ending || len(frame) == 0 {
		return
	}
	if frame[0] == opClose {
		q.finish(append([]byte(nil), frame...))
		return
	}
	q.pong = append(q.pong[:0], frame...)
	q.wake()
}

// askRoom makes the next completed write call room.
func (q *queue) askRoom() {
	q.mu.Lock()
	q.wantRoom = true
	q.mu.Unlock()
}

// end writes last (may be nil) and a close frame with the code, then nothing
// more. purge drops what waits. The returned channel is closed when everything
// has left or cannot leave; that takes lastWrites at most. Later calls only
// return the channel.
func (q *queue) end(last []byte, code int, reason string, purge bool) <-chan struct{} {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.ending {
		if purge {
			q.drop()
		}
		if last != nil {
			q.waiting = append(q.waiting, outFrame{data: last, kind: kindBye})
			q.n++
			q.bytes += len(last)
		}
		q.finish(closeFrame(code, reason))
	}
	return q.idleChan()
}

// finish marks the end; q.mu is held.
func (q *queue) finish(frame []byte) {
	q.closeFrame = frame
	q.ending = true
	q.endBy = q.now().Add(lastWrites)
	_ = q.conn.SetWriteDeadline(q.endBy) // also of a write under way
	q.wake()
}

func (q *queue) idleChan() chan struct{} {
	if q.idle == nil {
		q.idle = make(chan struct{})
		if q.ending && !q.writing {
			close(q.idle)
		}
	}
	return q.idle
}

// drop forgets everything that waits; q.mu is held. What is being written
// still counts.
func (q *queue) drop() {
	for _, f := range q.waiting {
		q.n--
		q.bytes -= len(f.data)
	}
	q.waiting, q.heads, q.headOrder = nil, nil, nil
}

// wake starts the writer; q.mu is held.
func (q *queue) wake() {
	if q.writing || q.failed {
		return
	}
	q.writing = true
	q.run(q.write)
}

// buffers are message buffers, shared by all writers.
var buffers = sync.Pool{New: func() any { b := make([]byte, 0, 4096); return &b }}

// write writes until nothing waits.
func (q *queue) write() {
	buf := buffers.Get().(*[]byte)
	for q.step(buf) {
	}
	if cap(*buf) <= 2*protocol.ServerEnvelope {
		buffers.Put(buf)
	}
}

// step writes one message; false = nothing waits, or the socket is gone.
func (q *queue) step(buf *[]byte) bool {
	q.mu.Lock()
	data := q.take((*buf)[:0])
	start := headerRoom
	if len(data) > headerRoom {
		start = q.seal(data)
	}
	data, start = q.appendControl(data, start)
	if len(data) == start {
		q.rest(nil)
		q.mu.Unlock()
		return false
	}
	deadline := q.now().Add(q.cfg.timeout)
	if q.ending {
		deadline = q.endBy
	}
	_ = q.conn.SetWriteDeadline(deadline)
	q.mu.Unlock()
	*buf = data[:0]

	failpoint.Hit(failpoint.BeforeWrite)
	_, err := q.conn.Write(data[start:])

	q.mu.Lock()
	defer q.mu.Unlock()
	if err != nil {
		q.rest(err)
		return false
	}
	q.wrote()
	return true
}

// rest ends the writer; q.mu is held. After a failed write the socket is of no
// use: half a message may have left.
func (q *queue) rest(failed error) {
	q.writing = false
	if failed != nil {
		q.failed = true
		q.drop()
		told := q.ending
		q.ending = true
		q.run(func() { // not here: lost takes the session's lock
			if !told {
				q.lost(failed)
			}
			_ = q.conn.Close() // ends the reader, so that it comes last
		})
	}
	if len(q.waiting) == 0 {
		q.waiting, q.taken = nil, nil // an idle connection keeps no memory
		q.heads, q.headOrder = nil, nil
	}
	if q.ending && q.idle != nil {
		select {
		case <-q.idle:
		default:
			close(q.idle)
		}
	}
}

// take moves what fits into one message from the queue to buf, behind the room
// for its header. q.mu is held.
func (q *queue) take(buf []byte) []byte {
	cut := protocol.ServerEnvelope
	if q.level() > 0.5 {
		cut = protocol.ServerEnvelopeLoaded
	}
	buf = append(buf, make([]byte, headerRoom)...)
	i := 0
	for ; i < len(q.waiting); i++ {
		f := q.waiting[i]
		if i > 0 && len(buf)-headerRoom+len(f.data) > cut {
			break
		}
		buf = append(buf, f.data...)
	}
	q.taken = append(q.taken[:0], q.waiting[:i]...)
	clear(q.waiting[:i])
	q.waiting = q.waiting[i:]
	if len(q.waiting) == 0 {
		buf = q.takeHeads(buf, cut)
	}
	return buf
}

// takeHeads appends head hints; they go behind all frames.
func (q *queue) takeHeads(buf []byte, cut int) []byte {
	i := 0
	for ; i < len(q.headOrder); i++ {
		conv := q.headOrder[i]
		next, err := protocol.AppendFrame(buf, q.cfg.enc, headFrame(conv, q.heads[conv]))
		if err == nil && len(next)-headerRoom > cut && len(buf) > headerRoom {
			break
		}
		if err == nil {
			q.m.out[kindHead].Inc()
			buf = next
		}
		delete(q.heads, conv)
	}
	q.headOrder = q.headOrder[i:]
	return buf
}

// seal writes the message's header right in front of its payload and returns
// where it begins.
func (q *queue) seal(buf []byte) int {
	op := byte(opBinary)
	if q.cfg.enc == protocol.JSON {
		op = opText
	}
	n := len(buf) - headerRoom
	switch {
	case n < 126:
		buf[8], buf[9] = op, byte(n)
		return 8
	case n < 1<<16:
		buf[6], buf[7] = op, 126
		binary.BigEndian.PutUint16(buf[8:], uint16(n))
		return 6
	default:
		buf[0], buf[1] = op, 127
		binary.BigEndian.PutUint64(buf[2:], uint64(n))
		return 0
	}
}

// appendControl puts a pong behind the message, and the close frame if nothing
// else waits.
func (q *queue) appendControl(buf []byte, start int) ([]byte, int) {
	buf = append(buf, q.pong...)
	q.pong = q.pong[:0]
	if q.closeFrame != nil && len(q.waiting) == 0 && len(q.heads) == 0 {
		buf = append(buf, q.closeFrame...)
		q.closeFrame = nil
		_ = q.conn.SetReadDeadline(q.now().Add(closeWait))
	}
	return buf, start
}

// wrote accounts for what has left; q.mu is held.
func (q *queue) wrote() {
	var now int64
	for _, f := range q.taken {
		q.n--
		q.bytes -= len(f.data)
		q.m.out[f.kind].Inc()
		if f.commitNS != 0 {
			if now == 0 {
				now = time.Now().UnixNano()
			}
			q.m.deliver.Observe(float64(now-f.commitNS) / 1e9)
		}
	}
	clear(q.taken)
	q.taken = q.taken[:0]
	if q.wantRoom {
		q.wantRoom = false
		q.room()
	}
}

func headFrame(conv string, seq int64) *clientv1.ServerFrame {
	return &clientv1.ServerFrame{Kind: &clientv1.ServerFrame_Head{Head: &clientv1.Head{ConversationId: conv, Seq: seq}}}
}

// closeFrame builds a close frame as a server sends it.
func closeFrame(code int, reason string) []byte {
	const most = 123
	if len(reason) > most {
		reason = reason[:most]
	}
	b := append(make([]byte, 0, 4+len(reason)), opClose, byte(2+len(reason)))
	b = binary.BigEndian.AppendUint16(b, uint16(code))
	return append(b, reason...)
}
