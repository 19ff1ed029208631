package bench

import (
	"sort"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// meter counts what a run does. Only operations that should have begun within
// the measured part are in its latencies.
type meter struct {
	opts       Options
	clock      *loop
	latencies  map[string]*recorder
	primary    *recorder // whose seconds are shown
	connecting *recorder
	delivering *recorder
	errors     map[string]int64
	fails      int64  // operations that failed
	ops        int64  // operations done in the measured part
	deliveries int64  // of messages, in the measured part
	entries    int64  // read with pages
	states     int64  // of conversations, read with syncs
	eventsMost int    // presence: that one watcher got in one round
	onReceived func() // of a message; nil = nobody waits for it
	open       int    // operations that have begun and not ended
	lastSeen   time.Duration

	measuring bool
	over      bool          // no operation begins any more
	began     time.Duration // 0 = not yet
	end       time.Duration // of the measured part, as planned
	took      float64       // seconds

	series    []Sample
	lastOps   int64
	lastDel   int64
	cpu       map[string]float64 // at the beginning
	rss       map[string]int64
	last      map[string]Process // as last seen, should it be gone at the end
	ownCPU    float64
	processes []Process

	onlineAfter float64 // connect: when all were online, in seconds; 0 = they are not
	onlineCPU   float64 // of the server until then
}

func (m *meter) init(o Options, l *loop) {
	m.opts, m.clock = o, l
	m.latencies, m.errors = map[string]*recorder{}, map[string]int64{}
	m.cpu, m.rss, m.last = map[string]float64{}, map[string]int64{}, map[string]Process{}
	m.connecting, m.delivering = m.recorder("connect"), m.recorder("deliver")
	m.primary = m.recorder("ack")
}

// recorder finds or makes the recorder of a name.
func (m *meter) recorder(name string) *recorder {
	r := m.latencies[name]
	if r == nil {
		r = newRecorder()
		m.latencies[name] = r
	}
	return r
}

// begin starts the measured part.
func (m *meter) begin() {
	for _, r := range m.latencies {
		r.reset()
	}
	clear(m.errors)
	m.series, m.entries, m.states = nil, 0, 0
	m.clock.tick()
	m.ops, m.deliveries, m.fails, m.lastOps, m.lastDel = 0, 0, 0, 0, 0
	m.measuring, m.began, m.ownCPU = true, max(m.clock.now, 1), ownCPU()
	m.end = m.began + m.opts.Duration
	for name, pid := range m.opts.Processes {
		if cpu, rss, err := usage(pid); err == nil {
			m.cpu[name], m.rss[name] = cpu, rss
		}
	}
}

// finish closes the measured part: times and memory are read now.
func (m *meter) finish() {
	if !m.measuring {
		return
	}
	m.end = min(m.end, m.clock.now) // what has fallen due since could not begin
	m.clock.tick()
	m.measuring, m.over = false, true
	m.took = (m.clock.now - m.began).Seconds()
	m.ownCPU = ownCPU() - m.ownCPU
	m.look()
	for _, p := range m.last {
		m.processes = append(m.processes, p)
	}
	sort.Slice(m.processes, func(i, j int) bool { return m.processes[i].Name < m.processes[j].Name })
}

// look reads what the server has used since the beginning.
func (m *meter) look() {
	for name, pid := range m.opts.Processes {
		before, known := m.cpu[name]
		if cpu, rss, err := usage(pid); err == nil && known {
			m.last[name] = Process{Name: name, PID: pid, CPU: cpu - before, RSSBefore: m.rss[name], RSSAfter: rss}
		}
	}
}

// serverCPU is what the server has used since the beginning, as last seen.
func (m *meter) serverCPU() (seconds float64) {
	for _, p := range m.last {
		seconds += p.CPU
	}
	return seconds
}

// counts reports whether what should have begun at t is in the latencies.
func (m *meter) counts(t time.Duration) bool { return m.began > 0 && t >= m.began && t < m.end }

// done takes note of an operation that succeeded.
func (m *meter) done(rec *recorder, intended time.Duration) {
	m.open--
	m.lastSeen = m.clock.now
	if !m.over {
		m.ops++ // of the warm-up too, until begin
	}
	m.record(rec, intended)
}

// record takes note of how long something took; a nil recorder takes nothing.
func (m *meter) record(rec *recorder, intended time.Duration) {
	if rec != nil && m.counts(intended) {
		rec.add(m.clock.now - intended)
	}
}

// aside takes note of an operation that succeeded beside those that the
// scenario counts.
func (m *meter) aside(rec *recorder, intended time.Duration) {
	m.done(rec, intended)
	if !m.over {
		m.ops--
	}
}

// fail takes note of an operation that failed.
func (m *meter) fail(reason string) {
	m.open--
	m.lastSeen = m.clock.now
	m.fails++
	m.errors[reason]++
}

// late takes note of an operation that has no answer yet, or was not even
// begun: it took at least this long.
func (m *meter) late(reason string, rec *recorder, intended time.Duration) {
	if !m.counts(intended) {
		return
	}
	m.record(rec, intended)
	m.errors[reason]++
	m.fails++
}

// refused takes note of a send that has to be written again.
func (m *meter) refused(reason string) { m.errors["refused: "+reason]++ }

// received takes note of a message that was shown.
func (m *meter) received(text []byte) {
	m.lastSeen = m.clock.now
	if !m.over {
		m.deliveries++
	}
	if m.onReceived != nil {
		m.onReceived()
	}
	if at, ok := stampOf(text); ok && at <= m.clock.now && m.counts(at) {
		m.delivering.add(m.clock.now - at)
	}
}

// sample closes the current second.
func (m *meter) sample() Sample {
	s := m.primary.sample()
	s.Ops, s.Deliveries = m.ops-m.lastOps, m.deliveries-m.lastDel
	m.lastOps, m.lastDel = m.ops, m.deliveries
	if m.measuring {
		m.look()
		s.Second = int((m.clock.now - m.began + time.Second/2) / time.Second)
		m.series = append(m.series, s)
	}
	return s
}

// recorder collects latencies: in all, and by second.
type recorder struct {
	all    *hdrhistogram.Histogram
	second *hdrhistogram.Histogram
}

// longest is the longest latency that is told apart from longer ones.
const longest = 10 * time.Minute

func newRecorder() *recorder {
	mk := func() *hdrhistogram.Histogram { return hdrhistogram.New(1, int64(longest/time.Microsecond), 3) }
	return &recorder{mk(), mk()}
}

func (r *recorder) add(d time.Duration) {
	us := int64(min(max(d/time.Microsecond, 1), longest/time.Microsecond))
	_ = r.all.RecordValue(us)
	_ = r.second.RecordValue(us)
}

func (r *recorder) reset() { r.all.Reset(); r.second.Reset() }

// sample closes the current second.
func (r *recorder) sample() Sample {
	s := Sample{P50: ms(r.second, 50), P99: ms(r.second, 99), Max: float64(r.second.Max()) / 1000}
	r.second.Reset()
	return s
}

func (r *recorder) latency() Latency {
	h := r.all
	l := Latency{Count: h.TotalCount(), Mean: h.Mean() / 1000, P50: ms(h, 50), P90: ms(h, 90), P99: ms(h, 99), P999: ms(h, 99.9), Max: float64(h.Max()) / 1000}
	for _, q := range quantiles {
		l.Percentiles = append(l.Percentiles, Percentile{q, ms(h, q)})
	}
	return l
}

// quantiles are those of the percentile plot: the tail gets as much room as
// the rest.
var quantiles = []float64{0, 10, 20, 30, 40, 50, 60, 70, 80, 90, 95, 98, 99, 99.5, 99.8, 99.9, 99.95, 99.98, 99.99, 100}

func ms(h *hdrhistogram.Histogram, q float64) float64 {
	return float64(h.ValueAtQuantile(q)) / 1000
}
