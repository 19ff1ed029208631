package requirements

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/imdhq/imd/pkg/testenv"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// Numbers go on above all used ones after each kill, and one who was away
// reads across them in as many calls as there are pages.
func TestR08NumbersAreNeverUsedTwice(t *testing.T) {
	t.Parallel()
	n := node(t)
	var conv string
	used := map[int64]bool{}
	last := int64(0)
	for _, count := range []int{50, 50, 10} {
		a := login(t, n, "ann", "d")
		for range count {
			ack := a.MustSend(testenv.ToUser("bob", "x"))
			if conv = ack.ConversationId; ack.Seq <= last || used[ack.Seq] {
				t.Errorf("seq %d after %d", ack.Seq, last)
			}
			last, used[ack.Seq] = ack.Seq, true
		}
		n.Kill()
		n.Start()
	}
	b := login(t, n, "bob", "d")
	const limit = 7
	have, calls, got := int64(50), 0, 0
	for {
		p := b.History(&clientv1.History{ConversationId: conv, AfterSeq: have, Limit: limit})
		calls++
		got += len(p.Entries)
		if have = p.CompleteTo; p.End {
			break
		}
	}
	if got != 60 || calls > (60+limit-1)/limit+1 {
		t.Errorf("%d of 60 later messages in %d calls of %d", got, calls, limit)
	}
}

// Somebody writes the next number of a conversation into the database.
func TestR09ATakenNumberIsPassedBy(t *testing.T) {
	t.Parallel()
	n := node(t)
	a, c := login(t, n, "ann", "d"), login(t, n, "carl", "d")
	conv := a.MustSend(testenv.ToUser("bob", "0")).ConversationId
	stranger := filepath.Join(t.TempDir(), "stranger")
	build := exec.Command("go", "build", "-trimpath", "-o", stranger, "./stranger")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	if out, err := exec.Command(stranger, filepath.Join(n.Dir, "imd.db"), conv).CombinedOutput(); err != nil {
		t.Fatalf("the stranger: %v\n%s", err, out)
	}
	clock := testenv.NewClock(t)
	seqs := a.SendAll(numbered(20, toUser("bob")))
	if took := clock.Now(); took > 5*time.Second {
		t.Errorf("20 messages took %v", took)
	}
	if seqs[0] != 3 || !slices.IsSorted(seqs) {
		t.Errorf("the seqs are %v, want them above the foreign 2", seqs)
	}
	if ack := c.MustSend(testenv.ToUser("dan", "x")); ack.Seq != 1 {
		t.Errorf("another conversation: %v", ack)
	}
	n.AwaitLog(conv)
	if v := n.Metric(`imd_log_lines_total{level="error"}`); v < 1 {
		t.Errorf("%v errors are counted", v)
	}
}

// 1,000 sends at once into one conversation, then again over a store that
// stalls: none fails for good, all are stored, and a quiet conversation stays
// quick.
func TestR10ABurstIntoOneConversation(t *testing.T) {
	t.Parallel()
	const senders, each = 10, 100
	n := node(t)
	var users []string
	for i := range senders {
		users = append(users, fmt.Sprint("s", i))
	}
	conv := testenv.Group(t, n.URL(), n.Token("own"), "busy", users...)
	conns := make([]*testenv.Client, senders)
	for i, u := range users {
		conns[i] = login(t, n, u, "d")
	}
	quiet := login(t, n, "quiet", "d")
	clock := testenv.NewClock(t)
	burst := func(t *testing.T) (retries int, took, slowest time.Duration, slowness float64) {
		t.Helper()
		var mu sync.Mutex
		var wg sync.WaitGroup
		began, wall := clock.Now(), time.Now()
		for _, c := range conns {
			wg.Go(func() {
				r := storeAll(t, c, numbered(each, toGroup(conv)))
				mu.Lock()
				retries += r
				mu.Unlock()
			})
		}
		done := make(chan struct{})
		go func() { wg.Wait(); close(done) }()
		for {
			select {
			case <-done:
				if took = clock.Since(began); took > 10*time.Second {
					t.Errorf("all were stored after %v", took)
				}
				return retries, took, slowest, time.Since(wall).Seconds() / took.Seconds()
			case <-time.After(20 * time.Millisecond):
				sent := clock.Now()
				if quiet.Send(testenv.ToUser("friend", "x")).Status == clientv1.Ack_ACK_OK {
					slowest = max(slowest, clock.Since(sent))
				}
			}
		}
	}
	held := func() float64 { // calls to the store that took longer than a quarter of a second
		return n.Metric("imd_state_append_seconds_count") - n.Metric(`imd_state_append_seconds_bucket{le="0.25"}`)
	}
	const fewHeld = 3 // of some forty: what a disk may do that others use too
	before := held()
	retries, took, slowest, slowness := burst(t)
	stalls, stood := held()-before, clock.Stood()
	t.Logf("stored within %v with %d retries, the quiet conversation waited %v at most, the machine was %.1f times slower and stood for %v, %v of %v calls were held",
		took.Round(time.Millisecond), retries, slowest.Round(time.Millisecond), slowness, stood.Round(time.Millisecond), stalls, n.Metric("imd_state_append_seconds_count"))
	// A send waits for 0.4 s at most until it is on its way to the store: a machine that
	// holds up a call for as long, or all that wants to run, sends the others away. A node
	// that holds up its calls itself does so with more than a few.
	if retries > senders*each/100 && (stalls == 0 || stalls > fewHeld) && slowness < 2 && stood < 100*time.Millisecond {
		t.Errorf("%d of %d had to be sent again", retries, senders*each)
	}
	// On a machine that is busy with other things, all takes longer alike.
	if slowest > max(300*time.Millisecond, took/4) {
		t.Errorf("a quiet conversation waited %v", slowest)
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			release := stall(t, n)
			time.Sleep(200 * time.Millisecond)
			release()
			select {
			case <-stop:
				return
			case <-time.After(50 * time.Millisecond):
			}
		}
	}()
	retries, took, _, _ = burst(t)
	close(stop)
	<-stopped
	t.Logf("with a slow store within %v with %d retries", took.Round(time.Millisecond), retries)
	all, _ := quiet.Walk(protocol.DirectID("quiet", "friend"), 500, false)
	if len(all) == 0 {
		t.Error("nothing of the quiet conversation is there")
	}
	entries, _ := conns[0].Walk(conv, 500, false)
	if got := len(messages(entries)); got != 2*senders*each {
		t.Errorf("history has %d messages, want %d", got, 2*senders*each)
	}
	seen := map[string]bool{}
	for i, e := range entries {
		if i > 0 && e.Seq <= entries[i-1].Seq {
			t.Errorf("seq %d after %d", e.Seq, entries[i-1].Seq)
		}
		if seen[e.ClientMessageId+e.Sender] {
			t.Errorf("%s of %s is there twice", e.ClientMessageId, e.Sender)
		}
		seen[e.ClientMessageId+e.Sender] = true
	}
}

// storeAll writes all sends at once and again until they are stored; it counts
// the answers that asked for that. A refusal without a hint, or for good, fails
// the test.
func storeAll(t *testing.T, c *testenv.Client, sends []*clientv1.Send) (retries int) {
	for len(sends) > 0 {
		var frames []*clientv1.ClientFrame
		byID := map[uint32]*clientv1.Send{}
		for _, m := range sends {
			f := sendFrame(c.ID(), m)
			byID[f.Id] = m
			frames = append(frames, f)
		}
		for part := range slices.Chunk(frames, 50) {
			if err := c.TryWrite(part...); err != nil {
				t.Error(err)
				return retries
			}
		}
		var again []*clientv1.Send
		wait := uint32(0)
		for _, f := range frames {
			got := c.Await(testenv.Patience, func(a *clientv1.ServerFrame) bool { return a.Id == f.Id })
			switch a := got.GetSendAck(); {
			case a.GetStatus() == clientv1.Ack_ACK_OK:
			case a.GetStatus() == clientv1.Ack_ACK_RETRY && a.Error.Retryable && (a.Error.RetryAfterMs > 0 || a.Error.Reason == "behind"):
				retries++
				wait = max(wait, a.Error.RetryAfterMs)
				byID[f.Id].Resend = true
				again = append(again, byID[f.Id])
			default:
				t.Errorf("a send got %v", got)
				return retries
			}
		}
		if sends = again; len(sends) > 0 {
			time.Sleep(time.Duration(wait) * time.Millisecond)
		}
	}
	return retries
}

// No id is given out twice however often the process dies and comes back.
func TestR39IdsStayUniqueOverRestarts(t *testing.T) {
	t.Parallel()
	n := node(t)
	seen := map[int64]int{}
	for round := range 20 {
		a := login(t, n, "ann", "d")
		var frames []*clientv1.ClientFrame
		for range 30 {
			m := testenv.ToUser("bob", "x")
			m.ClientMessageId = uuid.NewString()
			frames = append(frames, sendFrame(a.ID(), m))
		}
		a.Write(frames...)
		var acks []*clientv1.SendAck
		for _, f := range frames {
			acks = append(acks, a.Answer(f.Id).GetSendAck())
		}
		for i, ack := range acks {
			if ack.Status == clientv1.Ack_ACK_RETRY { // the machine has held up the node
				frames[i].GetSend().Resend = true
				ack = a.Decide(frames[i].GetSend())
			}
			if ack.Status != clientv1.Ack_ACK_OK {
				t.Fatalf("round %d: %v", round, ack)
			}
			if before, twice := seen[ack.MessageId]; twice {
				t.Fatalf("id %d in round %d and in round %d", ack.MessageId, before, round)
			}
			seen[ack.MessageId] = round
		}
		n.Kill()
		n.Start()
	}
	if len(seen) != 600 {
		t.Errorf("%d ids of 600 messages", len(seen))
	}
}
