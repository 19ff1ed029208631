package etcd

import (
	"time"

	"github.com/imdhq/imd/pkg/backoff"
	"github.com/imdhq/imd/pkg/control"
)

// electionTiming has the periods of an election.
type electionTiming struct {
	ttl    time.Duration // of a leader's lease
	renew  time.Duration // between renewals
	margin time.Duration // a leader stops this long before its lease ends
	retry  time.Duration // between failed renewals
	jitter time.Duration // bound of the pause before a free place is competed for
	check  time.Duration // between looks at another's key, 20 % up or down
	forced time.Duration // between two forced takeovers; 0 = never
	quit   time.Duration // how long Lead may take to return before the place is given up
	rest   time.Duration // after Lead returned by itself or the fence could not be claimed
	tries  int           // of claiming and announcing, before another gets the chance
}

var electionDefaults = electionTiming{
	ttl: 3 * time.Second, renew: time.Second, margin: 500 * time.Millisecond, retry: 200 * time.Millisecond,
	jitter: 50 * time.Millisecond, check: time.Minute, forced: 30 * time.Second, quit: 700 * time.Millisecond,
	rest: 2 * time.Second, tries: 6,
}

// electionPauses are between attempts that failed, other than renewals.
var electionPauses = backoff.Policy{Base: 50 * time.Millisecond, Max: time.Second}

// Actions of an election, beside actWait, actGrant, actRenew and actEnd.
const (
	actCreate   actionKind = iota + 100 // create the key under the lease, if it is absent
	actClaim                            // claim the fence for the key, over the token if it is not 0
	actConfirm                          // read the key: is it still ours?
	actAnnounce                         // put the token into the key, if it is still ours
	actLook                             // read another's key
	actForce                            // revoke the lease of a dead leader
	actResign                           // delete the key if it is ours, and revoke the lease
)

// Events of an election, beside evWake, evGranted, evRenewed, evLeaseGone,
// evFailed and evStop.
const (
	evSeen       eventKind = iota + 100 // the key, and the wish for a transfer, as of revision rev
	evWon                               // the key is ours: create, rev, cluster
	evClaimed                           // the fence is ours: token
	evFenced                            // it is not, and has the token
	evConfirmed                         // ours: the key is still ours
	evProclaimed                        // ours: it was, and has the token now
	evIdle                              // Lead has returned
	evRefused                           // the process that made the key create is dead
	evForced                            // done, or there was nothing to do any more
	evResigned                          // done if ours; else the lease will end by itself
)

// wishState says what a wish for a transfer means to this candidate.
type wishState int

const (
	wishNone wishState = iota
	wishMe             // it is to lead
	wishAny            // anybody but the leader that is asked to resign
	wishElse           // another is to lead
)

// electionAction is what the loop has to do next.
type electionAction struct {
	kind   actionKind
	until  time.Time
	lease  leaseID
	create int64 // our key
	token  int64 // to announce, or to claim over
}

// electionEvent is the outcome of an action or something from outside.
type electionEvent struct {
	kind    eventKind
	at      time.Time
	rnd     float64 // in [0, 1), for pauses
	did     actionKind
	rev     int64 // what is told was so at this revision
	create  int64 // of the key; 0 = absent
	lease   leaseID
	ttl     time.Duration
	sent    time.Time
	token   int64
	ours    bool
	fenced  bool // evIdle: an effect was refused
	cluster string
	anew    bool      // evSeen: etcd has another history; revisions begin anew
	wish    wishState // evSeen
	wishFor int64     // evSeen: create revision of the leader that is asked to resign
}

// election is the state of one candidate. Invariants: acting implies token != 0
// implies create != 0 implies lease != 0; acting ends before the lease does.
//
//	nobody leads            -> grant -> create
//	another was first       -> follow: wait for the key to go; look at it now and then
//	created                 -> claim the fence -> announce the token -> acting
//	claim refused           -> confirm: the key is still ours? then claim over that token: etcd went back
//	acting                  -> renew; any doubt about key or lease ends the term
//	term over               -> wait for Lead to return -> resign -> follow
type election struct {
	timing electionTiming

	lease   leaseID
	ttl     time.Duration
	sent    time.Time // of the grant or the last good renewal
	renewAt time.Time
	create  int64 // of our key; 0 = we have none
	cluster string
	token   int64 // that we claimed; 0 = none yet
	over    int64 // the token to claim over; 0 = none
	doubt   bool  // confirm the key before the next claim
	acting  bool

	rev    int64 // the newest revision that the fields below are from
	other  int64 // create revision of another's key; 0 = absent
	theirs leaseID
	wish   wishState
	former int64 // our key of the last term
	asked  int64 // the key whose holder a wish asks to resign

	tryAt    time.Time // grant, create, claim, announce: not before
	lookAt   time.Time
	failures int  // in a row
	dead     bool // the other is dead: force it out
	forcedAt time.Time

	quit     string // why the term ends; "" = it does not
	quitAt   time.Time
	busy     bool // Lead runs
	stopping bool
	ended    bool

	terms, forced, fenced uint64
	ends                  map[string]uint64 // replaced, never changed
}

// deadline is when a leader must have stopped.
func (s *election) deadline() time.Time { return s.sent.Add(s.ttl - s.timing.margin) }

// step takes in what happened and says what to do next.
func (s election) step(ev electionEvent) (election, electionAction) {
	s.absorb(ev)
	if s.create != 0 && !ev.at.Before(s.deadline()) {
		s.end(control.EndDemoted, ev.at)
	}
	return s, s.next(ev.at)
}

func (s *election) absorb(ev electionEvent) {
	switch ev.kind {
	case evSeen:
		s.see(ev)
	case evGranted:
		s.lease, s.ttl, s.sent, s.failures = ev.lease, ev.ttl, ev.sent, 0
		s.renewAt = ev.sent.Add(min(s.timing.renew, ev.ttl/3))
	case evWon:
		s.win(ev)
	case evClaimed:
		s.token, s.failures, s.tryAt = ev.token, 0, time.Time{}
	case evFenced:
		s.fenced++
		s.over, s.doubt, s.tryAt = ev.token, true, time.Time{}
	case evConfirmed:
		s.doubt = false
		if !ev.ours {
			s.end(control.EndDeposed, ev.at)
		}
	case evProclaimed:
		if !ev.ours {
			s.end(control.EndDeposed, ev.at)
			return
		}
		s.rev, s.failures = max(s.rev, ev.rev), 0
		s.acting, s.busy = true, true
		s.terms++
	case evRenewed:
		s.ttl, s.sent = ev.ttl, ev.sent
		s.renewAt = ev.sent.Add(min(s.timing.renew, ev.ttl/3))
	case evLeaseGone:
		s.lease = 0
		if s.create != 0 {
			s.end(control.EndDeposed, ev.at)
		}
	case evIdle:
		s.busy = false
		switch {
		case s.acting && ev.fenced:
			s.end(control.EndFenced, ev.at)
		case s.acting:
			s.end(control.EndReturned, ev.at)
		}
	case evRefused:
		s.dead = s.create == 0 && ev.create == s.other && s.other != 0 && s.timing.forced > 0 &&
			(s.forcedAt.IsZero() || ev.at.Sub(s.forcedAt) >= s.timing.forced)
		if s.dead {
			s.tryAt = time.Time{}
		}
	case evForced:
		s.dead, s.forcedAt, s.tryAt, s.failures = false, ev.at, time.Time{}, 0
		if ev.ours {
			s.forced++
		}
	case evResigned:
		s.resigned(ev)
	case evFailed:
		s.fail(ev)
	case evStop:
		s.stopping = true
		s.end(control.EndResigned, ev.at)
	}
}

// win takes in that the key is ours.
func (s *election) win(ev electionEvent) {
	s.create, s.cluster, s.rev, s.other, s.failures = ev.create, ev.cluster, max(s.rev, ev.rev), 0, 0
	s.token, s.over, s.doubt, s.tryAt = 0, 0, false, time.Time{}
}

// see takes in how the key stands. What is older than we know is left out.
func (s *election) see(ev electionEvent) {
	if !ev.at.Before(s.lookAt) { // it was looked at: not again at once, whatever was found
		s.lookAt = ev.at.Add(s.untilLook(ev))
	}
	if ev.rev < s.rev && !ev.anew {
		return
	}
	s.rev, s.wish, s.asked = ev.rev, ev.wish, ev.wishFor
	if s.create == 0 && ev.create != 0 && ev.lease == s.lease {
		s.win(ev) // the answer to our creating it was lost
		return
	}
	if s.create != 0 {
		switch {
		case ev.create != s.create:
			s.end(control.EndDeposed, ev.at)
		case s.acting && ev.wishFor == s.create && (ev.wish == wishAny || ev.wish == wishElse):
			s.end(control.EndResigned, ev.at)
		}
		if s.create == ev.create {
			return
		}
	}
	if ev.create != s.other {
		s.dead = false
		s.lookAt = ev.at.Add(backoff.Spread(s.timing.check, 0.2, ev.rnd))
		if ev.create == 0 && s.failures == 0 && ev.at.After(s.tryAt) {
			s.tryAt = ev.at.Add(time.Duration(ev.rnd * float64(s.timing.jitter)))
			if s.wish == wishMe || s.forcedAt.Add(time.Second).After(ev.at) {
				s.tryAt = ev.at
			}
		}
	}
	s.other, s.theirs = ev.create, ev.lease
	if s.other != 0 && s.create == 0 {
		s.lease = 0 // granted for nothing; it ends by itself
	}
}

// untilLook is how long a key that was found as ev says need not be looked at. Our own
// of a term that is over ends with its lease, and a wish that keeps us back soon.
func (s *election) untilLook(ev electionEvent) time.Duration {
	if ev.create == 0 || ev.create == s.former {
		return s.timing.ttl
	}
	return backoff.Spread(s.timing.check, 0.2, ev.rnd)
}

// end begins the end of a term, or of what was to become one.
func (s *election) end(reason string, now time.Time) {
	if s.quit != "" || s.create == 0 && s.lease == 0 {
		return
	}
	s.quit, s.quitAt = reason, now
	if reason == control.EndReturned || reason == control.EndFenced || reason == control.EndDemoted {
		s.tryAt = now.Add(s.timing.rest)
	}
	if s.acting {
		ends := map[string]uint64{reason: 1}
		for k, n := range s.ends {
			ends[k] += n
		}
		s.ends = ends
	}
	s.acting = false
}

// resigned forgets the term. If the key could not be deleted, it counts as
// another's until it is seen to go.
func (s *election) resigned(ev electionEvent) {
	if s.create != 0 {
		s.former = s.create
		if ev.ours {
			s.rev, s.other = max(s.rev, ev.rev), 0
		} else if s.other == 0 && s.quit != control.EndDeposed {
			s.other, s.theirs = s.create, s.lease
		}
	}
	s.lease, s.create, s.token, s.over, s.doubt, s.quit = 0, 0, 0, 0, false, ""
	s.lookAt = ev.at.Add(s.timing.ttl)
}

// fail sets when the action may be tried again.
func (s *election) fail(ev electionEvent) {
	switch ev.did {
	case actRenew:
		s.renewAt = ev.at.Add(s.timing.retry)
		return
	case actLook:
		s.lookAt = ev.at.Add(s.timing.ttl)
		return
	}
	s.tryAt = ev.at.Add(electionPauses.PauseAt(s.failures, ev.rnd))
	s.failures++
	if s.create != 0 && s.failures >= s.timing.tries {
		s.failures = 0
		s.end(control.EndDemoted, ev.at)
	}
}

// waits reports whether a wish keeps this candidate back.
func (s *election) waits() bool {
	return s.wish == wishElse || s.wish == wishAny && s.former != 0 && s.asked == s.former
}

// next picks the most urgent action.
func (s *election) next(now time.Time) electionAction {
	due := func(t time.Time) bool { return !now.Before(t) }
	switch {
	case s.ended:
		return electionAction{kind: actEnd}
	case s.quit != "" && s.busy && !due(s.quitAt.Add(s.timing.quit)):
		return electionAction{kind: actWait, until: s.quitAt.Add(s.timing.quit)}
	case s.quit != "":
		return electionAction{kind: actResign, lease: s.lease, create: s.create}
	case s.busy && s.create == 0:
		return electionAction{kind: actWait} // Lead takes its time to return
	case s.stopping:
		s.ended = true
		return electionAction{kind: actEnd}
	case s.create != 0:
		return s.nextHolding(now)
	case s.dead && !due(s.tryAt):
		return electionAction{kind: actWait, until: s.tryAt} // it was tried and failed
	case s.dead:
		return electionAction{kind: actForce, lease: s.theirs}
	case s.other != 0 || s.waits():
		if due(s.lookAt) {
			return electionAction{kind: actLook}
		}
		return electionAction{kind: actWait, until: s.lookAt}
	case !due(s.tryAt):
		return electionAction{kind: actWait, until: s.tryAt}
	case s.lease == 0 || now.Sub(s.sent) > s.ttl/2:
		return electionAction{kind: actGrant}
	}
	return electionAction{kind: actCreate, lease: s.lease}
}

// nextHolding is next while the key is ours.
func (s *election) nextHolding(now time.Time) electionAction {
	due := func(t time.Time) bool { return !now.Before(t) }
	switch {
	case due(s.renewAt):
		return electionAction{kind: actRenew, lease: s.lease, until: s.deadline()}
	case s.acting:
		return electionAction{kind: actWait, until: earlier(s.renewAt, s.deadline())}
	case !due(s.tryAt):
		return electionAction{kind: actWait, until: earlier(s.renewAt, s.tryAt)}
	case s.doubt:
		return electionAction{kind: actConfirm, create: s.create}
	case s.token == 0:
		return electionAction{kind: actClaim, create: s.create, token: s.over}
	}
	return electionAction{kind: actAnnounce, lease: s.lease, create: s.create, token: s.token}
}
