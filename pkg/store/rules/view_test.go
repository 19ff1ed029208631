package rules

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
)

func TestWithin(t *testing.T) {
	twice := View{Earlier: []store.Stretch{{Start: 2, End: 6}}, Last: store.Stretch{Start: 9}, Log: 15}
	tests := []struct {
		name          string
		v             View
		after, before im.Seq
		want          []store.Stretch
	}{
		{"the system sees all", View{Log: 9}, 0, 0, []store.Stretch{{Start: 0, End: 9}}},
		{"an empty log", View{}, 0, 0, nil},
		{"both stays", twice, 0, 0, []store.Stretch{{Start: 2, End: 6}, {Start: 9, End: 15}}},
		{"between them", twice, 6, 10, nil},
		{"across", twice, 4, 12, []store.Stretch{{Start: 4, End: 6}, {Start: 9, End: 11}}},
		{"above the head", twice, 15, 0, nil},
		{"cleared in the first stay", View{Earlier: twice.Earlier, Last: twice.Last, Cleared: 4, Log: 15}, 0, 0, []store.Stretch{{Start: 4, End: 6}, {Start: 9, End: 15}}},
		{"cleared all", View{Last: store.Stretch{}, Cleared: 15, Log: 15}, 0, 0, nil},
		{"has left", View{Last: store.Stretch{Start: 3, End: 8}, Log: 15}, 0, 0, []store.Stretch{{Start: 3, End: 8}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.v.Within(tt.after, tt.before); fmt.Sprint(got) != fmt.Sprint(tt.want) {
				t.Errorf("Within() = %v, want %v", got, tt.want)
			}
		})
	}
}

func TestStretchesRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var in []store.Stretch
		for range rapid.IntRange(0, 5).Draw(t, "n") {
			in = append(in, store.Stretch{Start: im.Seq(rapid.Int64Range(0, 1<<53).Draw(t, "start")), End: im.Seq(rapid.Int64Range(0, 1<<53).Draw(t, "end"))})
		}
		b := EncodeStretches(in)
		out, err := DecodeStretches(b)
		if err != nil || fmt.Sprint(out) != fmt.Sprint(in) {
			t.Fatalf("%v became %v, %v", in, out, err)
		}
		if len(b) > 0 {
			if _, err := DecodeStretches(b[:len(b)-1]); err == nil {
				t.Fatal("a cut list was accepted")
			}
		}
	})
}
