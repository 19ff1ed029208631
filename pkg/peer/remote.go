package peer

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connecthttp"

	"github.com/imdhq/imd/pkg/balance"
	"github.com/imdhq/imd/pkg/control"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/peer/pipe"
	"github.com/imdhq/imd/pkg/peer/seal"
	"github.com/imdhq/imd/proto/gen/internalv1/internalv1connect"
)

// Times of a connection to another node.
const (
	// connectTimeout is shorter than a call, so that a dead host does not look
	// like a slow one.
	connectTimeout = 200 * time.Millisecond
	// An idle connection is asked for a sign of life, and given up without one: a
	// node behind a black hole is gone after both.
	pingAfter   = 5 * time.Second
	pingTimeout = 2 * time.Second
	// idleTimeout closes a connection that nobody uses.
	idleTimeout = 90 * time.Second
	// maxAnswer is the largest answer in bytes.
	maxAnswer = 8 << 20
	// MaxFrame is the largest frame of a pipe in bytes: the largest call or answer,
	// and what is around it.
	MaxFrame = maxAnswer + 64<<10
)

// Security is how calls to other nodes are proved.
type Security struct {
	Certs *seal.Certs // TLS with certificates of both sides; nil = no TLS
	Keys  seal.Keys   // signs each call; nil = not signed
	// AllowPlaintext lets calls go to other machines without TLS.
	AllowPlaintext bool
	// HTTP makes calls as requests of HTTP/2 and not over pipes.
	HTTP bool
}

// remote is another process: one start of one node at one address.
type remote struct {
	node     control.Node
	way      way
	inFlight atomic.Int64
	open     atomic.Int64          // connections
	retired  atomic.Bool           // the node is gone; what is in flight may end
	answered atomic.Bool           // it has answered a call or a probe
	trouble  atomic.Pointer[error] // why the last call or probe failed; nil = it did not

	state     internalv1connect.StateServiceClient
	directory internalv1connect.DirectoryServiceClient
	push      internalv1connect.PushServiceClient
	gateway   internalv1connect.GatewayServiceClient
	peer      internalv1connect.PeerServiceClient
}

// way is how calls get there.
type way interface {
	connect.Transport
	// Leave closes connections, those in use when they are free.
	Leave()
}

func newRemote(n control.Node, sec Security) *remote {
	r := &remote{node: n}
	if sec.HTTP {
		r.way = r.overHTTP(sec)
	} else {
		r.way = pipe.NewTransport(pipe.Options{Dial: r.dialer(sec), Keys: sec.Keys, Boot: n.BootID, Max: MaxFrame})
	}
	c := connect.NewClient(r.way, traced)
	r.state = internalv1connect.NewStateServiceClient(c)
	r.directory = internalv1connect.NewDirectoryServiceClient(c)
	r.push = internalv1connect.NewPushServiceClient(c)
	r.gateway = internalv1connect.NewGatewayServiceClient(c)
	r.peer = internalv1connect.NewPeerServiceClient(c)
	return r
}

// dialer opens connections for pipes.
func (r *remote) dialer(sec Security) func(context.Context) (net.Conn, error) {
	return func(ctx context.Context) (net.Conn, error) {
		c, err := r.dial(ctx, "tcp", r.node.Internal)
		if err != nil || sec.Certs == nil {
			return c, err
		}
		cfg := sec.Certs.Client()
		cfg.NextProtos = []string{"http/1.1"} // pipes begin there
		t := tls.Client(c, cfg)
		if err := t.HandshakeContext(ctx); err != nil {
			return nil, errors.Join(err, c.Close())
		}
		return t, nil
	}
}

// httpWay makes calls as requests of HTTP/2.
type httpWay struct {
	connect.Transport
	conns *http.Transport
}

// Leave closes the connections that nobody uses.
func (w httpWay) Leave() { w.conns.CloseIdleConnections() }

func (r *remote) overHTTP(sec Security) way {
	protocols := &http.Protocols{}
	scheme := "http://"
	var tlsConfig *tls.Config
	if sec.Certs != nil {
		scheme, tlsConfig = "https://", sec.Certs.Client()
		protocols.SetHTTP2(true)
	} else {
		protocols.SetUnencryptedHTTP2(true)
	}
	conns := &http.Transport{ // no Proxy: variables of the environment are ignored
		DialContext: r.dial, Protocols: protocols, TLSClientConfig: tlsConfig, TLSHandshakeTimeout: connectTimeout,
		IdleConnTimeout: idleTimeout, DisableCompression: true,
		HTTP2: &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingTimeout, MaxReadFrameSize: 1 << 20},
	}
	var rt http.RoundTripper = conns
	if sec.Keys != nil {
		rt = seal.Sign(sec.Keys, time.Now, maxAnswer, rt)
	}
	rt = seal.Address(rt, r.node.BootID)
	client := &http.Client{Transport: rt, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	return httpWay{connecthttp.NewTransport(client, scheme+r.node.Internal, connecthttp.WithReadMaxBytes(maxAnswer)), conns}
}

// dial opens a connection that counts itself.
func (r *remote) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	c, err := (&net.Dialer{Timeout: connectTimeout}).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	r.open.Add(1)
	return &counted{Conn: c, open: &r.open}, nil
}

// counted is a connection that says when it is closed.
type counted struct {
	net.Conn
	open   *atomic.Int64
	closed atomic.Bool
}

// Close closes the connection.
func (c *counted) Close() error {
	if c.closed.CompareAndSwap(false, true) {
		c.open.Add(-1)
	}
	return c.Conn.Close()
}

func (r *remote) begin() { r.inFlight.Add(1) }

// end counts a call that was answered. The last one at a node that is gone
// closes its connections.
func (r *remote) end() {
	if r.inFlight.Add(-1) == 0 && r.retired.Load() {
		r.way.Leave()
	}
}

// learn keeps how a call or a probe ended.
func (r *remote) learn(o balance.Outcome, err error) {
	switch {
	case o == balance.OK && r.trouble.Load() != nil:
		r.trouble.Store(nil)
	case o == balance.Failed, o == balance.Unreachable:
		r.trouble.Store(&err)
	}
}

// ails is why the last call or probe failed, "" = it did not.
func (r *remote) ails() string {
	err := r.trouble.Load()
	if err == nil {
		return ""
	}
	var distrust seal.ErrPeer
	if errors.As(*err, &distrust) {
		return distrust.Error()
	}
	return (*err).Error()
}

// retire lets go of a node that is gone: what is in flight ends by itself.
func (r *remote) retire() {
	r.retired.Store(true)
	r.way.Leave()
}

// same reports whether n is the process that r talks to.
func (r *remote) same(n control.Node) bool {
	return r.node.BootID == n.BootID && r.node.Internal == n.Internal
}

func (r *remote) id() im.NodeID { return r.node.ID }
