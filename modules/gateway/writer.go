package gateway

import (
	"encoding/binary"
	"errors"
	"sync"
	"syscall"
	"time"

	"github.com/imdhq/imd/pkg/failpoint"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// parcel is a message on its way to the socket, with what is needed to write
// it. They are shared by all connections and used again.
type parcel struct {
	buf    []byte
	start  int // where the message begins in buf
	frames []outFrame

	n   int // of one write
	err error
	try func(fd uintptr) bool // writes once, and never waits
}

var parcels = sync.Pool{New: func() any {
	p := &parcel{buf: make([]byte, 0, 4096)}
	p.try = func(fd uintptr) bool {
		p.n, p.err = syscall.Write(int(fd), p.data())
		return true
	}
	return p
}}

// data is the message.
func (p *parcel) data() []byte { return p.buf[p.start:] }

// put gives the parcel back.
func (p *parcel) put() {
	clear(p.frames)
	p.buf, p.frames = p.buf[:0], p.frames[:0]
	if cap(p.buf) <= 2*protocol.ServerEnvelope && cap(p.frames) <= 1024 {
		parcels.Put(p)
	}
}

// flush lets leave what was added. It writes once if nobody else does and the
// socket can be written to directly; what the socket does not take, and what
// was added meanwhile, is left to a goroutine.
func (q *queue) flush() {
	if !q.due.Load() {
		return
	}
	q.mu.Lock()
	q.due.Store(false)
	if q.state != idle || q.failed || q.corked && !q.ending || q.nothing() {
		q.mu.Unlock()
		return
	}
	// A fail point may take its time, which whoever flushes has not.
	if q.raw == nil || failpoint.Built {
		q.startWriter()
		q.mu.Unlock()
		return
	}
	q.state = writing
	p := parcels.Get().(*parcel)
	q.load(p)
	q.mu.Unlock()
	n, err := q.writeOnce(p)

	q.mu.Lock()
	defer q.mu.Unlock()
	defer p.put()
	switch {
	case err != nil:
		q.fail(err)
	case n < len(p.data()):
		m := q.besides()
		m.rest = append([]byte(nil), p.data()[n:]...)
		m.begun = append([]outFrame(nil), p.frames...)
		q.startWriter()
	default:
		q.wrote(p.frames)
		if q.nothing() {
			q.settle()
			return
		}
		q.startWriter()
	}
}

// writeOnce writes what the socket takes now, which may be nothing. An error
// means that it will never take any more.
func (q *queue) writeOnce(p *parcel) (n int, err error) {
	p.n, p.err = 0, nil
	if err := q.raw.Write(p.try); err != nil {
		return 0, err
	}
	if p.err != nil && !errors.Is(p.err, syscall.EAGAIN) && !errors.Is(p.err, syscall.EINTR) {
		return 0, p.err
	}
	return max(p.n, 0), nil
}

// startWriter starts the goroutine that writes; q.mu is held.
func (q *queue) startWriter() {
	q.state = queued
	q.cfg.run(q.write)
}

// write writes until nothing waits.
func (q *queue) write() {
	p := parcels.Get().(*parcel)
	for q.step(p) {
	}
	p.put()
}

// step writes one message; false = nothing waits, or the socket is gone.
func (q *queue) step(p *parcel) bool {
	q.mu.Lock()
	if q.nothing() {
		if !q.ending {
			_ = q.conn.SetWriteDeadline(time.Time{}) // a direct write would fail for one that has passed
		}
		q.settle()
		q.mu.Unlock()
		return false
	}
	q.load(p)
	deadline := q.cfg.now().Add(q.cfg.timeout)
	if q.ending {
		deadline = q.lastWords().by
	}
	_ = q.conn.SetWriteDeadline(deadline)
	q.mu.Unlock()

	failpoint.Hit(failpoint.BeforeWrite)
	_, err := q.conn.Write(p.data())

	q.mu.Lock()
	defer q.mu.Unlock()
	if err != nil {
		q.fail(err)
		return false
	}
	q.wrote(p.frames)
	return true
}

// settle ends writing because nothing waits; q.mu is held. An idle connection
// keeps no memory for it.
func (q *queue) settle() {
	q.state = idle
	q.release()
	q.more = nil
	q.tellEmpty()
}

// fail ends writing for good; q.mu is held. Half a message may have left, so
// the socket is of no use.
func (q *queue) fail(err error) {
	q.state, q.failed = idle, true
	q.drop()
	told := q.ending
	q.ending = true
	q.cfg.run(func() { // not here: lost takes the session's lock
		if !told {
			q.lost(err)
		}
		_ = cut(q.conn) // ends the reader, so that it comes last
	})
	q.tellEmpty()
}

// tellEmpty closes the channel that end has returned; q.mu is held.
func (q *queue) tellEmpty() {
	if !q.ending || q.last == nil || q.last.empty == nil {
		return
	}
	select {
	case <-q.last.empty:
	default:
		close(q.last.empty)
	}
}

// load moves what leaves next into the parcel: the rest of a message that has
// left in part, or the next message with the control frames behind it. q.mu is
// held.
func (q *queue) load(p *parcel) {
	if m := q.more; m != nil && len(m.rest) > 0 {
		p.buf, p.start = append(p.buf[:0], m.rest...), 0
		p.frames = append(p.frames[:0], m.begun...)
		m.rest, m.begun = nil, nil
		return
	}
	q.take(p)
	p.start = headerRoom
	if len(p.buf) > headerRoom {
		p.start = q.seal(p.buf)
	}
	q.addControl(p)
}

// take moves what fits into one message from the queue to the parcel, behind
// the room for its header. q.mu is held.
func (q *queue) take(p *parcel) {
	cut := protocol.ServerEnvelope
	if q.level() > 0.5 {
		cut = protocol.ServerEnvelopeLoaded
	}
	buf := append(p.buf[:0], make([]byte, headerRoom)...)
	i := 0
	for ; i < len(q.waiting); i++ {
		f := q.waiting[i]
		if i > 0 && len(buf)-headerRoom+len(f.data) > cut {
			break
		}
		buf = append(buf, f.data...)
	}
	p.frames = append(p.frames[:0], q.waiting[:i]...)
	clear(q.waiting[:i])
	q.waiting = q.waiting[i:]
	if len(q.waiting) == 0 {
		q.waiting = nil
		buf = q.takeHeads(buf, cut)
	}
	p.buf = buf
}

// takeHeads appends head hints; they go behind all frames.
func (q *queue) takeHeads(buf []byte, cut int) []byte {
	m := q.more
	if m == nil {
		return buf
	}
	i := 0
	for ; i < len(m.headOrder); i++ {
		conv := m.headOrder[i]
		next, err := protocol.AppendFrame(buf, q.cfg.enc, headFrame(conv, m.heads[conv]))
		if err == nil && len(next)-headerRoom > cut && len(buf) > headerRoom {
			break
		}
		if err == nil {
			q.cfg.m.out[kindHead].Inc()
			buf = next
		}
		delete(m.heads, conv)
	}
	m.headOrder = m.headOrder[i:]
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

// addControl puts a pong behind the message, and the close frame if nothing
// else waits.
func (q *queue) addControl(p *parcel) {
	if m := q.more; m != nil {
		p.buf = append(p.buf, m.pong...)
		m.pong = m.pong[:0]
		if len(m.headOrder) > 0 {
			return
		}
	}
	if q.last != nil && q.last.frame != nil && len(q.waiting) == 0 {
		p.buf = append(p.buf, q.last.frame...)
		q.last.frame = nil
		_ = q.conn.SetReadDeadline(q.cfg.now().Add(closeWait))
	}
}

// wrote accounts for what has left; q.mu is held.
func (q *queue) wrote(frames []outFrame) {
	var now int64
	for _, f := range frames {
		q.n--
		q.bytes -= len(f.data)
		q.cfg.m.out[f.kind].Inc()
		if f.commitNS != 0 {
			if now == 0 {
				now = time.Now().UnixNano()
			}
			q.cfg.m.deliver.Observe(float64(now-f.commitNS) / 1e9)
		}
	}
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

// helloBufferMost is how long a buffer of helloBuffers may have become.
const helloBufferMost = 4096

// buffers are message buffers, shared by all connections, and helloBuffers those of
// the first messages. These are short, and kept until the login has had its turn.
var (
	buffers      = sync.Pool{New: func() any { b := make([]byte, 0, 4096); return &b }}
	helloBuffers = sync.Pool{New: func() any { b := make([]byte, 0, 768); return &b }}
)
