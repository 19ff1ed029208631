package store

import (
	"slices"
	"testing"
	"time"

	"github.com/imdhq/imd/pkg/im"
)

// Logins are forgotten after a day without a session, and one of a living session
// never is.
func TestLoginsAreForgotten(t *testing.T) {
	now := time.UnixMicro(1)
	claim := func(l Logins, id im.LoginID, epoch uint64) (Logins, []im.LoginID) {
		return l.Claim(nil, Route{Login: id, Class: im.Phone, Epoch: epoch}, Policy{Mode: KickOld, SameClass: true}, now)
	}
	l, _ := claim(nil, "a", 1)
	now = now.Add(LoginTTL - time.Second)
	if _, away := claim(l, "b", 2); !slices.Equal(away, []im.LoginID{"a"}) {
		t.Errorf("before its time is over: %v", away)
	}
	seen, due := l.Seen("a", now)
	if !due || l["a"] == seen["a"] {
		t.Error("a login that is seen is not remembered for longer")
	}
	if _, due := seen.Seen("a", now.Add(time.Hour)); due {
		t.Error("it is written again and again")
	}
	if _, due := seen.Seen("b", now); due {
		t.Error("one that is not remembered")
	}
	now = now.Add(time.Second)
	after, away := claim(l, "b", 2)
	if len(away) != 0 || len(after) != 1 {
		t.Errorf("after its time: %v, %v", after, away)
	}
	if _, away := claim(seen, "b", 2); !slices.Equal(away, []im.LoginID{"a"}) {
		t.Errorf("one that was seen: %v", away)
	}
}
