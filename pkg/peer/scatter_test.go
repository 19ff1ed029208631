package peer

import (
	"errors"
	"slices"
	"testing"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// Answers come in the order of the requests; a node that fails, or answers too
// few, spoils only its own.
func TestScatter(t *testing.T) {
	reqs := []*string{}
	for _, s := range []string{"a1", "b1", "c1", "a2", "b2", "a3", "c2"} {
		reqs = append(reqs, &s)
	}
	home := func(r *string) im.NodeID { return im.NodeID((*r)[:1]) }
	call := func(part []*string) (out []*string, err error) {
		if home(part[0]) == "b" {
			return nil, errors.New("away")
		}
		for _, r := range part {
			out = append(out, new("="+*r))
		}
		if home(part[0]) == "c" {
			out = out[:1]
		}
		return out, nil
	}
	failed := func(e *clientv1.Error) *string { return new("!" + e.GetReason()) }
	answers, err := scatter(reqs, home, call, failed)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, a := range answers {
		got = append(got, *a)
	}
	if want := []string{"=a1", "!internal", "!internal", "=a2", "!internal", "=a3", "!internal"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if _, err := scatter(reqs[1:2], home, call, failed); err == nil {
		t.Error("the error of the only node is not that of the call")
	}
}
