package memory

import (
	"fmt"
	"testing"

	"github.com/imdhq/imd/pkg/dedup"
	"github.com/imdhq/imd/pkg/dedup/deduptest"
	"github.com/imdhq/imd/pkg/im"
)

func TestConformance(t *testing.T) {
	deduptest.Run(t, func(_ *testing.T, o dedup.Options) dedup.Cache { return New(o) })
}

func TestTheOldestMakesRoom(t *testing.T) {
	c := New(dedup.Options{})
	c.max = 3
	key := func(i int) dedup.Key { return dedup.Key{ClientMessageID: im.ClientMessageID(fmt.Sprint(i))} }
	for i := range 5 {
		if err := c.Confirm(t.Context(), []dedup.Confirmed{{Key: key(i), Answer: dedup.Answer{Seq: im.Seq(i + 1)}}}); err != nil {
			t.Fatal(err)
		}
	}
	if len(c.at) != 3 || len(c.ring) != 3 {
		t.Fatalf("%d entries in %d places", len(c.at), len(c.ring))
	}
	found, err := c.Try(t.Context(), "n1", []dedup.Key{key(4), key(0)})
	if err != nil || found[0].State != dedup.Known || found[1].State != dedup.Claimed {
		t.Fatalf("found %+v, %v", found, err)
	}
}

func BenchmarkConfirm(b *testing.B) {
	c := New(dedup.Options{})
	done := make([]dedup.Confirmed, 100)
	n := 0
	b.ReportAllocs()
	for b.Loop() {
		for i := range done {
			n++
			done[i] = dedup.Confirmed{Key: dedup.Key{DataEpoch: "epoch", Conversation: "d_abcdefghijklmnopqrstuvwxyz", Sender: "alice", ClientMessageID: im.ClientMessageID(fmt.Sprint(n))}}
		}
		if err := c.Confirm(b.Context(), done); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n), "ns/message")
}
