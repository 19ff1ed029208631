package gateway

import (
	"runtime"
	"slices"
	"time"

	"github.com/imdhq/imd/pkg/delivery"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/rate"
	"github.com/imdhq/imd/pkg/settings"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// What may change while the gateway runs. A key that the configuration has too
// starts with its value from there.
var (
	defaults = DefaultConfig()

	pingInterval = settings.Duration("gateway.ping_interval", defaults.PingInterval, 100*time.Millisecond, 10*time.Minute,
		"Time between two pings to a client; connections take it over with their next ping.", settings.Shrink(2))
	pongTimeout = settings.Duration("gateway.pong_timeout", defaults.PongTimeout, 100*time.Millisecond, time.Minute,
		"A connection without a byte for this long after a ping is closed; below gateway.ping_interval.", settings.Shrink(2))
	redeliverAfter = settings.Duration("gateway.redeliver_after", defaults.RedeliverAfter, 50*time.Millisecond, time.Minute,
		"First wait before a delivery without an ack is repeated, then 2 times and from there on 4 times as long.")
	redeliverCount = settings.Int("gateway.redeliver_count", delivery.Redeliveries, 1, 20,
		"How often a delivery without an ack is repeated; then the client's cursor must find it.")

	loginMode = settings.Word("gateway.login.mode", defaults.Login.Mode, []string{"multi", "kick_old", "reject_new"},
		"What a new login means for those a user has: several may stay, the others end, or it is refused. Holds for logins from then on.")
	loginMulti = settings.Int("gateway.login.multi", defaults.Login.Multi, 1, 1000,
		"Logins of one class that a user may have under multi; the oldest beyond it ends when a new one comes.", settings.Unit("logins"))
	loginSameClass = settings.Bool("gateway.login.same_class", defaults.Login.SameClass,
		"Under kick_old and reject_new only logins of the same device class count.")

	loginTotal = settings.Int("gateway.login.total", defaults.Login.Total, 0, 1000,
		"Logins of all classes together that a user may have; the oldest beyond it ends, or under reject_new the new one is refused. 0 = no bound.", settings.Unit("logins"))
	classModes, classMultis = byClass()

	presenceLease = settings.Duration("presence.lease", 2*time.Minute, 10*time.Second, time.Hour,
		"How long a session watches users before it is looked up again whether it may; who left all shared conversations is watched that long at most.")
	typingMembers = settings.Int("presence.typing_members", protocol.LargeGroup, 2, 200,
		"Members of a group up to which the others are told who types.", settings.Unit("members"))
	strictSessions = settings.Bool("session.strict", false,
		"Write the rank of each new session to the message store and compare it with every send, so that none of a displaced session is stored. Holds for sessions that begin from then on.")

	rateFactor = settings.Float("rate.factor", 1, 0.01, 10,
		"Scales the rates and bursts of frames and sends: those of connections, users and conversations.")

	connectionRate    = perSecond("connection", defaults.Limits.ConnectionRate, "Frames a second from one connection.", "frames/s")
	connectionBurst   = burst("connection", defaults.Limits.ConnectionBurst, "Frames from one connection at once.", "frames")
	userRate          = perSecond("user", defaults.Limits.UserRate, "Sends a second of one user.", "sends/s")
	userBurst         = burst("user", defaults.Limits.UserBurst, "Sends of one user at once.", "sends")
	conversationRate  = perSecond("conversation", defaults.Limits.ConversationRate, "Sends a second into one conversation.", "sends/s")
	conversationBurst = burst("conversation", defaults.Limits.ConversationBurst, "Sends into one conversation at once.", "sends")
	acceptRate        = perSecond("accept", defaults.Limits.AcceptRate, "Connections a second on the node, for each processor that it uses.", "connections/s")
	acceptBurst       = burst("accept", defaults.Limits.AcceptBurst, "Connections on the node at once, for each processor that it uses.", "connections")
	tlsRate           = perSecond("tls", defaults.Limits.TLSRate, "TLS handshakes a second on the node, for each processor that it uses.", "handshakes/s")
	tlsBurst          = burst("tls", defaults.Limits.TLSBurst, "TLS handshakes on the node at once, for each processor that it uses.", "handshakes")
	addressRate       = perSecond("address", defaults.Limits.AddressRate, "Connections a second from one address.", "connections/s")
	addressBurst      = burst("address", defaults.Limits.AddressBurst, "Connections from one address at once.", "connections")

	declared = settings.Schema{
		Keys: append(classKeys(), []settings.Declared{
			pingInterval, pongTimeout, redeliverAfter, redeliverCount, loginMode, loginMulti, loginSameClass, loginTotal, strictSessions, rateFactor,
			presenceLease, typingMembers,
			connectionRate, connectionBurst, userRate, userBurst, conversationRate, conversationBurst, acceptRate, acceptBurst, tlsRate, tlsBurst, addressRate, addressBurst,
		}...),
		Rules: []settings.Rule{settings.Below(pongTimeout, pingInterval)},
	}
)

// inherit is the mode of a class that has none of its own.
const inherit = "inherit"

// byClass are the settings of single device classes.
func byClass() (modes map[im.Class]settings.Setting[string], multis map[im.Class]settings.Setting[int]) {
	modes, multis = map[im.Class]settings.Setting[string]{}, map[im.Class]settings.Setting[int]{}
	for _, c := range im.Classes() {
		modes[c] = settings.Word("gateway.login."+string(c)+".mode", inherit, []string{inherit, "multi", "kick_old", "reject_new"},
			"The same as gateway.login.mode for new logins of the class "+string(c)+", which then count among themselves only; inherit = what holds for all.")
		multis[c] = settings.Int("gateway.login."+string(c)+".multi", 0, 0, 1000,
			"The same as gateway.login.multi for the class "+string(c)+"; 0 = what holds for all.", settings.Unit("logins"))
	}
	return modes, multis
}

func classKeys() []settings.Declared {
	var out []settings.Declared
	for _, c := range im.Classes() {
		out = append(out, classModes[c], classMultis[c])
	}
	return out
}

// loginPolicies are what a new login of each class means, in the order of
// im.Classes.
type loginPolicies [5]store.Policy

func (l loginPolicies) of(c im.Class) store.Policy { return l[slices.Index(im.Classes(), c)] }

func policies(cfg Config, now *settings.Snapshot) (out loginPolicies) {
	for i, c := range im.Classes() {
		p := store.Policy{
			Mode:  policyModes[loginMode.Or(now, cfg.Login.Mode)],
			Multi: loginMulti.Or(now, cfg.Login.Multi), SameClass: loginSameClass.Or(now, cfg.Login.SameClass),
			Total: loginTotal.Or(now, cfg.Login.Total),
		}
		if mode := classModes[c].In(now); mode != inherit {
			p.Mode, p.SameClass = policyModes[mode], true
		}
		if n := classMultis[c].In(now); n > 0 {
			p.Multi = n
		}
		out[i] = p
	}
	return out
}

func perSecond(what string, def float64, sentence, unit string) settings.Setting[float64] {
	return settings.Float("gateway.limits."+what+"_rate", def, 0.001, 1e9, sentence, settings.Unit(unit))
}

func burst(what string, def int, sentence, unit string) settings.Setting[int] {
	return settings.Int("gateway.limits."+what+"_burst", def, 1, 1_000_000_000, sentence, settings.Unit(unit))
}

// tuning is what holds at one revision of the settings. It is immutable.
type tuning struct {
	pingInterval, pongTimeout time.Duration
	redeliverAfter            time.Duration
	redeliverCount            int
	login                     loginPolicies
	strict                    bool // session.strict
	rates                     rates
	presenceLease             time.Duration
	typingMembers             int
}

// rates are those in force, with the factor in them.
type rates struct{ connection, user, conversation, accept, tls, address rate.Limit }

// tune puts the settings over the configuration.
func tune(cfg Config, now *settings.Snapshot) tuning {
	limit := func(r settings.Setting[float64], b settings.Setting[int], start rate.Limit, factor float64) rate.Limit {
		l := rate.Limit{PerSecond: r.Or(now, start.PerSecond), Burst: b.Or(now, start.Burst)}
		return rate.Limit{PerSecond: l.PerSecond * factor, Burst: max(1, int(float64(l.Burst)*factor))}
	}
	factor := rateFactor.In(now)
	return tuning{
		pingInterval: pingInterval.Or(now, cfg.PingInterval), pongTimeout: pongTimeout.Or(now, cfg.PongTimeout),
		redeliverAfter: redeliverAfter.Or(now, cfg.RedeliverAfter), redeliverCount: redeliverCount.In(now),
		login: policies(cfg, now), strict: strictSessions.In(now),
		presenceLease: presenceLease.In(now), typingMembers: typingMembers.In(now),
		rates: rates{
			connection:   limit(connectionRate, connectionBurst, cfg.Limits.connection(), factor),
			user:         limit(userRate, userBurst, cfg.Limits.user(), factor),
			conversation: limit(conversationRate, conversationBurst, cfg.Limits.conversation(), factor),
			accept:       limit(acceptRate, acceptBurst, cfg.Limits.accept(), float64(runtime.GOMAXPROCS(0))),
			tls:          limit(tlsRate, tlsBurst, cfg.Limits.tls(), float64(runtime.GOMAXPROCS(0))),
			address:      limit(addressRate, addressBurst, cfg.Limits.address(), 1),
		},
	}
}
