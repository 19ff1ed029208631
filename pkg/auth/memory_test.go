package auth

import (
	"bytes"
	"testing"
	"time"

	"github.com/imdhq/imd/pkg/im"
)

// A token that was good once is read anew when a key changes, and its times count
// each time.
func TestRememberedTokens(t *testing.T) {
	key := Key{ID: "k", Secret: bytes.Repeat([]byte("s"), MinSecret)}
	keys := []Key{key}
	v, err := NewVerifier(DefaultConfig(), func() []Key { return keys })
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	token, err := Mint(key, Claims{User: "ann", Login: "l", IssuedAt: now, Expires: now.Add(time.Hour)}, "imd")
	if err != nil {
		t.Fatal(err)
	}
	reason := func(at time.Time) string {
		c, err := v.Verify(token, at)
		if err == nil && (c.User != "ann" || c.Login != "l") {
			t.Errorf("claims %+v", c)
		}
		return im.ReasonName(im.ReasonOf(err))
	}
	good := reason(now)
	if again := reason(now.Add(time.Minute)); again != good || len(v.known.all) != 1 {
		t.Fatalf("%q, then %q; %d are remembered", good, again, len(v.known.all))
	}
	if got := reason(now.Add(2 * time.Hour)); got != "token_expired" {
		t.Errorf("after its time: %q", got)
	}
	keys = []Key{{ID: "k", Secret: bytes.Repeat([]byte("t"), MinSecret)}}
	if got := reason(now); got != "bad_token" {
		t.Errorf("under another secret: %q", got)
	}
	keys = []Key{key}
	if got := reason(now); got != good {
		t.Errorf("with the key again: %q", got)
	}
	if _, err := v.Verify(token[:len(token)-2]+"AA", now); err == nil {
		t.Error("another signature passed")
	}
	for i := range rememberedTokens + 10 {
		v.known.put(keys, [32]byte{byte(i), byte(i >> 8), byte(i >> 16), 1}, rawClaims{})
	}
	if n := len(v.known.all); n != rememberedTokens {
		t.Errorf("%d are remembered", n)
	}
}
