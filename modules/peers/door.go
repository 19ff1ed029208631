package peers

import (
	"errors"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect/v2"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/peer"
	"github.com/imdhq/imd/pkg/peer/pipe"
	"github.com/imdhq/imd/pkg/peer/seal"
	"github.com/imdhq/imd/pkg/rpc"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// Bounds of the connections to the listener. A process opens two connections to
// another, and two more for a moment when they are renewed.
const (
	maxConnections = 2048
	maxFromAddress = 512
)

// reasons are why somebody is refused.
var reasons = []string{"missing", "old", "key", "used", "large", "roles", "process", "version", "unreadable", "connections"}

// newRefused counts what the listener does not answer.
func newRefused(reg prometheus.Registerer) *prometheus.CounterVec {
	c := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "imd_peer_refused_total",
		Help: "Calls and connections of other processes that were refused, by reason: " + strings.Join(reasons, ", ") + ".",
	}, []string{"reason"})
	for _, r := range reasons { // so that all are there, at 0, before the first
		c.WithLabelValues(r)
	}
	reg.MustRegister(c)
	return c
}

// door lets calls of the cluster in, and nobody else's.
type door struct {
	check   func(*http.Request) (seal.Answer, error)
	boot    string
	refused *prometheus.CounterVec
}

func (p *Peers) door(sec peer.Security) door {
	d := door{boot: p.BootID, refused: p.refused}
	if sec.Certs != nil {
		d.check = func(r *http.Request) (seal.Answer, error) { return nil, sec.Certs.Allowed(r) }
	} else {
		d.check = seal.NewVerifier(sec.Keys, time.Now, maxRequest).Check
	}
	return d
}

// wrap puts the door in front of a handler.
func (d door) wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(bodyLimit)) // not every writer can
		sign, err := d.check(r)
		if err != nil {
			var e seal.ErrProof
			word := "unreadable"
			if errors.As(err, &e) {
				word = e.Word()
			} else {
				e = "the request cannot be read"
			}
			d.refuse(w, r, http.StatusUnauthorized, word, im.Errorf(clientv1.Reason_REASON_BAD_TOKEN, "peers.Auth", "%s", e))
			return
		}
		if sign == nil {
			d.answer(w, r, next)
			return
		}
		kept := seal.NewRecorder(w, sign)
		d.answer(kept, r, next)
		kept.Send()
	})
}

// answer hands a call of the cluster on, if it is for this process.
func (d door) answer(w http.ResponseWriter, r *http.Request, next http.Handler) {
	if seal.Misdirected(r, d.boot) {
		d.refuse(w, r, http.StatusMisdirectedRequest, "process", im.Errorf(clientv1.Reason_REASON_UNAVAILABLE, "peers.Auth",
			"another process is at this address now; if it is a loopback address, set peers.advertise to one that other machines reach"))
		return
	}
	next.ServeHTTP(w, r)
}

// pipes is how the listener answers calls that come over pipes.
func (d door) pipes(calls *connect.Server, sec peer.Security) pipe.Config {
	c := pipe.Config{Calls: calls, Keys: sec.Keys, Boot: d.boot, Max: peer.MaxFrame, Refused: func(word string) { d.refused.WithLabelValues(word).Inc() }}
	if sec.Certs != nil {
		c.Allowed = sec.Certs.May
	}
	return c
}

// refuse answers a call that nobody here takes.
func (d door) refuse(w http.ResponseWriter, r *http.Request, status int, word string, err error) {
	d.refused.WithLabelValues(word).Inc()
	seal.Refuse(w)
	rpc.WriteError(w, r, status, err)
}

// limited is a listener that closes connections beyond its bounds at once.
type limited struct {
	net.Listener
	refused *prometheus.CounterVec

	mu   sync.Mutex
	open int
	from map[string]int // by address
}

// limit bounds the connections of a listener.
func limit(ln net.Listener, refused *prometheus.CounterVec) net.Listener {
	return &limited{Listener: ln, refused: refused, from: map[string]int{}}
}

// Accept waits for a connection within the bounds.
func (l *limited) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		host, _, err := net.SplitHostPort(c.RemoteAddr().String())
		if err == nil && l.enter(host) {
			return &member{Conn: c, leave: sync.OnceFunc(func() { l.left(host) })}, nil
		}
		l.refused.WithLabelValues("connections").Inc()
		_ = c.Close() // it was of no use
	}
}

func (l *limited) enter(host string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open >= maxConnections || l.from[host] >= maxFromAddress {
		return false
	}
	l.open++
	l.from[host]++
	return true
}

func (l *limited) left(host string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open--
	if l.from[host]--; l.from[host] == 0 {
		delete(l.from, host)
	}
}

// member is a connection that counts.
type member struct {
	net.Conn
	leave func()
}

// Close closes the connection.
func (m *member) Close() error {
	m.leave()
	return m.Conn.Close()
}
