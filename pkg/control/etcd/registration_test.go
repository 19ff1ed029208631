package etcd

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

var epoch = time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC)

// script feeds events one second apart, from an announced record on, and
// returns the last action.
func script(s registration, events ...event) (registration, action) {
	var act action
	at := epoch
	for _, ev := range events {
		ev.at = at
		if ev.kind == evGranted || ev.kind == evRenewed {
			ev.sent = at
		}
		s, act = s.step(ev)
		at = at.Add(time.Second)
	}
	return s, act
}

func TestStep(t *testing.T) {
	announced := event{kind: evAnnounced, gen: 1}
	granted := event{kind: evGranted, lease: 7, ttl: 10 * time.Second}
	wrote := event{kind: evWrote, gen: 1, rev: 100}
	wake := event{kind: evWake}
	tests := []struct {
		name   string
		events []event
		want   action
	}{
		{name: "nothing is done before something is announced", events: []event{wake}, want: action{kind: actWait}},
		{name: "first a lease", events: []event{announced}, want: action{kind: actGrant}},
		{name: "a grant that failed is tried again after a pause", events: []event{announced, {kind: evFailed, did: actGrant, rnd: 0.5}},
			want: action{kind: actWait, until: epoch.Add(1100 * time.Millisecond)}},
		{name: "then the record, if there is none", events: []event{announced, granted}, want: action{kind: actPut, lease: 7}},
		{name: "then the renewals", events: []event{announced, granted, wrote},
			want: action{kind: actWait, until: epoch.Add(4 * time.Second)}},
		{name: "a renewal is due 3 s after the last was sent", events: []event{announced, granted, wrote, wake, wake},
			want: action{kind: actRenew, lease: 7}},
		{name: "a short lease is renewed at a third of it", events: []event{announced, {kind: evGranted, lease: 7, ttl: 3 * time.Second}, wrote},
			want: action{kind: actRenew, lease: 7}},
		{name: "a failed renewal is repeated with the same lease after half a second", events: []event{announced, granted, wrote, wake, wake, {kind: evFailed, did: actRenew}},
			want: action{kind: actWait, until: epoch.Add(5500 * time.Millisecond)}},
		{name: "a lease that etcd does not know is replaced after a short pause", events: []event{announced, granted, wrote, {kind: evLeaseGone, rnd: 0.5}},
			want: action{kind: actWait, until: epoch.Add(4 * time.Second)}},
		{name: "a new announcement is written over the last", events: []event{announced, granted, wrote, {kind: evAnnounced, gen: 2}},
			want: action{kind: actPut, lease: 7, rev: 100}},
		{name: "what was announced during a put went with it", events: []event{announced, granted, {kind: evWrote, gen: 2, rev: 100}},
			want: action{kind: actWait, until: epoch.Add(4 * time.Second)}},
		{name: "a put whose answer was lost is found as ours", events: []event{announced, granted, {kind: evConflict, owner: ownerUs, rev: 50}},
			want: action{kind: actPut, lease: 7, rev: 50}},
		{name: "another boot's record is probed", events: []event{announced, granted, {kind: evConflict, owner: ownerOther, rev: 50, lease: 3}},
			want: action{kind: actProbe, lease: 7}},
		{name: "a dead one's is put over at the revision that was seen", events: []event{announced, granted, {kind: evConflict, owner: ownerOther, rev: 50, lease: 3}, {kind: evDead}},
			want: action{kind: actPut, lease: 7, rev: 50}},
		{name: "and its lease is revoked", events: []event{announced, granted, {kind: evConflict, owner: ownerPast, rev: 50, lease: 3}, wrote},
			want: action{kind: actClean, lease: 3}},
		{name: "once", events: []event{announced, granted, {kind: evConflict, owner: ownerPast, rev: 50, lease: 3}, wrote, {kind: evCleaned}},
			want: action{kind: actRenew, lease: 7}},
		{name: "a living one's stays, and our lease is kept", events: []event{announced, granted, {kind: evConflict, owner: ownerOther, rev: 50}, {kind: evAlive}},
			want: action{kind: actWait, until: epoch.Add(4 * time.Second)}},
		{name: "the watch leads to a look at the own key", events: []event{announced, granted, wrote, {kind: evNudged}},
			want: action{kind: actCheck, lease: 7}},
		{name: "a missing record is written again", events: []event{announced, granted, wrote, {kind: evChecked, owner: ownerNone}},
			want: action{kind: actPut, lease: 7}},
		{name: "a changed record is written again", events: []event{announced, granted, wrote, {kind: evChecked, owner: ownerUs, rev: 101}},
			want: action{kind: actPut, lease: 7, rev: 101}},
		{name: "a good record is left alone", events: []event{announced, granted, wrote, {kind: evChecked, owner: ownerUs, rev: 100, same: true}},
			want: action{kind: actWait, until: epoch.Add(4 * time.Second)}},
		{name: "at the end the lease is revoked", events: []event{announced, granted, wrote, {kind: evStop}},
			want: action{kind: actRevoke, lease: 7}},
		{name: "and that is all", events: []event{announced, granted, wrote, {kind: evStop}, {kind: evRevoked}}, want: action{kind: actEnd}},
		{name: "without a lease there is nothing to end", events: []event{announced, {kind: evStop}}, want: action{kind: actEnd}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if _, got := script(registration{timing: defaults}, tt.events...); got != tt.want {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
		})
	}
}

func TestStartJitter(t *testing.T) {
	s := registration{timing: defaults}
	s.timing.start = 2 * time.Second
	if _, got := script(s, event{kind: evAnnounced, gen: 1, rnd: 0.5}); got != (action{kind: actWait, until: epoch.Add(time.Second)}) {
		t.Errorf("the first registration does not wait its turn: %+v", got)
	}
}

func TestHeldCountsFromTheSending(t *testing.T) {
	s, _ := script(registration{timing: defaults}, event{kind: evAnnounced, gen: 1}, event{kind: evGranted, lease: 7, ttl: 10 * time.Second})
	for after, want := range map[time.Duration]bool{0: true, 8999 * time.Millisecond: true, 9 * time.Second: false} {
		if got := s.held(epoch.Add(time.Second + after)); got != want {
			t.Errorf("held %v after the sending = %v, want %v", after, got, want)
		}
	}
}

// world is an etcd with one key, as the state machine sees it.
type world struct {
	now      time.Time
	next     leaseID
	alive    map[leaseID]time.Time // end of each lease
	rev      int64
	keyRev   int64 // 0 = absent
	keyLease leaseID
	keyGen   int // 0 = somebody else's
	calls    int
	down     bool
}

// expire drops what has ended.
func (w *world) expire() {
	for id, end := range w.alive {
		if w.now.After(end) {
			w.drop(id)
		}
	}
}

func (w *world) drop(id leaseID) {
	delete(w.alive, id)
	if w.keyRev != 0 && w.keyLease == id {
		w.rev++
		w.keyRev = 0
	}
}

// do carries out an action. Lost answers are those of calls that took effect.
func (w *world) do(act action, gen int, lost bool) event {
	w.expire()
	if act.kind == actWait {
		if !act.until.IsZero() {
			w.now = act.until
		}
		return event{kind: evWake}
	}
	w.calls++
	w.now = w.now.Add(5 * time.Millisecond)
	if w.down {
		w.now = w.now.Add(time.Second)
		return event{kind: evFailed, did: act.kind}
	}
	sent := w.now
	ev := w.call(act, gen)
	ev.sent = sent
	if lost {
		w.now = w.now.Add(time.Second)
		return event{kind: evFailed, did: act.kind}
	}
	return ev
}

func (w *world) call(act action, gen int) event {
	const ttl = 10 * time.Second
	if _, ok := w.alive[act.lease]; !ok && act.kind != actGrant && act.kind != actCheck && act.kind != actClean && act.kind != actProbe {
		return event{kind: evLeaseGone}
	}
	switch act.kind {
	case actGrant:
		w.next++
		w.alive[w.next] = w.now.Add(ttl)
		return event{kind: evGranted, lease: w.next, ttl: ttl}
	case actRenew:
		w.alive[act.lease] = w.now.Add(ttl)
		return event{kind: evRenewed, ttl: ttl}
	case actPut:
		if w.keyRev != act.rev {
			return w.found(evConflict, act, gen)
		}
		w.rev++
		w.keyRev, w.keyLease, w.keyGen = w.rev, act.lease, gen
		return event{kind: evWrote, gen: gen, rev: w.rev}
	case actCheck:
		return w.found(evChecked, act, gen)
	case actProbe:
		return event{kind: evDead}
	case actClean:
		w.drop(act.lease)
		return event{kind: evCleaned}
	}
	return event{kind: evWake}
}

func (w *world) found(kind eventKind, act action, gen int) event {
	ev := event{kind: kind, rev: w.keyRev, lease: w.keyLease}
	switch {
	case w.keyRev == 0:
		ev.owner = ownerNone
	case w.keyGen == 0:
		ev.owner = ownerOther
	default:
		ev.owner, ev.same = ownerUs, w.keyGen == gen && w.keyLease == act.lease
	}
	return ev
}

// Whatever happens to the lease, the key and the calls: once it has stopped
// happening, the record is right within a minute and a half, and stays so at
// less than one call a second.
func TestRegistrationHeals(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &world{now: epoch, alive: map[leaseID]time.Time{}, rev: 10}
		s := registration{timing: defaults}
		rnd := rapid.Float64Range(0, 0.999)
		gen := 1
		ev := event{kind: evAnnounced, gen: gen}
		turn := func(lost bool) {
			ev.at, ev.rnd = w.now, rnd.Draw(t, "rnd")
			var act action
			s, act = s.step(ev)
			if s.written != 0 && s.lease == 0 {
				t.Fatalf("written without a lease: %+v", s)
			}
			ev = w.do(act, gen, lost)
		}
		for range rapid.IntRange(0, 60).Draw(t, "turns") {
			switch rapid.IntRange(0, 9).Draw(t, "fault") {
			case 0:
				w.down = !w.down
			case 1:
				w.drop(s.lease)
			case 2:
				w.rev++
				w.keyRev = 0
			case 3: // another process writes under our id
				w.rev++
				w.keyRev, w.keyGen, w.keyLease = w.rev, 0, 0
			case 4:
				gen++
				if ev.kind == evWake {
					ev = event{kind: evAnnounced, gen: gen}
				}
			case 5:
				w.now = w.now.Add(time.Duration(rapid.IntRange(0, 30).Draw(t, "pause")) * time.Second)
			}
			turn(rapid.IntRange(0, 4).Draw(t, "lost") == 0)
		}
		w.down = false
		if ev.kind == evWake {
			ev = event{kind: evAnnounced, gen: gen}
		}
		heal := w.now.Add(90 * time.Second)
		for w.now.Before(heal) {
			turn(false)
		}
		w.expire()
		if w.keyRev == 0 || w.keyGen != gen || w.keyLease != s.lease || s.written != gen || !s.held(w.now) {
			t.Fatalf("not healed: %+v in %+v, want record %d", s, w, gen)
		}
		calls, from := w.calls, w.now
		for w.now.Before(from.Add(5 * time.Minute)) {
			turn(false)
		}
		if n := w.calls - calls; n > 150 {
			t.Fatalf("%d calls in 5 minutes of quiet", n)
		}
	})
}
