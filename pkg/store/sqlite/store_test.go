package sqlite

import (
	"path/filepath"
	"testing"

	"go.uber.org/goleak"
	"go.uber.org/zap/zaptest"

	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/pkg/store/storetest"
)

func TestMain(m *testing.M) {
	if asChild() {
		return
	}
	goleak.VerifyTestMain(m)
}

// openAt opens the database at path.
func openAt(t testing.TB, path string) *Store {
	t.Helper()
	s, err := Open(t.Context(), Options{Path: path, Log: zaptest.NewLogger(t)})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestConformance(t *testing.T) {
	paths := map[store.MessageStore]string{}
	storetest.TestMessages(t, storetest.Messages{
		Open: func(t testing.TB) store.MessageStore {
			path := filepath.Join(t.TempDir(), "imd.db")
			s := openAt(t, path)
			paths[s] = path
			return s
		},
		Reopen: func(t testing.TB, s store.MessageStore) store.MessageStore {
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			n := openAt(t, paths[s])
			paths[n] = paths[s]
			return n
		},
	})
}
