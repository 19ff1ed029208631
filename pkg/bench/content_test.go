package bench

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

func TestBodiesCarryTheirTime(t *testing.T) {
	for _, at := range []time.Duration{0, 1, 123456789012345, 1<<63 - 1} {
		for _, n := range []int{stampLen, 17, 128, 16000} {
			text := appendBody(nil, at, 12345, n)
			if got, ok := stampOf(text); !ok || got != at || len(text) != n {
				t.Errorf("%d bytes for %d: %d, %v", len(text), at, got, ok)
			}
		}
	}
	for _, bad := range []string{"", "short", "000000000000000g"} {
		if _, ok := stampOf([]byte(bad)); ok {
			t.Errorf("%q has a time", bad)
		}
	}
}

func TestBodiesRotate(t *testing.T) {
	seen := map[string]bool{}
	for i := range uint32(1000) {
		h := hashText(appendBody(nil, time.Second, i, 128))
		if seen[h] || len(h) != 16 {
			t.Fatalf("hash %q came before", h)
		}
		seen[h] = true
	}
}

func TestIDs(t *testing.T) {
	at := time.UnixMilli(0x019a_d5f0_6f0e)
	u := uuids{rand.NewChaCha8([32]byte{1}), func() time.Time { return at }}
	seen := map[string]bool{}
	for range 10_000 {
		b := u.next()
		id := string(b[:])
		if !protocol.ValidUUID(id) || seen[id] || !strings.HasPrefix(id, "019ad5f0-6f0e-7") {
			t.Fatal(id)
		}
		seen[id] = true
	}
	at = at.Add(2 * time.Millisecond)
	if later := u.next(); !strings.HasPrefix(string(later[:]), "019ad5f0-6f10-7") {
		t.Errorf("%s", later)
	}
}

// The same content has the same hash on every way, another one another.
func TestHashes(t *testing.T) {
	text := func(s, typ string) *clientv1.Content {
		return &clientv1.Content{Type: typ, Value: &clientv1.Content_Text{Text: s}}
	}
	const m = clientv1.EntryKind_ENTRY_KIND_MESSAGE
	if hashOf(m, 0, text("hi", "")) != hashText([]byte("hi")) || hashOf(m, 0, text("hi", "text")) != hashText([]byte("hi")) {
		t.Error("a text is not hashed as a text")
	}
	seen := map[string]string{}
	for name, h := range map[string]string{
		"hi": hashText([]byte("hi")), "hi0": hashText([]byte("hi\x00")), "empty": hashText(nil), "8": hashText([]byte("12345678")),
		"9": hashText([]byte("12345678\x00")), "type": hashOf(m, 0, text("hi", "x")), "none": hashOf(m, 0, nil), "target": hashOf(m, 3, text("hi", "")),
	} {
		if other := seen[h]; other != "" {
			t.Errorf("%s and %s have the same hash", name, other)
		}
		seen[h] = name
	}
}
