package etcd

import (
	"testing"
	"time"

	"github.com/imdhq/imd/pkg/control"
)

// elect feeds events one tenth of a second apart and returns the last action.
func elect(events ...electionEvent) (election, electionAction) {
	s := election{timing: electionDefaults}
	var act electionAction
	at := epoch
	for _, ev := range events {
		ev.at = at
		if ev.kind == evGranted || ev.kind == evRenewed {
			ev.sent, ev.ttl = at, 3*time.Second
		}
		s, act = s.step(ev)
		at = at.Add(100 * time.Millisecond)
	}
	return s, act
}

func TestElectionStep(t *testing.T) {
	wake := electionEvent{kind: evWake}
	granted := electionEvent{kind: evGranted, lease: 7}
	won := electionEvent{kind: evWon, create: 100, rev: 100, cluster: "c"}
	claimed := electionEvent{kind: evClaimed, token: 5}
	fenced := electionEvent{kind: evFenced, token: 9}
	told := electionEvent{kind: evProclaimed, ours: true, rev: 101}
	leading := []electionEvent{wake, granted, won, claimed, told}
	others := electionEvent{kind: evSeen, rev: 90, create: 80, lease: 3}
	free := electionEvent{kind: evSeen, rev: 95}
	after := func(first []electionEvent, more ...electionEvent) []electionEvent {
		return append(first[:len(first):len(first)], more...)
	}
	at := func(tenths int) time.Time { return epoch.Add(time.Duration(tenths) * 100 * time.Millisecond) }
	tests := []struct {
		name   string
		events []electionEvent
		want   electionAction
	}{
		{"first a lease", []electionEvent{wake}, electionAction{kind: actGrant}},
		{"then the key", []electionEvent{wake, granted}, electionAction{kind: actCreate, lease: 7}},
		{"then the fence", []electionEvent{wake, granted, won}, electionAction{kind: actClaim, create: 100}},
		{"then the announcement", []electionEvent{wake, granted, won, claimed}, electionAction{kind: actAnnounce, lease: 7, create: 100, token: 5}},
		{"then the renewals", leading, electionAction{kind: actWait, until: at(11)}},
		{"a leader renews a second after the last was sent", after(leading, wake, wake, wake, wake, wake, wake, wake),
			electionAction{kind: actRenew, lease: 7, until: at(26)}},
		{"who comes second waits", []electionEvent{wake, granted, others}, electionAction{kind: actWait, until: at(2).Add(48 * time.Second)}},
		{"and competes when the place is free", []electionEvent{wake, granted, others, free}, electionAction{kind: actGrant}},
		{"after a short random pause", []electionEvent{wake, granted, others, {kind: evSeen, rev: 95, rnd: 0.5}},
			electionAction{kind: actWait, until: at(3).Add(25 * time.Millisecond)}},
		{"what is older than what we know does not count", after(leading, electionEvent{kind: evSeen, rev: 99}), electionAction{kind: actWait, until: at(11)}},
		{"a creation whose answer was lost is found by its lease", []electionEvent{wake, granted, {kind: evFailed, did: actCreate}, {kind: evSeen, rev: 100, create: 100, lease: 7, cluster: "c"}},
			electionAction{kind: actClaim, create: 100}},
		{"a refused claim leads to a look at the key", []electionEvent{wake, granted, won, fenced}, electionAction{kind: actConfirm, create: 100}},
		{"if it is still ours, etcd went back: claim over the token", []electionEvent{wake, granted, won, fenced, {kind: evConfirmed, ours: true}},
			electionAction{kind: actClaim, create: 100, token: 9}},
		{"if it is not, resign", []electionEvent{wake, granted, won, fenced, {kind: evConfirmed}}, electionAction{kind: actResign, lease: 7, create: 100}},
		{"who lost the key between claim and announcement resigns", []electionEvent{wake, granted, won, claimed, {kind: evProclaimed}},
			electionAction{kind: actResign, lease: 7, create: 100}},
		{"a leader whose key vanished waits for Lead to return", after(leading, electionEvent{kind: evSeen, rev: 102}),
			electionAction{kind: actWait, until: at(5).Add(700 * time.Millisecond)}},
		{"and then resigns", after(leading, electionEvent{kind: evSeen, rev: 102}, electionEvent{kind: evIdle}),
			electionAction{kind: actResign, lease: 7, create: 100}},
		{"also if Lead does not return", after(leading, electionEvent{kind: evSeen, rev: 102}, wake, wake, wake, wake, wake, wake, wake),
			electionAction{kind: actResign, lease: 7, create: 100}},
		{"but does not compete before it has", after(leading, electionEvent{kind: evSeen, rev: 102}, wake, wake, wake, wake, wake, wake, wake, electionEvent{kind: evResigned}),
			electionAction{kind: actWait}},
		{"a leader whose lease is gone resigns without it", after(leading, electionEvent{kind: evLeaseGone}, electionEvent{kind: evIdle}),
			electionAction{kind: actResign, create: 100}},
		{"a Lead that returns resigns, and the place is left to others for a while", after(leading, electionEvent{kind: evIdle}, electionEvent{kind: evResigned, ours: true, rev: 103}),
			electionAction{kind: actWait, until: at(25)}},
		{"a leader that is asked to resigns", after(leading, electionEvent{kind: evSeen, rev: 102, create: 100, lease: 7, wish: wishAny, wishFor: 100}, electionEvent{kind: evIdle}),
			electionAction{kind: actResign, lease: 7, create: 100}},
		{"a wish for an earlier leader does not count", after(leading, electionEvent{kind: evSeen, rev: 102, create: 100, lease: 7, wish: wishAny, wishFor: 60}, wake, wake, wake),
			electionAction{kind: actWait, until: at(11)}},
		{"who was asked to resign lets others have it while the wish stands",
			after(leading, electionEvent{kind: evSeen, rev: 102, create: 100, lease: 7, wish: wishAny, wishFor: 100}, electionEvent{kind: evIdle}, electionEvent{kind: evResigned, ours: true, rev: 103}, electionEvent{kind: evSeen, rev: 103, wish: wishAny, wishFor: 100}),
			electionAction{kind: actWait, until: at(7).Add(3 * time.Second)}},
		{"who is not wished for waits", []electionEvent{wake, granted, others, {kind: evSeen, rev: 95, wish: wishElse, wishFor: 80}},
			electionAction{kind: actWait, until: at(3).Add(48 * time.Second)}},
		{"who is wished for competes at once", []electionEvent{wake, granted, others, {kind: evSeen, rev: 95, wish: wishMe, wishFor: 80, rnd: 0.9}},
			electionAction{kind: actGrant}},
		{"a dead leader's lease is revoked", []electionEvent{wake, granted, others, {kind: evRefused, create: 80}}, electionAction{kind: actForce, lease: 3}},
		{"a death that is not the present leader's does not count", []electionEvent{wake, granted, others, {kind: evRefused, create: 70}},
			electionAction{kind: actWait, until: at(2).Add(48 * time.Second)}},
		{"a takeover that failed is tried again after a pause", []electionEvent{wake, granted, others, {kind: evRefused, create: 80}, {kind: evFailed, did: actForce, rnd: 0.5}},
			electionAction{kind: actWait, until: at(4).Add(electionPauses.PauseAt(0, 0.5))}},
		{"two forced takeovers keep their distance", []electionEvent{wake, granted, others, {kind: evRefused, create: 80}, {kind: evForced, ours: true}, {kind: evSeen, rev: 96, create: 96, lease: 4}, {kind: evRefused, create: 96}},
			electionAction{kind: actWait, until: at(5).Add(48 * time.Second)}},
		{"a standby stops at once", []electionEvent{wake, granted, others, {kind: evStop}}, electionAction{kind: actEnd}},
		{"a leader stops by resigning", after(leading, electionEvent{kind: evStop}, electionEvent{kind: evIdle}), electionAction{kind: actResign, lease: 7, create: 100}},
		{"and that is all", after(leading, electionEvent{kind: evStop}, electionEvent{kind: evIdle}, electionEvent{kind: evResigned, ours: true}), electionAction{kind: actEnd}},
		{"who cannot claim the fence leaves the place to others", []electionEvent{wake, granted, won, {kind: evFailed, did: actClaim}, {kind: evFailed, did: actClaim}, {kind: evFailed, did: actClaim},
			{kind: evFailed, did: actClaim}, {kind: evFailed, did: actClaim}, {kind: evFailed, did: actClaim}}, electionAction{kind: actResign, lease: 7, create: 100}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if _, got := elect(tt.events...); got != tt.want {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
		})
	}
}

// The watchdog: a leader stops half a second before its lease could end, counted
// from the sending of the last renewal.
func TestLeaderStopsBeforeItsLeaseEnds(t *testing.T) {
	s, _ := elect(electionEvent{kind: evWake}, electionEvent{kind: evGranted, lease: 7}, electionEvent{kind: evWon, create: 100, rev: 100},
		electionEvent{kind: evClaimed, token: 5}, electionEvent{kind: evProclaimed, ours: true, rev: 101})
	sent := epoch.Add(100 * time.Millisecond)
	s, act := s.step(electionEvent{kind: evFailed, did: actRenew, at: sent.Add(2499 * time.Millisecond)})
	if !s.acting || act.kind != actWait || act.until.After(sent.Add(2500*time.Millisecond)) {
		t.Errorf("just before: acting %v, %+v", s.acting, act)
	}
	s, _ = s.step(electionEvent{kind: evWake, at: sent.Add(2500 * time.Millisecond)})
	if s.acting || s.ends[control.EndDemoted] != 1 {
		t.Errorf("at the deadline: acting %v, ends %v", s.acting, s.ends)
	}
}

// A key that stands is looked at now and then, however often it is found as it was:
// another's each minute, our own of a term that is over each three seconds, and
// also if the member that answers is behind what we know.
func TestLooksKeepTheirDistance(t *testing.T) {
	seen := electionEvent{kind: evSeen, rev: 90, create: 80, lease: 3}
	leading := []electionEvent{{kind: evWake}, {kind: evGranted, lease: 7}, {kind: evWon, create: 100, rev: 100}, {kind: evClaimed, token: 5}, {kind: evProclaimed, ours: true, rev: 101}}
	for name, tt := range map[string]struct {
		before []electionEvent
		found  electionEvent
		most   int // looks in ten minutes
	}{
		"another's":     {[]electionEvent{{kind: evWake}, {kind: evGranted, lease: 7}, seen}, seen, 13},
		"an old answer": {[]electionEvent{{kind: evWake}, {kind: evGranted, lease: 7}, seen}, electionEvent{kind: evSeen, rev: 85, create: 80, lease: 3}, 13},
		"our own":       {append(leading, electionEvent{kind: evLeaseGone}, electionEvent{kind: evIdle}, electionEvent{kind: evResigned}, electionEvent{kind: evSeen, rev: 101, create: 100, lease: 7}), electionEvent{kind: evSeen, rev: 101, create: 100, lease: 7}, 200},
		"a wish":        {[]electionEvent{{kind: evSeen, rev: 90, wish: wishElse, wishFor: 80}}, electionEvent{kind: evSeen, rev: 90, wish: wishElse, wishFor: 80}, 201},
	} {
		s, act := elect(tt.before...)
		looks, now := 0, epoch.Add(2*time.Second)
		for end := now.Add(10 * time.Minute); now.Before(end) && looks <= tt.most; {
			ev := electionEvent{kind: evWake}
			switch act.kind {
			case actLook:
				looks++
				ev = tt.found
			case actWait:
				now = act.until
			default:
				t.Fatalf("%s: %+v", name, act)
			}
			ev.at = now
			s, act = s.step(ev)
		}
		if looks == 0 || looks > tt.most {
			t.Errorf("%s: %d looks in ten minutes", name, looks)
		}
	}
}
