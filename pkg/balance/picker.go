package balance

import (
	"math"
	"math/rand/v2"
	"time"

	"github.com/imdhq/imd/pkg/ring"
)

// Target is a node that may get a call.
type Target struct {
	ID     string
	Zone   string
	Weight int // share compared with the others; below 1 counts as 1
	// InFlight is how many calls of this process it has now, and Latency the
	// usual time of one; 0 = not known yet. Only LeastRequest looks at them.
	InFlight int
	Latency  time.Duration
}

func (t Target) weight() int { return max(t.Weight, 1) }

// Picker chooses one of the targets. Pick returns its index, or -1 if there are
// none. key says what the call is about; only ConsistentHash looks at it. The
// targets may be others at each call. Not safe for concurrent use.
type Picker interface {
	Pick(targets []Target, key string) int
}

// The names of the pickers, as settings and documents call them.
const (
	NameRoundRobin     = "round_robin"
	NameWeighted       = "weighted_round_robin"
	NameRandom         = "random"
	NameLeastRequest   = "least_request"
	NameConsistentHash = "consistent_hash"
)

// Names lists the names.
func Names() []string {
	return []string{NameRoundRobin, NameWeighted, NameRandom, NameLeastRequest, NameConsistentHash}
}

// New makes the picker of a name; nil if there is none. rng is its chance, and
// hash the ring in force for ConsistentHash.
func New(name string, rng *rand.Rand, hash *ring.Current) Picker {
	switch name {
	case NameRoundRobin:
		return &RoundRobin{}
	case NameWeighted:
		return &Weighted{}
	case NameRandom:
		return &Random{Rand: rng}
	case NameLeastRequest:
		return &LeastRequest{Rand: rng}
	case NameConsistentHash:
		return &ConsistentHash{Ring: hash}
	}
	return nil
}

// RoundRobin takes one after the other.
type RoundRobin struct{ next uint64 }

// Pick chooses the next target.
func (p *RoundRobin) Pick(ts []Target, _ string) int {
	if len(ts) == 0 {
		return -1
	}
	p.next++
	return int((p.next - 1) % uint64(len(ts)))
}

// Weighted takes one after the other, heavier ones more often and evenly spread
// over the rounds.
type Weighted struct{ credit map[string]int }

// Pick chooses the target that is furthest behind its share.
func (p *Weighted) Pick(ts []Target, _ string) int {
	if len(ts) == 0 {
		return -1
	}
	if len(p.credit) > 2*len(ts) { // targets that are gone
		p.credit = nil
	}
	if p.credit == nil {
		p.credit = make(map[string]int, len(ts))
	}
	best, total := -1, 0
	for i, t := range ts {
		total += t.weight()
		p.credit[t.ID] += t.weight()
		if best < 0 || p.credit[t.ID] > p.credit[ts[best].ID] {
			best = i
		}
	}
	p.credit[ts[best].ID] -= total
	return best
}

// Random takes any, heavier ones more often.
type Random struct{ Rand *rand.Rand }

// Pick chooses by chance.
func (p *Random) Pick(ts []Target, _ string) int {
	total := 0
	for _, t := range ts {
		total += t.weight()
	}
	if total == 0 {
		return -1
	}
	at := p.Rand.IntN(total)
	for i, t := range ts {
		if at -= t.weight(); at < 0 {
			return i
		}
	}
	return -1 // not reached: at is below the total
}

// LeastRequest looks at two targets by chance and takes the one whose calls in
// flight times usual latency, divided by the weight, is lower.
type LeastRequest struct{ Rand *rand.Rand }

// Pick chooses the better of two.
func (p *LeastRequest) Pick(ts []Target, _ string) int {
	switch len(ts) {
	case 0:
		return -1
	case 1:
		return 0
	}
	a := p.Rand.IntN(len(ts))
	b := p.Rand.IntN(len(ts) - 1)
	if b >= a {
		b++
	}
	if load(ts[b]) < load(ts[a]) {
		return b
	}
	return a
}

// load is what a new call at t has before it. A target that was never asked
// counts as quick, so that it is tried.
func load(t Target) float64 {
	return float64(t.InFlight+1) * max(t.Latency.Seconds(), 1e-6) / float64(t.weight())
}

// ConsistentHash takes the target that the ring names for the key, or, if that
// one is not among the targets, the next that is. Zones and loads do not
// matter, so that all callers agree.
type ConsistentHash struct{ Ring *ring.Current }

// Pick chooses by the key.
func (p *ConsistentHash) Pick(ts []Target, key string) int {
	for id := range p.Ring.Load().Walk(key) {
		for i, t := range ts {
			if t.ID == id {
				return i
			}
		}
	}
	if len(ts) == 0 {
		return -1
	}
	return 0 // the ring is behind: the list is sorted, so that most callers agree
}

// Local keeps the targets of the zone, or all if the zone is "" or has none.
func Local(ts []Target, zone string) []Target {
	if zone == "" {
		return ts
	}
	var out []Target
	for _, t := range ts {
		if t.Zone == zone {
			out = append(out, t)
		}
	}
	if len(out) == 0 {
		return ts
	}
	return out
}

// ewmaTime is how long a sample counts, and ewmaFade how long an average lasts
// without one.
const (
	ewmaTime = 10 * time.Second
	ewmaFade = 30 * time.Second
)

// EWMA is a moving average of latencies: a sample weighs less the older it is.
// The zero value has no sample. Not safe for concurrent use.
type EWMA struct {
	value time.Duration
	at    time.Time
}

// Add takes a sample in. A call that took longer than usual counts at once, so
// that a node that becomes slow is seen by its first answer.
func (e *EWMA) Add(sample time.Duration, now time.Time) {
	if e.at.IsZero() || sample > e.value {
		e.value, e.at = sample, now
		return
	}
	old := math.Exp(-float64(now.Sub(e.at)) / float64(ewmaTime))
	old = min(old, 0.95) // many samples at one moment count too
	e.value = time.Duration(old*float64(e.value) + (1-old)*float64(sample))
	e.at = now
}

// Value is the average; 0 = no sample yet. It fades while there are no samples, so
// that a node that nobody calls because it was slow is tried again.
func (e *EWMA) Value(now time.Time) time.Duration {
	if e.at.IsZero() {
		return 0
	}
	return time.Duration(float64(e.value) * math.Exp(-max(float64(now.Sub(e.at)), 0)/float64(ewmaFade)))
}

// Parameters of Steer.
const (
	slowFrom   = 20 * time.Millisecond // a node is not slow below it
	slowFactor = 4                     // times the one that would follow
	slowTry    = 16                    // one call of so many goes to it all the same
)

// Steer leads reads past a node that is much slower than the one that would
// follow it, but for one call of sixteen, which shows whether it still is. The
// zero value is ready. Not safe for concurrent use.
type Steer struct{ calls uint }

// Past reports whether a read goes to the next node instead of the first, by
// their usual latencies; 0 = not known.
func (s *Steer) Past(first, next time.Duration) bool {
	if first < slowFrom || first < slowFactor*next {
		return false
	}
	s.calls++
	return s.calls%slowTry != 0
}
