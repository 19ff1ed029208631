package sim

import (
	"fmt"
	"math/rand/v2"
	"time"
)

// plan is what a seed makes of a schedule: its size, its settings and its
// faults. Each kind of fault is in some schedules only, so that none hides
// another.
type plan struct {
	users, devices, convs   int
	gateways, states, lanes int
	changing                int // conversations whose members come and go
	sends                   int
	span                    time.Duration // in which people send and things break
	burst                   int           // sends at a time
	large                   bool          // sends of up to the allowed size
	holes                   bool          // the store leaves out numbers
	// sealed schedules lose nothing on the way from the commit to the gateways,
	// and nobody compares heads: what a resume does not find stays lost.
	sealed      bool
	antiEntropy time.Duration // 0 = never
	pageLimit   int           // entries a sync asks for
	syncStates  int           // states on a page
	historyMost int           // entries on a page
	window      int           // unacknowledged entries on a connection
	queue       int           // frames that may wait for a connection
	submitCalls int

	unknown, late, away, locked, slow float64 // outcomes of calls to the store
	poison                            float64 // sends that the store cannot take
	submitLoss, readLoss, fanLoss     float64 // calls between roles
	slowClaims                        float64 // of routes
	withdraw                          float64 // of sends
	headLoss                          float64 // states that a device does not take from a sync

	resets, silences, stalls     int // connections that break, go silent, stop for a while
	stateCrashes, statePauses    int
	gatewayCrashes, gatewayHangs int
	pushCrashes, ringChanges     int
	memberChanges, restores      int
}

func makePlan(r *rand.Rand) plan {
	some := func(lo, hi int) int { return lo + r.IntN(hi-lo+1) }
	p := plan{
		users: some(2, 4), devices: some(1, 2), convs: some(1, 3), gateways: some(1, 2), states: 2, lanes: some(1, 2),
		sends: some(10, 50), span: time.Duration(some(2, 12)) * time.Second, burst: some(1, 12),
		large: r.IntN(4) == 0, holes: r.IntN(5) == 0, sealed: r.IntN(3) == 0,
		antiEntropy: []time.Duration{30 * time.Second, 2 * time.Second}[r.IntN(2)], pageLimit: []int{0, 1, 5, 20}[r.IntN(4)], syncStates: some(1, 3),
		historyMost: []int{1, 4, 100}[r.IntN(3)], window: 256, queue: 1024, submitCalls: some(1, 4),
	}
	if r.IntN(6) == 0 {
		p.window = some(2, 6)
	}
	if r.IntN(6) == 0 {
		p.queue = some(8, 24)
	}
	if p.convs > 1 {
		p.changing = r.IntN(2)
	}
	p.storeFaults(r)
	p.processFaults(r)
	if p.sealed {
		p.resets += 2 + r.IntN(16)
		p.slowClaims = max(p.slowClaims, 0.3)
		p.antiEntropy, p.fanLoss, p.stateCrashes, p.pushCrashes, p.restores = 0, 0, 0, 0, 0
		p.statePauses = 0    // a fan-out that waits too long is dropped
		p.gatewayCrashes = 0 // a claim of a dead gateway may displace a later one, which nobody is told
		p.late = 0           // what is stored behind a refusal of its own rerun is nobody's to fan out
		p.withdraw = 0       // what was refused and is stored all the same is not delivered to its session
	}
	p.headLoss = rate(r, 0.5)
	return p
}

// rate is a chance in some schedules and 0 in the others.
func rate(r *rand.Rand, most float64) float64 {
	if r.IntN(3) > 0 {
		return 0
	}
	return most * r.Float64()
}

// count is a number in some schedules and 0 in the others.
func count(r *rand.Rand, most int) int {
	if r.IntN(3) > 0 {
		return 0
	}
	return 1 + r.IntN(most)
}

func (p *plan) storeFaults(r *rand.Rand) {
	p.unknown, p.late, p.away = rate(r, 0.3), rate(r, 0.15), rate(r, 0.2)
	p.locked, p.slow, p.poison = rate(r, 0.3), rate(r, 0.3), rate(r, 0.08)
	p.submitLoss, p.readLoss, p.fanLoss = rate(r, 0.15), rate(r, 0.1), rate(r, 0.3)
	p.withdraw, p.slowClaims = rate(r, 0.15), rate(r, 0.8)
}

func (p *plan) processFaults(r *rand.Rand) {
	p.resets, p.silences, p.stalls = count(r, 8), count(r, 2), count(r, 3)
	p.stateCrashes, p.statePauses = count(r, 3), count(r, 3)
	p.gatewayCrashes, p.gatewayHangs = count(r, 2), count(r, 2)
	p.pushCrashes, p.ringChanges = count(r, 2), count(r, 6)
	p.memberChanges = 1 + r.IntN(12)
	if r.IntN(15) == 0 {
		p.restores = 1
	}
	if p.changing == 0 {
		p.memberChanges = 0
	}
}

// String names all settings.
func (p plan) String() string {
	type fields plan // without this method
	return fmt.Sprintf("%+v", fields(p))
}
