package peer

import (
	"time"

	"connectrpc.com/connect/v2"
	"github.com/prometheus/client_golang/prometheus"
)

// metrics counts calls to other processes. A nil *metrics counts nothing.
type metrics struct {
	calls     *prometheus.CounterVec   // labels: peer, method, code
	seconds   *prometheus.HistogramVec // labels: peer, method
	retries   *prometheus.CounterVec   // label: method
	backups   *prometheus.CounterVec   // label: method
	won       *prometheus.CounterVec   // label: method
	ejections *prometheus.CounterVec   // label: peer
}

func newMetrics(reg prometheus.Registerer, s *Set) *metrics {
	const ns, sub = "imd", "peer"
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: ns, Subsystem: sub, Name: name, Help: help}, labels)
	}
	m := &metrics{
		calls: counter("calls_total", "Attempts of calls to other nodes, by Connect code word (ok = no error).", "peer", "method", "code"),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: ns, Subsystem: sub, Name: "call_seconds",
			Help:    "How long attempts of calls to other nodes took.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .02, .05, .1, .2, .5, 1}}, []string{"peer", "method"}),
		retries:   counter("retries_total", "Calls to other nodes that were made again after a failure.", "method"),
		backups:   counter("backups_total", "Calls made at a second node because the first one took long.", "method"),
		won:       counter("backups_won_total", "Second calls that answered first.", "method"),
		ejections: counter("ejections_total", "How often a node was left out because it failed.", "peer"),
	}
	reg.MustRegister(m.calls, m.seconds, m.retries, m.backups, m.won, m.ejections, newCollector(s))
	return m
}

func (m *metrics) answered(p *place, x *Method, took time.Duration, err error) {
	if m == nil {
		return
	}
	code := "ok"
	if err != nil {
		code = connect.CodeOf(err).String()
	}
	m.calls.WithLabelValues(p.id(), x.Name, code).Inc()
	m.seconds.WithLabelValues(p.id(), x.Name).Observe(took.Seconds())
}

func (m *metrics) retried(x *Method) {
	if m != nil {
		m.retries.WithLabelValues(x.Name).Inc()
	}
}

func (m *metrics) backup(x *Method) {
	if m != nil {
		m.backups.WithLabelValues(x.Name).Inc()
	}
}

func (m *metrics) backupWon(x *Method) {
	if m != nil {
		m.won.WithLabelValues(x.Name).Inc()
	}
}

func (m *metrics) ejected(p *place) {
	if m != nil {
		m.ejections.WithLabelValues(p.id()).Inc()
	}
}

// forget drops the series of a node that is gone.
func (m *metrics) forget(peer string) {
	for _, v := range []interface {
		DeletePartialMatch(prometheus.Labels) int
	}{m.calls, m.seconds, m.ejections} {
		v.DeletePartialMatch(prometheus.Labels{"peer": peer})
	}
}

// collector reads what is true now: connections, calls in flight, budgets.
type collector struct {
	s                      *Set
	open, inFlight, budget *prometheus.Desc
	nodes, out             *prometheus.Desc
}

func newCollector(s *Set) *collector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("imd_peer_"+name, help, labels, nil)
	}
	return &collector{
		s:        s,
		open:     desc("open_connections", "Open connections to the node.", "peer"),
		inFlight: desc("in_flight", "Calls to the node that have no answer yet.", "peer"),
		budget:   desc("budget_tokens", "What is left for retries and backup requests, 0 to 100; below 50 there are none.", "role"),
		nodes:    desc("nodes", "Nodes of the role that get calls, this one included.", "role"),
		out:      desc("ejected_nodes", "Nodes of the role that are left out because they failed.", "role"),
	}
}

// Describe lists the metrics.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.open, c.inFlight, c.budget, c.nodes, c.out} {
		ch <- d
	}
}

// Collect reads them.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, label string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, label)
	}
	if p := c.s.others.Load(); p != nil {
		for id, o := range *p {
			gauge(c.open, float64(o.remote.open.Load()), string(id))
			gauge(c.inFlight, float64(o.remote.inFlight.Load()), string(id))
		}
	}
	for _, g := range c.s.groups() {
		g.mu.Lock()
		tokens, n, out := g.budget.Tokens(time.Now()), len(g.places), g.eject.Out()
		g.mu.Unlock()
		gauge(c.budget, tokens, g.role)
		gauge(c.nodes, float64(n), g.role)
		gauge(c.out, float64(out), g.role)
	}
}
