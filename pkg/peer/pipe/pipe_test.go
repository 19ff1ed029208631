package pipe

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect/v2"
	"go.uber.org/goleak"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/peer/seal"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
	"github.com/imdhq/imd/proto/gen/internalv1/internalv1connect"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const keyA, keyB = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"

// ring of keys that may change.
type keys struct{ p atomic.Pointer[[]string] }

func newKeys(k ...string) *keys {
	r := &keys{}
	r.p.Store(&k)
	return r
}

func (r *keys) get() [][]byte {
	var out [][]byte
	for _, k := range *r.p.Load() {
		out = append(out, []byte(k))
	}
	return out
}

// answerer is the methods that tests call.
type answerer struct {
	internalv1connect.StateServiceHandler
	members func(context.Context, *v1.MembersRequest) (*v1.MembersResponse, error)
	submit  func(context.Context, *v1.SubmitRequest) (*v1.SubmitResponse, error)
}

func (a *answerer) Members(ctx context.Context, r *v1.MembersRequest) (*v1.MembersResponse, error) {
	return a.members(ctx, r)
}

func (a *answerer) Submit(ctx context.Context, r *v1.SubmitRequest) (*v1.SubmitResponse, error) {
	return a.submit(ctx, r)
}

// world is a server behind a listener in memory, and a client of it.
type world struct {
	*answerer
	server    *Server
	http      *http.Server
	transport *Transport
	client    internalv1connect.StateServiceClient
	keys      *keys // of the server
	dials     atomic.Int64
	wrap      func(net.Conn) net.Conn // around the caller's connection; nil = none
	refused   chan string
}

// listener hands out pipes in memory.
type listener struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *listener) Close() error { l.once.Do(func() { close(l.done) }); return nil }

func (l *listener) Addr() net.Addr { return &net.UnixAddr{Name: "memory"} }

func newWorld(t *testing.T, mine *keys, opt Options) *world {
	t.Helper()
	w := &world{answerer: &answerer{}, keys: newKeys(keyA), refused: make(chan string, 10)}
	calls := connect.NewServer()
	internalv1connect.RegisterStateServiceHandler(calls, w)
	w.server = NewServer(Config{Calls: calls, Keys: w.keys.get, Boot: "boot", Max: 1 << 20, Refused: func(word string) { w.refused <- word }})
	mux := http.NewServeMux()
	mux.Handle(Path, w.server)
	w.http = &http.Server{Handler: mux}
	ln := &listener{conns: make(chan net.Conn), done: make(chan struct{})}
	served := make(chan struct{})
	go func() { defer close(served); _ = w.http.Serve(ln) }()
	opt.Dial = func(ctx context.Context) (net.Conn, error) {
		w.dials.Add(1)
		near, far := net.Pipe()
		select {
		case ln.conns <- far:
		case <-ln.done:
			return nil, net.ErrClosed
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if w.wrap != nil {
			near = w.wrap(near)
		}
		return near, nil
	}
	opt.Keys, opt.Max = mine.get, 1<<20
	w.transport = NewTransport(opt)
	w.client = internalv1connect.NewStateServiceClient(connect.NewClient(w.transport))
	t.Cleanup(func() {
		w.transport.Leave()
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		w.server.Shutdown(ctx)
		_ = w.http.Close()
		<-served
	})
	return w
}

func echo(_ context.Context, r *v1.MembersRequest) (*v1.MembersResponse, error) {
	return &v1.MembersResponse{Members: []*v1.Member{{UserId: r.ConversationId}}}, nil
}

func TestCallsAreAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, newKeys(keyA), Options{Boot: "boot"})
		w.members = echo
		var all sync.WaitGroup
		for i := range 200 {
			all.Go(func() {
				conv := strings.Repeat("x", i*100)
				res, err := w.client.Members(t.Context(), &v1.MembersRequest{ConversationId: conv})
				if err != nil || len(res.Members) != 1 || res.Members[0].UserId != conv {
					t.Errorf("%d: %v", i, err)
				}
			})
		}
		all.Wait()
		if n := w.dials.Load(); n != 1 {
			t.Errorf("%d connections", n)
		}
	})
}

func TestErrorsKeepTheirReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, newKeys(keyA), Options{})
		w.members = func(context.Context, *v1.MembersRequest) (*v1.MembersResponse, error) {
			return nil, im.ToConnect(&im.Error{Reason: clientv1.Reason_REASON_BUSY, Msg: "come back", RetryAfter: 70 * time.Millisecond, Err: errors.New("secret")})
		}
		_, err := w.client.Members(t.Context(), &v1.MembersRequest{})
		e := im.FromConnect("", err)
		if e.Reason != clientv1.Reason_REASON_BUSY || e.Msg != "come back" || e.RetryAfter != 70*time.Millisecond || e.Err != nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%+v", e)
		}
		w.members = func(context.Context, *v1.MembersRequest) (*v1.MembersResponse, error) {
			return &v1.MembersResponse{Members: []*v1.Member{{UserId: strings.Repeat("x", 2<<20)}}}, nil
		}
		if _, err := w.client.Members(t.Context(), &v1.MembersRequest{}); im.ReasonOf(err) != clientv1.Reason_REASON_INTERNAL {
			t.Errorf("an answer that is too large: %v", err)
		}
		if _, err := w.client.Members(t.Context(), &v1.MembersRequest{ConversationId: strings.Repeat("x", 2<<20)}); err == nil {
			t.Error("a request that is too large was sent")
		}
		w.members = echo
		if _, err := w.client.Members(t.Context(), &v1.MembersRequest{}); err != nil {
			t.Error(err)
		}
	})
}

// The deadline goes along, and who gives up is not worked for any more.
func TestCallsEndWithTheirCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, newKeys(keyA), Options{})
		ended := make(chan error, 1)
		w.members = func(ctx context.Context, _ *v1.MembersRequest) (*v1.MembersResponse, error) {
			<-ctx.Done()
			ended <- ctx.Err()
			return nil, ctx.Err()
		}
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		begin := time.Now()
		_, err := w.client.Members(ctx, &v1.MembersRequest{})
		if connect.CodeOf(err) != connect.CodeDeadlineExceeded || !errors.Is(err, context.DeadlineExceeded) || time.Since(begin) != 50*time.Millisecond {
			t.Errorf("after %v: %v", time.Since(begin), err)
		}
		<-ended
		ctx, cancel = context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		if _, err := w.client.Members(ctx, &v1.MembersRequest{}); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		gone, cancel := context.WithDeadline(t.Context(), time.Now())
		defer cancel()
		if _, err := w.client.Members(gone, &v1.MembersRequest{}); connect.CodeOf(err) != connect.CodeDeadlineExceeded {
			t.Error(err)
		}
	})
}

// Headers of the request travel.
func TestHeadersTravel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, newKeys(keyA), Options{})
		var got []string
		w.members = func(ctx context.Context, r *v1.MembersRequest) (*v1.MembersResponse, error) {
			info, _ := connect.CallInfoForServerContext(ctx)
			got = info.RequestHeader().Values("traceparent")
			return echo(ctx, r)
		}
		ctx, info := connect.NewClientContext(t.Context())
		info.RequestHeader().Add("traceparent", "one")
		info.RequestHeader().Add("traceparent", "two")
		if _, err := w.client.Members(ctx, &v1.MembersRequest{}); err != nil || fmt.Sprint(got) != "[one two]" {
			t.Errorf("%v, %v", got, err)
		}
	})
}

// Who stops answers what is in flight, and gets nothing new.
func TestShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, newKeys(keyA), Options{})
		w.members = func(ctx context.Context, r *v1.MembersRequest) (*v1.MembersResponse, error) {
			time.Sleep(500 * time.Millisecond)
			return echo(ctx, r)
		}
		w.submit = func(ctx context.Context, _ *v1.SubmitRequest) (*v1.SubmitResponse, error) {
			<-ctx.Done() // longer than the stop
			return nil, ctx.Err()
		}
		read, write := make(chan error, 1), make(chan error, 1)
		go func() {
			_, err := w.client.Members(t.Context(), &v1.MembersRequest{})
			read <- err
		}()
		go func() {
			_, err := w.client.Submit(t.Context(), &v1.SubmitRequest{})
			write <- err
		}()
		synctest.Wait()
		begin := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		w.server.Shutdown(ctx)
		if took := time.Since(begin); took != time.Second {
			t.Errorf("stopped after %v", took)
		}
		if err := <-read; err != nil {
			t.Errorf("what was in flight: %v", err)
		}
		if err := <-write; im.ReasonOf(err) != clientv1.Reason_REASON_UNAVAILABLE {
			t.Errorf("what was cut off: %v", err)
		}
		if _, err := w.client.Members(t.Context(), &v1.MembersRequest{}); im.ReasonOf(err) != clientv1.Reason_REASON_UNAVAILABLE {
			t.Errorf("after the stop: %v", err)
		}
	})
}

// A connection is left when its last call has ended; the next call opens another.
func TestLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, newKeys(keyA), Options{})
		w.members = func(ctx context.Context, r *v1.MembersRequest) (*v1.MembersResponse, error) {
			time.Sleep(100 * time.Millisecond)
			return echo(ctx, r)
		}
		done := make(chan error, 1)
		go func() {
			_, err := w.client.Members(t.Context(), &v1.MembersRequest{})
			done <- err
		}()
		synctest.Wait()
		w.transport.Leave()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if _, err := w.client.Members(t.Context(), &v1.MembersRequest{}); err != nil || w.dials.Load() != 2 {
			t.Errorf("%d connections, %v", w.dials.Load(), err)
		}
		time.Sleep(idleTimeout + time.Second) // nobody uses it
		if _, err := w.client.Members(t.Context(), &v1.MembersRequest{}); err != nil || w.dials.Load() != 3 {
			t.Errorf("%d connections, %v", w.dials.Load(), err)
		}
	})
}

func TestWhoIsRefused(t *testing.T) {
	for name, tt := range map[string]struct {
		keys       *keys
		boot, word string
		reason     clientv1.Reason
	}{
		"good":            {keys: newKeys(keyA), boot: "boot"},
		"new key":         {keys: newKeys(keyB, keyA), boot: "boot", word: wordKey, reason: clientv1.Reason_REASON_BAD_TOKEN},
		"another cluster": {keys: newKeys(keyB), word: wordKey, reason: clientv1.Reason_REASON_BAD_TOKEN},
		"another process": {keys: newKeys(keyA), boot: "other", word: wordProcess, reason: clientv1.Reason_REASON_BAD_TOKEN},
		"no key":          {keys: newKeys(), reason: clientv1.Reason_REASON_UNAVAILABLE},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, tt.keys, Options{Boot: tt.boot})
				w.members = echo
				_, err := w.client.Members(t.Context(), &v1.MembersRequest{})
				if im.ReasonOf(err) != tt.reason {
					t.Error(err)
				}
				var no seal.ErrPeer
				if errors.As(err, &no) != (tt.word != "") {
					t.Error(err)
				}
				if tt.word != "" && <-w.refused != tt.word {
					t.Error("refused for another reason")
				}
			})
		})
	}
}

// A connection does not outlive the key that opened it.
func TestKeysThatAreDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mine := newKeys(keyA)
		w := newWorld(t, mine, Options{})
		w.members = echo
		call := func() error {
			_, err := w.client.Members(t.Context(), &v1.MembersRequest{})
			return err
		}
		if err := call(); err != nil {
			t.Fatal(err)
		}
		w.keys.p.Store(&[]string{keyA, keyB})
		mine.p.Store(&[]string{keyB, keyA})
		if err := call(); err != nil || w.dials.Load() != 1 {
			t.Errorf("with both keys: %v, %d connections", err, w.dials.Load())
		}
		mine.p.Store(&[]string{keyB})
		if err := call(); err != nil || w.dials.Load() != 2 {
			t.Errorf("with the new key: %v, %d connections", err, w.dials.Load())
		}
		w.keys.p.Store(&[]string{keyA})
		if err := call(); err == nil {
			t.Error("a call with a key that was dropped")
		}
	})
}

// tap changes what a caller writes, or swallows it.
type tap struct {
	net.Conn
	write func([]byte) []byte // nil answer = swallowed
}

func (p *tap) Write(b []byte) (int, error) {
	out := p.write(bytes.Clone(b))
	if out == nil {
		return len(b), nil
	}
	if _, err := p.Conn.Write(out); err != nil {
		return 0, err
	}
	return len(b), nil
}

// Frames that were changed, repeated or left out end the connection.
func TestFramesAreProved(t *testing.T) {
	for name, change := range map[string]func(frames int, b []byte) []byte{
		"changed":  func(_ int, b []byte) []byte { b[len(b)-seal.TagSize-1] ^= 1; return b },
		"repeated": func(_ int, b []byte) []byte { return append(b, b...) },
		"left out": func(n int, b []byte) []byte {
			if n == 1 {
				return nil
			}
			return b
		},
		"too large": func(_ int, b []byte) []byte { b[0] = 1; return b },
		"too short": func(_ int, b []byte) []byte { return []byte{0, 0, 0, 2, 1, 1} },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, newKeys(keyA), Options{})
				calls := 0
				w.members = func(ctx context.Context, r *v1.MembersRequest) (*v1.MembersResponse, error) {
					calls++
					return echo(ctx, r)
				}
				writes := 0 // the first one opens the connection
				w.wrap = func(c net.Conn) net.Conn {
					return &tap{Conn: c, write: func(b []byte) []byte {
						if writes++; writes == 1 {
							return b
						}
						return change(writes-1, b)
					}}
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				_, err := w.client.Members(ctx, &v1.MembersRequest{ConversationId: "x"})
				synctest.Wait() // what is left out shows by the next frame, that the caller gave up
				if name != "repeated" && (err == nil || calls > 0) || calls > 1 {
					t.Errorf("%d calls, %v", calls, err)
				}
				w.wrap = nil
				if _, err := w.client.Members(t.Context(), &v1.MembersRequest{}); err != nil || w.dials.Load() != 2 {
					t.Errorf("afterwards: %v, %d connections", err, w.dials.Load())
				}
			})
		})
	}
}

// A connection whose other end is gone without a word is given up, also while
// nobody uses it; one that is only quiet stays.
func TestSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, newKeys(keyA), Options{})
		w.members = echo
		var hole atomic.Bool
		w.wrap = func(c net.Conn) net.Conn {
			return &tap{Conn: c, write: func(b []byte) []byte {
				if hole.Load() {
					return nil
				}
				return b
			}}
		}
		if _, err := w.client.Members(t.Context(), &v1.MembersRequest{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		c := w.transport.lines[1].cur
		if err := c.reason(); err != nil {
			t.Errorf("a quiet connection: %v", err)
		}
		hole.Store(true)
		time.Sleep(2*pingAfter + pingTimeout)
		if err := c.reason(); !errors.Is(err, errSilent) && !errors.Is(err, io.EOF) {
			t.Errorf("a dead one: %v", err)
		}
	})
}

// Who does not read is given up, and callers do not wait for it longer than they
// want.
func TestAStuckPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe() // nobody reads far
		c := newConn(near, nil, nil, nil, 1<<20)
		begin := time.Now()
		done := make(chan error, 2)
		go func() { done <- c.send(kindCancel, 0, nil) }()
		synctest.Wait()
		go func() { done <- c.send(kindCall, 1, make([]byte, 1000)) }()
		synctest.Wait()
		if len(done) != 1 {
			t.Error("a caller waits while another one writes")
		}
		for i := 0; ; i++ {
			if err := c.send(kindCall, 1, make([]byte, 1<<19)); err != nil {
				if !errors.Is(err, errFull) || i != 2*maxPending>>20-1 {
					t.Errorf("frame %d: %v", i, err)
				}
				break
			}
		}
		<-c.done
		if took := time.Since(begin); took != writeTimeout {
			t.Errorf("given up after %v", took)
		}
		_ = far.Close()
	})
}

// A connection over TLS ends at once, though the other side takes nothing and so
// not the good-bye of TLS either.
func TestTheEndWaitsForNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		ours, theirs := tls.Client(near, &tls.Config{InsecureSkipVerify: true}), tls.Server(far, &tls.Config{Certificates: []tls.Certificate{selfSigned(t)}})
		shaken := make(chan error, 1)
		go func() {
			err := theirs.HandshakeContext(t.Context())
			if err == nil {
				_, err = theirs.Write([]byte("x")) // what follows the handshake has been taken
			}
			shaken <- err
		}()
		if _, err := io.ReadFull(ours, make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		if err := <-shaken; err != nil {
			t.Fatal(err)
		}
		c := newConn(ours, nil, nil, nil, 1<<20)
		begin := time.Now()
		c.fail(net.ErrClosed)
		if took := time.Since(begin); took != 0 {
			t.Errorf("the end took %v", took)
		}
		if _, err := far.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("the other side reads: %v", err)
		}
	})
}

func selfSigned(t *testing.T) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// The goroutine that writes for others is let go.
func TestManyWriters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		toCallee, _ := seal.Session([]byte(keyA), nil, nil, "")
		check, _ := seal.Session([]byte(keyA), nil, nil, "")
		c := newConn(near, nil, nil, toCallee, 1<<20)
		const writers, each = 50, 40
		var all sync.WaitGroup
		for i := range writers {
			all.Go(func() {
				for j := range each {
					if err := c.send(kindCall, uint64(i), bytes.Repeat([]byte{byte(j)}, 3000)); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		r := newConn(far, bufioReader(far), check, nil, 1<<20)
		next := map[uint64]int{}
		for range writers * each {
			f, err := r.read()
			if err != nil {
				t.Fatal(err)
			}
			if len(f.body) != 3000 || int(f.body[0]) != next[f.id] {
				t.Fatalf("writer %d: frame %d in the place of %d", f.id, f.body[0], next[f.id])
			}
			next[f.id]++
			f.free()
		}
		all.Wait()
		c.fail(net.ErrClosed)
		r.fail(net.ErrClosed)
	})
}

// Strangers get no further than the greeting.
func TestStrangers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, newKeys(keyA), Options{})
		for name, text := range map[string]string{
			"no upgrade": "GET " + Path + " HTTP/1.1\r\nHost: x\r\n\r\n",
			"silent":     "GET " + Path + " HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: imd-pipe\r\n\r\n",
			"garbage":    "GET " + Path + " HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: imd-pipe\r\n\r\n" + strings.Repeat("\x00", 40),
		} {
			c, err := w.transport.opt.Dial(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			go func() { _, _ = io.WriteString(c, text) }()
			_ = c.SetReadDeadline(time.Now().Add(greetTimeout + time.Second))
			all, err := io.ReadAll(c)
			if name == "no upgrade" {
				if !strings.Contains(string(all), "426 Upgrade Required") {
					t.Errorf("%s: %q", name, all)
				}
			} else if err != nil || !strings.HasPrefix(string(all), "HTTP/1.1 101") {
				t.Errorf("%s: %q, %v", name, all, err)
			}
			_ = c.Close()
		}
	})
}
