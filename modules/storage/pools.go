package storage

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/imdhq/imd/pkg/store"
)

// pools shows the connections of the message store, and the size of its log, if it
// keeps any.
type pools struct{ handle *store.Handle }

func poolDesc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(prometheus.BuildFQName("imd", "storage", name), help, append([]string{"pool"}, labels...), nil)
}

var (
	poolConnections = poolDesc("pool_connections", "Connections to the message store, in use by a call or idle.", "state")
	poolLimit       = poolDesc("pool_connections_limit", "Connections to the message store that the pool may open.")
	poolWaits       = poolDesc("pool_waits_total", "Calls that had to wait for a connection and got one.")
	poolWaited      = poolDesc("pool_wait_seconds_total", "Time that calls have waited for a connection that they got.")
	poolGivenUp     = poolDesc("pool_given_up_total", "Calls that got no connection in their time.")

	logBytes = prometheus.NewDesc("imd_storage_log_bytes", "Size of the log of the embedded store, beside its database file.", nil, nil)
)

// Describe is prometheus.Collector's.
func (pools) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{poolConnections, poolLimit, poolWaits, poolWaited, poolGivenUp, logBytes} {
		ch <- d
	}
}

// Collect is prometheus.Collector's.
func (p pools) Collect(ch chan<- prometheus.Metric) {
	m, err := p.handle.Messages()
	if err != nil {
		return // nothing is open
	}
	if l, ok := m.(store.Logged); ok {
		ch <- prometheus.MustNewConstMetric(logBytes, prometheus.GaugeValue, float64(l.LogBytes()))
	}
	pooled, ok := m.(store.Pooled)
	if !ok {
		return
	}
	for _, x := range pooled.Pools() {
		gauge := func(d *prometheus.Desc, v int, labels ...string) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v), append([]string{x.Name}, labels...)...)
		}
		counter := func(d *prometheus.Desc, v float64) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, x.Name)
		}
		gauge(poolConnections, x.InUse, "in_use")
		gauge(poolConnections, x.Open-x.InUse, "idle")
		gauge(poolLimit, x.Most)
		counter(poolWaits, float64(x.Waits))
		counter(poolWaited, x.Waited.Seconds())
		counter(poolGivenUp, float64(x.GivenUp))
	}
}
