package protocol

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

func text(s string) *clientv1.Content {
	return &clientv1.Content{Value: &clientv1.Content_Text{Text: s}}
}

func TestDirectID(t *testing.T) {
	const want = "d_mvjrvdxp5j5zg2j2n6ar37gxia"
	if got := DirectID("alice", "bob"); got != want {
		t.Errorf("DirectID() = %s, want %s", got, want)
	}
	if got := DirectID("bob", "alice"); got != want {
		t.Errorf("the other way round: %s, want %s", got, want)
	}
	if DirectID("ab", "c") == DirectID("a", "bc") {
		t.Error("the border between the ids does not count")
	}
	if !ValidID(want) {
		t.Error("a direct id is not a valid id")
	}
}

func TestValidID(t *testing.T) {
	for s, want := range map[string]bool{
		"a": true, "Zz9._-@+": true, strings.Repeat("x", 64): true,
		"": false, strings.Repeat("x", 65): false, "a b": false, "ä": false, "a/b": false, "a\x00": false, "a:b": false,
	} {
		if got := ValidID(s); got != want {
			t.Errorf("ValidID(%q) = %v", s, got)
		}
	}
}

func TestValidUUID(t *testing.T) {
	for s, want := range map[string]bool{
		"5f0c6f0e-8a5b-4c1e-9d27-3b1f6a2e7c01":  true,
		"5f0c6f0e-8a5b-4c1e-8d27-3b1f6a2e7c01":  true,
		"019ad5f0-6f0e-7c1e-9d27-3b1f6a2e7c01":  true,
		"019ad5f0-6f0e-7c1e-bd27-3b1f6a2e7c01":  true,
		"ffffffff-ffff-7fff-bfff-ffffffffffff":  true,
		"5F0C6F0E-8a5b-4c1e-9d27-3b1f6a2e7c01":  false,
		"019AD5F0-6f0e-7c1e-9d27-3b1f6a2e7c01":  false,
		"019ad5f0-6f0e-7c1e-Bd27-3b1f6a2e7c01":  false,
		"5f0c6f0e-8a5b-1c1e-9d27-3b1f6a2e7c01":  false,
		"5f0c6f0e-8a5b-5c1e-9d27-3b1f6a2e7c01":  false,
		"019ad5f0-6f0e-8c1e-9d27-3b1f6a2e7c01":  false,
		"5f0c6f0e-8a5b-4c1e-cd27-3b1f6a2e7c01":  false,
		"019ad5f0-6f0e-7c1e-7d27-3b1f6a2e7c01":  false,
		"019ad5f0-6f0e-7c1e-9d27-3b1f6a2e7c0g":  false,
		"5f0c6f0e8a5b-4c1e-9d27-3b1f6a2e7c011":  false,
		"5f0c6f0e-8a5b-4c1e-9d27-3b1f6a2e7c0":   false,
		"5f0c6f0e-8a5b-4c1e-9d27-3b1f6a2e7c012": false,
		"":                                      false,
	} {
		if got := ValidUUID(s); got != want {
			t.Errorf("ValidUUID(%q) = %v", s, got)
		}
	}
}

func TestBodyHash(t *testing.T) {
	base := func() *clientv1.Content {
		c := text("hi")
		c.Attributes = map[string]string{"a": "1", "b": "2"}
		return c
	}
	want := BodyHash(0, 0, base())
	same := base()
	same.Type = "text"
	if BodyHash(clientv1.EntryKind_ENTRY_KIND_MESSAGE, 0, same) != want {
		t.Error("defaults written out change the hash")
	}
	for name, hash := range map[string][32]byte{
		"kind":      BodyHash(clientv1.EntryKind_ENTRY_KIND_EDIT, 0, base()),
		"target":    BodyHash(0, 1, base()),
		"nothing":   BodyHash(0, 0, nil),
		"empty":     BodyHash(0, 0, &clientv1.Content{}),
		"empty one": BodyHash(0, 0, text("")),
		"text":      BodyHash(0, 0, text("hi")),
		"data":      BodyHash(0, 0, &clientv1.Content{Value: &clientv1.Content_Data{Data: []byte("hi")}, Attributes: base().Attributes}),
		"border":    BodyHash(0, 0, &clientv1.Content{Value: &clientv1.Content_Text{Text: "hi"}, Attributes: map[string]string{"a1": "", "b": "2"}}),
		"type":      BodyHash(0, 0, &clientv1.Content{Type: "x", Value: &clientv1.Content_Text{Text: "hi"}, Attributes: base().Attributes}),
	} {
		if hash == want {
			t.Errorf("another %s has the same hash", name)
		}
	}
	if BodyHash(0, 0, nil) == BodyHash(0, 0, &clientv1.Content{}) {
		t.Error("absent and empty content have the same hash")
	}
}

func TestCheckContent(t *testing.T) {
	many := map[string]string{}
	for i := range MaxAttributes + 1 {
		many[string(rune('a'+i))] = ""
	}
	tests := []struct {
		name string
		in   *clientv1.Content
		want string
	}{
		{"absent", nil, "bad_request"},
		{"empty", &clientv1.Content{}, "bad_request"},
		{"a text", text("hi"), ""},
		{"only attributes", &clientv1.Content{Type: "place", Attributes: map[string]string{"lat": "1"}}, ""},
		{"the largest", text(strings.Repeat("a", MaxContent)), ""},
		{"one byte more", text(strings.Repeat("a", MaxContent+1)), "too_large"},
		{"too large in sum", &clientv1.Content{Type: "t", Value: &clientv1.Content_Data{Data: make([]byte, MaxContent-3)}, Attributes: map[string]string{"k": "vv"}}, "too_large"},
		{"largest in sum", &clientv1.Content{Type: "t", Value: &clientv1.Content_Data{Data: make([]byte, MaxContent-4)}, Attributes: map[string]string{"k": "vv"}}, ""},
		{"a long type", &clientv1.Content{Type: strings.Repeat("t", 65)}, "bad_request"},
		{"many attributes", &clientv1.Content{Attributes: many}, "bad_request"},
		{"a zero in text", text("a\x00b"), "bad_request"},
		{"a zero in data", &clientv1.Content{Value: &clientv1.Content_Data{Data: []byte{0}}}, ""},
		{"text that is not UTF-8", text("\xff"), "bad_request"},
		{"an attribute that is not UTF-8", &clientv1.Content{Type: "x", Attributes: map[string]string{"a": "\xff"}}, "bad_request"},
	}
	for _, tt := range tests {
		if got := CheckContent(tt.in); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}

func TestReasons(t *testing.T) {
	all := Reasons()
	if want := len(clientv1.Reason_name) - 1; len(all) != want {
		t.Fatalf("%d rows, want %d", len(all), want)
	}
	codes := map[int]string{}
	for _, r := range all {
		if r.Meaning == "" || r.Code == "" && r.CloseCode == 0 {
			t.Errorf("%s has no meaning or no effect", r.Reason)
		}
		if other, dup := codes[r.CloseCode]; dup && r.CloseCode != 0 {
			t.Errorf("%s and %s share a close code", r.Reason, other)
		}
		codes[r.CloseCode] = r.Reason
		if r.CloseCode != 0 {
			if Reconnect(r.CloseCode) != r.Retryable {
				t.Errorf("%s: the range and retryable disagree", r.Reason)
			}
			if ReasonOf(r.CloseCode) != r.Reason {
				t.Errorf("ReasonOf(%d) = %s", r.CloseCode, ReasonOf(r.CloseCode))
			}
		}
	}
	if r, ok := Lookup("not_member"); !ok || r.Code != "permission_denied" || r.Enum != clientv1.Reason_REASON_NOT_MEMBER {
		t.Errorf("Lookup(not_member) = %+v, %v", r, ok)
	}
	if _, ok := Lookup("no_such"); ok || CloseCode("no_such") != 0 || ReasonOf(0) != "" {
		t.Error("something unknown was found")
	}
}

func TestReconnect(t *testing.T) {
	for code, want := range map[int]bool{
		0: true, 1000: true, 1001: true, 1005: true, 1006: true, 1011: true, 1012: true, 4000: true, 4499: true, 3000: true,
		1002: false, 1003: false, 1007: false, 1008: false, 1009: false, 1010: false, 4500: false, 4999: false,
	} {
		if got := Reconnect(code); got != want {
			t.Errorf("Reconnect(%d) = %v", code, got)
		}
	}
}

func TestNewError(t *testing.T) {
	e := NewError("busy", "", 0)
	if e.Code != "unavailable" || !e.Retryable || e.RetryAfterMs != 400 || e.Message == "" {
		t.Errorf("NewError(busy) = %v", e)
	}
	if e := NewError("rate_limited", "slow down", 1500*time.Microsecond); e.RetryAfterMs != 2 || e.Message != "slow down" {
		t.Errorf("NewError(rate_limited) = %v", e)
	}
	if e := NewError("not_member", "", time.Second); e.Retryable || e.RetryAfterMs != 0 {
		t.Errorf("NewError(not_member) = %v", e)
	}
	if e := NewError("no_such", "x", 0); e.Reason != "no_such" || e.Retryable {
		t.Errorf("NewError(no_such) = %v", e)
	}
	if b := NewBye("replaced", "x", time.Second); b.CloseCode != 4503 || b.Reconnect || b.RetryAfterMs != 0 {
		t.Errorf("NewBye(replaced) = %v", b)
	}
	if b := NewBye("drain", "", time.Second); b.CloseCode != 4000 || !b.Reconnect || b.RetryAfterMs != 1000 {
		t.Errorf("NewBye(drain) = %v", b)
	}
	if b := NewBye("not_member", "", 0); b.Reason != "internal" {
		t.Errorf("NewBye(not_member) = %v", b)
	}
}

func TestSizesOfNumbers(t *testing.T) {
	for range 1000 {
		n := rand.Int64() >> rand.IntN(63)
		if rand.IntN(2) == 0 {
			n = -n
		}
		e := &clientv1.Entry{Seq: n}
		if got, err := appendJSON(nil, e.ProtoReflect()); err != nil || len(got) != Size(JSON, e) {
			t.Fatalf("Size() = %d for %s", Size(JSON, e), got)
		}
	}
}
