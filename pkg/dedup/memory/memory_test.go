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
	if len(c.all) != 3 || c.order.Len() != 3 {
		t.Fatalf("%d entries", len(c.all))
	}
	found, err := c.Try(t.Context(), "n1", []dedup.Key{key(4), key(0)})
	if err != nil || found[0].State != dedup.Known || found[1].State != dedup.Claimed {
		t.Fatalf("found %+v, %v", found, err)
	}
}
