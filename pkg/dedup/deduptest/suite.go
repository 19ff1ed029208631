// Package deduptest is the contract of dedup.Cache as tests that every driver
// passes.
package deduptest

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/imdhq/imd/pkg/dedup"
	"github.com/imdhq/imd/pkg/im"
)

// patience is how long the suite waits for what should come soon.
const patience = 10 * time.Second

// Run tests caches that open makes; they are empty, or at least without the
// keys of another t.
func Run(t *testing.T, open func(t *testing.T, o dedup.Options) dedup.Cache) {
	for name, f := range map[string]func(*testing.T, *suite){
		"tries":       tries,
		"confirms":    confirms,
		"cancels":     cancels,
		"keys":        keys,
		"order":       order,
		"expiry":      expiry,
		"concurrency": concurrency,
	} {
		t.Run(name, func(t *testing.T) {
			o := dedup.Options{}
			if name == "expiry" {
				o = dedup.Options{TryTTL: 300 * time.Millisecond, TTL: 600 * time.Millisecond}
			}
			f(t, &suite{t: t, Cache: open(t, o), epoch: t.Name()})
		})
	}
}

type suite struct {
	t *testing.T
	dedup.Cache
	epoch string
}

func (s *suite) key(id string) dedup.Key {
	return dedup.Key{DataEpoch: strings.ReplaceAll(s.epoch, "/", "-"), Conversation: "g_1", Sender: "alice", ClientMessageID: im.ClientMessageID(id)}
}

// insist makes a call until it succeeds: a cache may be slow for a moment, and
// then says so.
func (s *suite) insist(call func() error) {
	s.t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		err := call()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			s.t.Fatal(err)
		}
	}
}

func (s *suite) try(owner string, keys ...dedup.Key) (found []dedup.Found) {
	s.t.Helper()
	s.insist(func() (err error) {
		found, err = s.Cache.Try(s.t.Context(), owner, keys)
		return err
	})
	if len(found) != len(keys) {
		s.t.Fatalf("%d answers to %d keys", len(found), len(keys))
	}
	return found
}

func (s *suite) want(owner string, k dedup.Key, want dedup.State) dedup.Answer {
	s.t.Helper()
	f := s.try(owner, k)[0]
	if f.State != want {
		s.t.Fatalf("%s finds state %d, want %d", owner, f.State, want)
	}
	return f.Answer
}

func (s *suite) confirm(k dedup.Key, a dedup.Answer) {
	s.t.Helper()
	s.insist(func() error { return s.Confirm(s.t.Context(), []dedup.Confirmed{{Key: k, Answer: a}}) })
}

func (s *suite) cancel(owner string, keys ...dedup.Key) {
	s.t.Helper()
	s.insist(func() error { return s.Cancel(s.t.Context(), owner, keys) })
}

func answer(n int) dedup.Answer {
	a := dedup.Answer{
		MessageID: im.MessageID(1000 + n), Seq: im.Seq(n), PrevSeq: im.Seq(n - 1), ServerTime: time.UnixMilli(1_800_000_000_000 + int64(n)),
		MemberVersion: int64(7 * n),
	}
	a.BodyHash[0], a.BodyHash[31] = byte(n), 0xff
	return a
}

func tries(t *testing.T, s *suite) {
	k := s.key("a")
	s.want("n1", k, dedup.Claimed)
	s.want("n1", k, dedup.Claimed)
	s.want("n2", k, dedup.InFlight)
	s.want("n", k, dedup.InFlight) // a prefix of an owner is another owner
	if s.Open() {
		t.Error("a cache that answers says that it does not")
	}
}

func confirms(t *testing.T, s *suite) {
	k, fresh := s.key("a"), s.key("b")
	s.want("n1", k, dedup.Claimed)
	s.confirm(k, answer(3))
	s.confirm(fresh, answer(4)) // without a try
	for _, owner := range []string{"n1", "n2"} {
		if got := s.want(owner, k, dedup.Known); got != answer(3) {
			t.Errorf("answer %+v, want %+v", got, answer(3))
		}
		if got := s.want(owner, fresh, dedup.Known); got != answer(4) {
			t.Errorf("answer %+v", got)
		}
	}
	first := answer(1) // the first of a conversation: prev_seq 0
	s.confirm(k, first)
	if got := s.want("n1", k, dedup.Known); got != first {
		t.Errorf("answer %+v after another confirm, want %+v", got, first)
	}
	s.insist(func() error { return s.Confirm(t.Context(), nil) })
}

func cancels(_ *testing.T, s *suite) {
	mine, known := s.key("a"), s.key("b")
	s.want("n1", mine, dedup.Claimed)
	s.confirm(known, answer(2))
	s.cancel("n2", mine, known, s.key("never"))
	s.want("n2", mine, dedup.InFlight)
	s.cancel("n1", mine, known)
	s.want("n2", mine, dedup.Claimed)
	s.want("n2", known, dedup.Known)
	s.cancel("n1")
}

// Each part of a key tells sends apart.
func keys(_ *testing.T, s *suite) {
	k := s.key("a")
	s.confirm(k, answer(1))
	epoch, conv, sender, id := k, k, k, k
	epoch.DataEpoch += "x"
	conv.Conversation = "g_2"
	sender.Sender = "" // the system
	id.ClientMessageID = "b"
	for _, other := range []dedup.Key{epoch, conv, sender, id} {
		s.want("n1", other, dedup.Claimed)
	}
	s.want("n1", k, dedup.Known)
}

func order(t *testing.T, s *suite) {
	const n = 300
	var all []dedup.Key
	var done []dedup.Confirmed
	for i := range n {
		all = append(all, s.key(fmt.Sprint(i)))
		if i%3 == 0 {
			done = append(done, dedup.Confirmed{Key: all[i], Answer: answer(i + 1)})
		}
	}
	s.insist(func() error { return s.Confirm(t.Context(), done) })
	for i, f := range s.try("n1", all...) {
		if i%3 == 0 && (f.State != dedup.Known || f.Answer != answer(i+1)) || i%3 != 0 && f.State != dedup.Claimed {
			t.Fatalf("key %d: %+v", i, f)
		}
	}
	if f := s.try("n2", all[1], all[0], all[1]); f[0].State != dedup.InFlight || f[1].State != dedup.Known || f[2].State != dedup.InFlight {
		t.Fatalf("found %+v", f)
	}
	s.try("n1")
}

func expiry(t *testing.T, s *suite) {
	tried, known := s.key("a"), s.key("b")
	s.want("n1", tried, dedup.Claimed)
	s.confirm(known, answer(1))
	ends := func(k dedup.Key) {
		t.Helper()
		for deadline := time.Now().Add(patience); s.try("n2", k)[0].State != dedup.Claimed; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("it is remembered for ever")
			}
		}
	}
	ends(tried)
	ends(known)
}

func concurrency(t *testing.T, s *suite) {
	k := s.key("a")
	var wg sync.WaitGroup
	var mu sync.Mutex
	claimed := 0
	for i := range 8 {
		wg.Go(func() {
			if s.try(fmt.Sprint("n", i), k)[0].State == dedup.Claimed {
				mu.Lock()
				claimed++
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if claimed != 1 {
		t.Fatalf("%d owners have the same mark", claimed)
	}
}
