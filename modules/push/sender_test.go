package push

import (
	"context"
	"slices"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/imdhq/imd/pkg/im"
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

// answering is a gateway that answers every Deliver alike.
type answering struct{ *v1.DeliverResponse }

func (a answering) Deliver(context.Context, *v1.DeliverRequest) (*v1.DeliverResponse, error) {
	return a.DeliverResponse, nil
}

// A gateway that waits for the list of a group does not say how many sessions the
// group has there; one that does not know how to say that it waits tells of none.
func TestWhoWaitsForAListSaysNothing(t *testing.T) {
	for name, tt := range map[string]struct {
		res  *v1.DeliverResponse
		want []int
	}{
		"all wait":         {&v1.DeliverResponse{Sessions: []int32{0, 0}, Waiting: []bool{true, true}}, nil},
		"one waits":        {&v1.DeliverResponse{Sessions: []int32{0, 7}, Waiting: []bool{true, false}}, []int{7}},
		"an older gateway": {&v1.DeliverResponse{Sessions: []int32{0, 7}}, []int{0, 7}},
		"one that says -1": {&v1.DeliverResponse{Sessions: []int32{-1, 7}}, []int{7}},
	} {
		var heard []int
		m := newMetrics(prometheus.NewRegistry(), func() int { return 0 })
		d := Deps{Gateway: func(im.NodeID) gatewayClient { return answering{tt.res} }}
		s := newSenders(d, m, func(_ string, _ im.NodeID, n int) { heard = append(heard, n) })
		one := newParcel(&v1.Delivery{ConversationId: "g", Audience: &v1.Audience{}}, nil, nil)
		s.deliver(t.Context(), "n", []parcel{one, one})
		if !slices.Equal(heard, tt.want) {
			t.Errorf("%s: it has heard of %v, want %v", name, heard, tt.want)
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
