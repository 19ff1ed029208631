package memory

import (
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/pkg/store/storetest"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestRoutes(t *testing.T) {
	storetest.TestRoutes(t, storetest.Routes{Open: func(testing.TB) store.RouteStore { return New() }})
}

// A clock that goes back does not lower route epochs.
func TestClockGoesBack(t *testing.T) {
	r, now := New(), time.UnixMicro(1_000_000)
	r.now = func() time.Time { return now }
	claim := func(session im.SessionID) uint64 {
		t.Helper()
		c, err := r.Claim(t.Context(), store.Route{User: "u", Session: session, Login: "l"}, store.Policy{})
		if err != nil {
			t.Fatal(err)
		}
		return c.Epoch
	}
	if e := claim("s1"); e != 1_000_000 {
		t.Errorf("first epoch %d", e)
	}
	now = time.UnixMicro(5)
	if e := claim("s2"); e != 1_000_001 {
		t.Errorf("epoch after the clock went back: %d", e)
	}
	now = time.UnixMicro(2_000_000)
	if e := claim("s3"); e != 2_000_000 {
		t.Errorf("epoch later: %d", e)
	}
}

// A socket that claims twice has one route and displaces nobody.
func TestSessionClaimsAgain(t *testing.T) {
	r := New()
	route := store.Route{User: "u", Session: "s", Login: "l", Device: "d"}
	first, _ := r.Claim(t.Context(), route, store.Policy{})
	second, err := r.Claim(t.Context(), route, store.Policy{})
	if err != nil || len(second.Superseded)+len(second.Replaced) != 0 || second.Epoch <= first.Epoch {
		t.Errorf("second claim: %+v, %v", second, err)
	}
	if l, _ := r.Lookup(t.Context(), []im.UserID{"u"}); len(l) != 1 || l[0].Epoch != second.Epoch {
		t.Errorf("routes: %+v", l)
	}
}

func TestClosed(t *testing.T) {
	r := New()
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	_, claim := r.Claim(t.Context(), store.Route{User: "u"}, store.Policy{})
	_, release := r.Release(t.Context(), "u", "s", 1)
	_, lookup := r.Lookup(t.Context(), nil)
	for _, err := range []error{claim, release, lookup} {
		if im.ReasonOf(err) != clientv1.Reason_REASON_UNAVAILABLE {
			t.Errorf("after close: %v", err)
		}
	}
}
