package sqlite

import (
	"fmt"
	"testing"

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
