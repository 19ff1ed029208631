package bench

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// device is one simulated device of one user. All of it runs on the loop.
//
// Its life is a row of sessions. cur is the one that is written to; next is one
// that is joining, at the beginning, after a loss, or beside cur while the
// device moves away from a node that drains.
type device struct {
	h    *host
	user string
	id   string
	i    int // its number in the run
	home int // the number of the address at which it begins
	src  netip.Addr

	token   string
	cur     *session
	next    *session
	attempt int           // failed ones in a row
	since   time.Duration // when cur was welcomed
	waiting bool          // a pause before the next attempt
	ended   bool          // it will not come back
	lastID  uint32
	// When attempts were given up whose hello had neither welcome nor a reason for an
	// answer, oldest first: the server may take it later, and end another session.
	gaveUp []time.Duration

	out outbox
	in  inbox

	sources  []*source
	counted  bool // among those online
	aside    bool // what it is shown does not count
	stalled  bool // it does not read
	stranger bool // in no conversation: whatever it is shown is a leak

	comesBack bool // after a loss
	atOnce    bool // without a pause
	syncs     bool // hello comes with sync, always; else only after a loss
	welcomed  int  // sessions so far

	onUp   func(joined time.Duration) // welcome came; joined is how long it took from the dial
	onJoin func(joined time.Duration) // as onUp, from the second time on
	onSync func()                     // a session's sync has ended
	onDown func(reason string, err error)

	onShown func(text []byte) // somebody else's message was taken; nil = nobody wants to know

	onPresence func(*clientv1.Presence) // an event of users it watches; nil = it watches nobody
}

// host is what the devices of a run share.
type host struct {
	l         *loop
	enc       protocol.Encoding
	addresses []netip.AddrPort
	rng       *rand.Rand
	ids       uuids
	size      int // bytes of a text
	rec       *tape
	fresh     func(d *device, got func(token string, err error)) // makes another token
	shown     func(d *device, text []byte)                       // somebody else's entry was taken
	refused   func(reason string)                                // a send was refused and will be written again
	acks      *recorder                                          // of sends that have no answer at the end, if their lane has no other
	scratch   []byte
	longest   time.Duration // pause before a device comes back; 0 = no bound but the usual
	entry     entryIn
	answer    ackIn
	ranges    []ackRange
	one       [1]*clientv1.Entry
	lean      lean
}

// session is one connection of a device.
type session struct {
	d       *device
	c       *conn
	at      netip.AddrPort
	dialed  time.Duration
	welcome bool
	syncing bool
	greeted bool // hello was written
	spent   bool // its hello has ended the session from which the device moves
	bye     *clientv1.Bye
	quiet   time.Duration // silence that means the connection is dead; 0 = not known
	asked   []request     // unanswered, oldest first
}

// request is one that waits for its answer.
type request struct {
	id   uint32
	at   time.Duration
	done func(*clientv1.ServerFrame) // nil frame: it will not come
}

func (h *host) newDevice(i int, user, id, token string, src netip.Addr) *device {
	d := &device{h: h, user: user, id: id, i: i, home: i, src: src, token: token}
	d.out.d, d.in.d = d, d
	return d
}

// online reports whether frames can be written.
func (d *device) online() bool { return d.cur != nil }

// join dials and, when the connection stands, says hello. It does nothing
// if the device is joining already.
func (d *device) join() {
	d.waiting = false
	if d.next != nil || d.ended {
		return
	}
	s := &session{d: d, at: d.h.addresses[(d.home+d.attempt)%len(d.h.addresses)], dialed: d.h.l.now}
	c, err := d.h.l.dial(s.at, d.src, d.h.enc)
	if err != nil {
		d.lost(s, 0, err)
		return
	}
	s.c, d.next = c, s
	c.onOpen = s.hello
	c.onMessage = s.message
	c.onClose = func(code int, err error) { d.lost(s, code, err) }
}

// hello writes the first frames.
func (s *session) hello() {
	d := s.d
	s.greeted = true
	s.request(&clientv1.ClientFrame{Kind: &clientv1.ClientFrame_Hello{Hello: &clientv1.Hello{
		Version: protocol.Version, Token: d.token, DeviceId: d.id, Class: "bot", Client: "imd-bench"}}}, func(*clientv1.ServerFrame) {})
	if d.syncs || d.welcomed > 0 {
		d.in.sync(s)
	}
}

// request writes a frame under a new id; done is called once, with the answer
// or, if the connection ends before, with nil.
func (s *session) request(f *clientv1.ClientFrame, done func(*clientv1.ServerFrame)) {
	f.Id = s.d.nextID()
	s.asked = append(s.asked, request{f.Id, s.d.h.l.now, done})
	s.write(f)
}

// write queues a frame through the generated code.
func (s *session) write(f *clientv1.ClientFrame) {
	if s.c.phase != open {
		return
	}
	env, err := protocol.AppendFrame(s.c.envelope(), s.d.h.enc, f)
	if err == nil {
		s.c.put(env)
	}
}

// nextID is a frame id; they are unique among the sessions of a device.
func (d *device) nextID() uint32 {
	d.lastID++
	if d.lastID == 0 {
		d.lastID = 1
	}
	return d.lastID
}

// message takes an envelope.
func (s *session) message(data []byte) {
	h := s.d.h
	if h.enc == protocol.JSON {
		err := protocol.DecodeServerEnvelope(h.enc, data, protocol.ClientLimits(), func(f *clientv1.ServerFrame) error {
			s.decoded(f)
			return nil
		})
		if err != nil {
			s.c.drop(err)
		}
		return
	}
	for len(data) > 0 && s.c.phase == open {
		frame, n := cutFrame(data)
		if n == 0 || !s.raw(frame) {
			s.c.drop(errors.New("a frame cannot be read"))
			return
		}
		data = data[n:]
	}
}

// raw takes a frame in binary form; false if it is broken.
func (s *session) raw(frame []byte) bool {
	h := s.d.h
	id, kind, body := head(frame)
	switch {
	case kind == kindSendAck && h.answer.parse(body):
		s.d.out.answered(id, &h.answer)
	case kind == kindDeliver && eachEntry(body, &h.entry, s.entry):
	case kind != 0:
		return false
	default:
		f := new(clientv1.ServerFrame)
		if proto.Unmarshal(frame, f) != nil {
			return false
		}
		s.decoded(f)
	}
	return true
}

func (s *session) entry(conv []byte, e *entryIn) {
	if s.c.phase == open {
		s.d.in.delivered(s.d.in.conv(conv), e)
	}
}

// decoded takes a frame that came through the generated code.
func (s *session) decoded(f *clientv1.ServerFrame) {
	d := s.d
	switch k := f.Kind.(type) {
	case *clientv1.ServerFrame_SendAck:
		d.h.answer.from(k.SendAck)
		d.out.answered(f.Id, &d.h.answer)
	case *clientv1.ServerFrame_Deliver:
		for _, e := range k.Deliver.Entries {
			d.h.entry.from(e)
			s.entry([]byte(k.Deliver.ConversationId), &d.h.entry)
		}
	case *clientv1.ServerFrame_Welcome:
		s.answer(f)
		s.welcomed(k.Welcome)
	case *clientv1.ServerFrame_Ping:
		s.write(&clientv1.ClientFrame{Kind: &clientv1.ClientFrame_Pong{Pong: &clientv1.Pong{}}})
	case *clientv1.ServerFrame_Head:
		d.in.head(k.Head)
	case *clientv1.ServerFrame_Drain:
		d.drain(s, k.Drain)
	case *clientv1.ServerFrame_Bye:
		s.bye = k.Bye
	case *clientv1.ServerFrame_Presence:
		if f.Id != 0 {
			s.answer(f)
		} else if d.onPresence != nil {
			d.onPresence(k.Presence)
		}
	default:
		s.answer(f)
	}
}

// answer ends the wait of a request.
func (s *session) answer(f *clientv1.ServerFrame) {
	for i := range s.asked {
		if r := s.asked[i]; f.Id != 0 && r.id == f.Id {
			s.asked = append(s.asked[:i], s.asked[i+1:]...)
			r.done(f)
			return
		}
	}
}

// welcomed makes the session the one that is written to.
func (s *session) welcomed(w *clientv1.Welcome) {
	d := s.d
	if s.welcome {
		return
	}
	s.welcome = true
	if w.PingIntervalMs > 0 && w.PongTimeoutMs > 0 {
		s.quiet = time.Duration(w.PingIntervalMs+w.PongTimeoutMs) * time.Millisecond
	}
	old := d.cur
	d.cur, d.next, d.since = s, nil, d.h.l.now
	d.welcomed++
	if old != nil {
		d.h.rec.disconnect(d, "moved")
		old.retire()
	}
	d.h.rec.connect(d, w.DataEpoch)
	d.in.connected(w.DataEpoch, s.syncing)
	d.out.reconnected()
	d.keepToken(s, time.Duration(w.TokenExpireMs-w.ServerTimeMs)*time.Millisecond)
	if d.onUp != nil {
		d.onUp(d.h.l.now - s.dialed)
	}
}

// retire closes a session that another one has replaced.
func (s *session) retire() {
	s.c.onClose = nil
	s.c.flush()
	s.c.drop(errOver)
	s.abandon()
}

// abandon answers the requests that nobody will answer any more.
func (s *session) abandon() {
	asked := s.asked
	s.asked = nil
	for _, r := range asked {
		r.done(nil)
	}
}

// tokenLife is the share of a token's life after which it is replaced.
const tokenLife = 0.8

// keepToken replaces the token before it expires.
func (d *device) keepToken(s *session, life time.Duration) {
	if life <= 0 || d.h.fresh == nil {
		return
	}
	d.h.l.after(time.Duration(float64(life)*tokenLife), func() {
		if d.cur != s {
			return
		}
		d.h.fresh(d, func(token string, err error) {
			if err != nil || d.cur != s {
				return // it will be told to get one when this one expires
			}
			d.token = token
			s.request(&clientv1.ClientFrame{Kind: &clientv1.ClientFrame_RefreshToken{RefreshToken: &clientv1.RefreshToken{Token: token}}}, func(f *clientv1.ServerFrame) {
				if r := f.GetRefreshResult(); r != nil && d.cur == s {
					d.keepToken(s, time.Duration(r.TokenExpireMs-time.Now().UnixMilli())*time.Millisecond)
				}
			})
		})
	})
}

// drain moves to another connection when told to, while this one still works.
func (d *device) drain(s *session, f *clientv1.Drain) {
	if !d.comesBack || d.cur != s {
		return
	}
	d.h.l.after(time.Duration(f.ReconnectAfterMs)*time.Millisecond, func() {
		if d.cur == s {
			if n := len(d.h.addresses); n > 1 {
				d.home += 1 + d.i%(n-1) // another one
			}
			d.join()
		}
	})
}

// moveAgain tries another address after a move that failed, while the session it
// moves from still works.
func (d *device) moveAgain(from *session, pause time.Duration) {
	d.h.l.after(max(pause, backoffBase), func() {
		if d.cur == from {
			d.attempt++
			d.join()
		}
	})
}

// lost takes note that a connection has ended, or could not be opened.
func (d *device) lost(s *session, code int, err error) {
	reason, pause, stop := verdict(s.bye, code, err)
	if reason == protocol.ReasonSuperseded {
		if s == d.cur && d.next != nil {
			stop, d.next.spent = false, true // by the connection it moves to, whose welcome is on its way
		} else if d.excused() {
			stop = false
		}
	}
	if s == d.next {
		d.next = nil
		if s.greeted && !s.spent && s.bye == nil && protocol.ReasonOf(code) == "" {
			d.gaveUp = append(d.gaveUp[max(0, len(d.gaveUp)+1-maxGaveUp):], d.h.l.now)
		}
		if d.cur != nil && !stop {
			d.moveAgain(d.cur, pause)
		}
	}
	if s == d.cur {
		d.cur = nil
		if d.h.l.now-d.since >= protocol.ClientTimeout {
			d.attempt = 0
		}
		d.h.rec.disconnect(d, reason)
		d.out.lost()
		d.in.lost()
	}
	s.abandon()
	if stop || !d.comesBack {
		d.ended = true
	}
	if d.onDown != nil {
		d.onDown(reason, err)
	}
	if !d.ended && d.cur == nil && d.next == nil && !d.waiting {
		d.comeBack(reason, pause)
	}
}

// maxGaveUp is how many unanswered hellos a device remembers.
const maxGaveUp = 16

// excused reports whether an attempt that was given up may be the newer session
// that has superseded this one, and forgets that attempt.
func (d *device) excused() bool {
	for len(d.gaveUp) > 0 {
		at := d.gaveUp[0]
		if d.gaveUp = d.gaveUp[1:]; d.h.l.now-at <= protocol.LateHello {
			return true
		}
	}
	return false
}

// comeBack joins again after a pause: as told, else by the rules for a device
// that lost its connection.
func (d *device) comeBack(reason string, pause time.Duration) {
	d.waiting = true
	again := func() {
		if pause == 0 && !d.atOnce {
			longest := backoffCap(d.attempt)
			if d.h.longest > 0 {
				longest = min(longest, d.h.longest)
			}
			pause = time.Duration(d.h.rng.Int64N(int64(longest))) + 1
		}
		d.attempt++
		d.h.l.after(pause, d.join)
	}
	if reason != protocol.ReasonTokenExpired || d.h.fresh == nil {
		again()
		return
	}
	d.h.fresh(d, func(token string, err error) {
		if err == nil {
			d.token = token
		}
		again()
	})
}

// Bounds of the pause before a device comes back.
const (
	backoffBase = 500 * time.Millisecond
	backoffMax  = 30 * time.Second
)

func backoffCap(attempt int) time.Duration { return min(backoffBase<<min(attempt, 6), backoffMax) }

// verdict says why a connection ended, how long to wait before the next one (0
// = not told), and whether there should be none.
func verdict(bye *clientv1.Bye, code int, err error) (reason string, pause time.Duration, stop bool) {
	var refused *upgradeError
	var own *lossError
	switch {
	case bye != nil:
		return bye.Reason, time.Duration(bye.RetryAfterMs) * time.Millisecond, !bye.Reconnect
	case errors.As(err, &refused):
		return fmt.Sprintf("http_%d", refused.status), refused.after, refused.status == 400 || refused.status == 401 || refused.status == 403
	case errors.As(err, &own):
		return own.reason, 0, false
	case code != 0:
		if reason = protocol.ReasonOf(code); reason == "" {
			reason = fmt.Sprintf("close_%d", code)
		}
		return reason, 0, !protocol.Reconnect(code)
	}
	return "connection_lost", 0, false
}

// lossError is why a device gave a connection up.
type lossError struct{ reason, text string }

func (e *lossError) Error() string { return e.text + ": " + e.reason }

// check gives up connections that have been silent, or without an answer, for
// too long. It is called about once a second.
func (d *device) check() {
	now := d.h.l.now
	if s := d.next; s != nil && now-s.dialed > protocol.ClientTimeout {
		s.c.drop(&lossError{"no_welcome", "no sign of life"})
	}
	s := d.cur
	switch {
	case s == nil || d.stalled:
	case s.quiet > 0 && now-s.c.read > s.quiet:
		s.c.drop(&lossError{"silence", "no sign of life"})
	case len(s.asked) > 0 && now-s.asked[0].at > protocol.ClientTimeout, d.out.overdue(now):
		s.c.drop(&lossError{"no_answer", "no sign of life"})
	}
}
