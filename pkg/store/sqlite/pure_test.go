package sqlite

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/imdhq/imd/pkg/im"
)

func anyText(v any) string { return fmt.Sprint(v) }

func TestJudge(t *testing.T) {
	tests := []struct {
		name string
		db   mark
		side *mark
		want bool // a new data_epoch
	}{
		{"both agree", mark{"e", 5}, &mark{"e", 5}, false},
		{"the mark was not written before a crash", mark{"e", 5}, &mark{"e", 4}, false},
		{"the database is older", mark{"e", 4}, &mark{"e", 5}, true},
		{"the database has another history", mark{"f", 9}, &mark{"e", 5}, true},
		{"the mark is gone", mark{"e", 5}, nil, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := judge(tt.db, tt.side); (got != "") != tt.want {
				t.Errorf("judge() = %q", got)
			}
		})
	}
}

func TestWithin(t *testing.T) {
	twice := view{earlier: []span{{2, 6}}, last: span{start: 9}, log: 15}
	tests := []struct {
		name          string
		v             view
		after, before im.Seq
		want          []span
	}{
		{"the system sees all", all(9), 0, 0, []span{{0, 9}}},
		{"an empty log", all(0), 0, 0, nil},
		{"both stays", twice, 0, 0, []span{{2, 6}, {9, 15}}},
		{"between them", twice, 6, 10, nil},
		{"across", twice, 4, 12, []span{{4, 6}, {9, 11}}},
		{"above the head", twice, 15, 0, nil},
		{"cleared in the first stay", view{earlier: twice.earlier, last: twice.last, cleared: 4, log: 15}, 0, 0, []span{{4, 6}, {9, 15}}},
		{"cleared all", view{last: span{}, cleared: 15, log: 15}, 0, 0, nil},
		{"has left", view{last: span{3, 8}, log: 15}, 0, 0, []span{{3, 8}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.v.within(tt.after, tt.before); fmt.Sprint(got) != fmt.Sprint(tt.want) {
				t.Errorf("within() = %v, want %v", got, tt.want)
			}
		})
	}
}

func TestSpansRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var in []span
		for range rapid.IntRange(0, 5).Draw(t, "n") {
			in = append(in, span{im.Seq(rapid.Int64Range(0, 1<<53).Draw(t, "start")), im.Seq(rapid.Int64Range(0, 1<<53).Draw(t, "end"))})
		}
		b := encodeSpans(in)
		out, err := decodeSpans(b)
		if err != nil || fmt.Sprint(out) != fmt.Sprint(in) {
			t.Fatalf("%v became %v, %v", in, out, err)
		}
		if len(b) > 0 {
			if _, err := decodeSpans(b[:len(b)-1]); err == nil {
				t.Fatal("a cut list was accepted")
			}
		}
	})
}

func TestKeyRoundTrip(t *testing.T) {
	for _, id := range []im.ClientMessageID{
		"5f0c6f0e-8a5b-4c1e-9d27-3b1f6a2e7c01", "5F0C6F0E-8A5B-4C1E-9D27-3B1F6A2E7C01", "x",
		"5f0c6f0e-8a5b-4c1e-9d27-3b1f6a2e7c0g", "5f0c6f0e08a5b-4c1e-9d27-3b1f6a2e7c01", "0123456789abcdef",
	} {
		if got := unkey(key(id)); got != id {
			t.Errorf("%q became %q", id, got)
		}
	}
	if _, packed := key("5f0c6f0e-8a5b-4c1e-9d27-3b1f6a2e7c01").([]byte); !packed {
		t.Error("a UUID is not packed")
	}
}

func FuzzToken(f *testing.F) {
	f.Add(token{"epoch", 3, 9, "g_1"}.String())
	f.Add("t40")
	f.Add("AQA")
	f.Fuzz(func(t *testing.T, s string) {
		got, ok := parseToken(s)
		if !ok {
			return
		}
		again, ok := parseToken(got.String())
		if !ok || again != got {
			t.Errorf("%q: %+v became %+v", s, got, again)
		}
	})
}
