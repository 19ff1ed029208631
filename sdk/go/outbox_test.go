package imd

import (
	"slices"
	"testing"
	"time"

	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// outboxProbe drives an outbox and notes what is written.
type outboxProbe struct {
	*outbox
	now   time.Time
	frame uint32
}

func probeOutbox(limit int) *outboxProbe {
	return &outboxProbe{outbox: newOutbox(limit), now: time.Unix(1000, 0)}
}

func (p *outboxProbe) put(ids ...string) {
	for _, id := range ids {
		p.add(&outMsg{id: id, lane: id[:1], send: &clientv1.Send{ClientMessageId: id}, out: &Outgoing{done: make(chan struct{})}})
	}
}

// written returns what may be written now: its id, * for a resend, ! for the
// start of a run.
func (p *outboxProbe) written() []string {
	var ids []string
	for m := p.next(p.now); m != nil; m = p.next(p.now) {
		p.frame++
		s := p.write(m, p.frame, p.now)
		id := s.ClientMessageId
		if s.Resend {
			id += "*"
		}
		if s.RunStart {
			id += "!"
		}
		ids = append(ids, id)
	}
	return ids
}

func (p *outboxProbe) frameOf(id string) uint32 { return p.byID[id].frameID }

func (p *outboxProbe) expect(t *testing.T, want ...string) {
	t.Helper()
	if got := p.written(); !slices.Equal(got, want) {
		t.Fatalf("written %v, want %v", got, want)
	}
}

func TestOutboxKeepsOrderAndWindow(t *testing.T) {
	p := probeOutbox(100)
	for i := range 40 {
		p.put(string(rune('a'+i%2)) + string(rune('A'+i)))
	}
	if got := p.written(); len(got) != protocol.ClientSendWindow || got[0] != "aA" || got[1] != "bB" {
		t.Fatalf("written %v", got)
	}
	p.stored("aA")
	p.expect(t, "a"+string(rune('A'+32)))
	if p.add(&outMsg{id: "x", lane: "x"}); p.len() != 40 {
		t.Errorf("%d messages", p.len())
	}
}

func TestOutboxIsBounded(t *testing.T) {
	p := probeOutbox(2)
	p.put("a1", "a2")
	if p.add(&outMsg{id: "a3", lane: "a"}) {
		t.Error("a third message was taken")
	}
}

func TestOutboxGoesOnFromWhatWasRefused(t *testing.T) {
	p := probeOutbox(100)
	p.put("a1", "a2", "a3", "b1")
	p.expect(t, "a1", "a2", "a3", "b1")
	p.stored("a1")
	behind := p.frameOf("a3")
	p.retry(p.frameOf("a2"), &clientv1.Error{Reason: "busy", RetryAfterMs: 400}, p.now)
	p.retry(behind, &clientv1.Error{Reason: "behind"}, p.now) // the answer to a former copy
	p.put("a4")
	p.expect(t)
	if at, ok := p.wakeAt(); !ok || !at.Equal(p.now.Add(400*time.Millisecond)) {
		t.Errorf("wakes at %v", at.Sub(p.now))
	}
	p.now = p.now.Add(400 * time.Millisecond)
	p.expect(t, "a2*", "a3*", "a4")
}

func TestOutboxTakesLateOKOfAFormerCopy(t *testing.T) {
	p := probeOutbox(100)
	p.put("a1", "a2")
	p.expect(t, "a1", "a2")
	p.retry(p.frameOf("a1"), &clientv1.Error{Reason: "unavailable"}, p.now)
	if p.stored("a2") == nil || p.len() != 1 {
		t.Error("the late ack was not taken")
	}
	p.now = p.now.Add(backoffBase)
	p.expect(t, "a1*")
}

func TestOutboxWithdrawStartsANewRun(t *testing.T) {
	p := probeOutbox(100)
	p.put("a1", "a2", "a3")
	p.expect(t, "a1", "a2", "a3")
	p.retry(p.frameOf("a1"), &clientv1.Error{Reason: "busy", RetryAfterMs: 60000}, p.now)
	p.withdraw("a1")
	p.expect(t, "a2*!", "a3*")
}

func TestOutboxWithdrawOfTheOnlyOne(t *testing.T) {
	p := probeOutbox(100)
	p.put("a1")
	p.expect(t, "a1")
	p.retry(p.frameOf("a1"), &clientv1.Error{Reason: "busy", RetryAfterMs: 60000}, p.now)
	p.withdraw("a1")
	p.put("a2")
	p.expect(t, "a2!")
}

func TestOutboxWithdrawOfALaterOne(t *testing.T) {
	p := probeOutbox(100)
	p.put("a1", "a2", "a3")
	p.expect(t, "a1", "a2", "a3")
	p.retry(p.frameOf("a1"), &clientv1.Error{Reason: "busy", RetryAfterMs: 100}, p.now)
	p.withdraw("a2")
	p.expect(t)
	p.now = p.now.Add(100 * time.Millisecond)
	p.expect(t, "a1*", "a3*")
}

// What holds the run may be out of the outbox already, found in the log.
func TestOutboxHealsARunThatWaitsForNothing(t *testing.T) {
	p := probeOutbox(100)
	p.put("a1", "a2")
	p.expect(t, "a1", "a2")
	p.stored("a1")
	p.retry(p.frameOf("a2"), &clientv1.Error{Reason: "behind"}, p.now)
	p.expect(t, "a2*!")
}

func TestOutboxSendsAllAgainAfterABreak(t *testing.T) {
	p := probeOutbox(100)
	p.put("a1", "b1", "a2")
	p.expect(t, "a1", "b1", "a2")
	p.retry(p.frameOf("b1"), &clientv1.Error{Reason: "busy", RetryAfterMs: 60000}, p.now)
	p.put("a3")
	p.reconnected()
	p.expect(t, "a1*", "b1*", "a2*", "a3")
}

func TestOutboxFailHoldsNothingBack(t *testing.T) {
	p := probeOutbox(100)
	p.put("a1", "a2")
	p.expect(t, "a1", "a2")
	if p.failed(p.frameOf("a1")) == nil || p.failed(999) != nil {
		t.Error("failed() found the wrong message")
	}
	p.put("a3")
	p.expect(t, "a3")
}

func TestOutboxPausesDouble(t *testing.T) {
	for i, want := range []time.Duration{500 * time.Millisecond, time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second, 16 * time.Second, 30 * time.Second, 30 * time.Second} {
		if got := retryPause(&clientv1.Error{Reason: "unavailable", RetryAfterMs: 100}, i); got != want {
			t.Errorf("refusal %d: %v, want %v", i, got, want)
		}
	}
	if got := retryPause(&clientv1.Error{Reason: "rate_limited", RetryAfterMs: 70}, 5); got != 70*time.Millisecond {
		t.Errorf("told 70 ms, waits %v", got)
	}
	if got := retryPause(nil, 0); got != backoffBase {
		t.Errorf("without an error %v", got)
	}
}

func TestOutboxOverdue(t *testing.T) {
	p := probeOutbox(100)
	p.put("a1")
	p.expect(t, "a1")
	if at, ok := p.wakeAt(); !ok || at.Sub(p.now) != protocol.ClientTimeout {
		t.Errorf("wakes at %v", at)
	}
	if p.overdue(p.now.Add(9*time.Second)) || !p.overdue(p.now.Add(10*time.Second)) {
		t.Error("overdue is not at 10 s")
	}
}

// A refusal for now is kept for people who wait for the message.
func TestARefusalIsTold(t *testing.T) {
	o := newOutbox(10)
	out := &Outgoing{ClientMessageID: "m", done: make(chan struct{})}
	m := &outMsg{id: "m", lane: "c", out: out, send: &clientv1.Send{}}
	o.add(m)
	now := time.Now()
	m.frameID, o.byFrame[7], o.lanes["c"].inflight = 7, m, 1
	if out.Refused() != nil {
		t.Error("refused before it was")
	}
	o.retry(7, &clientv1.Error{Reason: "busy", Message: "later", Retryable: true}, now)
	if r := out.Refused(); r == nil || r.Reason != "busy" || r.Message != "later" {
		t.Errorf("refused with %v", r)
	}
}
