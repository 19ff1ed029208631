package lane

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

func held(convs ...im.ConversationID) error {
	return &store.BusyConversationError{Conversations: convs, Err: errors.New("lock timeout")}
}

func (b *bench) pass(d time.Duration) {
	b.t.Helper()
	b.now = b.now.Add(d)
	b.step(Tick{})
}

func TestLaneGoesOnWithoutAConversationThatIsHeld(t *testing.T) {
	b := newBench(t)
	b.submit("g_0", "_")
	stuck, other := b.submit("g_1", "ab"), b.submit("g_2", "c")
	b.done(nil)
	waiting, fine := b.submit("g_1", "x"), b.submit("g_3", "d")
	b.done(held("g_1"))
	stuck.want(t, "busy", "behind")
	waiting.want(t, "busy")
	b.wantOut("c") // at once, and before what came later
	if b.out.After != 0 || b.out.Reruns != 0 {
		t.Fatalf("the rest runs after %v as try %d", b.out.After, b.out.Reruns)
	}
	b.done(nil)
	other.want(t, "ok")
	b.done(nil)
	fine.want(t, "ok")

	// It backs off alone: refused without a call, with the time that is left.
	r := b.run("g_1", "e", 100)
	var hint time.Duration
	reply := r.Reply
	r.Reply = func(at int, v Verdict) { hint = v.Err.RetryAfter; reply(at, v) }
	b.step(Submit{r.Run})
	r.want(t, "busy")
	if b.out != nil || hint != firstHold {
		t.Fatalf("hint %v", hint)
	}
	// Then it is tried without waiting for the lock; still held, it waits longer.
	b.pass(firstHold)
	b.submit("g_1", "f")
	if b.wantOut("f"); !b.out.Append[0].NoWait {
		t.Fatal("the next try waits for the lock")
	}
	b.done(held("g_1"))
	b.pass(firstHold)
	b.submit("g_1", "g").want(t, "busy")
	b.pass(firstHold)
	last := b.submit("g_1", "h")
	b.done(nil)
	last.want(t, "ok")
	b.submit("g_1", "i")
	if b.out.Append[0].NoWait {
		t.Fatal("the hold did not end with the first success")
	}
	b.done(nil)
	if len(b.l.held) != 0 || !b.l.Idle() {
		t.Fatal("something is left of the hold")
	}
}

func TestLaneTakesHeldConversationsFromResults(t *testing.T) {
	b := newBench(t)
	b.submit("g_0", "_")
	stuck, other := b.submit("g_1", "ab"), b.submit("g_2", "c")
	b.done(nil)
	busy := im.Errorf(clientv1.Reason_REASON_BUSY, "store", "held")
	b.out = nil
	b.step(Result{Results: []store.AppendResult{
		{Err: busy}, {Err: im.Errorf(clientv1.Reason_REASON_BEHIND, "store", "")}, {MessageID: 4, Seq: 1},
	}})
	stuck.want(t, "busy", "behind")
	other.want(t, "ok")
	b.submit("g_1", "d").want(t, "busy")
}

func TestLaneFindsOutAboutAHeldConversationLater(t *testing.T) {
	b := newBench(t)
	b.submit("g_0", "_")
	doubt, other := b.submit("g_1", "ab"), b.submit("g_2", "c")
	b.done(nil)
	b.done(store.ErrUnknownOutcome)
	b.done(held("g_1"))
	doubt.want(t, "", "") // it may be stored, so it is neither refused nor forgotten
	b.wantOut("c")
	b.done(nil)
	other.want(t, "ok")
	if b.l.Idle() || b.wake != firstHold || b.out != nil {
		t.Fatalf("idle %v, wake %v", b.l.Idle(), b.wake)
	}
	again := b.submit("g_1", "abz") // joins what is in doubt; the rest is refused
	again.want(t, "", "", "busy")
	free := b.submit("g_4", "d") // the lane does not stand still
	b.done(nil)
	free.want(t, "ok")
	b.step(Expire{doubt.Run})
	doubt.want(t, "unavailable", "behind")
	b.pass(firstHold)
	b.wantOut("ab")
	b.done(nil)
	again.want(t, "dup", "dup", "busy")
	if !b.l.Idle() || len(b.l.pending) != 0 || b.wake != 0 {
		t.Fatal("something is left")
	}
}

func TestLaneHoldsBackAChange(t *testing.T) {
	b := newBench(t)
	_, answers := change(b, "g_1")
	b.done(held("g_1"))
	if len(*answers) != 1 || (*answers)[0] != "busy" {
		t.Fatalf("answers %q", *answers)
	}
	_, answers = change(b, "g_1")
	if len(*answers) != 1 || (*answers)[0] != "busy" || b.out != nil {
		t.Fatalf("answers %q", *answers)
	}
	b.pass(firstHold)
	_, answers = change(b, "g_1")
	b.done(store.ErrUnknownOutcome)
	b.done(held("g_1"))
	if len(*answers) != 0 || b.out != nil || b.wake == 0 {
		t.Fatalf("answers %q", *answers)
	}
	b.pass(2 * firstHold)
	b.done(nil)
	if len(*answers) != 1 || (*answers)[0] != im.ReasonName(0) || !b.l.Idle() {
		t.Fatalf("answers %q", *answers)
	}
}

// What is in doubt counts against the bound of the queue.
func TestLaneBoundsWhatIsInDoubt(t *testing.T) {
	b := newBench(t)
	conv := func(i int) string { return fmt.Sprint("g_", i) }
	refused := 0
	for i := 0; refused == 0; i++ {
		if i > maxQueueRows {
			t.Fatal("no bound")
		}
		r := b.many(conv(i), 100, 1)
		if r.got[99] != "" {
			refused++
			continue
		}
		b.done(store.ErrUnknownOutcome)
		b.done(held(im.ConversationID(conv(i))))
	}
	if n := b.l.doubtful(); n > maxQueueRows || n < maxQueueRows-100 {
		t.Fatalf("%d rows in doubt", n)
	}
}

func TestLaneStopsWithAHeldConversation(t *testing.T) {
	b := newBench(t)
	r := b.submit("g_1", "ab")
	b.done(store.ErrUnknownOutcome)
	b.done(held("g_1"))
	b.step(Stop{})
	r.want(t, "unavailable", "behind")
}

// An error that names nothing of the call must not make it run for ever.
func TestLaneDoesNotBelieveAHoldOfNothing(t *testing.T) {
	b := newBench(t)
	r := b.submit("g_1", "a")
	b.done(held("g_9"))
	r.want(t, "unavailable")
}
