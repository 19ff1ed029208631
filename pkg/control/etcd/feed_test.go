package etcd

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/imdhq/imd/pkg/control"
)

// copyAt is a replica of keys with the revisions of their last changes.
func copyAt(rev int64, keys map[string]int64) replica {
	r := replica{rev: rev, cluster: 1, records: map[string]record{}}
	for k, mod := range keys {
		r.records["/n/"+k] = record{mod: mod, raw: fmt.Appendf(nil, `{"id":%q,"boot_id":"%d"}`, k, mod), ok: true}
	}
	return r
}

func TestFeedAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFeed("/n/")
		ask := func(since int64) control.Batch {
			b, err := f.Changes(t.Context(), control.Cursor{Revision: since, Cluster: 1}, 0)
			if err != nil {
				t.Fatal(err)
			}
			return b
		}
		if _, err := f.Changes(t.Context(), control.Cursor{}, time.Second); err == nil {
			t.Error("an empty feed answers")
		}
		f.offer(copyAt(10, map[string]int64{"a": 3, "b": 9}))
		if b := ask(0); !b.Full || len(b.Put) != 2 || b.Revision != 10 {
			t.Errorf("everything: %+v", b)
		}
		time.Sleep(time.Second)
		f.offer(copyAt(12, map[string]int64{"a": 12}))
		if b := ask(10); b.Full || len(b.Put) != 1 || len(b.Deleted) != 1 || b.Deleted[0] != "b" || b.Revision != 12 {
			t.Errorf("the changes: %+v", b)
		}
		if b := ask(9); !b.Full {
			t.Errorf("a subscriber from before our time: %+v", b)
		}
		if b := ask(20); !b.Full || b.Revision != 12 {
			t.Errorf("a subscriber that is ahead: %+v", b)
		}
		if b, _ := f.Changes(t.Context(), control.Cursor{Revision: 12, Cluster: 2}, 0); !b.Full {
			t.Errorf("a subscriber of another etcd: %+v", b)
		}
		start := time.Now()
		if b, err := f.Changes(t.Context(), control.Cursor{Revision: 12, Cluster: 1}, 10*time.Second); err != nil || len(b.Put) != 0 || time.Since(start) != 10*time.Second {
			t.Errorf("nothing new: %+v, %v after %v", b, err, time.Since(start))
		}
		go func() { time.Sleep(time.Second); f.offer(copyAt(13, map[string]int64{"a": 13})) }()
		start = time.Now()
		if b, _ := f.Changes(t.Context(), control.Cursor{Revision: 12, Cluster: 1}, 10*time.Second); b.Revision != 13 || time.Since(start) != time.Second {
			t.Errorf("a change while waiting: %+v after %v", b, time.Since(start))
		}
		f.withdraw()
		if _, err := f.Changes(t.Context(), control.Cursor{}, 0); err == nil {
			t.Error("a withdrawn feed answers")
		}
	})
}

// Changes within 100 ms are told together, the newest of each key.
func TestFeedGathers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFeed("/n/")
		f.offer(copyAt(10, nil))
		time.Sleep(time.Second)
		f.offer(copyAt(11, map[string]int64{"a": 11}))
		at := control.Cursor{Revision: 11, Cluster: 1}
		for i := range int64(5) {
			time.Sleep(10 * time.Millisecond)
			f.offer(copyAt(12+i, map[string]int64{"a": 12 + i}))
		}
		b, err := f.Changes(t.Context(), at, time.Second)
		if err != nil || b.Revision != 16 || len(b.Put) != 1 || b.Put[0].Revision != 16 {
			t.Errorf("gathered %+v, %v", b, err)
		}
		f.withdraw()
	})
}

func TestFeedForgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFeed("/n/")
		keys := map[string]int64{}
		for i := range 3 * feedDepth {
			keys[fmt.Sprint(i)] = 1
		}
		f.offer(copyAt(1, keys))
		for i := range 2 * feedDepth {
			delete(keys, fmt.Sprint(i))
			time.Sleep(feedWindow)
			f.offer(copyAt(int64(2+i), keys))
		}
		if len(f.gone) != feedDepth {
			t.Errorf("%d deletions are kept", len(f.gone))
		}
		if b, _, _ := f.since(control.Cursor{Revision: 5, Cluster: 1}); !b.Full {
			t.Errorf("a subscriber far behind gets %+v", b.Cursor)
		}
		if b, _, _ := f.since(control.Cursor{Revision: 2*feedDepth - 10, Cluster: 1}); b.Full || len(b.Deleted) != 11 {
			t.Errorf("one that is near gets %d deletions", len(b.Deleted))
		}
	})
}

// Whatever a subscriber misses, what it takes in ends as the feed is.
func TestFeedConverges(t *testing.T) {
	for seed := range uint64(200) {
		synctest.Test(t, func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 2))
			f := newFeed("/n/")
			keys, rev := map[string]int64{}, int64(1)
			var have replica
			for range 100 {
				for range rnd.IntN(4) {
					rev++
					if k := fmt.Sprint(rnd.IntN(8)); rnd.IntN(3) == 0 {
						delete(keys, k)
					} else {
						keys[k] = rev
					}
				}
				if rnd.IntN(40) == 0 {
					f.withdraw()
				}
				f.offer(copyAt(rev, keys))
				time.Sleep(time.Duration(rnd.IntN(150)) * time.Millisecond)
				synctest.Wait() // a window that ends now has ended
				if rnd.IntN(3) > 0 {
					continue
				}
				b, err := f.Changes(t.Context(), control.Cursor{Revision: have.rev, Cluster: have.cluster}, 0)
				if err != nil {
					t.Fatal(err)
				}
				have = have.take("/n/", b)
				if n := have.differences(f.shown); n != 0 || have.rev != f.shown.rev {
					t.Fatalf("seed %d: %d records differ at revision %d and %d", seed, n, have.rev, f.shown.rev)
				}
			}
			f.withdraw()
		})
	}
}
