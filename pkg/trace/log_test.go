package trace

import (
	"sync"
	"testing"
	"time"
	"unsafe"

	"go.uber.org/goleak"

	"github.com/imdhq/imd/pkg/im"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// clock is a time that a test sets.
type clock struct{ t time.Time }

func (c *clock) now() time.Time { return c.t }

func TestFind(t *testing.T) {
	c := &clock{time.Unix(1000, 0)}
	l := New(DefaultBytes, time.Minute, c.now)
	g, h := Conv("g_1"), Conv("g_2")
	l.Add(Record{Stage: Committed, Message: 7, Conv: g, Seq: 3, At: c.t, Took: time.Millisecond})
	l.Add(Record{Stage: Acknowledged, Conv: g, From: 2, Seq: 9, At: c.t.Add(2 * time.Second), Note: "s"},
		Record{Stage: Delivered, Conv: g, Seq: 3, At: c.t.Add(time.Second), Count: 2, Failed: true},
		Record{Stage: Acknowledged, Conv: g, From: 3, Seq: 9, At: c.t},
		Record{Stage: Delivered, Conv: h, Seq: 3, At: c.t}, Record{Stage: Delivered, Conv: g, Seq: 4, At: c.t}, Record{Stage: Committed, Message: 8, Conv: g, Seq: 4, At: c.t})
	found, since := l.Find(Query{Message: 7, Conv: g, Seq: 3})
	if len(found) != 3 || found[0].Stage != Committed || found[0].Took != time.Millisecond || !found[1].Failed || found[1].Count != 2 || found[2].Note != "s" || !since.Equal(c.t) {
		t.Errorf("%+v since %v", found, since)
	}
	if found, _ := l.Find(Query{Message: 7}); len(found) != 1 {
		t.Errorf("by id: %+v", found)
	}
	if found, _ := l.Find(Query{}); len(found) != 0 {
		t.Errorf("nothing asked: %+v", found)
	}
	c.t = c.t.Add(time.Minute + 1)
	if found, since := l.Find(Query{Message: 7, Conv: g, Seq: 3}); len(found) != 2 || since.IsZero() {
		t.Errorf("a minute later: %+v since %v", found, since)
	}
	var none *Log
	none.Add(Record{})
	if found, since := none.Find(Query{Message: 7}); found != nil || !since.IsZero() {
		t.Error("none remembers something")
	}
}

// The ring is bounded in size and in age, and the newest stay.
func TestBounds(t *testing.T) {
	if size := unsafe.Sizeof(entry{}); size > recordBytes-24 {
		t.Errorf("a record has %d bytes; that leaves little for its note", size)
	}
	c := &clock{time.Unix(1000, 0)}
	l := New(5*chunkRecords*recordBytes, time.Minute, c.now)
	for i := range 20 * chunkRecords {
		l.Add(Record{Stage: Committed, Message: im.MessageID(i + 1), At: c.t})
	}
	if len(l.chunks) > 5 {
		t.Errorf("%d chunks", len(l.chunks))
	}
	if found, _ := l.Find(Query{Message: 20 * chunkRecords}); len(found) != 1 {
		t.Error("the newest is gone")
	}
	if found, _ := l.Find(Query{Message: 1}); len(found) != 0 {
		t.Error("the oldest is there")
	}
	c.t = c.t.Add(2 * time.Minute)
	for i := range chunkRecords + 1 {
		l.Add(Record{Stage: Committed, Message: im.MessageID(i + 1), At: c.t})
	}
	if len(l.chunks) > 2 {
		t.Errorf("%d chunks after all but the last have become old", len(l.chunks))
	}
}

func TestAtOnce(t *testing.T) {
	l := New(3*chunkRecords*recordBytes, time.Minute, time.Now)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for i := range 3000 {
				l.Add(Record{Stage: Committed, Message: im.MessageID(i), At: time.Now()})
				if i%500 == 0 {
					l.Find(Query{Message: im.MessageID(i)})
				}
			}
		})
	}
	wg.Wait()
}

func BenchmarkAdd(b *testing.B) {
	l := New(DefaultBytes, DefaultAge, time.Now)
	r := Record{Stage: Committed, Message: 1, Conv: 2, Seq: 3, At: time.Now()}
	b.ReportAllocs()
	for b.Loop() {
		l.Add(r)
	}
}
