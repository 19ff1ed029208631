package run

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	v1 "github.com/imdhq/imd/proto/gen/internalv1"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

var t0 = time.Unix(1_800_000_000, 0)

// script drives runs and writes down what it asks for.
type script struct {
	t   *testing.T
	r   Queue
	now time.Time
	log []string
	out map[string]Out // in flight, by conversation
	id  uint32
}

func newScript(t *testing.T) *script { return &script{t: t, now: t0, out: map[string]Out{}} }

func (s *script) take(e *Effects) {
	for _, a := range e.Answers {
		line := a.Send.Send.ClientMessageId + " " + strings.TrimPrefix(a.Ack.Status.String(), "ACK_")
		if a.Ack.Error != nil {
			line += " " + a.Ack.Error.Reason
		}
		s.log = append(s.log, line)
	}
	for _, o := range e.Submit {
		s.out[o.Run.ConversationId] = o
		var ids []string
		for _, x := range o.Run.Sends {
			ids = append(ids, x.ClientMessageId)
		}
		s.log = append(s.log, "submit "+strings.Join(ids, ","))
	}
}

func (s *script) send(conv, cmid string, edit ...func(*Send)) {
	s.id++
	it := Send{ID: s.id, Send: &v1.RunSend{ClientMessageId: cmid}, Size: 100, Arrived: s.now}
	for _, f := range edit {
		f(&it)
	}
	var e Effects
	s.r.Add(s.now, conv, "", it, &e)
	s.take(&e)
}

func start(it *Send) { it.Start = true }

func verdict(reason string) func(*Send) {
	return func(it *Send) { it.Verdict = protocol.NewError(reason, "", 0) }
}

// done answers the run in flight: "ok", or a reason for each send.
func (s *script) done(conv string, results ...string) {
	o := s.out[conv]
	var acks []*clientv1.SendAck
	for i, r := range results {
		if r == "ok" {
			acks = append(acks, &clientv1.SendAck{Status: clientv1.Ack_ACK_OK, Seq: int64(i + 1)})
			continue
		}
		err, status := protocol.NewError(r, "", 0), clientv1.Ack_ACK_FAIL
		if err.Retryable {
			status = clientv1.Ack_ACK_RETRY
		}
		acks = append(acks, &clientv1.SendAck{Status: status, Error: err})
	}
	var e Effects
	s.r.Done(s.now, conv, o.Token, acks, nil, &e)
	s.take(&e)
}

// Answers to other sends decide nothing.
func TestAnswersToOthersAreNone(t *testing.T) {
	for name, acks := range map[string][]*clientv1.SendAck{
		"another send":         {{Status: clientv1.Ack_ACK_OK, Seq: 1, ClientMessageId: "m1"}, {Status: clientv1.Ack_ACK_OK, Seq: 2, ClientMessageId: "m3"}},
		"another conversation": {{Status: clientv1.Ack_ACK_OK, Seq: 1, ConversationId: "d"}, {Status: clientv1.Ack_ACK_OK, Seq: 2}},
		"too few":              {{Status: clientv1.Ack_ACK_OK, Seq: 1}},
	} {
		s := newScript(t)
		for _, id := range []string{"m0", "m1", "m2"} {
			s.send("c", id)
		}
		s.done("c", "ok")
		s.log = nil
		var e Effects
		s.r.Done(s.now, "c", s.out["c"].Token, acks, nil, &e)
		s.take(&e)
		if got := strings.Join(s.log, "; "); got != "m1 RETRY internal; m2 RETRY behind" {
			t.Errorf("%s: %s", name, got)
		}
	}
}

func (s *script) fail(conv string) {
	var e Effects
	s.r.Done(s.now, conv, s.out[conv].Token, nil, protocol.NewError("unavailable", "", 0), &e)
	s.take(&e)
}

func (s *script) expire() {
	var e Effects
	s.r.Expire(s.now, &e)
	s.take(&e)
}

func (s *script) want(lines ...string) {
	s.t.Helper()
	if got, want := strings.Join(s.log, "; "), strings.Join(lines, "; "); got != want {
		s.t.Errorf("\n got %s\nwant %s", got, want)
	}
	s.log = nil
}

func TestOneRunAConversationIsInFlight(t *testing.T) {
	s := newScript(t)
	s.send("c", "A")
	s.send("c", "B")
	s.send("c", "C")
	s.send("d", "X")
	s.want("submit A", "submit X")
	s.done("c", "ok")
	s.want("A OK", "submit B,C")
	s.done("c", "ok", "ok")
	s.want("B OK", "C OK")
	s.done("d", "ok")
	s.want("X OK")
	if len(s.r.convs) != 0 || s.r.unanswered != 0 {
		t.Errorf("%d conversations, %d unanswered are left", len(s.r.convs), s.r.unanswered)
	}
}

func TestNothingOvertakesARefusedSend(t *testing.T) {
	s := newScript(t)
	s.send("c", "A")
	s.send("c", "B")
	s.send("c", "C")
	s.log = nil
	s.done("c", "busy")
	s.want("A RETRY busy", "B RETRY behind", "C RETRY behind")
	s.send("c", "D")
	s.send("d", "X") // another conversation does not wait
	s.want("D RETRY behind", "submit X")
	s.send("c", "A")
	s.send("c", "B")
	s.want("submit A")
	s.done("c", "ok")
	s.want("A OK", "submit B")
}

func TestARefusalInsideARunHoldsWhatWaits(t *testing.T) {
	s := newScript(t)
	s.send("c", "A")
	s.send("c", "B")
	s.send("c", "C")
	s.send("c", "D")
	s.done("c", "ok")
	s.log = nil
	s.send("c", "E")
	s.done("c", "ok", "unavailable", "behind")
	s.want("B OK", "C RETRY unavailable", "D RETRY behind", "E RETRY behind")
	s.send("c", "D")
	s.want("D RETRY behind")
	s.send("c", "C")
	s.want("submit C")
}

func TestRunStartGivesTheRefusedSendUp(t *testing.T) {
	s := newScript(t)
	s.send("c", "A")
	s.done("c", "busy")
	s.log = nil
	s.send("c", "B")
	s.send("c", "C", start)
	s.send("c", "D")
	s.want("B RETRY behind", "submit C")
	s.done("c", "ok")
	s.want("C OK", "submit D")
}

func TestTheHoldEndsByItself(t *testing.T) {
	s := newScript(t)
	s.send("c", "A")
	s.done("c", "busy")
	s.log = nil
	s.now = s.now.Add(protocol.HoldTimeout - time.Millisecond)
	s.send("c", "B")
	s.want("B RETRY behind")
	s.now = s.now.Add(time.Millisecond)
	s.send("c", "C")
	s.want("submit C")
}

func TestAFinalRefusalHoldsNothingBack(t *testing.T) {
	s := newScript(t)
	s.send("c", "A")
	s.send("c", "B", verdict("too_large"))
	s.send("c", "C")
	s.log = nil
	s.done("c", "not_member")
	s.want("A FAIL not_member", "B FAIL too_large", "submit C")
}

func TestARefusalOfOursKeepsItsPlace(t *testing.T) {
	s := newScript(t)
	s.send("c", "A")
	s.send("c", "B", verdict("rate_limited"))
	s.send("c", "C")
	s.want("submit A")
	s.done("c", "ok")
	s.want("A OK", "B RETRY rate_limited", "C RETRY behind")
	s.send("c", "B")
	s.want("submit B")
}

func TestAFailedCallIsNeverOKAndNeverFinal(t *testing.T) {
	s := newScript(t)
	s.send("c", "A")
	s.send("c", "B")
	s.send("c", "C")
	s.done("c", "ok")
	s.log = nil
	s.fail("c")
	s.want("B RETRY unavailable", "C RETRY behind")
}

func TestAWrongNumberOfAnswersIsAFailedCall(t *testing.T) {
	s := newScript(t)
	s.send("c", "A")
	s.log = nil
	s.done("c")
	s.want("A RETRY internal")
	s.send("c", "A")
	s.log = nil
	var e Effects
	s.r.Done(s.now, "c", s.out["c"].Token, []*clientv1.SendAck{{Status: clientv1.Ack_ACK_OK}}, nil, &e) // without a seq
	s.take(&e)
	s.want("A RETRY unavailable")
}

func TestALateRunIsGivenUpAndItsResultIgnored(t *testing.T) {
	s := newScript(t)
	s.send("c", "A")
	s.now = s.now.Add(time.Second)
	s.send("c", "B")
	if at := s.r.Next(); !at.Equal(t0.Add(AnswerWithin)) {
		t.Errorf("next at %v", at.Sub(t0))
	}
	s.expire()
	s.want("submit A")
	old := s.out["c"]
	s.now = t0.Add(AnswerWithin)
	s.expire()
	s.want("A RETRY unavailable", "B RETRY behind")
	s.send("c", "A")
	s.want("submit A")
	var e Effects
	if s.r.Done(s.now, "c", old.Token, []*clientv1.SendAck{{Status: clientv1.Ack_ACK_OK, Seq: 1}}, nil, &e) {
		t.Error("the result of a run that was given up was taken")
	}
	s.done("c", "ok")
	s.want("A OK")
}

func TestARunIsBounded(t *testing.T) {
	s := newScript(t)
	s.send("c", "first")
	for i := range 5 {
		s.send("c", fmt.Sprint(i), func(it *Send) { it.Size = maxRunBytes/2 - 1 })
	}
	s.log = nil
	s.done("c", "ok")
	s.want("first OK", "submit 0,1")
}

func TestForgottenConversationsAreBounded(t *testing.T) {
	s := newScript(t)
	for i := range 10 * sweepRuns {
		c := fmt.Sprint("c", i)
		s.now = s.now.Add(time.Second)
		s.send(c, "A")
		s.done(c, "busy")
	}
	if n := len(s.r.convs); n > 2*sweepRuns {
		t.Errorf("%d conversations are remembered", n)
	}
}

// A random client and a random store: every send gets one answer, answers of a
// conversation keep the order of the sends, and what is stored keeps the order
// of writing.
func TestRunsKeepOrderUnderFire(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 1))
		s := newScript(t)
		const n = 30
		var outbox []int // client message numbers, in order of writing
		for i := range n {
			outbox = append(outbox, i)
		}
		stored := map[int]int{}
		var order []int
		written, hold := 0, false
		for step := 0; len(outbox) > 0; step++ {
			if step > 20_000 {
				t.Fatalf("seed %d: no end; %d are left", seed, len(outbox))
			}
			switch o, flying := s.out["c"]; {
			case flying && s.r.convs["c"] != nil && s.r.convs["c"].inFlight > 0 && rng.IntN(3) == 0:
				var acks []*clientv1.SendAck
				refused := false
				for _, x := range o.Run.Sends {
					var k int
					fmt.Sscan(x.ClientMessageId, &k)
					if refused = refused || rng.IntN(6) == 0; refused {
						acks = append(acks, retry(protocol.NewError("busy", "", 0)))
						continue
					}
					if _, dup := stored[k]; !dup {
						stored[k] = len(stored) + 1
						order = append(order, k)
					}
					acks = append(acks, &clientv1.SendAck{Status: clientv1.Ack_ACK_OK, Seq: int64(stored[k])})
				}
				var e Effects
				if rng.IntN(10) == 0 { // stored, and the answer lost
					s.r.Done(s.now, "c", o.Token, nil, protocol.NewError("unavailable", "", 0), &e)
				} else {
					s.r.Done(s.now, "c", o.Token, acks, nil, &e)
				}
				for _, a := range e.Answers {
					var k int
					fmt.Sscan(a.Send.Send.ClientMessageId, &k)
					if a.Ack.Status == clientv1.Ack_ACK_OK {
						for i, x := range outbox {
							if x == k {
								outbox = append(outbox[:i:i], outbox[i+1:]...)
								if i < written {
									written--
								}
								break
							}
						}
					} else {
						hold = true
					}
				}
				s.take(&e)
			case hold && s.r.unanswered == 0: // after all refusals: from the first unacknowledged on, in order
				written, hold = 0, false
			case written < len(outbox):
				s.send("c", fmt.Sprint(outbox[written]))
				written++
			}
			for _, l := range s.log {
				if strings.Contains(l, "RETRY") {
					hold = true
				}
			}
			s.log = nil
		}
		for i := 1; i < len(order); i++ {
			if order[i] < order[i-1] {
				t.Fatalf("seed %d: stored in the order %v", seed, order)
			}
		}
		if len(order) != n || s.r.unanswered != 0 {
			t.Fatalf("seed %d: %d stored, %d unanswered", seed, len(order), s.r.unanswered)
		}
	}
}
