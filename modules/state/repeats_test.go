package state

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/dedup"
	"github.com/imdhq/imd/pkg/dedup/memory"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/lane"
	"github.com/imdhq/imd/pkg/store"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// again is run with every send marked as a resend.
func again(conv string, keys ...string) *v1.Run {
	r := run(conv, keys...)
	for _, s := range r.Sends {
		s.Resend = true
	}
	return r
}

func keyFor(epoch, conv, k string) dedup.Key {
	return dedup.Key{DataEpoch: epoch, Conversation: im.ConversationID(conv), Sender: "alice", ClientMessageID: im.ClientMessageID(send(k).ClientMessageId)}
}

// brokenCache is a cache that fails, or knows what a test says.
type brokenCache struct {
	dedup.Cache
	mu    sync.Mutex
	err   error
	calls int
}

func (b *brokenCache) fails() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.calls++
	return b.err
}

func (b *brokenCache) Try(ctx context.Context, owner string, keys []dedup.Key) ([]dedup.Found, error) {
	if err := b.fails(); err != nil {
		return nil, err
	}
	return b.Cache.Try(ctx, owner, keys)
}

func (b *brokenCache) Confirm(ctx context.Context, done []dedup.Confirmed) error {
	if err := b.fails(); err != nil {
		return err
	}
	return b.Cache.Confirm(ctx, done)
}

func (n *node) lookups(result string) float64 {
	return testutil.ToFloat64(n.m.dedupLookups.WithLabelValues(result))
}

func TestAResendIsAnsweredWithoutTheStore(t *testing.T) {
	serve(t, func(t *testing.T, n *node) {
		n.st.group("g_1", "alice", "bob")
		first, err := n.calls.Submit(n.ctx, &v1.SubmitRequest{Runs: []*v1.Run{run("g_1", "a", "b")}})
		if err != nil {
			t.Fatal(err)
		}
		n.out.take()
		calls := n.st.count("Append")
		delete(n.st.convs["g_1"].members, "alice") // whatever she may do now
		res, err := n.calls.Submit(n.ctx, &v1.SubmitRequest{Runs: []*v1.Run{again("g_1", "a", "b")}})
		if err != nil {
			t.Fatal(err)
		}
		for i, a := range res.Runs[0].Acks {
			want := first.Runs[0].Acks[i]
			if !a.Duplicate || a.Status != clientv1.Ack_ACK_OK || a.MessageId != want.MessageId || a.Seq != want.Seq || a.PrevSeq != want.PrevSeq ||
				a.ServerTimeMs != want.ServerTimeMs || a.ConversationId != want.ConversationId || a.ClientMessageId != want.ClientMessageId {
				t.Errorf("answer %v, the first was %v", a, want)
			}
		}
		if n.st.count("Append") != calls || n.lookups("hit") != 2 {
			t.Errorf("the store was asked; %v hits", n.lookups("hit"))
		}
		// The others are made to look, once: who stored it may have died right after.
		items := n.out.take()
		if len(items) != 2 || items[1].GetHead().GetSeq() != 2 || items[0].ExcludeSession != "s1" || items[0].MemberVersion != 1 {
			t.Errorf("items %v", items)
		}
		n.submit(t, again("g_1", "a", "b"))
		if items := n.out.take(); len(items) != 0 {
			t.Errorf("hints again: %v", items)
		}
	})
}

func TestOnlyResendsAreLookedUp(t *testing.T) {
	serve(t, func(t *testing.T, n *node) {
		n.st.group("g_1", "alice", "bob")
		want(t, n.submit(t, run("g_1", "a")), "ok 1")
		synctest.Wait()
		want(t, n.submit(t, run("g_1", "a")), "dup 1") // by the store
		mixed := run("g_1", "a", "b", "c")
		mixed.Sends[0].Resend, mixed.Sends[1].Resend = true, true
		want(t, n.submit(t, mixed), "dup 1", "ok 2", "ok 3")
		if n.lookups("hit") != 1 || n.lookups("miss") != 1 {
			t.Errorf("%v hits, %v misses", n.lookups("hit"), n.lookups("miss"))
		}
	})
}

func TestACacheOfAnotherHistoryIsNotBelieved(t *testing.T) {
	serve(t, func(t *testing.T, n *node) {
		n.st.group("g_1", "alice")
		want(t, n.submit(t, run("g_1", "a")), "ok 1")
		synctest.Wait()
		n.st.mu.Lock() // a failover that lost the row
		n.st.epoch, n.st.convs["g_1"].log = "e2", nil
		n.st.mu.Unlock()
		want(t, n.submit(t, again("g_1", "a")), "ok 1")
		if n.lookups("hit") != 0 || n.lookups("miss") != 1 {
			t.Errorf("%v hits, %v misses", n.lookups("hit"), n.lookups("miss"))
		}
	})
}

// A row that was stored before a failover and acknowledged after it must not be
// vouched for under the new data_epoch.
func TestWhatIsConfirmedBelongsToTheHistoryBeforeTheCall(t *testing.T) {
	serve(t, func(t *testing.T, n *node) {
		n.st.group("g_1", "alice")
		n.st.setFault(func(op string, after bool) error {
			if op == "Append" && after {
				n.st.mu.Lock()
				n.st.epoch = "e2"
				n.st.mu.Unlock()
			}
			return nil
		})
		want(t, n.submit(t, run("g_1", "a")), "ok 1")
		synctest.Wait()
		found, err := n.cache.Try(t.Context(), "test", []dedup.Key{keyFor("e1", "g_1", "a"), keyFor("e2", "g_1", "a")})
		if err != nil || found[0].State != dedup.Known || found[1].State != dedup.Claimed {
			t.Fatalf("found %+v, %v", found, err)
		}
	})
}

func TestACacheThatFailsCostsSpeedOnly(t *testing.T) {
	for _, class := range dedup.Classes() {
		t.Run(string(class), func(t *testing.T) {
			serve(t, func(t *testing.T, n *node) {
				b := n.cache
				broken := &brokenCache{Cache: b, err: &dedup.Error{Class: class}}
				n.core.Load().repeats.cache = broken
				n.st.group("g_1", "alice", "bob")
				want(t, n.submit(t, run("g_1", "a", "b")), "ok 1", "ok 2")
				want(t, n.submit(t, again("g_1", "a", "b", "c")), "dup 1", "dup 2", "ok 3")
				synctest.Wait()
				if n.lookups("failed") != 3 || testutil.ToFloat64(n.m.dedupErrors.WithLabelValues(string(class))) == 0 ||
					testutil.ToFloat64(n.m.dedupNotes.WithLabelValues("failed")) == 0 {
					t.Error("the failures are not counted")
				}
			})
		})
	}
}

func TestAForeignTryIsNoAnswer(t *testing.T) {
	serve(t, func(t *testing.T, n *node) {
		n.st.group("g_1", "alice")
		if _, err := n.cache.Try(t.Context(), "another node", []dedup.Key{keyFor("e1", "g_1", "a")}); err != nil {
			t.Fatal(err)
		}
		want(t, n.submit(t, again("g_1", "a")), "ok 1")
		if n.lookups("in_flight") != 1 {
			t.Error("not counted")
		}
		want(t, n.submit(t, again("g_1", "a")), "dup 1")
	})
}

func TestASendThatFailsIsCancelled(t *testing.T) {
	serve(t, func(t *testing.T, n *node) {
		want(t, n.submit(t, again("g_1", "a")), "fail not_member")
		synctest.Wait()
		found, err := n.cache.Try(t.Context(), "another node", []dedup.Key{keyFor("e1", "g_1", "a")})
		if err != nil || found[0].State != dedup.Claimed {
			t.Fatalf("found %+v, %v", found, err)
		}
	})
}

// While a send is on its way, its resend waits for it and gets its answer.
func TestAResendJoinsWhatIsOnItsWay(t *testing.T) {
	serve(t, func(t *testing.T, n *node) {
		n.st.group("g_1", "alice")
		stalled := make(chan struct{})
		n.st.setFault(func(_ string, after bool) error {
			if !after {
				<-stalled
			}
			return nil
		})
		var wg sync.WaitGroup
		wg.Go(func() { want(t, n.submit(t, run("g_1", "a")), "ok 1") })
		synctest.Wait()
		wg.Go(func() { want(t, n.submit(t, again("g_1", "a")), "dup 1") })
		synctest.Wait()
		close(stalled)
		wg.Wait()
		if got := len(n.st.convs["g_1"].log); got != 1 {
			t.Errorf("%d entries", got)
		}
	})
}

func TestNotesAreBounded(t *testing.T) {
	m := newMetrics(prometheus.NewRegistry(), func() bool { return false })
	r := newRepeats(memory.New(dedup.Options{}), "n1", m, zap.NewNop())
	done := make([]lane.Committed, 100)
	for i := range done {
		done[i] = lane.Committed{Send: &lane.Send{Row: store.AppendRow{Sender: "alice", ClientMessageID: im.ClientMessageID(fmt.Sprint(i))}}, Result: store.AppendResult{Seq: 1}}
	}
	for range maxNotes/len(done) + 1 {
		r.confirmed("e1", done)
	}
	if r.notes.len() != maxNotes || testutil.ToFloat64(m.dedupNotes.WithLabelValues("dropped")) != float64((maxNotes/len(done)+1)*len(done)-maxNotes) {
		t.Errorf("%d notes", r.notes.len())
	}
	r.cancelled(dedup.Key{})
	if r.notes.len() != maxNotes {
		t.Errorf("%d notes", r.notes.len())
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { r.run(ctx) })
	for deadline := time.Now().Add(10 * time.Second); testutil.ToFloat64(m.dedupNotes.WithLabelValues("written")) != maxNotes; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the notes were not written")
		}
	}
	cancel()
	wg.Wait()
}

// BenchmarkResendFromCache is what the server does for a resend that the cache
// in memory knows.
func BenchmarkResendFromCache(b *testing.B) {
	st := newMemStore()
	st.group("g_1", "alice")
	s := New(DefaultConfig(), Deps{
		Log: zap.NewNop(), Reg: prometheus.NewRegistry(), Node: "n1",
		Store: func() (store.MessageStore, error) { return st, nil },
		Dedup: func() (dedup.Cache, error) { return memory.New(dedup.Options{}), nil },
		IDs:   func(context.Context, store.Workers) (ids, error) { return &counter{}, nil },
		Push:  &recorder{}, Gateway: func(id im.NodeID) gatewayClient { return nil },
	})
	if err := s.Start(b.Context()); err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.Context())
	var wg sync.WaitGroup
	wg.Go(func() { s.Run(ctx) })
	defer wg.Wait()
	defer cancel()
	if _, err := s.Submit(ctx, &v1.SubmitRequest{Runs: []*v1.Run{run("g_1", "a")}}); err != nil {
		b.Fatal(err)
	}
	for deadline := time.Now().Add(5 * time.Second); testutil.ToFloat64(s.m.dedupNotes.WithLabelValues("written")) == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			b.Fatal("the cache was never told")
		}
	}
	req := &v1.SubmitRequest{Runs: []*v1.Run{again("g_1", "a")}}
	calls := st.count("Append")
	for b.Loop() {
		res, err := s.Submit(ctx, req)
		if err != nil || !res.Runs[0].Acks[0].Duplicate {
			b.Fatal(res, err)
		}
	}
	if st.count("Append") != calls {
		b.Fatal("the store was asked")
	}
}
