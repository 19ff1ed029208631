package pipe

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connectproto"
	"google.golang.org/protobuf/proto"

	"github.com/imdhq/imd/pkg/peer/seal"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

const (
	// openTimeout is how long opening a connection may take, with greetings: shorter
	// than an attempt of a call.
	openTimeout = 400 * time.Millisecond
	// idleTimeout closes a connection that nobody uses.
	idleTimeout = 90 * time.Second
)

// Options shape a Transport.
type Options struct {
	// Dial opens a connection; with TLS, one that is through its handshake.
	Dial func(context.Context) (net.Conn, error)
	// Keys prove both sides; nil = TLS does.
	Keys seal.Keys
	// Boot is the process that is called, by its boot id; "" = whoever is there.
	Boot string
	// Max is the largest frame in bytes.
	Max int
}

// Transport makes unary calls to one process. Safe for concurrent use.
type Transport struct {
	opt   Options
	lines [2]line // of methods with side effects, and of reads
}

// NewTransport makes a transport; it opens nothing.
func NewTransport(opt Options) *Transport {
	t := &Transport{opt: opt}
	for i := range t.lines {
		t.lines[i].t = t
	}
	return t
}

// NewClientStream begins a unary call.
func (t *Transport) NewClientStream(ctx context.Context, spec connect.Spec) (connect.ClientStream, error) {
	if spec.StreamType != connect.StreamTypeUnary {
		return nil, connect.Errorf(connect.CodeUnimplemented, "pipe: only unary calls")
	}
	l := &t.lines[0]
	if spec.IdempotencyLevel == connect.IdempotencyNoSideEffects {
		l = &t.lines[1]
	}
	info, _ := connect.CallInfoForClientContext(ctx)
	if info != nil {
		info.Spec, info.Protocol, info.Codec = spec, "imd-pipe", connect.CodecNameProto
	}
	return &stream{ctx: ctx, line: l, procedure: spec.Procedure, info: info}, nil
}

// Leave lets go of the connections: at once where nothing is in flight, else
// when the last call has ended. A later call opens a new one.
func (t *Transport) Leave() {
	for i := range t.lines {
		l := &t.lines[i]
		l.mu.Lock()
		c := l.cur
		l.cur = nil
		l.mu.Unlock()
		if c != nil {
			c.leave()
		}
	}
}

// line is a connection that is opened when it is needed.
type line struct {
	t *Transport

	mu      sync.Mutex
	cur     *caller
	opening *opening // somebody opens one
}

// opening is a connection to be.
type opening struct {
	done chan struct{}
	c    *caller
	err  error
}

// get is the connection, opened if need be, with a place for a call.
func (l *line) get(ctx context.Context) (*caller, uint64, *waiter, error) {
	for try := 0; ; try++ {
		l.mu.Lock()
		if l.cur != nil {
			c := l.cur
			if id, w, ok := c.enter(); ok {
				l.mu.Unlock()
				return c, id, w, nil
			}
			l.cur = nil
		}
		o := l.opening
		if o == nil {
			o = &opening{done: make(chan struct{})}
			l.opening = o
			go l.open(o)
		}
		l.mu.Unlock()
		select {
		case <-o.done:
		case <-ctx.Done():
			return nil, 0, nil, ended(ctx)
		}
		if o.err != nil {
			return nil, 0, nil, unreachable(o.err)
		}
		if try == 2 { // opened and lost again at once
			return nil, 0, nil, connect.NewError(connect.CodeUnavailable, "the node closes its connections").WithCause(net.ErrClosed)
		}
	}
}

// unreachable is the error of a call that had no connection.
func unreachable(err error) error {
	var no seal.ErrPeer
	if errors.As(err, &no) {
		return connect.NewError(connect.CodeUnauthenticated, no.Error()).WithCause(no)
	}
	return connect.NewError(connect.CodeUnavailable, "the node cannot be reached").WithCause(err)
}

// open opens a connection for whoever waits.
func (l *line) open(o *opening) {
	ctx, cancel := context.WithTimeout(context.Background(), openTimeout)
	defer cancel()
	o.c, o.err = l.t.dial(ctx)
	l.mu.Lock()
	l.opening = nil
	if o.err == nil {
		l.cur = o.c
	}
	l.mu.Unlock()
	close(o.done)
}

// dial opens a connection and greets.
func (t *Transport) dial(ctx context.Context) (*caller, error) {
	nc, err := t.opt.Dial(ctx)
	if err != nil {
		return nil, err
	}
	g, err := t.begin(ctx, nc)
	if err != nil {
		return nil, errors.Join(err, nc.Close())
	}
	c := &caller{conn: newConn(g.nc, g.br, g.in, g.out, t.opt.Max), keys: t.opt.Keys, key: g.key, waiters: map[uint64]*waiter{}}
	c.idle = time.AfterFunc(idleTimeout, c.leave)
	go c.run()
	return c, nil
}

// begin asks for the protocol and exchanges greetings.
func (t *Transport) begin(ctx context.Context, nc net.Conn) (g greeted, err error) {
	if d, ok := ctx.Deadline(); ok {
		if err := nc.SetDeadline(d); err != nil {
			return g, err
		}
	}
	if g, err = greet(nc, t.opt.Keys, t.opt.Boot); err != nil {
		return g, err
	}
	return g, nc.SetDeadline(time.Time{})
}

// caller is the calling side of a connection.
type caller struct {
	*conn
	keys seal.Keys // nil = TLS
	key  []byte
	idle *time.Timer

	wmu     sync.Mutex
	waiters map[uint64]*waiter
	last    uint64
	leaving bool
}

// waiter gets the frame with the answer, or why there is none.
type waiter struct {
	answer chan frame // one slot: who answers never waits
	err    error      // set before answer is closed
}

// enter makes a place for a call; false = take another connection.
func (c *caller) enter() (uint64, *waiter, bool) {
	if c.key != nil && !c.keys.Good(c.key) {
		c.leave()
		return 0, nil, false
	}
	c.wmu.Lock()
	defer c.wmu.Unlock()
	if c.leaving || c.reason() != nil {
		return 0, nil, false
	}
	if len(c.waiters) == 0 {
		c.idle.Stop()
	}
	c.last++
	w := &waiter{answer: make(chan frame, 1)}
	c.waiters[c.last] = w
	return c.last, w, true
}

// exit ends a call; nil = it was answered before.
func (c *caller) exit(id uint64) *waiter {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	w := c.waiters[id]
	delete(c.waiters, id)
	if len(c.waiters) == 0 {
		c.idle.Reset(idleTimeout)
		if c.leaving {
			c.fail(net.ErrClosed)
		}
	}
	return w
}

// leave takes no new calls, and ends the connection when nothing is in flight.
func (c *caller) leave() {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	c.leaving = true
	if len(c.waiters) == 0 {
		c.fail(net.ErrClosed)
	}
}

// run hands out answers until the connection ends.
func (c *caller) run() {
	err := c.take()
	c.fail(err)
	c.idle.Stop()
	c.wmu.Lock()
	defer c.wmu.Unlock()
	c.leaving = true
	for id, w := range c.waiters {
		w.err = c.reason()
		close(w.answer)
		delete(c.waiters, id)
	}
}

func (c *caller) take() error {
	for {
		f, err := c.read()
		if err != nil {
			return err
		}
		switch f.kind {
		case kindAnswer, kindRefusal, kindDenial:
			if w := c.exit(f.id); w != nil {
				w.answer <- f
				continue
			}
		case kindPing:
			err = c.pong()
		case kindLeave:
			c.leave()
		}
		f.free()
		if err != nil {
			return err
		}
	}
}

// stream is one call.
type stream struct {
	ctx       context.Context // of the call
	line      *line
	procedure string
	info      *connect.CallInfo // nil = no headers

	caller *caller
	id     uint64
	waiter *waiter // nil = not sent, or answered
}

// SendHeaders does nothing: they go with the request.
func (s *stream) SendHeaders() error { return nil }

// CloseSend does nothing: a call has one request.
func (s *stream) CloseSend() error { return nil }

// Send sends the request.
func (s *stream) Send(msg any) error {
	m, ok := msg.(proto.Message)
	if !ok {
		return connect.Errorf(connect.CodeInternal, "pipe: %T is not a message", msg)
	}
	head := callHead{procedure: s.procedure}
	if d, ok := s.ctx.Deadline(); ok {
		left := time.Until(d)
		if left <= 0 {
			return ended(s.ctx)
		}
		head.micros = uint64(left.Microseconds()) + 1
	}
	if s.info != nil {
		for name, values := range s.info.RequestHeader().All() {
			for _, v := range values {
				head.headers = append(head.headers, name, v)
			}
		}
	}
	buf := buffers.Get().(*[]byte)
	defer release(buf)
	body, err := proto.MarshalOptions{}.MarshalAppend(head.append((*buf)[:0]), m)
	if err != nil {
		return connect.NewError(connect.CodeInternal, "the request cannot be encoded").WithCause(err)
	}
	*buf = body
	if s.caller, s.id, s.waiter, err = s.line.get(s.ctx); err != nil {
		return err
	}
	if err := s.caller.send(kindCall, s.id, body); err != nil {
		s.caller.exit(s.id)
		s.waiter = nil
		return connect.NewError(connect.CodeUnavailable, "the request cannot be sent").WithCause(err)
	}
	return nil
}

// Receive waits for the answer.
func (s *stream) Receive(msg any) error {
	if s.waiter == nil {
		return io.EOF
	}
	w := s.waiter
	select {
	case f, ok := <-w.answer:
		s.waiter = nil
		if !ok {
			return connect.NewError(connect.CodeUnavailable, "the connection ended").WithCause(w.err)
		}
		defer f.free()
		return decode(f, msg)
	case <-s.ctx.Done():
		_ = s.Close() // never fails
		return ended(s.ctx)
	}
}

// Close gives the call up, if it has no answer yet.
func (s *stream) Close() error {
	if s.waiter == nil {
		return nil
	}
	s.waiter = nil
	if s.caller.exit(s.id) != nil {
		_ = s.caller.send(kindCancel, s.id, nil) // a connection that ends cancels as well
	}
	return nil
}

func decode(f frame, msg any) error {
	switch f.kind {
	case kindRefusal:
		return refusal(f.body)
	case kindDenial:
		return unreachable(refused(string(f.body)))
	}
	m, ok := msg.(proto.Message)
	if !ok {
		return connect.Errorf(connect.CodeInternal, "pipe: %T is not a message", msg)
	}
	if err := proto.Unmarshal(f.body, m); err != nil {
		return connect.NewError(connect.CodeInternal, "the answer cannot be decoded").WithCause(err)
	}
	return nil
}

// refusal reads the error of the other side.
func refusal(body []byte) error {
	if len(body) == 0 {
		return connect.NewError(connect.CodeInternal, "a refusal without a code")
	}
	w := &clientv1.Error{}
	if err := proto.Unmarshal(body[1:], w); err != nil {
		return connect.NewError(connect.CodeInternal, "a refusal cannot be decoded").WithCause(err)
	}
	e := connect.NewError(connect.Code(body[0]), w.Message)
	if d, err := connectproto.NewErrorDetail(w); err == nil {
		e = e.WithDetail(d)
	}
	return e.WithRemote()
}

// ended is the error of a call whose context is over.
func ended(ctx context.Context) error {
	code := connect.CodeCanceled
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		code = connect.CodeDeadlineExceeded
	}
	return connect.NewError(code, "no answer in time").WithCause(ctx.Err())
}
