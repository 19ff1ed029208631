package push

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	v1 "github.com/imdhq/imd/proto/gen/internalv1"
)

func TestCallsAreBounded(t *testing.T) {
	frames := func(n, size int) (out []parcel) {
		for range n {
			out = append(out, newParcel(&v1.Delivery{Frame: make([]byte, size)}, []string{"s"}, nil))
		}
		return out
	}
	for name, tt := range map[string]struct {
		waiting []parcel
		want    int
	}{
		"none": {nil, 0}, "few": {frames(3, 100), 3}, "many": {frames(1000, 100), maxCall},
		"large": {frames(100, 100_000), 10}, "one too large": {frames(2, 2*maxCallBytes), 1},
	} {
		if got := callSize(tt.waiting); got != tt.want {
			t.Errorf("%s: %d deliveries in a call, want %d", name, got, tt.want)
		}
	}
}

// What is dropped because too much waits is not kept in memory.
func TestDroppedParcelsAreLetGo(t *testing.T) {
	s := newSenders(Deps{}, newMetrics(prometheus.NewRegistry(), func() int { return 0 }), nil)
	half := parcel{Delivery: &v1.Delivery{ConversationId: "c"}, frames: maxWaiting / 2}
	all := make([]parcel, 3)
	o := &outlet{busy: true, waiting: all[:0]}
	for k := range uint64(shards) {
		s.outlets[outletKey{node: "n", shard: k}] = o
	}
	for range 3 {
		s.add(t.Context(), "n", half)
	}
	if len(o.waiting) != 2 || all[0].Delivery != nil || all[1].Delivery == nil || all[2].Delivery == nil {
		t.Errorf("%d wait, of %v", len(o.waiting), all)
	}
}
