package gateway

import (
	"context"
	mrand "math/rand/v2"
	"net/netip"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/rate"
	"github.com/imdhq/imd/proto/gen/adminv1"
)

// maxKeys bounds each of the maps of buckets.
const maxKeys = 200_000

// minWait is the shortest pause a refused client is told, so that one that
// obeys is not refused again at once, time after time.
const minWait = time.Second

// pauses is the pause of one who is refused in a crowd, 0.5 to 1.5 times minWait.
func pauses() time.Duration { return minWait/2 + mrand.N(minWait) }

// Limits are the rates of this node. Safe for concurrent use.
type Limits struct {
	cfg   LimitConfig  // what is fixed
	rates func() rates // in force now
	now   func() time.Time
	off   atomic.Bool

	users   *rate.Keyed[im.UserID]
	convs   *rate.Keyed[im.ConversationID]
	addrs   *rate.Keyed[netip.Addr]
	node    *rate.Keyed[struct{}] // one bucket, for all newcomers
	shakes  rate.Line             // for the TLS handshakes of all
	strikes *rate.Strikes[netip.Addr]
}

func newLimits(cfg LimitConfig, in func() rates, now func() time.Time) *Limits {
	return &Limits{
		cfg: cfg, rates: in, now: now,
		users:   rate.NewKeyed[im.UserID](maxKeys),
		convs:   rate.NewKeyed[im.ConversationID](maxKeys),
		addrs:   rate.NewKeyed[netip.Addr](maxKeys),
		node:    rate.NewKeyed[struct{}](1),
		strikes: rate.NewStrikes[netip.Addr](cfg.FailedHellos, time.Minute, time.Minute, maxKeys),
	}
}

// SetOff lifts all rates, or puts them back in force.
func (l *Limits) SetOff(off bool) { l.off.Store(off) }

// Send counts one send of a user into a conversation, from whichever way in. If
// ok is false it must be refused with rate_limited, and retryAfter is what to
// tell the client. The system ("") has no rate of its own.
func (l *Limits) Send(user im.UserID, conv im.ConversationID) (ok bool, retryAfter time.Duration) {
	if l.off.Load() {
		return true, 0
	}
	now, in := l.now(), l.rates()
	if user != "" {
		if ok, wait := l.users.Take(now, user, in.user); !ok {
			return false, max(wait, minWait)
		}
	}
	if ok, wait := l.convs.Take(now, conv, in.conversation); !ok {
		if user != "" {
			l.users.Give(user)
		}
		return false, max(wait, minWait)
	}
	return true, 0
}

// frame counts one frame of the connection that owns b.
func (l *Limits) frame(now time.Time, b *rate.Bucket) (ok bool, retryAfter time.Duration) {
	if l.off.Load() {
		return true, 0
	}
	if ok, wait := b.Take(now, l.rates().connection); !ok {
		return false, max(wait, minWait)
	}
	return true, 0
}

// upgrade counts one connection from an address.
func (l *Limits) upgrade(addr netip.Addr) (ok bool, retryAfter time.Duration) {
	if l.off.Load() || l.exempt(addr) {
		return true, 0
	}
	now := l.now()
	if wait := l.strikes.Blocked(now, addr); wait > 0 {
		return false, wait
	}
	if ok, wait := l.addrs.Take(now, addr, l.rates().address); !ok {
		return false, max(wait, minWait)
	}
	return true, 0
}

// accept counts one connection of the node, wherever it is from, so that a storm
// of them leaves time for those who are here.
func (l *Limits) accept() (ok bool, retryAfter time.Duration) {
	if l.off.Load() {
		return true, 0
	}
	if ok, wait := l.node.Take(l.now(), struct{}{}, l.rates().accept); !ok {
		return false, max(wait, minWait)
	}
	return true, 0
}

// handshake counts one TLS handshake. It is to wait until it is its turn; if ok is
// false that would take too long.
func (l *Limits) handshake() (wait time.Duration, ok bool) {
	if l.off.Load() {
		return 0, true
	}
	return l.shakes.Join(l.now(), l.rates().tls, turnWait)
}

// badToken counts a token from an address that was not valid.
func (l *Limits) badToken(addr netip.Addr) {
	if !l.off.Load() && !l.exempt(addr) {
		l.strikes.Fail(l.now(), addr)
	}
}

// exempt reports whether the rules for addresses do not hold for addr.
func (l *Limits) exempt(addr netip.Addr) bool {
	return l.cfg.LoopbackExempt && addr.IsLoopback()
}

// limitService is imd.admin.v1.LimitService.
type limitService struct {
	limits *Limits
	log    *zap.Logger
}

// SetLimits switches the rates of this node off or on.
func (s limitService) SetLimits(_ context.Context, req *adminv1.SetLimitsRequest) (*adminv1.SetLimitsResponse, error) {
	s.limits.SetOff(req.Off)
	s.log.Warn("rate limits were switched", zap.Bool("off", req.Off))
	return &adminv1.SetLimitsResponse{}, nil
}

// overload tells when a connection has been above its rates for too long. The
// zero value is ready.
type overload struct{ since, last time.Time }

const (
	// overloadGap is a pause without a refusal that starts the count anew; a
	// client that waits as told always makes one.
	overloadGap = 600 * time.Millisecond
	// overloadTime is how long refusals may go on end.
	overloadTime = 10 * time.Second
)

// passOver does not count a time without refusals as a pause: nothing was read
// from the client meanwhile.
func (o *overload) passOver(d time.Duration) {
	if !o.last.IsZero() {
		o.last = o.last.Add(d)
	}
}

// refused notes a refusal; true = they have gone on for most.
func (o *overload) refused(now time.Time, most time.Duration) bool {
	if now.Sub(o.last) > overloadGap {
		o.since = now
	}
	o.last = now
	return now.Sub(o.since) >= most
}
