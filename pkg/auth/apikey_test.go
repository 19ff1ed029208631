package auth

import (
	"fmt"
	"strings"
	"testing"
)

func TestAPIKey(t *testing.T) {
	k := NewAPIKey()
	got, err := ParseAPIKey(k.Text())
	if err != nil || got != k {
		t.Fatalf("ParseAPIKey(%s) = %v, %v", k.Text(), got, err)
	}
	if !got.Matches(k.Hash()) || got.Matches(NewAPIKey().Hash()) || got.Matches(nil) {
		t.Error("Matches is wrong")
	}
	if strings.Count(k.Text(), "_") != 2 {
		t.Errorf("%s has other than two underscores", k.Text())
	}
	for _, format := range []string{"%v", "%s", "%+v", "%#v", "%q"} {
		if s := fmt.Sprintf(format, k); strings.Contains(s, k.secret) {
			t.Errorf("%s shows the secret", format)
		}
	}
}

func TestParseAPIKeyRefuses(t *testing.T) {
	k := NewAPIKey().Text()
	for _, s := range []string{"", "imd_", "imd__", k[:len(k)-1], k + "a", strings.ToUpper(k), "Imd_" + k[4:],
		strings.Replace(k, "_", "-", 2), k[:20] + "a" + k[21:], k[:len(k)-1] + "b"} {
		if got, err := ParseAPIKey(s); err == nil && got.Text() != k {
			t.Errorf("%q passed", s)
		} else if err != nil && len(s) > 30 && strings.Contains(err.Error(), s[25:]) {
			t.Errorf("the error repeats the key: %v", err)
		}
	}
}

func FuzzParseAPIKey(f *testing.F) {
	f.Add(NewAPIKey().Text())
	f.Add("imd_aaaaaaaaaaaaaaaa_")
	f.Fuzz(func(t *testing.T, s string) {
		if k, err := ParseAPIKey(s); err == nil && k.Text() != s {
			t.Fatalf("%q reads as %q", s, k.Text())
		}
	})
}
