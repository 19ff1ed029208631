package transfer_test

import (
	"net/url"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/pkg/store/sqlite"
	"github.com/imdhq/imd/pkg/store/transfer/transfertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestIntoSQLite(t *testing.T) {
	transfertest.Run(t, func(t testing.TB) transfertest.Driver {
		u := &url.URL{Scheme: "sqlite", Path: filepath.Join(t.TempDir(), "copy.db")}
		return transfertest.Driver{
			Target: func(t testing.TB) (store.Target, error) { return sqlite.OpenTarget(t.Context(), u, zap.NewNop()) },
			Serve:  func(t testing.TB) (store.MessageStore, error) { return sqlite.OpenURL(t.Context(), u, zap.NewNop()) },
		}
	})
}
