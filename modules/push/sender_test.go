package push

import (
	"testing"

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
