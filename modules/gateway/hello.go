package gateway

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	mrand "math/rand/v2"
	"strings"
	"time"

	"github.com/imdhq/imd/pkg/auth"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// features are the later parts of the protocol that this server has.
var features = []string{"presence", "typing", "announcements", "digest"}

// defaultClass is the class of a login that names none.
const defaultClass = im.Desktop

// refusal is why a hello was refused.
type refusal struct {
	reason, msg string
	after       time.Duration
}

func refuse(reason, format string, args ...any) *refusal {
	return &refusal{reason: reason, msg: fmt.Sprintf(format, args...)}
}

// hello begins the session, or ends the connection.
func (s *session) hello(f *clientv1.ClientFrame) {
	h := f.GetHello()
	if h == nil {
		s.end("bad_frame", "the first frame must be hello", 0)
		return
	}
	s.mu.Lock()
	if s.phase != waiting {
		s.mu.Unlock()
		return
	}
	s.phase = joining
	s.order = s.g.hellos.Add(1)
	s.mu.Unlock()
	level, claims, no := s.identify(h)
	if no == nil {
		no = s.join(claims)
	}
	if no != nil {
		s.g.m.handshakes.WithLabelValues("hello_" + no.reason).Inc()
		s.mu.Lock()
		s.byeLocked(f.Id, protocol.NewBye(no.reason, no.msg, no.after))
		s.mu.Unlock()
		return
	}
	// A client writes hello and its first sync together; so go the answers.
	s.corked = true
	s.q.cork()
	s.welcome(f.Id, level, claims)
	s.g.announcer.greet(s)
}

// identify finds out who says hello.
func (s *session) identify(h *clientv1.Hello) (level uint32, c auth.Claims, no *refusal) {
	level, ok := negotiate(h.MinVersion, h.Version)
	if !ok {
		return 0, c, refuse("unsupported_version", "this server speaks versions %d to %d", protocol.MinVersion, protocol.Version)
	}
	c, no = s.verify(h.Token)
	if no != nil {
		return 0, c, no
	}
	if c.Device == "" {
		c.Device = im.DeviceID(h.DeviceId)
	}
	if c.Device == "" {
		c.Device = im.DeviceID(c.Login) // one device a login, for programs that name none
	}
	if !protocol.ValidID(string(c.Device)) {
		return 0, c, refuse("bad_frame", "device_id must be 1 to %d bytes of A-Z a-z 0-9 . _ - @ +", protocol.MaxID)
	}
	if c.Class == "" {
		c.Class = im.Class(h.Class)
	}
	if c.Class == "" {
		c.Class = defaultClass
	}
	if !c.Class.Valid() {
		return 0, c, refuse("bad_frame", "class must be phone, tablet, web, desktop or bot")
	}
	if len(h.Client) > protocol.MaxClientName {
		return 0, c, refuse("bad_frame", "client has at most %d bytes", protocol.MaxClientName)
	}
	s.mu.Lock() // the end of a connection that is no session yet reads them too
	s.user, s.login, s.device, s.class = c.User, c.Login, c.Device, c.Class
	if s.announcedSeq = noAnnouncements; h.AnnouncementSeq != nil {
		s.announcedSeq, s.announcedEpoch = max(h.GetAnnouncementSeq(), 0), strings.Clone(h.AnnouncementEpoch)
	}
	s.mu.Unlock()
	return level, c, nil
}

// negotiate picks the highest level that both sides can do.
func negotiate(low, high uint32) (level uint32, ok bool) {
	if low == 0 {
		low = high
	}
	level = min(high, protocol.Version)
	return level, low <= high && level >= low && level >= protocol.MinVersion
}

// verify checks the token of hello, or that of the Authorization header.
func (s *session) verify(token string) (auth.Claims, *refusal) {
	now := time.Now()
	if s.claims != nil {
		if token != "" && token != s.token {
			return auth.Claims{}, refuse("bad_token", "hello and the Authorization header carry different tokens")
		}
		if !now.Before(s.claims.Expires) {
			return auth.Claims{}, refuse("token_expired", "the token expired")
		}
		return *s.claims, nil
	}
	c, err := s.g.Verifier.Verify(token, now)
	if err == nil {
		return c, nil
	}
	reason := im.ReasonName(im.ReasonOf(err))
	if reason != "token_expired" {
		reason = "bad_token"
		s.g.limits.badToken(s.addr)
	}
	return c, &refusal{reason: reason, msg: im.Wire(err).Message}
}

// join lets the login in with many others, and then does what only some need: probe
// who holds its place, and prove its rank.
func (s *session) join(c auth.Claims) *refusal {
	if !c.IssuedAt.IsZero() {
		s.issued = c.IssuedAt.UnixMilli()
	}
	j := &entrant{s: s, done: make(chan struct{}, 1)}
	if !s.g.joins.offer(j, false) {
		return tooMany()
	}
	<-j.done
	if !j.claimed {
		return j.no
	}
	give, full := s.turn(j)
	defer give()
	if full != nil {
		if j.no = full; lost(j.err) {
			return full
		}
	}
	claim, no := s.claim(j)
	if no != nil {
		return no
	}
	if no = j.no; no == nil && !s.live() {
		no = gone()
	}
	if no == nil {
		claim, no = s.prove(claim)
	}
	if no != nil {
		// Who was displaced for nothing comes back by itself.
		s.g.displace(append(claim.Superseded, claim.Replaced...), "busy")
		return no
	}
	if s.unclaimed() {
		s.g.keeper.wait(s)
	}
	s.g.displaced(s.user, claim)
	return nil
}

// welcome begins the session: what was delivered meanwhile goes behind it.
func (s *session) welcome(id, level uint32, c auth.Claims) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.phase != joining {
		return
	}
	now := time.Now()
	s.phase, s.expires = online, c.Expires
	s.runs.User, s.runs.Session = string(s.user), string(s.id)
	s.beat.begin(now)
	s.g.watchers.began(s)
	s.g.admission.authenticated(s.addr) // whoever is told so has given up the place
	s.pending = false
	s.replyLocked(&clientv1.ServerFrame{Id: id, Kind: &clientv1.ServerFrame_Welcome{Welcome: &clientv1.Welcome{
		Version: level, SessionId: string(s.id), UserId: string(s.user), DeviceId: string(s.device), DataEpoch: s.dataEpoch,
		ServerTimeMs: now.UnixMilli(), TokenExpireMs: c.Expires.UnixMilli(),
		PingIntervalMs: millis(s.beat.interval), PongTimeoutMs: millis(s.beat.timeout), Features: features,
	}}})
	for _, f := range s.early {
		s.deliverLocked(now, f)
	}
	s.early = nil
	s.sendAwayLate(now)
	s.wakeLocked(s.expires)
	s.wakeLocked(s.beat.next())
	s.wakeLocked(now.Add(corkTime))
	s.claims, s.token = nil, ""
	s.g.m.handshakes.WithLabelValues("ok").Inc()
}

// endTexts say why a session ended, where the reason alone may puzzle people.
var endTexts = map[string]string{
	"replaced":   "signed in on another device",
	"superseded": "a newer session of this login and device",
	"kicked":     "ended by the operator",
	"revoked":    "the login was revoked or the user disabled",
	"resync":     "the store has another history now",
}

// newSessionID is random, so that nobody can guess one.
func newSessionID() im.SessionID {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return im.SessionID(hex.EncodeToString(b[:]))
}

// jitter is a factor of 0.8 to 1.2.
func jitter() float64 { return 0.8 + 0.4*mrand.Float64() }
