package postgres

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/pkg/testenv"
)

// One server has the database until its time is over, and no worker number is in the
// way of it.
func TestOccupy(t *testing.T) {
	dsn := fresh(t, testenv.SharedPostgres(t))
	s, c := openAt(t, dsn), connectTo(t, dsn)
	defer s.Close()
	for _, seat := range []store.Seat{store.SeatServer, store.SeatPlane} { // each for itself
		takeTurns(t, s, c, seat)
	}
}

func takeTurns(t *testing.T, s *Store, c *pgx.Conn, seat store.Seat) {
	var last time.Time
	occupy := func(what, server string, ttl time.Duration, want string) {
		t.Helper()
		by, until, err := s.Occupy(t.Context(), seat, server, ttl)
		if err != nil || by != want {
			t.Errorf("%s: %s has it, want %s: %v", what, by, want, err)
		}
		if server != want && !until.Equal(last) {
			t.Errorf("%s: until %v, it was %v", what, until, last)
		}
		var left int64
		if err := c.QueryRow(t.Context(), `SELECT $1 - imd_now_ms()`, until.UnixMilli()).Scan(&left); err != nil {
			t.Fatal(err)
		}
		if server == want && (left > ttl.Milliseconds() || left < (ttl-testenv.Patience).Milliseconds()) {
			t.Errorf("%s: %d ms are left of %v", what, left, ttl)
		}
		last = until
	}
	vacate := func(server string) {
		t.Helper()
		if err := s.Vacate(t.Context(), seat, server); err != nil {
			t.Fatal(err)
		}
	}
	occupy("the first", "a", time.Hour, "a")
	occupy("another", "b", 2*time.Hour, "a")
	occupy("the same", "a", 3*time.Hour, "a")
	occupy("another again", "b", 2*time.Hour, "a")
	vacate("b")
	occupy("after somebody else went", "b", time.Hour, "a")
	vacate("a")
	occupy("after the first went", "b", time.Hour, "b")
	if _, err := c.Exec(t.Context(), `UPDATE worker_lease SET until_ms = imd_now_ms() WHERE id = $1`, row(seat)); err != nil {
		t.Fatal(err)
	}
	occupy("when its time is over", "a", time.Hour, "a")
}
