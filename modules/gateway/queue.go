package gateway

import (
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/imdhq/imd/pkg/failpoint"
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

// queueConfig is what all queues of an encoding have in common.
type queueConfig struct {
	enc     protocol.Encoding
	frames  int
	bytes   int
	timeout time.Duration // of one write
	m       *metrics
	run     func(func()) // starts a goroutine that the gateway waits for
	now     func() time.Time
}

// outState says who may call the socket. It is decided under the queue's lock
// before any call, because a call may be stuck on a client that does not read.
//
//	idle --flush--> writing --all has left--> idle
//	idle, writing --the socket takes no more, or more waits--> queued --> idle
type outState uint8

const (
	idle    outState = iota
	writing          // somebody tries one write that does not wait
	queued           // a goroutine writes, and waits where it must
)

// queue is the way out of one connection. Frames leave in order, and all that
// wait leave in one message. Adding a frame writes nothing: whoever has added
// some calls flush once its locks are free. Nothing here blocks but the
// goroutine that writes while the socket takes no more. Safe for concurrent use.
type queue struct {
	cfg  *queueConfig
	conn net.Conn
	raw  syscall.RawConn // of a socket that can be written to directly; nil = always by a goroutine
	lost func(error)     // a write failed or took too long; called at most once
	room func()          // called after a write if askRoom was

	due   atomic.Bool   // something waits and flush has not looked yet
	turns atomic.Uint32 // how often due became true

	mu       sync.Mutex
	state    outState
	ending   bool // no more frames are taken
	corked   bool // what is added waits for uncork
	failed   bool // the socket cannot be written to any more
	wantRoom bool
	n, bytes int // frames and bytes that wait or are being written
	waiting  []outFrame
	one      [1]outFrame // what waiting usually needs
	more     *more       // nil = nothing
	last     *lastWords  // nil = it does not end
}

// lastWords is how a queue ends.
type lastWords struct {
	frame []byte        // the close frame; nil = it has left
	by    time.Time     // until when
	empty chan struct{} // closed when everything has left; made by end
}

// more is what a queue seldom has to keep.
type more struct {
	heads     map[string]int64
	headOrder []string
	pong      []byte     // answer to the newest WebSocket ping
	rest      []byte     // of a message that has left in part
	begun     []outFrame // its frames
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

// waits is how many bytes wait or are being written.
func (q *queue) waits() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.bytes
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
	full = q.n >= frames || q.bytes+len(f.data) > bytes && q.n > 0
	if full && !failpoint.Bad(failpoint.UnboundedQueue) {
		return true
	}
	q.add(f)
	return false
}

// add puts a frame behind those that wait; q.mu is held.
func (q *queue) add(f outFrame) {
	if q.waiting == nil {
		q.waiting = q.one[:0]
	}
	q.waiting = append(q.waiting, f)
	q.n++
	q.bytes += len(f.data)
	q.look()
}

// look makes the next flush look; q.mu is held. Who is writing looks by itself.
func (q *queue) look() {
	if q.state == idle && !q.due.Swap(true) {
		q.turns.Add(1)
	}
}

// besides is where the rarer things are kept; q.mu is held.
func (q *queue) besides() *more {
	if q.more == nil {
		q.more = &more{}
	}
	return q.more
}

// head queues a hint that a conversation has entries up to seq. Hints for one
// conversation that wait at once become one.
func (q *queue) head(conv string, seq int64) (full bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.ending {
		return false
	}
	m := q.besides()
	old, there := m.heads[conv]
	if !there {
		if len(m.heads) >= maxHeads {
			return true
		}
		if m.heads == nil {
			m.heads = make(map[string]int64)
		}
		m.headOrder = append(m.headOrder, conv)
	}
	m.heads[conv] = max(old, seq)
	q.look()
	return false
}

// control takes a control frame of the WebSocket library: a pong, of which
// only the newest counts, or a close, after which nothing follows. It flushes.
func (q *queue) control(frame []byte) {
	defer q.flush()
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.ending || len(frame) == 0 {
		return
	}
	if frame[0] == opClose {
		q.finish(append([]byte(nil), frame...))
		return
	}
	m := q.besides()
	m.pong = append(m.pong[:0], frame...)
	q.look()
}

// cork keeps back what is added from now on, so that it leaves in one message with
// what comes before uncork.
func (q *queue) cork() {
	q.mu.Lock()
	q.corked = true
	q.mu.Unlock()
}

// uncork lets the next flush write again.
func (q *queue) uncork() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.corked {
		q.corked = false
		q.look()
	}
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
// return the channel. It flushes.
func (q *queue) end(last []byte, code int, reason string, purge bool) <-chan struct{} {
	q.mu.Lock()
	if !q.ending {
		if purge {
			q.drop()
		}
		if last != nil {
			q.add(outFrame{data: last, kind: kindBye})
		}
		q.finish(closeFrame(code, reason))
	}
	l := q.lastWords()
	if l.empty == nil {
		l.empty = make(chan struct{})
		if q.failed || q.state == idle && l.frame == nil {
			close(l.empty)
		}
	}
	empty := l.empty
	q.mu.Unlock()
	q.flush()
	return empty
}

// finish marks the end; q.mu is held.
func (q *queue) finish(frame []byte) {
	l := q.lastWords()
	q.ending = true
	l.frame, l.by = frame, q.cfg.now().Add(lastWrites)
	_ = q.conn.SetWriteDeadline(l.by) // also of a write under way
	q.look()
}

// lastWords is how the queue ends; q.mu is held.
func (q *queue) lastWords() *lastWords {
	if q.last == nil {
		q.last = &lastWords{}
	}
	return q.last
}

// drop forgets everything that waits; q.mu is held. What is being written
// still counts.
func (q *queue) drop() {
	for _, f := range q.waiting {
		q.n--
		q.bytes -= len(f.data)
	}
	q.release()
	if q.more != nil {
		q.more.heads, q.more.headOrder = nil, nil
	}
}

// release frees the memory of frames that wait no more; q.mu is held.
func (q *queue) release() {
	clear(q.waiting)
	q.waiting, q.one[0] = nil, outFrame{}
}

// nothing reports whether nothing waits to be written; q.mu is held.
func (q *queue) nothing() bool {
	return len(q.waiting) == 0 && (q.last == nil || q.last.frame == nil) &&
		(q.more == nil || len(q.more.headOrder) == 0 && len(q.more.pong) == 0 && len(q.more.rest) == 0)
}
