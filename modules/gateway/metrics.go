package gateway

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// kind is a frame's kind as the metrics count it.
type kind uint8

// Kinds of frames, both ways.
const (
	kindUnknown kind = iota
	kindHello
	kindSend
	kindAck
	kindRead
	kindSync
	kindHistory
	kindTyping
	kindWatchPresence
	kindRefreshToken
	kindPong
	kindWelcome
	kindSendAck
	kindDeliver
	kindReceipt
	kindSyncResult
	kindHistoryResult
	kindRefreshResult
	kindPing
	kindHead
	kindDrain
	kindBye
	kindError
	kindPresence
	kindTypingOut
	kindAnnouncement
	kinds // how many there are
)

var kindNames = [kinds]string{"unknown", "hello", "send", "ack", "read", "sync", "history", "typing", "watch_presence",
	"refresh_token", "pong", "welcome", "send_ack", "deliver", "receipt", "sync_result", "history_result", "refresh_result",
	"ping", "head", "drain", "bye", "error", "presence", "typing", "announcement"}

// kindOfClient is the kind of a frame from a device.
func kindOfClient(f *clientv1.ClientFrame) kind {
	switch f.Kind.(type) {
	case *clientv1.ClientFrame_Hello:
		return kindHello
	case *clientv1.ClientFrame_Send:
		return kindSend
	case *clientv1.ClientFrame_Ack:
		return kindAck
	case *clientv1.ClientFrame_Read:
		return kindRead
	case *clientv1.ClientFrame_Sync:
		return kindSync
	case *clientv1.ClientFrame_History:
		return kindHistory
	case *clientv1.ClientFrame_Typing:
		return kindTyping
	case *clientv1.ClientFrame_WatchPresence:
		return kindWatchPresence
	case *clientv1.ClientFrame_RefreshToken:
		return kindRefreshToken
	case *clientv1.ClientFrame_Pong:
		return kindPong
	}
	return kindUnknown
}

// kindOfServer is the kind of a frame to a device.
func kindOfServer(f *clientv1.ServerFrame) kind {
	switch f.Kind.(type) {
	case *clientv1.ServerFrame_Welcome:
		return kindWelcome
	case *clientv1.ServerFrame_SendAck:
		return kindSendAck
	case *clientv1.ServerFrame_Deliver:
		return kindDeliver
	case *clientv1.ServerFrame_Receipt:
		return kindReceipt
	case *clientv1.ServerFrame_SyncResult:
		return kindSyncResult
	case *clientv1.ServerFrame_HistoryResult:
		return kindHistoryResult
	case *clientv1.ServerFrame_RefreshResult:
		return kindRefreshResult
	case *clientv1.ServerFrame_Ping:
		return kindPing
	case *clientv1.ServerFrame_Head:
		return kindHead
	case *clientv1.ServerFrame_Drain:
		return kindDrain
	case *clientv1.ServerFrame_Bye:
		return kindBye
	case *clientv1.ServerFrame_Error:
		return kindError
	case *clientv1.ServerFrame_Presence:
		return kindPresence
	case *clientv1.ServerFrame_Announcement:
		return kindAnnouncement
	}
	return kindUnknown
}

// metrics are the gateway's own. No label takes a value that a client can
// choose.
type metrics struct {
	connections prometheus.Gauge
	parked      prometheus.Gauge
	tidied      prometheus.Counter
	memory      prometheus.Gauge
	shed        prometheus.Counter
	handshakes  *prometheus.CounterVec // label: result
	in, out     [kinds]prometheus.Counter
	closed      *prometheus.CounterVec // label: reason
	pullMode    *prometheus.CounterVec // label: change (enter, leave)
	redelivered prometheus.Counter
	limited     *prometheus.CounterVec // label: what (send, request)
	marksLost   prometheus.Counter
	heads       prometheus.Counter
	refreshed   *prometheus.CounterVec // label: result
	unchecked   *prometheus.CounterVec // label: why (full, unanswered)
	routesAway  prometheus.Gauge
	routeLosses prometheus.Counter
	unclaimed   prometheus.Gauge
	outranked   prometheus.Counter
	kicksLost   prometheus.Counter
	// staleLeaders counts calls of leaders that had been followed.
	staleLeaders prometheus.Counter
	presence     *prometheus.CounterVec // label: result (sent, owed)
	typing       *prometheus.CounterVec // label: result
	// announcements counts those that were queued for sessions.
	announcements   prometheus.Counter
	watchers        prometheus.Gauge
	watched         prometheus.Gauge
	groups          prometheus.Gauge
	groupMembers    prometheus.Gauge
	groupLoads      *prometheus.CounterVec // label: result (read, failed)
	groupDropped    prometheus.Counter
	requestsRefused *prometheus.CounterVec // labels: kind, why (full, late)
	submitSends     prometheus.Histogram
	send            prometheus.Histogram
	deliver         prometheus.Histogram
}

func newMetrics(reg prometheus.Registerer) *metrics {
	const ns, sub = "imd", "gateway"
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: ns, Subsystem: sub, Name: name, Help: help})
	}
	vec := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: ns, Subsystem: sub, Name: name, Help: help}, labels)
	}
	seconds := func(name, help string) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: ns, Subsystem: "message", Name: name, Help: help,
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}})
	}
	m := &metrics{
		connections: prometheus.NewGauge(prometheus.GaugeOpts{Namespace: ns, Subsystem: sub, Name: "connections",
			Help: "Client connections open on this node now, authenticated or not."}),
		parked: prometheus.NewGauge(prometheus.GaugeOpts{Namespace: ns, Subsystem: sub, Name: "connections_parked",
			Help: "Of the connections, those that are quiet and have no goroutine."}),
		announcements:   counter("announcements_total", "Announcements told sessions."),
		tidied:          counter("memory_returned_total", "Times that memory was given back to the system because most connections were quiet."),
		handshakes:      vec("handshakes_total", "Connections asked for, by what became of them.", "result"),
		closed:          vec("sessions_closed_total", "Connections ended, by reason.", "reason"),
		pullMode:        vec("pull_mode_total", "Switches of connections into and out of pull mode.", "change"),
		redelivered:     counter("redeliveries_total", "Entries delivered again for want of an ack."),
		limited:         vec("rate_limited_total", "Frames refused for being above a rate.", "what"),
		marksLost:       counter("marks_dropped_total", "Delivery acks that did not reach state; later ones make up for them."),
		heads:           counter("heads_total", "Head hints after the comparison with state."),
		refreshed:       vec("routes_refreshed_total", "Routes refreshed: kept, restored because the store had lost them, superseded or replaced by newer ones, or failed.", "result"),
		unchecked:       vec("logins_unchecked_total", "Logins of open sessions that were not looked up again in their round: too many waited (full), or the directory did not answer (unanswered).", "why"),
		routesAway:      prometheus.NewGauge(prometheus.GaugeOpts{Namespace: ns, Subsystem: sub, Name: "routes_away", Help: "1 while the route store does not answer this node."}),
		routeLosses:     counter("route_losses_total", "Times that the route store had forgotten, so that all routes were put back."),
		unclaimed:       prometheus.NewGauge(prometheus.GaugeOpts{Namespace: ns, Subsystem: sub, Name: "sessions_unclaimed", Help: "Sessions that began while the route store was away and have no route yet."}),
		kicksLost:       counter("kicks_lost_total", "Displaced sessions whose gateway could not be told at once; they find out with their next refresh."),
		outranked:       counter("outranked_total", "Sessions that ended because the message store refused their sends: a newer one had displaced them, under session.strict."),
		staleLeaders:    counter("stale_leader_calls_total", "Calls refused because their leader had been followed."),
		presence:        vec("presence_events_total", "Changes of presence for sessions that watch: sent, or owed to one that is behind, until it reads.", "result"),
		typing:          vec("typing_total", "Frames that say that somebody types: passed on, limited by a rate, of conversations that are too large, or failed.", "result"),
		watchers:        prometheus.NewGauge(prometheus.GaugeOpts{Namespace: ns, Subsystem: sub, Name: "presence_watchers", Help: "Sessions that watch somebody's presence."}),
		watched:         prometheus.NewGauge(prometheus.GaugeOpts{Namespace: ns, Subsystem: sub, Name: "presence_watched", Help: "Users whose presence somebody watches here."}),
		groups:          prometheus.NewGauge(prometheus.GaugeOpts{Namespace: ns, Subsystem: sub, Name: "groups", Help: "Large groups whose members this node finds itself."}),
		groupMembers:    prometheus.NewGauge(prometheus.GaugeOpts{Namespace: ns, Subsystem: sub, Name: "group_members", Help: "Members on the lists of those groups."}),
		groupLoads:      vec("group_loads_total", "Lists of members asked of state: read, or failed, which leaves what waited to the clients' cursors.", "result"),
		groupDropped:    counter("group_dropped_total", "Frames given up because the list of their group was not there; clients find them by their cursors."),
		requestsRefused: vec("requests_refused_total", "Requests answered busy: too many waited (full), or it had waited for too long (late).", "kind", "why"),
		memory: prometheus.NewGauge(prometheus.GaugeOpts{Namespace: ns, Subsystem: sub, Name: "memory_used_ratio",
			Help: "Memory of the process as a part of its limit: newcomers are refused from 0.85 on; 0 = there is no limit."}),
		shed: counter("memory_shed_total", "Connections closed because much waited for them and the memory limit was near."),
		submitSends: prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: ns, Subsystem: sub, Name: "submit_sends",
			Help: "Sends carried by one call to state.", Buckets: []float64{1, 2, 4, 8, 16, 32, 64, 128, 200}}),
		send:    seconds("send_seconds", "From the arrival of a send to its answer."),
		deliver: seconds("deliver_seconds", "From the commit of an entry to its frame being written to a device."),
	}
	frames := vec("frames_total", "Frames read from and written to clients.", "direction", "kind")
	for k := range kinds {
		if k <= kindPong {
			m.in[k] = frames.WithLabelValues("in", kindNames[k])
		}
		if k > kindPong || k == kindUnknown {
			m.out[k] = frames.WithLabelValues("out", kindNames[k])
		}
	}
	for _, r := range []string{"kept", "restored", "superseded", "replaced", "failed"} {
		m.refreshed.WithLabelValues(r)
	}
	for _, why := range []string{"full", "unanswered"} {
		m.unchecked.WithLabelValues(why)
	}
	for _, r := range []string{"passed", "limited", "large", "failed"} {
		m.typing.WithLabelValues(r)
	}
	for _, kind := range []string{"sync", "history", "read", "watch_presence"} {
		m.requestsRefused.WithLabelValues(kind, "full")
		m.requestsRefused.WithLabelValues(kind, "late")
	}
	for _, r := range []string{"sent", "owed"} {
		m.presence.WithLabelValues(r)
	}
	for _, r := range []string{"read", "failed"} {
		m.groupLoads.WithLabelValues(r)
	}
	reg.MustRegister(m.groups, m.groupMembers, m.groupLoads, m.groupDropped)
	reg.MustRegister(m.presence, m.typing, m.watchers, m.watched)
	reg.MustRegister(m.requestsRefused, m.announcements)
	reg.MustRegister(m.connections, m.parked, m.tidied, m.memory, m.shed, m.handshakes, frames, m.closed, m.pullMode, m.redelivered, m.limited, m.marksLost,
		m.heads, m.refreshed, m.unchecked, m.routesAway, m.routeLosses, m.unclaimed, m.outranked, m.kicksLost, m.staleLeaders, m.submitSends, m.send, m.deliver)
	return m
}

// watchRequests shows how many requests wait for their turn.
func (m *metrics) watchRequests(reg prometheus.Registerer, g *Gateway) {
	reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "imd", Subsystem: "gateway", Name: "requests_waiting",
		Help: "Requests of clients, syncs among them, that wait for their turn."},
		func() float64 { return float64(g.requests.waits() + g.syncs.waits()) }))
}

// watchSilence shows how long the leader of the schedulers has not asked what
// happens here.
func (m *metrics) watchSilence(reg prometheus.Registerer, silence func() time.Duration) {
	reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "imd", Subsystem: "gateway", Name: "presence_silence_seconds",
		Help: "How long no leader of the schedulers has asked which sessions begin and end here; 0 = none ever has."},
		func() float64 { return silence().Seconds() }))
}
