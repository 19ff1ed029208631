package etcd

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

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
		f := newFeed("/n/", feedWindow, false)
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
		f.offer(copyAt(10, map[string]int64{"a": 3, "b": 9}), nil)
		if b := ask(0); !b.Full || len(b.Records) != 2 || b.Revision != 10 {
			t.Errorf("everything: %+v", b)
		}
		time.Sleep(time.Second)
		f.offer(copyAt(12, map[string]int64{"a": 12}), nil)
		if b := ask(10); b.Full || len(b.Records) != 2 || b.Records[1].Key != "b" || !b.Records[1].Gone || b.Revision != 12 {
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
		if b, err := f.Changes(t.Context(), control.Cursor{Revision: 12, Cluster: 1}, 10*time.Second); err != nil || len(b.Records) != 0 || time.Since(start) != 10*time.Second {
			t.Errorf("nothing new: %+v, %v after %v", b, err, time.Since(start))
		}
		go func() { time.Sleep(time.Second); f.offer(copyAt(13, map[string]int64{"a": 13}), nil) }()
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
		f := newFeed("/n/", feedWindow, false)
		f.offer(copyAt(10, nil), nil)
		time.Sleep(time.Second)
		f.offer(copyAt(11, map[string]int64{"a": 11}), nil)
		at := control.Cursor{Revision: 11, Cluster: 1}
		for i := range int64(5) {
			time.Sleep(10 * time.Millisecond)
			f.offer(copyAt(12+i, map[string]int64{"a": 12 + i}), nil)
		}
		b, err := f.Changes(t.Context(), at, time.Second)
		if err != nil || b.Revision != 16 || len(b.Records) != 1 || b.Records[0].Revision != 16 {
			t.Errorf("gathered %+v, %v", b, err)
		}
		f.withdraw()
	})
}

func TestFeedForgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFeed("/n/", feedWindow, false)
		keys := map[string]int64{}
		for i := range 3 * feedDepth {
			keys[fmt.Sprint(i)] = 1
		}
		f.offer(copyAt(1, keys), nil)
		for i := range 2 * feedDepth {
			delete(keys, fmt.Sprint(i))
			time.Sleep(feedWindow)
			f.offer(copyAt(int64(2+i), keys), nil)
		}
		if len(f.past) != feedDepth {
			t.Errorf("%d deletions are kept", len(f.past))
		}
		if b, _, _ := f.since(control.Cursor{Revision: 5, Cluster: 1}); !b.Full {
			t.Errorf("a subscriber far behind gets %+v", b.Cursor)
		}
		if b, _, _ := f.since(control.Cursor{Revision: 2*feedDepth - 10, Cluster: 1}); b.Full || len(b.Records) != 11 {
			t.Errorf("one that is near gets %d changes", len(b.Records))
		}
	})
}

// Whatever a subscriber misses, what it takes in ends as the feed is.
func TestFeedConverges(t *testing.T) {
	for seed := range uint64(200) {
		synctest.Test(t, func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 2))
			f := newFeed("/n/", feedWindow, false)
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
				f.offer(copyAt(rev, keys), nil)
				time.Sleep(time.Duration(rnd.IntN(150)) * time.Millisecond)
				synctest.Wait() // a window that ends now has ended
				if rnd.IntN(3) > 0 {
					continue
				}
				b, err := f.Changes(t.Context(), control.Cursor{Revision: have.rev, Cluster: have.cluster}, 0)
				if err != nil {
					t.Fatal(err)
				}
				have, _ = have.take("/n/", b)
				if n := have.differences(f.shown); n != 0 || have.rev != f.shown.rev {
					t.Fatalf("seed %d: %d records differ at revision %d and %d", seed, n, have.rev, f.shown.rev)
				}
			}
			f.withdraw()
		})
	}
}

// eventOf is one change of a watch.
func eventOf(key string, rev, version int64) *clientv3.Event {
	ev := &clientv3.Event{Kv: &mvccpb.KeyValue{Key: []byte("/c/" + key), ModRevision: rev, Version: version, Value: []byte("x")}}
	if version == 0 {
		ev.Type, ev.Kv.Value = clientv3.EventTypeDelete, nil
	}
	return ev
}

// A feed of every change leaves none out, also of one key, and a subscriber for
// whom something would be left out gets everything.
func TestFeedOfEveryChange(t *testing.T) {
	f := newFeed("/c/", 0, true)
	cur := replica{rev: 10, cluster: 1, records: map[string]record{}}
	f.offer(cur, nil)
	hear := func(events ...*clientv3.Event) {
		cur = cur.apply(events)
		f.offer(cur, events)
	}
	ask := func(since int64) control.Batch {
		b, err := f.Changes(t.Context(), control.Cursor{Revision: since, Cluster: 1}, 0)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	hear(eventOf("a", 11, 1), eventOf("b", 11, 1), eventOf("a", 12, 2))
	hear(eventOf("b", 13, 0))
	got := ""
	for _, r := range ask(10).Records {
		got += fmt.Sprint(r.Key, r.Revision, ".", r.Version, r.Gone, " ")
	}
	if got != "a11.1 false b11.1 false a12.2 false b13.0 true " {
		t.Errorf("told %s", got)
	}
	if b := ask(12); b.Full || len(b.Records) != 1 || b.Revision != 13 {
		t.Errorf("after 12: %+v", b)
	}
	if b := ask(9); !b.Full || len(b.Records) != 1 || b.Records[0].Version != 2 {
		t.Errorf("from before our time: %+v", b)
	}
	// What was read in place of being heard is not known change by change.
	cur = replica{rev: 20, cluster: 1, records: map[string]record{"/c/a": {mod: 19, version: 5}}}
	f.offer(cur, nil)
	if b := ask(13); !b.Full || b.Revision != 20 {
		t.Errorf("after a full read: %+v", b)
	}
	// A full read that shows nothing new changes nothing.
	hear(eventOf("a", 21, 6))
	cur.rev = 22
	f.offer(cur, nil)
	if b := ask(20); b.Full || len(b.Records) != 1 || b.Revision != 22 {
		t.Errorf("after a check: %+v", b)
	}
}

// What a feed remembers is bounded in number and in bytes; a subscriber that is
// further behind gets everything.
func TestFeedIsBounded(t *testing.T) {
	for _, tt := range []struct{ size, kept int }{{10, feedDepth}, {feedBytes / 8, 7}, {2 * feedBytes, 0}} {
		f := newFeed("/c/", 0, true)
		cur := replica{rev: 1, cluster: 1, records: map[string]record{}}
		f.offer(cur, nil)
		for i := range int64(2 * feedDepth) {
			ev := eventOf("k", 2+i, 1+i)
			ev.Kv.Value = make([]byte, tt.size)
			cur = cur.apply([]*clientv3.Event{ev})
			f.offer(cur, []*clientv3.Event{ev})
		}
		if len(f.past) != tt.kept || f.bytes > feedBytes {
			t.Errorf("values of %d bytes: %d changes of %d bytes are kept, want %d", tt.size, len(f.past), f.bytes, tt.kept)
		}
		if b, _, _ := f.since(control.Cursor{Revision: cur.rev - int64(tt.kept), Cluster: 1}); b.Full || len(b.Records) != tt.kept {
			t.Errorf("a subscriber that is just near enough gets %d changes, all = %v", len(b.Records), b.Full)
		}
		if b, _, _ := f.since(control.Cursor{Revision: cur.rev - int64(tt.kept) - 1, Cluster: 1}); !b.Full || len(b.Records) != 1 {
			t.Errorf("one further behind gets %d changes, all = %v", len(b.Records), b.Full)
		}
	}
}
