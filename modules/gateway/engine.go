package gateway

import (
	"runtime"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

const (
	// maxShards is the most shards; there is one for each processor.
	maxShards = 16
	// pieceSize is how many sessions a shard serves before others get the
	// processor, so that a message to thousands does not hold up one to a few.
	pieceSize = 32
)

// engine hands what goes to many sessions to them, all shards at once. A session
// belongs to one shard, and a shard serves one part after the other, so that the
// order of deliveries to a session holds. What goes to a few sessions does not
// come here, and never waits behind what does. Safe for concurrent use.
type engine struct {
	shards []*shard
	run    func(func()) bool // starts a goroutine; false = too late
	now    func() time.Time
}

// shard is what waits for the sessions of one shard.
type shard struct {
	mu    sync.Mutex
	queue []*part
	busy  bool
	since time.Time     // when what is worked on came; zero = nothing is
	spent time.Duration // working

	yielder *yielder // of who works at it; nil until open
}

// audience is sessions, by shard.
type audience [][]listener

// listener is a session and the seq above which its user may see entries.
type listener struct {
	*session
	start int64
}

// part is frames for the sessions of one shard.
type part struct {
	to     []listener
	frames []*shared // rising seq
	came   time.Time
	hits   int // sessions that took them
	done   func()
}

func newEngine(run func(func()) bool, now func() time.Time) *engine {
	e := &engine{run: run, now: now}
	for range min(max(runtime.GOMAXPROCS(0), 1), maxShards) {
		e.shards = append(e.shards, &shard{})
	}
	return e
}

// open takes the descriptors with which shards let others go on; close gives them
// back.
func (e *engine) open() (err error) {
	for _, s := range e.shards {
		if s.yielder, err = newYielder(); err != nil {
			return err
		}
	}
	return nil
}

// close gives back what open took, if it did.
func (e *engine) close() {
	for _, s := range e.shards {
		if s.yielder != nil {
			_ = s.yielder.close() // nothing was written that could be lost
		}
	}
}

// of is the shard of a session.
func (e *engine) of(s *session) int { return int(s.hash % uint32(len(e.shards))) }

// hand delivers frames of one conversation and returns, once all are served, how
// many sessions took them.
func (e *engine) hand(to audience, frames []*shared) int {
	var all sync.WaitGroup
	var parts [maxShards]part
	came := e.now()
	for i, some := range to {
		if len(some) == 0 {
			continue
		}
		p := &parts[i]
		*p = part{to: some, frames: frames, came: came, done: all.Done}
		all.Add(1)
		e.put(e.shards[i], p)
	}
	all.Wait()
	n := 0
	for i := range parts {
		n += parts[i].hits
	}
	return n
}

// put queues a part and sees to it that somebody works at the shard.
func (e *engine) put(s *shard, p *part) {
	s.mu.Lock()
	s.queue = append(s.queue, p)
	start := !s.busy
	s.busy = true
	s.mu.Unlock()
	if !start {
		return
	}
	work := func() {
		for e.step(s) {
		}
	}
	if !e.run(work) {
		work() // the node stops; sessions that have ended take nothing
	}
}

// step serves one part; false = nothing waits.
func (e *engine) step(s *shard) bool {
	s.mu.Lock()
	if len(s.queue) == 0 {
		s.busy, s.since, s.queue = false, time.Time{}, nil
		s.mu.Unlock()
		return false
	}
	p := s.queue[0]
	s.queue[0] = nil
	s.queue = s.queue[1:]
	s.since = p.came
	s.mu.Unlock()
	began := e.now()
	p.serve(s.yielder.yield)
	p.done()
	s.mu.Lock()
	s.spent += e.now().Sub(began)
	s.mu.Unlock()
	return true
}

// serve delivers to each session and lets it leave. It yields after each piece.
func (p *part) serve(yield func()) {
	for i, l := range p.to {
		frames := p.frames
		for len(frames) > 0 && frames[0].seq <= l.start && frames[0].seq > 0 {
			frames = frames[1:]
		}
		if len(frames) == 0 {
			continue
		}
		here, due := l.deliver(frames)
		if here {
			p.hits++
		}
		if due {
			l.q.flush()
		}
		if i%pieceSize == pieceSize-1 {
			yield()
		}
	}
}

// late is how long what a shard works on has been there.
func (s *shard) late(now time.Time) (late, spent time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.since.IsZero() {
		return 0, s.spent
	}
	return now.Sub(s.since), s.spent
}

// Metrics of the shards.
var (
	shardLate = prometheus.NewDesc("imd_gateway_shard_late_seconds",
		"How long what a shard of the fan-out works on has been there.", []string{"shard"}, nil)
	shardSpent = prometheus.NewDesc("imd_gateway_shard_busy_seconds_total",
		"Time in which a shard of the fan-out delivered.", []string{"shard"}, nil)
)

// Describe is prometheus.Collector's.
func (e *engine) Describe(ch chan<- *prometheus.Desc) {
	ch <- shardLate
	ch <- shardSpent
}

// Collect is prometheus.Collector's.
func (e *engine) Collect(ch chan<- prometheus.Metric) {
	now := e.now()
	for i, s := range e.shards {
		late, spent := s.late(now)
		ch <- prometheus.MustNewConstMetric(shardLate, prometheus.GaugeValue, late.Seconds(), strconv.Itoa(i))
		ch <- prometheus.MustNewConstMetric(shardSpent, prometheus.CounterValue, spent.Seconds(), strconv.Itoa(i))
	}
}
