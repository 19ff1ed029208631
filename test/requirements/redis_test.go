package requirements

import (
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/imdhq/imd/pkg/testenv"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// withRedis starts a node whose dedup cache is in a Redis of the test.
func withRedis(t *testing.T, pairs ...string) (*testenv.Node, *testenv.Redis) {
	t.Helper()
	r := testenv.StartRedis(t)
	n := &testenv.Node{Dir: filepath.Join(t.TempDir(), "data"), Args: set(append(pairs, "storage.dedup=redis")...), Env: []string{"IMD_REDIS_URL=" + r.URL()}}
	n.Begin(t)
	cacheAnswers(t, n, true)
	return n, r
}

// cacheAnswers waits until the node asks its cache, or has stopped to.
func cacheAnswers(t *testing.T, n *testenv.Node, yes bool) {
	t.Helper()
	eventually(t, fmt.Sprintf("the cache answers is %v", yes), testenv.Patience, func() bool { return (n.Metric("imd_dedup_open") == 0) == yes })
}

// told waits until the cache was told of n sends in all.
func told(t *testing.T, n *testenv.Node, sends float64) {
	t.Helper()
	eventually(t, fmt.Sprintf("the cache was told of %v sends", sends), testenv.Patience, func() bool { return n.Metric(`imd_dedup_notes_total{result="written"}`) >= sends })
}

func resend(m *clientv1.Send) *clientv1.Send {
	return &clientv1.Send{To: m.To, ClientMessageId: m.ClientMessageId, Content: m.Content, Resend: true}
}

// spoil puts something else in the place of every value of the cache.
func spoil(r *testenv.Redis, with string) {
	r.MustDo("EVAL", `for _, k in ipairs(redis.call("KEYS", "imd:dd:*")) do redis.call("DEL", k) `+with+` end return 1`, "0")
}

// The cache knows the answer, has forgotten it, has something else in its
// place, hangs, is dead or comes back empty: a repeat gets the first answer and
// there is one copy.
func TestR01WhateverHappensToTheCache(t *testing.T) {
	t.Parallel()
	n, r := withRedis(t, unhurried...)
	a, b := login(t, n, "ann", "d"), login(t, n, "bob", "d")
	sends := numbered(20, toUser("bob"))
	first := make([]*clientv1.SendAck, len(sends))
	for i, m := range sends {
		first[i] = a.MustSend(m)
	}
	told(t, n, float64(len(sends)))
	clock := testenv.NewClock(t)
	check := func(what string) {
		t.Helper()
		for i, m := range sends {
			began := clock.Now()
			got := a.MustSend(resend(m))
			if !got.Duplicate || got.MessageId != first[i].MessageId || got.Seq != first[i].Seq || got.PrevSeq != first[i].PrevSeq || got.ServerTimeMs != first[i].ServerTimeMs {
				t.Errorf("%s: the repeat of %d got %v, it was first %v", what, i+1, got, first[i])
			}
			if took := clock.Since(began); took > 2*time.Second {
				t.Errorf("%s: the answer took %v", what, took)
			}
		}
	}
	appends := n.Metric("imd_state_append_seconds_count")
	check("sound")
	if got := n.Metric(`imd_dedup_lookups_total{result="hit"}`); got < float64(len(sends))/2 { // on a busy machine some are given up
		t.Errorf("%v of %d repeats were answered by the cache", got, len(sends))
	}
	if got := n.Metric("imd_state_append_seconds_count") - appends; got > float64(len(sends))/2 {
		t.Errorf("the store was asked %v times", got)
	}
	t.Logf("%v of %v repeats were answered within 1 ms of server time",
		n.Metric(`imd_dedup_answer_seconds_bucket{le="0.001"}`), n.Metric("imd_dedup_answer_seconds_count"))
	r.MustDo("FLUSHALL")
	check("emptied")
	told(t, n, float64(2*len(sends)))
	spoil(r, `redis.call("LPUSH", k, "x")`)
	check("wrong type")
	spoil(r, `redis.call("SET", k, "C1:1:1:0:1:1:00")`)
	check("cut values")
	spoil(r, `redis.call("SET", k, "T1:somebody")`)
	check("tries of others")
	r.MustDo("CONFIG", "SET", "maxmemory", "1")
	check("full")
	r.MustDo("CONFIG", "SET", "maxmemory", "0")
	r.Pause()
	check("hanging")
	cacheAnswers(t, n, false)
	r.Resume()
	cacheAnswers(t, n, true)
	check("back")
	r.Kill()
	check("dead")
	r.Start()
	cacheAnswers(t, n, true)
	check("restarted empty")
	other := resend(sends[0])
	other.Content = testenv.ToUser("bob", "other").Content
	wantFail(t, a, other, "id_reused")
	all, _ := b.Walk(first[0].ConversationId, 100, false)
	wantTexts(t, "history", messages(all), upTo(len(sends)))
}

// An emptied cache and a kill do not make the store use a number twice.
func TestR08AnEmptiedCache(t *testing.T) {
	t.Parallel()
	n, r := withRedis(t, unhurried...)
	a := login(t, n, "ann", "d")
	var seqs []int64
	burst := func(count int) {
		t.Helper()
		seqs = append(seqs, a.SendAll(numbered(count, toUser("bob")))...)
	}
	burst(50)
	r.MustDo("FLUSHALL")
	burst(50)
	n.Kill()
	n.Start()
	a = login(t, n, "ann", "d")
	burst(10)
	for i := 1; i < len(seqs); i++ {
		if seqs[i] <= seqs[i-1] {
			t.Fatalf("message %d has seq %d behind %d", i+1, seqs[i], seqs[i-1])
		}
	}
}

// Redis hangs under load, then dies and comes back five times: every send is
// answered in time, nothing piles up, and soon after each return the cache is
// used again.
func TestR25RedisHangsAndDies(t *testing.T) {
	t.Parallel()
	n, r := withRedis(t, unhurried...)
	const senders = 10
	clock := testenv.NewClock(t)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	var mu sync.Mutex
	slowest, sent := time.Duration(0), 0
	for i := range senders {
		c := login(t, n, fmt.Sprint("a", i), "d")
		wg.Go(func() {
			to := toUser(fmt.Sprint("b", i))
			for k := 0; ; k++ {
				select {
				case <-stop:
					return
				case <-time.After(50 * time.Millisecond): // 200 a second in all
				}
				m := to(fmt.Sprint(k))
				m.ClientMessageId = uuid.NewString()
				for _, m := range []*clientv1.Send{m, resend(m)} {
					began := clock.Now()
					ack := c.Send(m)
					took := clock.Since(began)
					mu.Lock()
					slowest, sent = max(slowest, took), sent+1
					mu.Unlock()
					if ack.Status == clientv1.Ack_ACK_FAIL {
						t.Errorf("send failed: %v", ack)
						return
					}
				}
			}
		})
	}
	logins := 0
	slowestLogin := time.Duration(0)
	wg.Go(func() { // 20 a second beside them
		for {
			select {
			case <-stop:
				return
			case <-time.After(50 * time.Millisecond):
			}
			began := clock.Now()
			c := login(t, n, "comes", "d")
			slowestLogin, logins = max(slowestLogin, clock.Since(began)), logins+1
			c.Close()
		}
	})
	goroutines := func() float64 { return n.Metric("go_goroutines") }
	time.Sleep(time.Second)
	before := goroutines()
	r.Pause()
	cacheAnswers(t, n, false)
	for range 8 {
		time.Sleep(time.Second)
		if now := goroutines(); now > before+100 {
			t.Errorf("%v goroutines, %v before", now, before)
		}
	}
	r.Resume()
	cacheAnswers(t, n, true)
	for range 5 {
		r.Kill()
		cacheAnswers(t, n, false)
		r.Start()
		began := clock.Now()
		cacheAnswers(t, n, true)
		if took := clock.Since(began); took > 5*time.Second {
			t.Errorf("used again %v after its return", took)
		}
	}
	close(stop)
	wg.Wait()
	if slowest > 1700*time.Millisecond {
		t.Errorf("an answer took %v", slowest)
	}
	if slowestLogin > 5500*time.Millisecond { // the time for a hello and half a second
		t.Errorf("a login took %v", slowestLogin)
	}
	if sent < 500 || logins < 20 {
		t.Errorf("only %d sends and %d logins", sent, logins)
	}
	t.Logf("%d sends, the slowest answer took %v; %d logins, the slowest took %v", sent, slowest, logins, slowestLogin)
	n.AwaitLog("does not answer")
}
