package imd

import (
	"context"
	"time"

	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// session is one connection with its hello. Its fields below mu are guarded by
// the client's lock; the reader hands frames to the client under that lock and
// never waits for anything else.
type session struct {
	client *Client
	t      transport
	cancel context.CancelFunc
	ended  chan struct{} // closed when reader and writer have ended
	drain  chan *clientv1.Drain
	ready  chan struct{} // closed at welcome
	wake   chan struct{} // there is something to write

	// Guarded by client.mu.
	out       []*clientv1.ClientFrame // bounded by the windows of sends and requests
	pending   map[uint32]*request
	nextID    uint32
	welcomed  bool
	retired   bool // it has ended, or another session has taken over: nothing is written any more
	closing   bool // write what waits, then close
	since     time.Time
	heard     time.Time
	quiet     time.Duration // longest silence that is still life
	pong      time.Duration // the part of it that is behind a ping
	refreshAt time.Time     // when to ask for a new token; zero = not
	cursors   map[string]int64
	syncing   bool
	syncRetry time.Time // when to ask again after a refused sync; zero = not
	syncTries int       // refusals in a row
	rest      bool      // its sync goes on with a listing that another session began
	bye       *clientv1.Bye
	cause     error // why it ended
}

// request is one request that waits for its answer.
type request struct {
	deadline time.Time
	// done is called with the lock held, once: with the answer, or with the
	// reason why there is none.
	done func(*clientv1.ServerFrame, error)
}

// startSession begins to read and write on a connection.
func (c *Client) startSession(t transport) *session {
	ctx, cancel := context.WithCancel(context.Background())
	now := time.Now()
	s := &session{
		client:  c,
		t:       t,
		cancel:  cancel,
		ended:   make(chan struct{}),
		drain:   make(chan *clientv1.Drain, 1),
		ready:   make(chan struct{}),
		wake:    make(chan struct{}, 1),
		pending: make(map[uint32]*request),
		since:   now,
		heard:   now,
		quiet:   protocol.PingInterval + protocol.PongTimeout,
		pong:    protocol.PongTimeout,
		cursors: make(map[string]int64),
	}
	c.wg.Go(func() { s.run(ctx) })
	return s
}

// run lasts as long as the connection.
func (s *session) run(ctx context.Context) {
	written := make(chan struct{})
	go func() {
		defer close(written)
		s.fail(s.write(ctx))
	}()
	s.fail(s.read(ctx))
	<-written
	_ = s.t.CloseNow()
	s.client.sessionEnded(s)
	close(s.ended)
}

// fail ends the connection for a reason; the first one counts.
func (s *session) fail(err error) {
	s.client.mu.Lock()
	s.failLocked(err)
	s.client.mu.Unlock()
}

func (s *session) failLocked(err error) {
	if s.cause == nil {
		if err == nil {
			err = ErrClosed
		}
		s.cause = err
	}
	s.cancel()
}

func (s *session) read(ctx context.Context) error {
	for {
		frames, err := s.t.Read(ctx)
		s.client.received(s, frames)
		if err != nil {
			return s.whyEnded(err)
		}
	}
}

// whyEnded prefers the server's own words.
func (s *session) whyEnded(err error) error {
	s.client.mu.Lock()
	defer s.client.mu.Unlock()
	if s.bye != nil {
		return fromBye(s.bye)
	}
	if _, ok := err.(*Error); ok {
		return err
	}
	return lost(err.Error())
}

// write sends what waits, as much as there is at a time, until the connection
// is closed.
func (s *session) write(ctx context.Context) error {
	for {
		s.client.mu.Lock()
		out, closing := s.out, s.closing
		s.out = nil
		s.client.mu.Unlock()
		if len(out) > 0 {
			wctx, cancel := context.WithTimeout(ctx, protocol.WriteTimeout)
			err := s.t.Write(wctx, out...)
			cancel()
			if err != nil {
				// The reader learns more: a bye may have come before.
				select {
				case <-ctx.Done():
				case <-time.After(time.Second):
				}
				return lost(err.Error())
			}
			continue
		}
		if closing {
			return s.t.Close(protocol.CloseNormal, "")
		}
		select {
		case <-s.wake:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// send queues a frame that wants no answer. The lock is held.
func (s *session) send(f *clientv1.ClientFrame) {
	if s.retired || s.closing {
		return
	}
	s.out = append(s.out, f)
	signal(s.wake)
}

// request queues a frame and remembers who waits for the answer. The lock is
// held.
func (s *session) request(f *clientv1.ClientFrame, done func(*clientv1.ServerFrame, error)) uint32 {
	s.nextID++
	f.Id = s.nextID
	if done != nil {
		s.pending[f.Id] = &request{deadline: time.Now().Add(protocol.ClientTimeout), done: done}
	}
	s.send(f)
	return f.Id
}

// answer hands an answer to who waits for it. The lock is held.
func (s *session) answer(f *clientv1.ServerFrame) {
	r := s.pending[f.Id]
	if r == nil {
		return
	}
	delete(s.pending, f.Id)
	if e := f.GetError(); e != nil {
		r.done(nil, fromWire(e))
		return
	}
	r.done(f, nil)
}

// abandon tells all who wait that no answer will come. The lock is held.
func (s *session) abandon(err error) {
	pending := s.pending
	s.pending = make(map[uint32]*request)
	for _, r := range pending {
		r.done(nil, err)
	}
}

// retire stops writing because another session has taken over. The lock is
// held.
func (s *session) retire() {
	s.retired = true
	s.out = nil
	s.closing = true
	signal(s.wake)
	s.abandon(errMoved)
}

// stop closes the connection and waits for its end, for at most a second
// politely.
func (s *session) stop() {
	s.client.mu.Lock()
	s.closing = true
	signal(s.wake)
	s.client.mu.Unlock()
	polite := time.NewTimer(time.Second)
	defer polite.Stop()
	select {
	case <-s.ended:
		return
	case <-polite.C:
	}
	s.fail(ErrClosed)
	_ = s.t.CloseNow()
	<-s.ended
}
