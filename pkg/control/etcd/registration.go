package etcd

import (
	"time"

	"github.com/imdhq/imd/pkg/backoff"
)

// timing has the periods of a driver.
type timing struct {
	ttl         time.Duration // of the node's lease
	renew       time.Duration // between renewals
	margin      time.Duration // a lease counts as lost this long before its end
	retry       time.Duration // between failed renewals
	heal        time.Duration // bound of the pause before a lost lease is replaced
	start       time.Duration // bound of the pause before the first lease
	check       time.Duration // between looks at the own key, 20 % up or down
	workerTTL   time.Duration
	workerRenew time.Duration
	workerSafe  time.Duration // margin of a worker lease
	progress    time.Duration // between progress requests
	stale       time.Duration // silence that means a dead watch
	reconcile   time.Duration // between checks of the view, 20 % up or down
	probe       time.Duration // between probes of endpoints
	patience    time.Duration // with an upstream that fails; up to half as much again
	detour      time.Duration // how long etcd is followed then, 20 % up or down
}

var defaults = timing{
	ttl: 10 * time.Second, renew: 3 * time.Second, margin: time.Second, retry: 500 * time.Millisecond,
	heal: 2 * time.Second, check: time.Minute,
	workerTTL: time.Minute, workerRenew: 20 * time.Second, workerSafe: 10 * time.Second,
	progress: 5 * time.Second, stale: 15 * time.Second, reconcile: time.Minute, probe: probePeriod,
	patience: 10 * time.Second, detour: time.Minute,
}

// pauses are between attempts that failed, other than renewals.
var pauses = backoff.Policy{Base: 200 * time.Millisecond, Max: 2 * time.Second}

// leaseID is etcd's number of a lease; 0 = none.
type leaseID = int64

// actionKind is one call to make, or waiting.
type actionKind int

const (
	actWait   actionKind = iota // until action.until; zero = until something is announced
	actGrant                    // ask for a lease
	actPut                      // write the record if the key is still at revision rev (0 = absent)
	actProbe                    // ask the process that the rival record names whether it lives
	actRenew                    // renew the lease
	actCheck                    // read the own key
	actClean                    // revoke the lease of a record that was put over
	actRevoke                   // give up the lease
	actEnd                      // nothing is left to do
)

// action is what the loop has to do next. Its outcome is the next event.
type action struct {
	kind  actionKind
	until time.Time
	lease leaseID
	rev   int64
}

// eventKind is what happened.
type eventKind int

const (
	evWake      eventKind = iota // time passed
	evAnnounced                  // the record gen is wanted
	evNudged                     // the watch saw the own key change
	evGranted                    // lease, ttl, sent
	evWrote                      // the record gen is at revision rev
	evConflict                   // the key is at revision rev: ours says whose it is
	evRenewed                    // ttl, sent
	evLeaseGone                  // etcd does not know the lease
	evFailed                     // of action did: no answer or an error; it may have happened
	evChecked                    // ours, same: the key is as written
	evAlive                      // the rival answered
	evDead                       // the rival did not answer
	evCleaned                    // done, or given up
	evStop                       // the process ends
	evRevoked                    // done, or given up
)

// owner says whose record was found.
type owner int

const (
	ownerNone  owner = iota // the key is absent
	ownerUs                 // this boot
	ownerPast               // another boot at our own address, or nobody's: it cannot be alive
	ownerOther              // another boot elsewhere
)

// event is the outcome of an action or something from outside.
type event struct {
	kind  eventKind
	at    time.Time
	rnd   float64    // in [0, 1), for pauses
	did   actionKind // of evFailed
	gen   int
	lease leaseID // granted, or of the record that was found
	ttl   time.Duration
	sent  time.Time // when the call was sent
	rev   int64
	owner owner
	same  bool // the key has our value and our lease
}

// registration is the state of the node's record. Invariants: written > 0 only
// while lease != 0; at most one call is under way.
type registration struct {
	timing  timing
	want    int // number of the record that was announced last; 0 = none
	written int // number of the record that etcd has; 0 = none
	refused int // number of the record that a living rival kept out; 0 = none

	lease leaseID
	ttl   time.Duration
	sent  time.Time // of the last good renewal
	rev   int64     // revision of our key that the next put replaces; 0 = absent
	rival int64     // revision of another boot's record to be probed; 0 = none
	old   leaseID   // of a record that is being put over; 0 = none

	grantAt, putAt, renewAt, checkAt time.Time // not before
	failures                         int       // in a row, of grants and puts
	stopping, ended                  bool

	lost, repairs, renewals, renewFails uint64
}

// held reports whether the lease holds by our own clock at the time.
func (s *registration) held(now time.Time) bool {
	return s.lease != 0 && now.Sub(s.sent) < s.ttl-s.timing.margin
}

// step takes in what happened and says what to do next.
func (s registration) step(ev event) (registration, action) {
	s.absorb(ev)
	return s, s.next(ev.at)
}

func (s *registration) absorb(ev event) {
	switch ev.kind {
	case evWake:
	case evAnnounced:
		if s.want == 0 && s.timing.start > 0 {
			s.grantAt = ev.at.Add(time.Duration(ev.rnd * float64(s.timing.start)))
		}
		s.want, s.putAt = ev.gen, time.Time{}
	case evNudged:
		s.checkAt = ev.at
	case evGranted:
		s.lease, s.ttl, s.sent = ev.lease, ev.ttl, ev.sent
		s.renewAt, s.failures = s.nextRenewal(ev.sent), 0
	case evRenewed:
		s.renewals++
		s.ttl, s.sent, s.renewAt = ev.ttl, ev.sent, s.nextRenewal(ev.sent)
	case evWrote:
		s.want = max(s.want, ev.gen) // the put carried what was announced meanwhile
		s.rev, s.written, s.refused, s.failures = ev.rev, ev.gen, 0, 0
		s.checkAt = ev.at.Add(backoff.Spread(s.timing.check, 0.2, ev.rnd))
	case evConflict, evChecked:
		s.found(ev)
	case evLeaseGone:
		s.lose(ev)
	case evAlive:
		s.refused, s.rival, s.old, s.written = s.want, 0, 0, 0
		s.putAt = ev.at.Add(s.timing.ttl)
	case evDead:
		s.rev, s.rival = s.rival, 0
	case evCleaned:
		s.old = 0
	case evFailed:
		s.fail(ev)
	case evStop:
		s.stopping = true
	case evRevoked:
		s.ended, s.lease, s.written = true, 0, 0
	}
}

// nextRenewal is at a third of the TTL at the latest, should the server have
// granted less than was asked for.
func (s *registration) nextRenewal(sent time.Time) time.Time {
	return sent.Add(min(s.timing.renew, s.ttl/3))
}

// found takes in what the own key holds.
func (s *registration) found(ev event) {
	if ev.kind == evChecked {
		s.checkAt = ev.at.Add(backoff.Spread(s.timing.check, 0.2, ev.rnd))
		if ev.owner == ownerUs && ev.same {
			s.rev = ev.rev
			return
		}
		s.repairs++
	}
	s.written, s.putAt, s.old = 0, time.Time{}, 0
	if ev.owner == ownerPast || ev.owner == ownerOther {
		s.old = ev.lease
	}
	switch ev.owner {
	case ownerNone:
		s.rev = 0
	case ownerUs, ownerPast:
		s.rev = ev.rev
	case ownerOther:
		s.rival = ev.rev
	}
}

func (s *registration) lose(ev event) {
	if s.lease == 0 {
		return
	}
	s.lost++
	s.lease, s.written, s.rev = 0, 0, 0
	s.grantAt = ev.at.Add(time.Duration(ev.rnd * float64(s.timing.heal)))
}

// fail sets when the action may be tried again.
func (s *registration) fail(ev event) {
	switch ev.did {
	case actRenew:
		s.renewFails++
		s.renewAt = ev.at.Add(s.timing.retry)
	case actCheck:
		s.checkAt = ev.at.Add(s.timing.renew)
	case actGrant:
		s.grantAt = ev.at.Add(pauses.PauseAt(s.failures, ev.rnd))
		s.failures++
	case actPut:
		s.putAt = ev.at.Add(pauses.PauseAt(s.failures, ev.rnd))
		s.failures++
	}
}

// next picks the most urgent action. A lease is kept alive before anything
// else; once there is none, the rest waits for a new one.
func (s *registration) next(now time.Time) action {
	due := func(t time.Time) bool { return !now.Before(t) }
	switch {
	case s.ended, s.stopping && s.lease == 0:
		return action{kind: actEnd}
	case s.stopping:
		return action{kind: actRevoke, lease: s.lease}
	case s.want == 0:
		return action{kind: actWait}
	case s.lease == 0 && due(s.grantAt):
		return action{kind: actGrant}
	case s.lease == 0:
		return action{kind: actWait, until: s.grantAt}
	case due(s.renewAt):
		return action{kind: actRenew, lease: s.lease}
	case s.rival != 0:
		return action{kind: actProbe, lease: s.lease}
	case s.written != s.want && due(s.putAt):
		return action{kind: actPut, lease: s.lease, rev: s.rev}
	case s.written == s.want && s.old != 0:
		return action{kind: actClean, lease: s.old}
	case s.written == s.want && due(s.checkAt):
		return action{kind: actCheck, lease: s.lease}
	case s.written == s.want:
		return action{kind: actWait, until: earlier(s.renewAt, s.checkAt)}
	}
	return action{kind: actWait, until: earlier(s.renewAt, s.putAt)}
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
