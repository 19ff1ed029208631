package outbox

import (
	"slices"
	"testing"
	"time"

	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// outboxProbe drives an outbox and notes what is written.
type outboxProbe struct {
	*Outbox[int]
	now   time.Time
	frame uint32
}

func probeOutbox(limit int) *outboxProbe {
	return &outboxProbe{Outbox: New[int](limit), now: time.Unix(1000, 0)}
}

func (p *outboxProbe) put(ids ...string) {
	for _, id := range ids {
		p.Add(&Message[int]{ID: id, Conversation: id[:1], Send: &clientv1.Send{ClientMessageId: id}})
	}
}

// written returns what may be written now: its id, * for a resend, ! for the
// start of a run.
func (p *outboxProbe) written() []string {
	var ids []string
	for m := p.Next(p.now); m != nil; m = p.Next(p.now) {
		p.frame++
		s := p.Write(m, p.frame, p.now)
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

func TestItKeepsOrderAndWindow(t *testing.T) {
	p := probeOutbox(100)
	for i := range 40 {
		p.put(string(rune('a'+i%2)) + string(rune('A'+i)))
	}
	if got := p.written(); len(got) != protocol.ClientSendWindow || got[0] != "aA" || got[1] != "bB" {
		t.Fatalf("written %v", got)
	}
	p.Stored("aA")
	p.expect(t, "a"+string(rune('A'+32)))
	if p.Add(&Message[int]{ID: "x", Conversation: "x"}); p.Len() != 40 {
		t.Errorf("%d messages", p.Len())
	}
}

func TestItIsBounded(t *testing.T) {
	p := probeOutbox(2)
	p.put("a1", "a2")
	if p.Add(&Message[int]{ID: "a3", Conversation: "a"}) {
		t.Error("a third message was taken")
	}
}

func TestGoesOnFromWhatWasRefused(t *testing.T) {
	p := probeOutbox(100)
	p.put("a1", "a2", "a3", "b1")
	p.expect(t, "a1", "a2", "a3", "b1")
	p.Stored("a1")
	behind := p.frameOf("a3")
	p.Retry(p.frameOf("a2"), &clientv1.Error{Reason: "busy", RetryAfterMs: 400}, p.now)
	p.Retry(behind, &clientv1.Error{Reason: "behind"}, p.now) // the answer to a former copy
	p.put("a4")
	p.expect(t)
	if at, ok := p.WakeAt(); !ok || !at.Equal(p.now.Add(400*time.Millisecond)) {
		t.Errorf("wakes at %v", at.Sub(p.now))
	}
	p.now = p.now.Add(400 * time.Millisecond)
	p.expect(t, "a2*", "a3*", "a4")
}

func TestTakesLateOKOfAFormerCopy(t *testing.T) {
	p := probeOutbox(100)
	p.put("a1", "a2")
	p.expect(t, "a1", "a2")
	p.Retry(p.frameOf("a1"), &clientv1.Error{Reason: "unavailable"}, p.now)
	if p.Stored("a2") == nil || p.Len() != 1 {
		t.Error("the late ack was not taken")
	}
	p.now = p.now.Add(minPause)
	p.expect(t, "a1*")
}

func TestWithdrawStartsANewRun(t *testing.T) {
	p := probeOutbox(100)
	p.put("a1", "a2", "a3")
	p.expect(t, "a1", "a2", "a3")
	p.Retry(p.frameOf("a1"), &clientv1.Error{Reason: "busy", RetryAfterMs: 60000}, p.now)
	p.Withdraw("a1")
	p.expect(t, "a2*!", "a3*")
}

func TestWithdrawOfTheOnlyOne(t *testing.T) {
	p := probeOutbox(100)
	p.put("a1")
	p.expect(t, "a1")
	p.Retry(p.frameOf("a1"), &clientv1.Error{Reason: "busy", RetryAfterMs: 60000}, p.now)
	p.Withdraw("a1")
	p.put("a2")
	p.expect(t, "a2!")
}

func TestWithdrawOfALaterOne(t *testing.T) {
	p := probeOutbox(100)
	p.put("a1", "a2", "a3")
	p.expect(t, "a1", "a2", "a3")
	p.Retry(p.frameOf("a1"), &clientv1.Error{Reason: "busy", RetryAfterMs: 100}, p.now)
	p.Withdraw("a2")
	p.expect(t)
	p.now = p.now.Add(100 * time.Millisecond)
	p.expect(t, "a1*", "a3*")
}

// What holds the run may be out of the outbox already, found in the log.
func TestHealsARunThatWaitsForNothing(t *testing.T) {
	p := probeOutbox(100)
	p.put("a1", "a2")
	p.expect(t, "a1", "a2")
	p.Stored("a1")
	p.Retry(p.frameOf("a2"), &clientv1.Error{Reason: "behind"}, p.now)
	p.expect(t, "a2*!")
}

func TestSendsAllAgainAfterABreak(t *testing.T) {
	p := probeOutbox(100)
	p.put("a1", "b1", "a2")
	p.expect(t, "a1", "b1", "a2")
	p.Retry(p.frameOf("b1"), &clientv1.Error{Reason: "busy", RetryAfterMs: 60000}, p.now)
	p.put("a3")
	p.Reconnected()
	p.expect(t, "a1*", "b1*", "a2*", "a3")
}

func TestFailHoldsNothingBack(t *testing.T) {
	p := probeOutbox(100)
	p.put("a1", "a2")
	p.expect(t, "a1", "a2")
	if p.Failed(p.frameOf("a1")) == nil || p.Failed(999) != nil {
		t.Error("Failed found the wrong message")
	}
	p.put("a3")
	p.expect(t, "a3")
}

func TestPausesDouble(t *testing.T) {
	for i, want := range []time.Duration{500 * time.Millisecond, time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second, 16 * time.Second, 30 * time.Second, 30 * time.Second} {
		if got := retryPause(&clientv1.Error{Reason: "unavailable", RetryAfterMs: 100}, i); got != want {
			t.Errorf("refusal %d: %v, want %v", i, got, want)
		}
	}
	if got := retryPause(&clientv1.Error{Reason: "rate_limited", RetryAfterMs: 70}, 5); got != 70*time.Millisecond {
		t.Errorf("told 70 ms, waits %v", got)
	}
	if got := retryPause(nil, 0); got != minPause {
		t.Errorf("without an error %v", got)
	}
}

func TestOverdue(t *testing.T) {
	p := probeOutbox(100)
	p.put("a1")
	p.expect(t, "a1")
	if at, ok := p.WakeAt(); !ok || at.Sub(p.now) != protocol.ClientTimeout {
		t.Errorf("wakes at %v", at)
	}
	if p.Overdue(p.now.Add(9*time.Second)) || !p.Overdue(p.now.Add(10*time.Second)) {
		t.Error("overdue is not at 10 s")
	}
}
