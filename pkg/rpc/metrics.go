package rpc

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics are shared by all servers of a node.
type Metrics struct {
	requests *prometheus.CounterVec   // labels: service, method, code
	seconds  *prometheus.HistogramVec // labels: service, method
	inFlight prometheus.Gauge
}

// NewMetrics registers the metrics, or finds those that another server of this
// node registered before.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	return &Metrics{
		requests: register(reg, prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "imd_http_requests_total", Help: "Calls of the HTTP API that were answered, by Connect code word (ok = no error).",
		}, []string{"service", "method", "code"})),
		seconds: register(reg, prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "imd_http_request_seconds", Help: "From the header of a call of the HTTP API to its answer.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5},
		}, []string{"service", "method"})),
		inFlight: register(reg, prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "imd_http_requests_in_flight", Help: "Calls of the HTTP API that are being answered now.",
		})),
	}
}

// register registers c, or gives the equal one that is there.
func register[C prometheus.Collector](reg prometheus.Registerer, c C) C {
	err := reg.Register(c)
	if err == nil {
		return c
	}
	var dup prometheus.AlreadyRegisteredError
	if errors.As(err, &dup) {
		if old, ok := dup.ExistingCollector.(C); ok {
			return old
		}
	}
	panic(err) // two metrics of one name: a mistake in the program, seen at its first start
}

func (m *Metrics) answered(service, method, code string, took time.Duration) {
	m.requests.WithLabelValues(service, method, code).Inc()
	m.seconds.WithLabelValues(service, method).Observe(took.Seconds())
}
