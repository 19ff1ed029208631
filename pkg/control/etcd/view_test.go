package etcd

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/control"
)

// fakeEtcd answers reads with a fixed state and hands out one watch.
type fakeEtcd struct {
	mu           sync.Mutex // guards all that follows
	rev, cluster uint64
	kvs          []*mvccpb.KeyValue
	err          error
	mute         bool  // progress requests get no answer
	unmade       bool  // watches are not made, as while etcd is away
	start        int64 // first revision of the watch
	watch        chan clientv3.WatchResponse
}

// change changes what etcd answers from now on.
func (f *fakeEtcd) change(to func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	to()
}

func (f *fakeEtcd) header() *etcdserverpb.ResponseHeader {
	return &etcdserverpb.ResponseHeader{Revision: int64(f.rev), ClusterId: f.cluster}
}

func (f *fakeEtcd) Get(context.Context, string, ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return nil, f.err
	}
	return &clientv3.GetResponse{Header: f.header(), Kvs: f.kvs}, nil
}

func (f *fakeEtcd) Watch(ctx context.Context, key string, opts ...clientv3.OpOption) clientv3.WatchChan {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.unmade { // the client waits
		f.mu.Unlock()
		<-ctx.Done()
		f.mu.Lock()
		ended := make(chan clientv3.WatchResponse)
		close(ended)
		return ended
	}
	op := clientv3.OpGet(key, opts...)
	f.start = op.Rev()
	f.watch = make(chan clientv3.WatchResponse, 10)
	return f.watch
}

func (f *fakeEtcd) RequestProgress(context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.mute && int64(f.rev) >= f.start { // the server does not answer for revisions to come
		f.watch <- clientv3.WatchResponse{Header: f.header()}
	}
	return nil
}

func kv(id string, rev int64) *mvccpb.KeyValue {
	return &mvccpb.KeyValue{Key: []byte("/nodes/" + id), Value: fmt.Appendf(nil, `{"id":%q}`, id), ModRevision: rev}
}

// following runs a follower on f in a bubble of its own time.
func following(t *testing.T, f *fakeEtcd, test func(f *fakeEtcd, h *control.Handle, stats func() control.Stats)) {
	synctest.Test(t, func(t *testing.T) {
		h := &control.Handle{}
		fo := newFollower(f, "/", control.AreaNodes, defaults, &pulse{etcd: f, every: defaults.progress}, zap.NewNop())
		fo.read = readNode
		fo.took = func(u update) error {
			h.SetView(&control.View{Nodes: u.next.nodes(), Revision: u.next.rev})
			return nil
		}
		fo.away = func() { h.SetView(&control.View{Nodes: fo.cur.nodes(), Revision: fo.cur.rev, Stale: true}) }
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { fo.run(ctx); close(done) }()
		synctest.Wait()
		test(f, h, func() control.Stats { var s control.Stats; fo.stats(&s); return s })
		cancel()
		<-done
	})
}

func after(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func TestViewFollows(t *testing.T) {
	following(t, &fakeEtcd{rev: 10, cluster: 1, kvs: []*mvccpb.KeyValue{kv("b", 5), kv("a", 7)}},
		func(f *fakeEtcd, h *control.Handle, stats func() control.Stats) {
			if v := h.View(); len(v.Nodes) != 2 || v.Nodes[0].ID != "a" || v.Revision != 10 || v.Stale {
				t.Fatalf("the first view is %+v", v)
			}
			f.watch <- clientv3.WatchResponse{Header: &etcdserverpb.ResponseHeader{Revision: 14, ClusterId: 1}, Events: []*clientv3.Event{
				{Type: clientv3.EventTypePut, Kv: kv("old", 9)}, // the copy has it, or what replaced it
				{Type: clientv3.EventTypePut, Kv: kv("c", 12)},
				{Type: clientv3.EventTypeDelete, Kv: &mvccpb.KeyValue{Key: []byte("/nodes/b"), ModRevision: 12}},
			}}
			synctest.Wait()
			v := h.View()
			if len(v.Nodes) != 2 || v.Nodes[1].ID != "c" || v.Revision != 12 {
				t.Errorf("after a change: %+v", v)
			}
			if s := stats(); s.Newest != 14 || s.Revision != 12 {
				t.Errorf("the lag does not show: %+v", s)
			}
			f.change(func() { f.rev = 20 })
			after(6 * time.Second)
			if v := h.View(); v.Revision != 20 {
				t.Errorf("progress moved the view to %d", v.Revision)
			}
		})
}

func TestSilenceMakesTheViewStale(t *testing.T) {
	following(t, &fakeEtcd{rev: 10, cluster: 1, kvs: []*mvccpb.KeyValue{kv("a", 7)}, mute: true},
		func(f *fakeEtcd, h *control.Handle, stats func() control.Stats) {
			f.change(func() { f.err = errors.New("away") })
			after(14 * time.Second)
			if h.View().Stale {
				t.Error("stale before 15 s")
			}
			after(2 * time.Second)
			if v := h.View(); !v.Stale || len(v.Nodes) != 1 {
				t.Errorf("after 16 s of silence: %+v", v)
			}
			after(time.Hour)
			f.change(func() { f.err, f.mute = nil, false })
			after(6 * time.Second)
			if v := h.View(); v.Stale {
				t.Error("stale although etcd is back")
			}
			if s := stats(); s.Resyncs[control.ResyncStale] != 1 || s.Drift != 0 {
				t.Errorf("counted %+v", s)
			}
		})
}

// A watch that etcd does not make is as silent as one that it does not serve.
func TestAWatchThatIsNotMadeMakesTheViewStale(t *testing.T) {
	following(t, &fakeEtcd{rev: 10, cluster: 1, kvs: []*mvccpb.KeyValue{kv("a", 7)}}, func(f *fakeEtcd, h *control.Handle, stats func() control.Stats) {
		f.change(func() { f.unmade = true })
		close(f.watch)
		after(14 * time.Second)
		if h.View().Stale {
			t.Error("stale before 15 s")
		}
		f.change(func() { f.err = errors.New("away") })
		after(3 * time.Second)
		if v := h.View(); !v.Stale || len(v.Nodes) != 1 || stats().Resyncs[control.ResyncStale] != 1 {
			t.Errorf("after 17 s without a watch: %+v, %+v", v, stats())
		}
		f.change(func() { f.err, f.unmade = nil, false })
		after(6 * time.Second)
		if h.View().Stale {
			t.Error("stale although etcd is back")
		}
	})
}

func TestCompactionLeadsToAFullRead(t *testing.T) {
	following(t, &fakeEtcd{rev: 10, cluster: 1}, func(f *fakeEtcd, h *control.Handle, stats func() control.Stats) {
		f.change(func() { f.rev, f.kvs = 50, []*mvccpb.KeyValue{kv("a", 40)} })
		f.watch <- clientv3.WatchResponse{Header: &etcdserverpb.ResponseHeader{ClusterId: 1}, CompactRevision: 45, Canceled: true}
		after(time.Second)
		if v := h.View(); len(v.Nodes) != 1 || v.Revision != 50 || v.Stale || stats().Resyncs[control.ResyncCompacted] != 1 {
			t.Errorf("after a compaction: %+v, %+v", v, stats())
		}
	})
}

func TestMissedChangeIsFoundAndCounted(t *testing.T) {
	following(t, &fakeEtcd{rev: 10, cluster: 1}, func(f *fakeEtcd, h *control.Handle, stats func() control.Stats) {
		f.change(func() { f.kvs = []*mvccpb.KeyValue{kv("a", 9)} }) // the watch never told
		after(75 * time.Second)
		if v := h.View(); len(v.Nodes) != 1 || stats().Drift != 1 {
			t.Errorf("after a check: %+v, %+v", v, stats())
		}
	})
}

func TestCheckAfterCompaction(t *testing.T) {
	following(t, &fakeEtcd{rev: 10, cluster: 1}, func(f *fakeEtcd, _ *control.Handle, stats func() control.Stats) {
		f.change(func() { f.err = rpctypes.ErrCompacted })
		after(73 * time.Second)
		f.change(func() { f.err = nil })
		after(10 * time.Second)
		if s := stats(); s.Resyncs[control.ResyncCompacted] != 1 || s.Drift != 0 || s.Stale {
			t.Errorf("counted %+v", s)
		}
	})
}

func TestViewDoesNotGoBack(t *testing.T) {
	following(t, &fakeEtcd{rev: 10, cluster: 1, kvs: []*mvccpb.KeyValue{kv("a", 7)}},
		func(f *fakeEtcd, h *control.Handle, stats func() control.Stats) {
			f.change(func() { f.rev, f.kvs = 8, nil }) // a member that lags
			close(f.watch)
			after(10 * time.Millisecond)
			for range 100 {
				if v := h.View(); v.Revision < 10 && stats().Resyncs[control.ResyncRestored] == 0 {
					t.Fatalf("the view went back to %d", v.Revision)
				}
				after(10 * time.Millisecond)
			}
			after(10 * time.Second) // it insists: etcd was restored from a backup
			if v := h.View(); v.Revision != 8 || len(v.Nodes) != 0 || stats().Resyncs[control.ResyncRestored] != 1 {
				t.Errorf("after a restore: %+v, %+v", v, stats())
			}
		})
}

// A cluster that is put in the place of another is found by its id, at the next
// sign of life, or by its silence if it is younger than what is watched.
func TestAnotherClusterIsRead(t *testing.T) {
	for rev, within := range map[uint64]time.Duration{30: 6 * time.Second, 3: 16 * time.Second} {
		following(t, &fakeEtcd{rev: 10, cluster: 1}, func(f *fakeEtcd, h *control.Handle, stats func() control.Stats) {
			f.change(func() { f.rev, f.cluster, f.kvs = rev, 2, []*mvccpb.KeyValue{kv("z", 2)} })
			after(within)
			if v := h.View(); v.Revision != int64(rev) || len(v.Nodes) != 1 {
				t.Errorf("after a change of cluster: %+v, %+v", v, stats())
			}
		})
	}
}

// Where nothing is written for long, the watch is no less alive.
func TestQuietEtcd(t *testing.T) {
	following(t, &fakeEtcd{rev: 10, cluster: 1, kvs: []*mvccpb.KeyValue{kv("a", 10)}},
		func(f *fakeEtcd, h *control.Handle, stats func() control.Stats) {
			f.watch <- clientv3.WatchResponse{Header: &etcdserverpb.ResponseHeader{Revision: 10, ClusterId: 1}, Events: []*clientv3.Event{
				{Type: clientv3.EventTypePut, Kv: kv("a", 10)}, // which the copy has
			}}
			after(time.Hour)
			if s := stats(); len(s.Resyncs) != 0 || s.Stale || len(h.View().Nodes) != 1 {
				t.Errorf("an hour later: %+v", s)
			}
		})
}
