package state

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/imdhq/imd/pkg/dedup"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// metrics are the state role's own. No label takes a value that a client can
// choose.
type metrics struct {
	tailReads     *prometheus.CounterVec // label: result (shared, refused)
	tailLooks     prometheus.Counter
	acks          *prometheus.CounterVec // label: result (ok, retry, fail)
	duplicates    prometheus.Counter
	batchRows     prometheus.Histogram
	wait          prometheus.Histogram
	queued        prometheus.Gauge
	appendSeconds prometheus.Histogram
	unknown       prometheus.Counter
	fanoutItems   prometheus.Counter
	fanoutDropped *prometheus.CounterVec // label: cause (full, push)
	positions     *prometheus.CounterVec // label: result (saved, dropped)
	dedupLookups  *prometheus.CounterVec // label: result (hit, miss, in_flight, other_content, unreadable, failed)
	dedupErrors   *prometheus.CounterVec // label: class, of dedup.Classes
	dedupNotes    *prometheus.CounterVec // label: result (written, failed, dropped)
	dedupAnswers  prometheus.Histogram
}

// newMetrics registers them. cacheOpen reports whether the dedup cache is not
// asked now.
func newMetrics(reg prometheus.Registerer, cacheOpen func() bool) *metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: "imd", Name: name, Help: help})
	}
	vec := func(name, help, label string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "imd", Name: name, Help: help}, []string{label})
	}
	histogram := func(name, help string, buckets []float64) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: "imd", Name: name, Help: help, Buckets: buckets})
	}
	seconds := []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5}
	m := &metrics{
		acks:          vec("ack_total", "Answers to sends.", "result"),
		duplicates:    counter("message_duplicates_total", "Sends that were stored before."),
		batchRows:     histogram("lane_batch_rows", "Sends in one batch.", []float64{1, 2, 5, 10, 20, 50, 100, 150, 200}),
		wait:          histogram("lane_wait_seconds", "From the arrival of a send in its lane to its batch.", seconds),
		queued:        prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "imd", Name: "lane_queue_rows", Help: "Sends that wait for their batch now."}),
		appendSeconds: histogram("state_append_seconds", "Calls of the lanes to the message store.", seconds),
		unknown:       counter("state_unknown_outcomes_total", "Calls of the lanes to the message store with an unknown outcome; each ran again."),
		fanoutItems:   counter("state_fanout_items_total", "Items handed to the push role."),
		fanoutDropped: vec("state_fanout_dropped_total", "Items that were not handed over; clients find them by their cursors.", "cause"),
		positions:     vec("state_positions_total", "Delivered positions, by what became of them in the store.", "result"),
		tailReads:     vec("state_tail_reads_total", "Reads of the end of a conversation that came together with others: shared one look at the store, or refused, as it was not for them.", "result"),
		tailLooks:     counter("state_tail_looks_total", "Looks at the store for such reads."),
		dedupLookups:  vec("dedup_lookups_total", "Resends that were looked up in the dedup cache, by what was found.", "result"),
		dedupErrors:   vec("dedup_errors_total", "Calls to the dedup cache that failed, by class; open = not made, as it did not answer lately.", "class"),
		dedupNotes:    vec("dedup_notes_total", "What the dedup cache was told behind the acks; failed and dropped ones cost a question to the store.", "result"),
		dedupAnswers: histogram("dedup_answer_seconds", "From the arrival of a resend to its answer, if the dedup cache had it.",
			[]float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025}),
	}
	for _, c := range dedup.Classes() {
		m.dedupErrors.WithLabelValues(string(c))
	}
	for _, result := range []string{"hit", "miss", "in_flight", "other_content", "unreadable", "failed"} {
		m.dedupLookups.WithLabelValues(result)
	}
	for _, result := range []string{"written", "failed", "dropped"} {
		m.dedupNotes.WithLabelValues(result)
	}
	open := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "imd", Name: "dedup_open", Help: "1 while the dedup cache is not asked, because it did not answer lately."},
		func() float64 {
			if cacheOpen() {
				return 1
			}
			return 0
		})
	for _, result := range []string{"shared", "refused"} {
		m.tailReads.WithLabelValues(result)
	}
	reg.MustRegister(m.tailReads, m.tailLooks, m.acks, m.duplicates, m.batchRows, m.wait, m.queued, m.appendSeconds, m.unknown,
		m.fanoutItems, m.fanoutDropped, m.positions, m.dedupLookups, m.dedupErrors, m.dedupNotes, m.dedupAnswers, open)
	return m
}

func (m *metrics) ack(a clientv1.Ack) {
	switch a {
	case clientv1.Ack_ACK_OK:
		m.acks.WithLabelValues("ok").Inc()
	case clientv1.Ack_ACK_FAIL:
		m.acks.WithLabelValues("fail").Inc()
	default:
		m.acks.WithLabelValues("retry").Inc()
	}
}
