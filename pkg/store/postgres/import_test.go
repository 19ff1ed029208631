package postgres

import (
	"errors"
	"net/url"
	"testing"
	"time"

	"go.uber.org/zap/zaptest"

	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/pkg/testenv"
)

// named is the URL of a data source name.
func named(t testing.TB, dsn string) *url.URL {
	t.Helper()
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// One copy at a time, and none beside nodes.
func TestTargetInUse(t *testing.T) {
	u := named(t, fresh(t, testenv.SharedPostgres(t)))
	s := openAt(t, u.String())
	if _, err := OpenTarget(t.Context(), u, zaptest.NewLogger(t)); !errors.Is(err, store.ErrLocked) {
		t.Errorf("beside a node: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	g, err := OpenTarget(t.Context(), u, zaptest.NewLogger(t)) // the server ends sessions a moment after their clients
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	if _, err := OpenTarget(t.Context(), u, zaptest.NewLogger(t)); !errors.Is(err, store.ErrLocked) {
		t.Errorf("beside another copy: %v", err)
	}
}

// A new data_epoch reaches nodes that run.
func TestNewEpoch(t *testing.T) {
	dsn := fresh(t, testenv.SharedPostgres(t))
	if _, _, _, err := NewEpoch(t.Context(), dsn); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("where no node ever was: %v", err)
	}
	s := openAt(t, dsn)
	defer s.Close()
	first := s.DataEpoch()
	was, now, ended, err := NewEpoch(t.Context(), dsn)
	if err != nil || was != first || now == first || ended == 0 {
		t.Fatalf("%s, %s, %d, %v; it was %s", was, now, ended, err, first)
	}
	for range 500 {
		if _, err := s.PutUser(t.Context(), "ann"); err == nil && s.DataEpoch() == now {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("the node has data_epoch %s, want %s", s.DataEpoch(), now)
}
