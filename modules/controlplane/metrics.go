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

	leaseLost, repairs, renewals, resyncs, lag, age, away, registered *prometheus.Desc
	drift, suspects, held, evicted, nodes, standing, info             *prometheus.Desc
	calls, good, revision, dbBytes, dbInUse, dbQuota, alarms          *prometheus.Desc
	watches, asking                                                   *prometheus.Desc
	elections                                                         electionDescs
}

func newCollector(stats func() (control.Stats, bool), view func() *control.View, node func() control.Node) *collector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	return &collector{
		stats: stats, view: view, node: node,
		leaseLost:  desc("imd_etcd_lease_lost_total", "Leases of this node that ended without its doing."),
		repairs:    desc("imd_etcd_record_repairs_total", "Records of this node that were found missing or wrong and written again."),
		renewals:   desc("imd_etcd_renewals_total", "Attempts to renew the lease of this node.", "result"),
		away:       desc("imd_etcd_away", "1 while etcd cannot be reached and the view may be old."),
		suspects:   desc("imd_discovery_suspects_total", "Nodes whose record vanished without a word."),
		held:       desc("imd_discovery_held_total", "Of these, nodes kept in use because most of a role vanished at once."),
		evicted:    desc("imd_discovery_evicted_total", "Of these, nodes that left the view."),
		standing:   desc("imd_discovery_standing", "Nodes in the view by why they are in it.", "standing"),
		calls:      desc("imd_etcd_call_seconds", "Calls to an etcd cluster by method, and by what their outcome means: ok, retry, unknown or final.", "method", "class"),
		good:       desc("imd_etcd_endpoint_good", "1 while calls prefer the endpoint.", "endpoint"),
		revision:   desc("imd_etcd_member_revision", "Newest revision of the member.", "endpoint"),
		dbBytes:    desc("imd_etcd_member_db_bytes", "Size of the member's database file.", "endpoint"),
		dbInUse:    desc("imd_etcd_member_db_in_use_bytes", "Of that, what is not free for new data.", "endpoint"),
		dbQuota:    desc("imd_etcd_member_db_quota_bytes", "Size of the database at which writes stop.", "endpoint"),
		alarms:     desc("imd_etcd_member_alarms", "Alarms that the member tells of.", "endpoint"),
		resyncs:    desc("imd_etcd_watch_resyncs_total", "Full reads of nodes, leaders or settings after the first one.", "cause"),
		watches:    desc("imd_etcd_watches", "Watches that etcd serves this node; 0 while other nodes hand on what they see."),
		asking:     desc("imd_relay_waiting", "Calls of other nodes that wait here for changes of the registry."),
		lag:        desc("imd_etcd_revision_lag", "Revisions that etcd is known to be ahead of the view."),
		age:        desc("imd_etcd_view_age_seconds", "Time since the last sign of life of the watch."),
		registered: desc("imd_etcd_registered", "1 while the record of this node is written under a lease that holds."),
		drift:      desc("imd_discovery_drift_total", "Records of nodes, leaders or settings that the periodic check found wrong; 0 in a healthy cluster."),
		nodes:      desc("imd_discovery_nodes", "Nodes in the view.", "state"),
		info:       desc("imd_node_info", "Always 1; the labels say what this node is.", "node", "version", "roles", "zone"),
		elections:  newElectionDescs(desc),
	}
}

// Describe lists the metrics.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		c.leaseLost, c.repairs, c.renewals, c.resyncs, c.lag, c.age, c.away, c.registered, c.drift, c.suspects, c.held, c.evicted, c.nodes, c.standing,
		c.info, c.calls, c.good, c.revision, c.dbBytes, c.dbInUse, c.dbQuota, c.alarms, c.watches, c.asking,
	} {
		ch <- d
	}
	c.elections.describe(ch)
}

// sink makes metrics and sends them off.
type sink chan<- prometheus.Metric

func (s sink) count(d *prometheus.Desc, v uint64, labels ...string) {
	s <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
}

func (s sink) gauge(d *prometheus.Desc, v float64, labels ...string) {
	s <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
}

func (s sink) flag(d *prometheus.Desc, on bool, labels ...string) {
	v := 0.0
	if on {
		v = 1
	}
	s.gauge(d, v, labels...)
}

// Collect reads the counters.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	s, ok := c.stats()
	if !ok {
		return
	}
	out := sink(ch)
	out.count(c.leaseLost, s.LeaseLost)
	out.count(c.repairs, s.Repairs)
	out.count(c.renewals, s.Renewals, "ok")
	out.count(c.renewals, s.RenewFails, "failed")
	for _, cause := range control.ResyncCauses() {
		out.count(c.resyncs, s.Resyncs[cause], cause)
	}
	c.elections.collect(ch, s)
	out.gauge(c.lag, float64(s.Newest-s.Revision))
	if !s.Heard.IsZero() {
		out.gauge(c.age, time.Since(s.Heard).Seconds())
	}
	out.flag(c.away, s.Stale)
	out.gauge(c.watches, float64(s.Watches))
	out.gauge(c.asking, float64(s.Asking))
	out.flag(c.registered, s.Registered)
	c.discovery(out, s)
	c.server(out, s)
	if n := c.node(); n.ID != "" {
		out.gauge(c.info, 1, string(n.ID), n.Version, strings.Join(n.Roles, ","), n.Zone)
	}
}

// discovery tells of the nodes.
func (c *collector) discovery(out sink, s control.Stats) {
	out.count(c.drift, s.Drift)
	out.count(c.suspects, s.Suspects)
	out.count(c.held, s.Held)
	out.count(c.evicted, s.Evicted)
	states := map[control.State]int{control.Starting: 0, control.Serving: 0, control.Draining: 0}
	standings := map[control.Standing]int{control.Listed: 0, control.Held: 0, control.Suspect: 0, control.Unregistered: 0}
	for _, n := range c.view().Nodes {
		if _, known := states[n.State]; known {
			states[n.State]++
		}
		standings[n.Standing]++
	}
	for state, n := range states {
		out.gauge(c.nodes, float64(n), string(state))
	}
	for standing, n := range standings {
		name := string(standing)
		if standing == control.Listed {
			name = "listed"
		}
		out.gauge(c.standing, float64(n), name)
	}
}

// server tells of etcd.
func (c *collector) server(out sink, s control.Stats) {
	for _, k := range s.Calls {
		buckets := make(map[float64]uint64, len(control.CallBounds))
		for i, b := range control.CallBounds {
			buckets[b.Seconds()] = k.Buckets[i]
		}
		out <- prometheus.MustNewConstHistogram(c.calls, k.Count, k.Total.Seconds(), buckets, k.Method, string(k.Class))
	}
	for _, e := range s.Endpoints {
		out.flag(c.good, e.Good, e.URL)
		if e.Version == "" {
			continue // it has not answered yet
		}
		out.gauge(c.revision, float64(e.Revision), e.URL)
		out.gauge(c.dbBytes, float64(e.DBBytes), e.URL)
		out.gauge(c.dbInUse, float64(e.DBInUse), e.URL)
		out.gauge(c.dbQuota, float64(e.DBQuota), e.URL)
		out.gauge(c.alarms, float64(e.Alarms), e.URL)
	}
}
