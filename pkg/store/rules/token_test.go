package rules

import (
	"encoding/base64"
	"strings"
	"testing"
)

const ours, theirs Tokens = 1, 2

func FuzzToken(f *testing.F) {
	f.Add(ours.Format(Token{"epoch", 3, 9, "g_1"}))
	f.Add("t40")
	f.Add("AQA")
	f.Fuzz(func(t *testing.T, s string) {
		got, ok := ours.Parse(s)
		if !ok {
			return
		}
		again, ok := ours.Parse(ours.Format(got))
		if !ok || again != got {
			t.Errorf("%q: %+v became %+v", s, got, again)
		}
	})
}

// A token of one driver means nothing to another.
func TestTokensOfOthers(t *testing.T) {
	want := Token{"epoch", 3, 9, "g_1"}
	if got, ok := ours.Parse(ours.Format(want)); !ok || got != want {
		t.Errorf("Parse() = %+v, %v", got, ok)
	}
	if got, ok := theirs.Parse(ours.Format(want)); ok {
		t.Errorf("a token of another driver was read: %+v", got)
	}
}

// Whatever length a token claims for its epoch, it is read within its bounds.
func TestTokenWithALongEpoch(t *testing.T) {
	for _, n := range []int{253, 254, 255} {
		want := Token{Epoch: strings.Repeat("e", n), Since: 1, Upto: 2, After: "g_1"}
		if got, ok := ours.Parse(ours.Format(want)); !ok || got != want {
			t.Errorf("%d bytes: Parse() = %+v, %v", n, got, ok)
		}
		cut := append([]byte{byte(ours), byte(n)}, strings.Repeat("e", n-1)...)
		if _, ok := ours.Parse(base64.RawURLEncoding.EncodeToString(cut)); ok {
			t.Errorf("a token without its %d bytes was read", n)
		}
	}
}
