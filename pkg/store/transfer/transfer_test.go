package transfer_test

import (
	"net/url"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/pkg/store/postgres"
	"github.com/imdhq/imd/pkg/store/sqlite"
	"github.com/imdhq/imd/pkg/store/transfer/transfertest"
	"github.com/imdhq/imd/pkg/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testenv.Tests{M: m}) }

func intoPostgres(t testing.TB) transfertest.Driver {
	u, err := url.Parse(testenv.SharedPostgres(t).Database(t) + "&imd_unsafe=yes")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := postgres.Migrate(t.Context(), u.String()); err != nil {
		t.Fatal(err)
	}
	return transfertest.Driver{
		Target:     func(t testing.TB) (store.Target, error) { return postgres.OpenTarget(t.Context(), u, zap.NewNop()) },
		Serve:      func(t testing.TB) (store.MessageStore, error) { return postgres.OpenURL(t.Context(), u, zap.NewNop()) },
		VoidTokens: true,
	}
}

func intoSQLite(t testing.TB) transfertest.Driver {
	u := &url.URL{Scheme: "sqlite", Path: filepath.Join(t.TempDir(), "copy.db")}
	return transfertest.Driver{
		Target: func(t testing.TB) (store.Target, error) { return sqlite.OpenTarget(t.Context(), u, zap.NewNop()) },
		Serve:  func(t testing.TB) (store.MessageStore, error) { return sqlite.OpenURL(t.Context(), u, zap.NewNop()) },
	}
}

func TestIntoPostgres(t *testing.T) { transfertest.Run(t, intoPostgres) }

func TestIntoSQLite(t *testing.T) { transfertest.Run(t, intoSQLite) }

// What one driver writes the other reads, both ways.
func TestThroughPostgresAndBack(t *testing.T) { transfertest.Back(t, intoPostgres(t), intoSQLite(t)) }
