package controlplane

import (
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/imdhq/imd/pkg/control"
)

// collector turns what the driver counts into metrics when they are asked for.
type collector struct {
	stats func() (control.Stats, bool) // false before the start and after the end
	view  func() *control.View
	node  func() control.Node

	leaseLost, repairs, resyncs, lag, age, registered, drift, nodes, info *prometheus.Desc
	elections                                                             electionDescs
}

func newCollector(stats func() (control.Stats, bool), view func() *control.View, node func() control.Node) *collector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	return &collector{
		stats: stats, view: view, node: node,
		leaseLost:  desc("imd_etcd_lease_lost_total", "Leases of this node that ended without its doing."),
		repairs:    desc("imd_etcd_record_repairs_total", "Records of this node that were found missing or wrong and written again."),
		resyncs:    desc("imd_etcd_watch_resyncs_total", "Full reads of the cluster after the first one.", "cause"),
		lag:        desc("imd_etcd_revision_lag", "Revisions that etcd is known to be ahead of the view."),
		age:        desc("imd_etcd_view_age_seconds", "Time since the last sign of life of the watch."),
		registered: desc("imd_etcd_registered", "1 while the record of this node is written under a lease that holds."),
		drift:      desc("imd_discovery_drift_total", "Records of the view that the periodic check found wrong; 0 in a healthy cluster."),
		nodes:      desc("imd_discovery_nodes", "Nodes in the view.", "state"),
		info:       desc("imd_node_info", "Always 1; the labels say what this node is.", "node", "version", "roles", "zone"),
		elections:  newElectionDescs(desc),
	}
}

// Describe lists the metrics.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.leaseLost, c.repairs, c.resyncs, c.lag, c.age, c.registered, c.drift, c.nodes, c.info} {
		ch <- d
	}
	c.elections.describe(ch)
}

// Collect reads the counters.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	s, ok := c.stats()
	if !ok {
		return
	}
	count := func(d *prometheus.Desc, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	count(c.leaseLost, s.LeaseLost)
	count(c.repairs, s.Repairs)
	count(c.drift, s.Drift)
	for _, cause := range control.ResyncCauses() {
		count(c.resyncs, s.Resyncs[cause], cause)
	}
	c.elections.collect(ch, s)
	gauge(c.lag, float64(s.Newest-s.Revision))
	if !s.Heard.IsZero() {
		gauge(c.age, time.Since(s.Heard).Seconds())
	}
	held := 0.0
	if s.Registered {
		held = 1
	}
	gauge(c.registered, held)
	states := map[control.State]int{control.Starting: 0, control.Serving: 0, control.Draining: 0}
	for _, n := range c.view().Nodes {
		if _, known := states[n.State]; known {
			states[n.State]++
		}
	}
	for state, n := range states {
		gauge(c.nodes, float64(n), string(state))
	}
	if n := c.node(); n.ID != "" {
		gauge(c.info, 1, string(n.ID), n.Version, strings.Join(n.Roles, ","), n.Zone)
	}
}
