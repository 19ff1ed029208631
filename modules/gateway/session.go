package gateway

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/coder/websocket"
	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/auth"
	"github.com/imdhq/imd/pkg/delivery"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/obs"
	"github.com/imdhq/imd/pkg/rate"
	"github.com/imdhq/imd/pkg/run"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// phase is where a connection stands. It only rises.
//
//	waiting --hello--> joining --welcome--> online
//	   any of them --bye, error, socket gone--> ended
type phase uint8

const (
	waiting phase = iota // no hello yet
	joining              // its hello is being looked at; deliveries are kept
	online
	ended
)

const (
	// maxEarly is how many deliveries are kept until the welcome; then they
	// become heads.
	maxEarly = 256
	// fullFill is how full a queue may be before reading requests stops and
	// deliveries become heads; calmFill is where deliveries begin again.
	fullFill = 0.75
	calmFill = 0.25
)

// errEnded ends the handling of an envelope whose session has ended.
var errEnded = errors.New("the session has ended")

// session is one connection, from the upgrade on. Its goroutine reads; others
// deliver to it, answer it and wake it.
type session struct {
	g      *Gateway
	wire   wire
	enc    protocol.Encoding
	addr   netip.Addr
	token  string       // of the Authorization header; "" = none
	claims *auth.Claims // of that token
	id     im.SessionID
	hash   uint32 // of id: its shard of the fan-out
	order  uint32 // of its hello among those of this node
	q      queue
	timer  timer
	done   chan struct{} // closed when the session ends
	resume chan struct{} // holds one: something was answered or written

	// The reader's own.
	bucket  rate.Bucket
	over    *overload // nil = nothing was refused
	pending bool      // counted as not authenticated
	resumed bool      // it has asked what it missed
	corked  bool      // welcome waits for the answer to a sync behind hello

	// Set by the reader before the session is registered; read only after.
	user      im.UserID
	login     im.LoginID
	device    im.DeviceID
	class     im.Class
	dataEpoch string
	issued    int64 // when its token was, in milliseconds since 1970; 0 = not told

	overtook atomic.Pointer[time.Time] // until when a hello that it overtook may displace it; nil = it overtook none
	stalled  atomic.Bool               // the reader waits for answers to leave
	reader   reader

	mu       door
	phase    phase
	helloBy  time.Time
	expires  time.Time
	place    place
	early    []*shared // deliveries before the welcome
	runs     run.Queue
	requests int // without an answer, other than sends
	unacked  delivery.Pending
	held     held // behind the window
	seen     delivery.Seen
	beat     heartbeat
	pull     bool
	leaving  bool // it was asked to move to another node
	// announced is set while the leader of the schedulers is to believe that the
	// session is there.
	announced bool
	wakeAt    time.Time // what the wheel was asked for; zero = nothing

	// The number of the last announcement that the client has, of which history of
	// the store; noAnnouncements = it wants none.
	announcedSeq   int64
	announcedEpoch string
}

// newSession makes the session of a connection that is about to be upgraded.
func newSession(g *Gateway, enc protocol.Encoding, addr netip.Addr) *session {
	now := g.tuned.Get()
	s := &session{
		g: g, enc: enc, addr: addr, id: newSessionID(),
		done: make(chan struct{}), resume: make(chan struct{}, 1),
		beat:    heartbeat{interval: now.pingInterval, timeout: now.pongTimeout},
		unacked: delivery.Pending{First: now.redeliverAfter, Most: now.redeliverCount, Jitter: jitter},
	}
	s.hash = uint32(xxhash.Sum64String(string(s.id)))
	s.timer.session = s
	s.mu.q = &s.q
	s.q = queue{cfg: g.queues[enc], lost: s.writeFailed, room: s.look}
	return s
}

// door is the lock of a session. Unlocking it lets leave what was queued
// meanwhile; unlocking its Mutex leaves that to the caller.
type door struct {
	sync.Mutex
	q *queue
}

// Unlock opens the door.
func (d *door) Unlock() {
	d.Mutex.Unlock()
	d.q.flush()
}

// attach gives the session its socket.
func (s *session) attach(c net.Conn) {
	raw, plain := rawOf(c)
	s.q.conn = c // the socket itself, not what the library sees
	if plain {
		s.q.raw = raw
	}
	if raw != nil {
		keepWaitingHere(raw)
	}
	s.reader.spot.Init(s.g.lot, raw, s)
}

// begin is the first goroutine of a session.
func (s *session) begin() {
	s.mu.Lock()
	s.helloBy = time.Now().Add(s.g.cfg.HelloTimeout)
	s.wakeLocked(s.helloBy)
	s.mu.Unlock()
	s.reader.anew = true
	s.serve()
}

// Wake goes on with a session that was parked.
func (s *session) Wake() {
	s.equip()
	s.reader.woken, s.reader.ponged = true, false
	s.serve()
}

// serve reads until the connection is parked or ends; then it frees everything.
func (s *session) serve() {
	if err := s.read(); !errors.Is(err, errLeft) {
		s.free(err)
	}
}

// read takes messages until the socket ends or the connection is parked. After
// the session's end it only waits for the client to close.
func (s *session) read() error {
	want := websocket.MessageBinary
	if s.enc == protocol.JSON {
		want = websocket.MessageText
	}
	for {
		if s.await() {
			return errLeft
		}
		// Without a context that can end: the library would start something for
		// each read. The wheel watches the time.
		typ, r, err := s.wire.side.ws.Reader(context.Background())
		if err != nil {
			return err
		}
		if !s.live() {
			_, err = io.Copy(io.Discard, r)
		} else if typ != want {
			s.closeWith("wrong_type", protocol.CloseWrongType, "this subprotocol has messages of the other type")
			_, err = io.Copy(io.Discard, r)
		} else {
			err = s.message(r)
		}
		if err != nil {
			return err
		}
	}
}

// live reports whether the session has not ended.
func (s *session) live() bool {
	select {
	case <-s.done:
		return false
	default:
		return true
	}
}

// begun reports whether the session has begun and not ended.
func (s *session) begun() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.phase == online
}

// message reads one envelope and handles its frames in order. It returns
// errors of the socket only.
func (s *session) message(r io.Reader) error {
	pool, most := &buffers, 2*protocol.MaxTextEnvelope
	if s.pending {
		pool, most = &helloBuffers, helloBufferMost
	}
	buf := pool.Get().(*[]byte)
	data, err := readAll(r, (*buf)[:0])
	*buf = data[:0]
	if cap(data) <= most {
		defer pool.Put(buf) // decoded frames share no memory with it
	}
	if err != nil {
		return err
	}
	err = protocol.DecodeClientEnvelope(s.enc, data, protocol.ServerLimits(s.enc), s.frame)
	if s.corked && !s.resumed { // nothing that welcome could wait for came behind hello
		s.uncork()
	}
	if fe := protocol.AsFrameError(err); fe != nil {
		switch fe.Fault {
		case protocol.BadText:
			s.closeWith("bad_text", protocol.CloseBadText, "not UTF-8")
		case protocol.TooLarge:
			s.closeWith("too_large", protocol.CloseTooBig, "message too large")
		default:
			s.end("bad_frame", fe.Detail, 0)
		}
	}
	return nil
}

// readAll is io.ReadAll into a buffer that is there already.
func readAll(r io.Reader, buf []byte) ([]byte, error) {
	for {
		if len(buf) == cap(buf) {
			buf = append(buf, 0)[:len(buf)]
		}
		n, err := r.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		if err == io.EOF {
			return buf, nil
		}
		if err != nil {
			return buf, err
		}
	}
}

// frame handles one frame. An error ends the envelope.
func (s *session) frame(f *clientv1.ClientFrame) error {
	s.g.m.in[kindOfClient(f)].Inc()
	if !s.live() {
		return errEnded
	}
	if s.pending && s.phaseNow() == waiting {
		s.hello(f)
		return nil
	}
	if _, sync := f.Kind.(*clientv1.ClientFrame_Sync); s.corked && (s.resumed || !sync) {
		s.uncork() // whoever asks for more wants to be answered as soon as can be
	}
	if !s.waitForRoom(takesRoom(f)) {
		return errEnded
	}
	now := time.Now()
	ok, wait := s.g.limits.frame(now, &s.bucket)
	if !ok {
		s.refused(now)
	}
	switch k := f.Kind.(type) {
	case *clientv1.ClientFrame_Send:
		s.send(now, f.Id, k.Send, ok, wait)
	case *clientv1.ClientFrame_Ack:
		s.ack(now, f.Id, k.Ack)
	case *clientv1.ClientFrame_Pong:
		s.reader.ponged = true
		return nil
	case *clientv1.ClientFrame_Typing:
		if ok { // else it is left out
			s.typing(now, f.Id, k.Typing)
		}
	case *clientv1.ClientFrame_Hello:
		s.end("bad_frame", "a second hello", 0)
	default:
		if !ok {
			s.g.m.limited.WithLabelValues("request").Inc()
			s.reply(errorFrame(f.Id, protocol.NewError("rate_limited", "", wait)))
			return nil
		}
		s.request(f)
	}
	s.reader.woken = false
	return nil
}

// corkTime is how long welcome may wait for the answer to the sync behind hello.
const corkTime = 50 * time.Millisecond

// uncork lets leave what was kept back.
func (s *session) uncork() {
	s.corked = false
	s.q.uncork()
	s.q.flush()
}

// pinged counts a WebSocket ping like a frame; false = above the rate, and it
// gets no pong.
func (s *session) pinged() bool {
	now := time.Now()
	ok, _ := s.g.limits.frame(now, &s.bucket)
	if !ok {
		s.refused(now)
	}
	return ok
}

func (s *session) phaseNow() phase {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.phase
}

// takesRoom reports whether the answer to a frame may be long.
func takesRoom(f *clientv1.ClientFrame) bool {
	switch f.Kind.(type) {
	case *clientv1.ClientFrame_Sync, *clientv1.ClientFrame_History:
		return true
	}
	return false
}

// waitForRoom stops the reader while too much waits for an answer, or, before
// a frame with a long answer, for being written. false = the session ended.
func (s *session) waitForRoom(long bool) bool {
	began := time.Now()
	for s.crowded(long) {
		s.stalled.Store(true)
		select {
		case <-s.resume:
		case <-s.done:
			return false
		}
	}
	if s.stalled.Load() { // we were silent, not the client
		now := time.Now()
		s.wire.lastByte.Store(now.UnixNano())
		if s.over != nil {
			s.over.passOver(now.Sub(began))
		}
		s.stalled.Store(false)
	}
	return true
}

func (s *session) crowded(long bool) bool {
	s.mu.Lock()
	full := s.runs.Unanswered() >= protocol.ServerSendWindow || s.requests >= protocol.ServerRequestWindow
	s.mu.Unlock()
	if !full && long {
		s.q.askRoom() // before the look, so that no write goes unnoticed between
		full = s.q.fill() > fullFill
	}
	return full
}

// look lets a reader that waits for room look again.
func (s *session) look() {
	select {
	case s.resume <- struct{}{}:
	default:
	}
}

// refused notes that a frame was above a rate, and ends who does not stop.
func (s *session) refused(now time.Time) {
	if s.over == nil {
		s.over = &overload{}
	}
	if s.over.refused(now, s.g.overloadTime) {
		s.end("rate_limited", "above the rates for too long", minWait)
	}
}

// reply queues a frame that the client waits for.
func (s *session) reply(f *clientv1.ServerFrame) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.replyLocked(f)
}

func (s *session) replyLocked(f *clientv1.ServerFrame) {
	if s.phase == ended {
		return
	}
	data, err := protocol.EncodeServer(s.enc, f)
	s.writeLocked(kindOfServer(f), data, err)
}

// writeLocked queues an encoded frame that the client waits for; err is why there
// is none.
func (s *session) writeLocked(k kind, data []byte, err error) {
	switch {
	case s.phase == ended:
	case err != nil: // text that is no UTF-8 never gets this far
		s.g.Log.Error("a frame cannot be encoded", obs.Session(s.id), obs.Err(err))
		s.endLocked("internal", "", 0)
	case s.q.answer(outFrame{data: data, kind: k}):
		s.endLocked("slow", "too much waits to be read", 0)
	}
}

// end ends the session with a bye. Only the first end counts; it reports
// whether this was it.
func (s *session) end(reason, msg string, retryAfter time.Duration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.endLocked(reason, msg, retryAfter)
}

func (s *session) endLocked(reason, msg string, retryAfter time.Duration) bool {
	return s.byeLocked(0, protocol.NewBye(reason, msg, retryAfter))
}

// byeLocked ends the session with a bye that answers the frame id.
func (s *session) byeLocked(id uint32, bye *clientv1.Bye) bool {
	if s.phase == ended {
		return false
	}
	data, err := protocol.EncodeServer(s.enc, byeFrame(id, bye))
	if err != nil {
		data = nil
	}
	s.endedLocked(bye.Reason)
	s.q.end(data, int(bye.CloseCode), bye.Reason, purges[bye.Reason])
	return true
}

// purges names the ends at which nothing that waits is written any more.
var purges = map[string]bool{
	"slow": true, "kicked": true, "revoked": true, "replaced": true, "token_expired": true, "resync": true, "rate_limited": true,
}

// closeWith ends the session with a standard close code and no bye. reason is
// for the metrics.
func (s *session) closeWith(reason string, code int, text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.phase != ended {
		s.endedLocked(reason)
		s.q.end(nil, code, text, false)
	}
}

func (s *session) endedLocked(reason string) {
	s.phase = ended
	close(s.done)
	s.reader.spot.Wake() // for what is left to do
	s.g.m.closed.WithLabelValues(reason).Inc()
	s.g.watchers.ended(s, reason)
	if ce := s.g.Log.Check(zap.DebugLevel, "session ended"); ce != nil {
		ce.Write(obs.Session(s.id), obs.User(s.user), zap.String("reason", reason))
	}
}

// writeFailed is called when the socket took no more.
func (s *session) writeFailed(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.phase == ended {
		return
	}
	reason := "lost"
	if ne := net.Error(nil); errors.As(err, &ne) && ne.Timeout() {
		reason = "slow"
	}
	s.endedLocked(reason)
}

// free gives back everything that the connection held. cause is why reading
// ended.
func (s *session) free(cause error) {
	s.mu.Lock()
	if s.phase != ended {
		s.endedLocked(lossOf(cause))
	}
	s.early = nil
	s.unacked.Clear()
	s.held = held{}
	s.runs.Clear()
	s.mu.Unlock()
	s.g.wheel.remove(&s.timer)
	s.g.hub.remove(s)
	s.release()
	// A close frame only goes if none went before; a dead socket takes none.
	<-s.q.end(nil, protocol.CloseProtocolError, "protocol error", true)
	if lingers(cause) {
		s.linger()
	}
	s.reader.spot.Leave()
	_ = s.wire.Conn.Close()
	s.wire.side.end()
	s.g.admission.leave(s.addr, s.pending)
	s.g.m.connections.Dec()
	s.g.wg.Done()
}

// lossOf names how a connection ended that the server did not end.
func lossOf(cause error) string {
	switch {
	case websocket.CloseStatus(cause) != -1:
		return "client"
	case errors.Is(cause, websocket.ErrMessageTooBig):
		return "too_large"
	case lingers(cause):
		return "protocol_error"
	}
	return "lost"
}

// lingers reports whether the client may still be writing, so that closing at
// once would make its side drop what we wrote last.
func lingers(cause error) bool {
	var ne net.Error
	return cause != nil && websocket.CloseStatus(cause) == -1 && !errors.Is(cause, io.EOF) &&
		!errors.Is(cause, net.ErrClosed) && !errors.As(cause, &ne)
}

// linger reads away what still comes, for closeWait at most.
func (s *session) linger() {
	c := s.wire.Conn
	if hc, ok := c.(interface{ CloseWrite() error }); ok {
		_ = hc.CloseWrite()
	}
	_ = c.SetReadDeadline(time.Now().Add(closeWait))
	_, _ = io.Copy(io.Discard, c)
}
