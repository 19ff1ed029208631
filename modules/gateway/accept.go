package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	mrand "math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// drainRetry is when a client that was refused for a drain, or for want of room
// on this node, should come back.
const drainRetry = 2 * time.Second

// denial is why an upgrade was refused.
type denial struct {
	status     int
	code       string // a Connect code word
	msg        string
	retryAfter time.Duration // 0 = none
	result     string        // for the metrics
}

// upgrade answers a request for a session, and has it begin.
func (g *Gateway) upgrade(w http.ResponseWriter, r *http.Request) {
	if s := g.open(w, r); s != nil {
		go s.begin() // not the server's goroutine: it holds more memory
	}
}

// open turns a request into a session, which the caller has begin; nil = it was
// refused, and the answer says why.
func (g *Gateway) open(w http.ResponseWriter, r *http.Request) *session {
	if !g.comeIn() {
		(&denial{http.StatusServiceUnavailable, "unavailable", "the node stops", drainRetry, "draining"}).write(w)
		return nil
	}
	defer g.wg.Done()
	addr := g.clientAddr(r)
	enc, no := g.examine(r, addr)
	if no == nil {
		no = g.enter(w, r, addr)
	}
	if no != nil {
		g.m.handshakes.WithLabelValues(no.result).Inc()
		no.write(w)
		return nil
	}
	begun := false
	defer func() {
		if !begun {
			g.admission.leave(addr, true)
		}
	}()
	s := newSession(g, enc, addr)
	if no := s.headerToken(r); no != nil {
		g.m.handshakes.WithLabelValues(no.result).Inc()
		no.write(w)
		return nil
	}
	d := newSide(s)
	// The library answers what is no proper handshake by itself.
	if err := d.accept(&hijacker{ResponseWriter: w, side: d}, r, enc.Subprotocol()); err != nil {
		g.m.handshakes.WithLabelValues("bad_handshake").Inc()
		if s.wire.Conn != nil {
			_ = s.wire.Conn.Close()
		}
		return nil
	}
	d.admit()
	s.wire.side, s.pending, begun = d, true, true
	s.attach(s.wire.Conn)
	g.hub.open(s)
	g.m.connections.Inc()
	g.wg.Add(1) // until the session is freed, whether it has a goroutine or not
	if g.closing.Load() {
		s.end("drain", "the node stops", drainRetry)
	}
	return s
}

// examine checks what can be checked without counting anything.
func (g *Gateway) examine(r *http.Request, addr netip.Addr) (protocol.Encoding, *denial) {
	if r.Method != http.MethodGet || !hasToken(r.Header, "Upgrade", "websocket") {
		return 0, &denial{http.StatusUpgradeRequired, "invalid_argument", "this address takes WebSocket connections", 0, "bad_handshake"}
	}
	if g.draining.Load() {
		return 0, &denial{http.StatusServiceUnavailable, "unavailable", "the node stops", drainRetry, "draining"}
	}
	if g.short.Load() {
		return 0, &denial{http.StatusServiceUnavailable, "unavailable", "the node is short of memory", drainRetry, "no_memory"}
	}
	enc, ok := protocol.Select(offered(r.Header))
	if !ok {
		return 0, &denial{http.StatusBadRequest, "invalid_argument", fmt.Sprintf("no known subprotocol was offered; this server has %s and %s",
			protocol.SubprotocolProto, protocol.SubprotocolJSON), 0, "subprotocol"}
	}
	if msg := g.origins.check(r.Header.Values("Origin"), r.Host); msg != "" {
		return 0, &denial{http.StatusForbidden, "permission_denied", msg, 0, "origin"}
	}
	if ok, wait := g.limits.upgrade(addr); !ok {
		return 0, &denial{http.StatusTooManyRequests, "resource_exhausted", "too many connections from this address", wait, "rate_limited"}
	}
	if ok, wait := g.limits.accept(); !ok { // last, so that nobody who is refused anyway uses it up
		return 0, &denial{http.StatusServiceUnavailable, "unavailable", "too many connections come to this node at once", wait + mrand.N(2*time.Second), "storm"}
	}
	return enc, nil
}

// enter asks for admission, and waits for it if need be. Who has left meanwhile is not
// let in.
func (g *Gateway) enter(w http.ResponseWriter, r *http.Request, addr netip.Addr) *denial {
	verdict, n := g.admission.enter(addr)
	if n != nil {
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		defer context.AfterFunc(g.ctx, cancel)()
		var left func() bool // the HTTP server ends the context of its requests
		if a, ok := w.(*answer); ok {
			left = a.left
		}
		verdict = g.admission.await(ctx, n, enterWait, left)
		if left != nil && left() {
			if verdict == admitted {
				g.admission.leave(addr, true)
			}
			return &denial{http.StatusServiceUnavailable, "unavailable", "the client has left", minWait, "left"}
		}
	}
	switch verdict {
	case nodeFull:
		return &denial{http.StatusServiceUnavailable, "unavailable", "the node holds as many connections as it may", drainRetry, "full"}
	case tooManyPending:
		return &denial{http.StatusServiceUnavailable, "unavailable", "too many connections wait for their hello", minWait + mrand.N(2*time.Second), "unauthenticated_full"}
	case addressFull:
		return &denial{http.StatusTooManyRequests, "resource_exhausted", "too many connections from this address wait for their hello", minWait, "address_full"}
	}
	return nil
}

// headerToken verifies the token of the Authorization header, if there is one.
func (s *session) headerToken(r *http.Request) *denial {
	header := r.Header.Get("Authorization")
	if header == "" {
		return nil
	}
	scheme, token, _ := strings.Cut(header, " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return &denial{http.StatusUnauthorized, "unauthenticated", "Authorization must be Bearer and a token", 0, "bad_token"}
	}
	token = strings.TrimSpace(token)
	c, err := s.g.Verifier.Verify(token, time.Now())
	if err != nil {
		result := im.ReasonName(im.ReasonOf(err))
		if result != "token_expired" {
			result = "bad_token"
			s.g.limits.badToken(s.addr)
		}
		return &denial{http.StatusUnauthorized, "unauthenticated", im.Wire(err).Message, 0, result}
	}
	s.claims, s.token = &c, token
	return nil
}

// write answers the request with a Connect error.
func (d *denial) write(w http.ResponseWriter) {
	body, _ := json.Marshal(struct { // two strings: it cannot fail
		Code    string `json:"code"`
		Message string `json:"message"`
	}{d.code, d.msg})
	h := w.Header()
	h.Set("Content-Type", "application/json")
	if d.retryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(int((d.retryAfter+time.Second-1)/time.Second)))
	}
	if d.status == http.StatusUpgradeRequired {
		h.Set("Connection", "Upgrade")
		h.Set("Upgrade", "websocket")
	}
	w.WriteHeader(d.status)
	_, _ = w.Write(body)
}

// offered is the client's list of subprotocols, in its order.
func offered(h http.Header) []string {
	var out []string
	for _, line := range h.Values("Sec-WebSocket-Protocol") {
		for name := range strings.SplitSeq(line, ",") {
			out = append(out, strings.TrimSpace(name))
		}
	}
	return out
}

// hasToken reports whether a header that is a list names token.
func hasToken(h http.Header, name, token string) bool {
	for _, line := range h.Values(name) {
		for t := range strings.SplitSeq(line, ",") {
			if strings.EqualFold(strings.TrimSpace(t), token) {
				return true
			}
		}
	}
	return false
}

// clientAddr is the address of the client: the peer's, or, if that is a proxy
// we trust, the last address in X-Forwarded-For that is none.
func (g *Gateway) clientAddr(r *http.Request) netip.Addr {
	addr := parseAddr(r.RemoteAddr)
	if len(g.proxies) == 0 || !g.trusted(addr) {
		return addr
	}
	hops := strings.Split(strings.Join(r.Header.Values("X-Forwarded-For"), ","), ",")
	for _, hop := range slices.Backward(hops) {
		a := parseAddr(strings.TrimSpace(hop))
		if !a.IsValid() {
			break
		}
		if addr = a; !g.trusted(a) {
			break
		}
	}
	return addr
}

func (g *Gateway) trusted(a netip.Addr) bool {
	return slices.ContainsFunc(g.proxies, func(p netip.Prefix) bool { return p.Contains(a) })
}

// parseAddr reads an address with or without a port; invalid if it is neither.
func parseAddr(s string) netip.Addr {
	if host, _, err := net.SplitHostPort(s); err == nil {
		s = host
	}
	a, err := netip.ParseAddr(strings.Trim(s, "[]"))
	if err != nil {
		return netip.Addr{}
	}
	return a.Unmap().WithZone("")
}
