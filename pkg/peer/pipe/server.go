package pipe

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net/http"
	"sync"
	"time"

	"connectrpc.com/connect/v2"
	"google.golang.org/protobuf/proto"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/peer/seal"
)

const (
	// greetTimeout is how long a caller may take to greet.
	greetTimeout = 2 * time.Second
	// idleWorkers is how many goroutines of a connection wait for the next call.
	idleWorkers = 16
)

// Config is what a Server works with.
type Config struct {
	// Calls answers.
	Calls *connect.Server
	// Keys prove both sides; nil = TLS does.
	Keys seal.Keys
	// Boot is the boot id of this process.
	Boot string
	// Allowed reports whether a caller with these certificates may make a call, else
	// an ErrProof of seal; nil = all may.
	Allowed func(shown *tls.ConnectionState, procedure string) error
	// Max is the largest frame in bytes.
	Max int
	// Refused is told why a connection or a call was refused, in a word of a closed
	// set; nil = nobody is.
	Refused func(word string)
}

// Server answers calls that come over pipes. Safe for concurrent use.
type Server struct {
	cfg Config

	mu      sync.Mutex
	callees map[*callee]struct{}
	closed  bool
	empty   chan struct{} // closed when there are none any more; nil = nobody waits
}

// NewServer makes the handler of Path.
func NewServer(cfg Config) *Server {
	return &Server{cfg: cfg, callees: map[*callee]struct{}{}}
}

// ServeHTTP takes a connection over and answers its calls until it ends.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Upgrade") != upgrade {
		w.Header().Set("Upgrade", upgrade)
		http.Error(w, "this is for nodes of the cluster", http.StatusUpgradeRequired)
		return
	}
	nc, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		http.Error(w, "the connection cannot be taken over: use HTTP/1.1", http.StatusUpgradeRequired)
		return
	}
	defer func() { _ = nc.Close() }() // a second time does no harm
	if nc.SetDeadline(time.Now().Add(greetTimeout)) != nil {
		return
	}
	if _, err := nc.Write([]byte("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: " + upgrade + "\r\n\r\n")); err != nil {
		return
	}
	early, err := rw.Peek(rw.Reader.Buffered()) // the greeting came along
	if err != nil {
		return
	}
	br := bufio.NewReaderSize(io.MultiReader(bytes.NewReader(bytes.Clone(early)), nc), readBuffer)
	g, word, err := welcome(nc, br, s.cfg.Keys, s.cfg.Boot)
	s.refused(word)
	if err != nil || nc.SetDeadline(time.Time{}) != nil {
		return
	}
	c := &callee{
		conn: newConn(g.nc, g.br, g.in, g.out, s.cfg.Max), s: s, key: g.key, tls: r.TLS,
		work: make(chan *job), jobs: map[uint64]*job{},
	}
	if !s.enter(c) {
		c.fail(http.ErrServerClosed)
		return
	}
	defer s.left(c)
	c.run()
}

// refused tells that somebody was refused; "" = nobody was.
func (s *Server) refused(word string) {
	if word != "" && s.cfg.Refused != nil {
		s.cfg.Refused(word)
	}
}

func (s *Server) enter(c *callee) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.callees[c] = struct{}{}
	return true
}

func (s *Server) left(c *callee) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.callees, c)
	if len(s.callees) == 0 && s.empty != nil {
		close(s.empty)
		s.empty = nil
	}
}

// Shutdown tells callers to go elsewhere and waits until they have, or ctx is
// done; then it cuts off who is left. Once. All goroutines have ended when it
// returns.
func (s *Server) Shutdown(ctx context.Context) {
	s.mu.Lock()
	s.closed = true
	empty := make(chan struct{})
	if len(s.callees) == 0 {
		close(empty)
	} else {
		s.empty = empty
	}
	var all []*callee
	for c := range s.callees {
		all = append(all, c)
	}
	s.mu.Unlock()
	for _, c := range all {
		_ = c.send(kindLeave, 0, nil) // who is gone knows
	}
	select {
	case <-empty:
		return
	case <-ctx.Done():
	}
	for _, c := range all {
		c.fail(http.ErrServerClosed)
	}
	<-empty
}

// callee is the answering side of a connection.
type callee struct {
	*conn
	s       *Server
	key     []byte // nil = TLS
	tls     *tls.ConnectionState
	work    chan *job // to idle workers
	workers sync.WaitGroup

	jmu  sync.Mutex
	jobs map[uint64]*job
	idle int
}

// job is one call.
type job struct {
	id     uint64
	head   callHead
	frame  frame // holds the request
	ctx    context.Context
	cancel context.CancelFunc

	answer []byte // nil = none yet
	buf    *[]byte
}

// run reads calls until the connection ends, and waits for those in work.
func (c *callee) run() {
	ctx, cancel := context.WithCancel(context.Background())
	defer c.workers.Wait()
	defer cancel()
	c.fail(c.take(ctx))
}

func (c *callee) take(ctx context.Context) error {
	for {
		f, err := c.read()
		if err != nil {
			return err
		}
		if c.key != nil && !c.s.cfg.Keys.Good(c.key) {
			return errNoKey
		}
		switch f.kind {
		case kindCall:
			if err := c.begin(ctx, f); err != nil {
				return err
			}
			continue
		case kindCancel:
			c.jmu.Lock()
			j := c.jobs[f.id]
			c.jmu.Unlock()
			if j != nil {
				j.cancel()
			}
		case kindPing:
			err = c.pong()
		}
		f.free()
		if err != nil {
			return err
		}
	}
}

// begin hands a call to a worker.
func (c *callee) begin(ctx context.Context, f frame) error {
	head, err := parseCall(f.body)
	if err != nil {
		return err
	}
	j := &job{id: f.id, head: head, frame: f}
	if head.micros > 0 {
		j.ctx, j.cancel = context.WithTimeout(ctx, time.Duration(min(head.micros, maxMicros))*time.Microsecond)
	} else {
		j.ctx, j.cancel = context.WithCancel(ctx)
	}
	c.jmu.Lock()
	c.jobs[j.id] = j
	c.jmu.Unlock()
	select {
	case c.work <- j:
	default:
		c.workers.Go(func() { c.worker(j) })
	}
	return nil
}

// maxMicros is the longest time of a call that is believed, an hour.
const maxMicros = uint64(time.Hour / time.Microsecond)

// worker answers calls. It stays for the next one if few others wait: its stack
// has the size that calls need.
func (c *callee) worker(j *job) {
	for {
		c.answer(j)
		c.jmu.Lock()
		stay := c.idle < idleWorkers
		if stay {
			c.idle++
		}
		c.jmu.Unlock()
		if !stay {
			return
		}
		select {
		case j = <-c.work:
		case <-c.done:
			return
		}
		c.jmu.Lock()
		c.idle--
		c.jmu.Unlock()
	}
}

// answer makes a call and sends what came of it.
func (c *callee) answer(j *job) {
	err := c.call(j)
	j.cancel()
	j.frame.free()
	c.jmu.Lock()
	delete(c.jobs, j.id)
	c.jmu.Unlock()
	kind, body := byte(kindAnswer), j.answer
	var denied seal.ErrProof
	switch {
	case errors.As(err, &denied):
		c.s.refused(denied.Word())
		kind, body = kindDenial, []byte(denied)
	case err != nil:
		kind, body = kindRefusal, appendRefusal(nil, err)
	}
	if err := c.send(kind, j.id, body); err != nil && kind == kindAnswer {
		_ = c.send(kindRefusal, j.id, appendRefusal(nil, err)) // an answer that is too large; who is gone knows
	}
	if j.buf != nil {
		release(j.buf)
	}
}

func (c *callee) call(j *job) error {
	if allowed := c.s.cfg.Allowed; allowed != nil {
		if err := allowed(c.tls, j.head.procedure); err != nil {
			return err
		}
	}
	info := &connect.CallInfo{PeerAddr: c.nc.RemoteAddr().String(), Protocol: "imd-pipe", Codec: connect.CodecNameProto}
	for i := 0; i+1 < len(j.head.headers); i += 2 {
		info.RequestHeader().Add(j.head.headers[i], j.head.headers[i+1])
	}
	if err := c.s.cfg.Calls.Call(j.ctx, j.head.procedure, info, j); err != nil {
		return err
	}
	if j.answer == nil {
		return connect.NewError(connect.CodeInternal, "the call has no answer")
	}
	return nil
}

// Receive gives the request to the handler.
func (j *job) Receive(msg any) error {
	m, ok := msg.(proto.Message)
	if !ok {
		return connect.Errorf(connect.CodeInternal, "pipe: %T is not a message", msg)
	}
	if err := proto.Unmarshal(j.head.request, m); err != nil {
		return connect.NewError(connect.CodeInvalidArgument, "the request cannot be decoded").WithCause(err)
	}
	return nil
}

// SendHeaders does nothing: they do not travel.
func (j *job) SendHeaders() error { return nil }

// Send keeps the answer of the handler until it returns.
func (j *job) Send(msg any) error {
	m, ok := msg.(proto.Message)
	if !ok {
		return connect.Errorf(connect.CodeInternal, "pipe: %T is not a message", msg)
	}
	if j.buf == nil {
		j.buf = buffers.Get().(*[]byte)
	}
	b, err := proto.MarshalOptions{}.MarshalAppend((*j.buf)[:0], m)
	if err != nil {
		return connect.NewError(connect.CodeInternal, "the answer cannot be encoded").WithCause(err)
	}
	if b == nil {
		b = []byte{}
	}
	*j.buf, j.answer = b, b
	return nil
}

// appendRefusal writes an error as it travels.
func appendRefusal(b []byte, err error) []byte {
	b = append(b, byte(connect.CodeOf(err)))
	out, merr := proto.MarshalOptions{}.MarshalAppend(b, im.Wire(err))
	if merr != nil {
		return b
	}
	return out
}
