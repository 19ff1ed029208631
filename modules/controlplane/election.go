package controlplane

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/imdhq/imd/pkg/control"
)

// electionDescs are the metrics of elections and locks.
type electionDescs struct {
	leading, token, terms, ends, forced, fenced, locks, locksLost *prometheus.Desc
}

func newElectionDescs(desc func(name, help string, labels ...string) *prometheus.Desc) electionDescs {
	return electionDescs{
		leading:   desc("imd_election_leading", "1 while this node leads.", "election"),
		token:     desc("imd_election_token", "Token of the present term of this node; 0 = it does not lead.", "election"),
		terms:     desc("imd_election_terms_total", "Terms of this node.", "election"),
		ends:      desc("imd_election_ends_total", "Terms of this node that ended.", "election", "reason"),
		forced:    desc("imd_election_forced_total", "Dead leaders whose lease this node revoked.", "election"),
		fenced:    desc("imd_election_fenced_total", "Claims of the fence that the message store refused.", "election"),
		locks:     desc("imd_locks", "Locks that this node holds, or waits for.", "state"),
		locksLost: desc("imd_locks_lost_total", "Locks of this node that ended without its doing."),
	}
}

func (d electionDescs) describe(ch chan<- *prometheus.Desc) {
	for _, one := range []*prometheus.Desc{d.leading, d.token, d.terms, d.ends, d.forced, d.fenced, d.locks, d.locksLost} {
		ch <- one
	}
}

func (d electionDescs) collect(ch chan<- prometheus.Metric, s control.Stats) {
	send := func(desc *prometheus.Desc, kind prometheus.ValueType, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(desc, kind, v, labels...)
	}
	for name, e := range s.Elections {
		leading := 0.0
		if e.Leading {
			leading = 1
		}
		send(d.leading, prometheus.GaugeValue, leading, name)
		send(d.token, prometheus.GaugeValue, float64(e.Token), name)
		send(d.terms, prometheus.CounterValue, float64(e.Terms), name)
		send(d.forced, prometheus.CounterValue, float64(e.Forced), name)
		send(d.fenced, prometheus.CounterValue, float64(e.Fenced), name)
		for _, reason := range control.Ends() {
			send(d.ends, prometheus.CounterValue, float64(e.Ends[reason]), name, reason)
		}
	}
	send(d.locks, prometheus.GaugeValue, float64(s.Locks.Held), "held")
	send(d.locks, prometheus.GaugeValue, float64(s.Locks.Waiting), "waiting")
	send(d.locksLost, prometheus.CounterValue, float64(s.Locks.Lost))
}
