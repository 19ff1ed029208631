package outbox

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/imdhq/imd/pkg/webhook"
)

// Metrics are those of all receivers of a process. Receivers are named in the
// configuration, so their number is bounded.
type Metrics struct {
	tries  *prometheus.CounterVec   // labels: receiver, outcome (taken, failed, refused)
	took   *prometheus.HistogramVec // label: receiver
	open   *prometheus.GaugeVec
	oldest *prometheus.GaugeVec
	down   *prometheus.GaugeVec
	dead   *prometheus.CounterVec
}

// NewMetrics registers them.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	const ns, sub = "imd", "webhook"
	by := []string{"receiver"}
	m := &Metrics{
		tries: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: ns, Subsystem: sub, Name: "tries_total",
			Help: "Requests to receivers: taken, failed or refused."}, []string{"receiver", "outcome"}),
		took: prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: ns, Subsystem: sub, Name: "try_seconds",
			Help: "How long a request to a receiver took.", Buckets: []float64{.001, .005, .025, .1, .5, 1, 2.5, 5, 10, 30}}, by),
		open: prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: ns, Subsystem: sub, Name: "open_events",
			Help: "Events that were taken up for a receiver and that it has not taken yet."}, by),
		oldest: prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: ns, Subsystem: sub, Name: "oldest_seconds",
			Help: "Age of the oldest of these; 0 if there is none."}, by),
		down: prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: ns, Subsystem: sub, Name: "receiver_down",
			Help: "1 if a receiver takes nothing now."}, by),
		dead: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: ns, Subsystem: sub, Name: "dead_letters_total",
			Help: "Events that were given up for a receiver."}, by),
	}
	reg.MustRegister(m.tries, m.took, m.open, m.oldest, m.down, m.dead)
	return m
}

func (m *Metrics) tried(name string, r result) {
	outcome := map[webhook.Outcome]string{webhook.Taken: "taken", webhook.Failed: "failed", webhook.Refused: "refused"}[r.Outcome]
	m.tries.WithLabelValues(name, outcome).Inc()
	m.took.WithLabelValues(name).Observe(r.took.Seconds())
}

func (m *Metrics) stands(name string, w *Window, now time.Time) {
	m.open.WithLabelValues(name).Set(float64(w.Open()))
	age, down := 0.0, 0.0
	if at := w.Oldest(); !at.IsZero() {
		age = now.Sub(at).Seconds()
	}
	if w.Down() {
		down = 1
	}
	m.oldest.WithLabelValues(name).Set(age)
	m.down.WithLabelValues(name).Set(down)
}

// Forget takes the gauges of a receiver away that is told by another process now.
func (m *Metrics) Forget(name string) {
	for _, g := range []*prometheus.GaugeVec{m.open, m.oldest, m.down} {
		g.DeleteLabelValues(name)
	}
}
