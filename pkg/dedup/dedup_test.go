package dedup

import (
	"strings"
	"testing"
	"time"
)

func sample() Answer {
	a := Answer{MessageID: 1 << 60, Seq: 8, PrevSeq: 7, ServerTime: time.UnixMilli(1_800_000_000_123), MemberVersion: 3}
	for i := range a.BodyHash {
		a.BodyHash[i] = byte(i * 7)
	}
	return a
}

func TestValues(t *testing.T) {
	v := sample().Value()
	if f := ParseValue(v, "n1"); f.State != Known || f.Answer != sample() {
		t.Fatalf("%s reads as %+v", v, f)
	}
	if len(v) >= 256 {
		t.Errorf("a value of %d bytes", len(v))
	}
	for text, want := range map[string]State{
		TryValue("n1"):                          Claimed,
		TryValue("n2"):                          InFlight,
		TryValue(""):                            InFlight,
		"":                                      Unreadable,
		"C1":                                    Unreadable,
		"OK":                                    Unreadable,
		"T2:n1":                                 Unreadable,
		strings.Replace(v, "C1", "C2", 1):       Unreadable,
		strings.Replace(v, ":8:", ":0:", 1):     Unreadable, // seq 0 is none
		strings.Replace(v, ":8:", ":-8:", 1):    Unreadable,
		strings.Replace(v, ":8:7:", ":8:8:", 1): Unreadable, // prev_seq is below
		strings.Replace(v, ":8:", ":08:", 1):    Unreadable,
		strings.Replace(v, ":8:", ":+8:", 1):    Unreadable,
		strings.Replace(v, ":8:", ":99999999999999999999:", 1): Unreadable,
		strings.ToUpper(v):          Unreadable,
		v + "0":                     Unreadable,
		v + ":":                     Unreadable,
		v[:len(v)-2]:                Unreadable,
		v[:len(v)-1] + "g":          Unreadable,
		strings.Repeat("C1:", 1000): Unreadable,
		"C1:0:8:7:1800000000123:3:" + v[len(v)-64:]: Unreadable,
		"C1:5:8:7:0:3:" + v[len(v)-64:]:             Unreadable,
	} {
		if f := ParseValue(text, "n1"); f.State != want || want != Known && f.Answer != (Answer{}) {
			t.Errorf("%q reads as %+v, want state %d", text, f, want)
		}
	}
}

func FuzzParseValue(f *testing.F) {
	f.Add(sample().Value(), "n1")
	f.Add(TryValue("n1"), "n1")
	f.Fuzz(func(t *testing.T, v, owner string) {
		got := ParseValue(v, owner)
		if got.State == Known && got.Answer.Value() != v {
			t.Fatalf("%q is believed and written as %q", v, got.Answer.Value())
		}
		if got.State != Known && got.Answer != (Answer{}) {
			t.Fatalf("%q has an answer that is not known", v)
		}
	})
}

func TestKeysAreScoped(t *testing.T) {
	got := Key{"e1", "g_1", "alice", "id"}.String()
	if want := "imd:dd:e1:g_1:alice:id"; got != want {
		t.Fatalf("key %q, want %q", got, want)
	}
}
