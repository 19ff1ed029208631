package push

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	items       *prometheus.CounterVec // label: kind (entry, receipt, head)
	deliveries  prometheus.Counter
	dropped     *prometheus.CounterVec // label: cause (members, routes, gateway, stopped)
	queued      prometheus.Gauge
	refused     *prometheus.CounterVec // label: why (items, bytes)
	memberLoads prometheus.Counter
	notHere     prometheus.Counter
	pulled      prometheus.Counter
	hints       prometheus.Counter
}

// newMetrics shows besides how many bytes are held.
func newMetrics(reg prometheus.Registerer, held func() int) *metrics {
	const ns, sub = "imd", "push"
	m := &metrics{
		items: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: ns, Subsystem: sub, Name: "items_total",
			Help: "Things fanned out."}, []string{"kind"}),
		deliveries: prometheus.NewCounter(prometheus.CounterOpts{Namespace: ns, Subsystem: sub, Name: "deliveries_total",
			Help: "Frames handed to gateways, one per session."}),
		dropped: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: ns, Subsystem: sub, Name: "dropped_total",
			Help: "Items or deliveries given up; clients find them by their cursor."}, []string{"cause"}),
		queued: prometheus.NewGauge(prometheus.GaugeOpts{Namespace: ns, Subsystem: sub, Name: "queue_items",
			Help: "Items that wait for their fan-out."}),
		memberLoads: prometheus.NewCounter(prometheus.CounterOpts{Namespace: ns, Subsystem: sub, Name: "member_loads_total",
			Help: "Member lists read from state."}),
		notHere: prometheus.NewCounter(prometheus.CounterOpts{Namespace: ns, Subsystem: sub, Name: "not_here_total",
			Help: "Deliveries for sessions that their gateway does not hold any more."}),
	}
	m.pulled = prometheus.NewCounter(prometheus.CounterOpts{Namespace: ns, Subsystem: sub, Name: "pulled_total",
		Help: "Messages of busy large groups that devices read after a hint, instead of being given them."})
	m.hints = prometheus.NewCounter(prometheus.CounterOpts{Namespace: ns, Subsystem: sub, Name: "pull_hints_total",
		Help: "Hints about such messages, each for all gateways."})
	m.refused = prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: ns, Subsystem: sub, Name: "refused_total",
		Help: "Calls of state answered busy because too many items or bytes waited for their fan-out."}, []string{"why"})
	for _, why := range []full{tooManyItems, tooManyBytes} {
		m.refused.WithLabelValues(string(why))
	}
	reg.MustRegister(m.refused, prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: ns, Subsystem: sub, Name: "queue_bytes",
		Help: "About how many bytes the items take that wait for their fan-out or are in it."}, func() float64 { return float64(held()) }))
	reg.MustRegister(m.pulled, m.hints, m.items, m.deliveries, m.dropped, m.queued, m.memberLoads, m.notHere)
	return m
}
