//go:build drill

package settings

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/failpoint"
)

// A node that is held up just before new settings come into force goes on with
// the old ones, whole, and readers do not wait for it.
func TestHeldUpBeforeTheSwap(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rules")
	if err := os.WriteFile(path, []byte("config.before_swap sleep 500ms\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv(failpoint.FileVar, path)
	n := Int("a.n", 1, 0, 100, "A number.")
	reg, err := NewRegistry(nil, Schema{Keys: []Declared{n}})
	if err != nil {
		t.Fatal(err)
	}
	l := NewLive(reg, Identity{Node: "n"}, zap.NewNop())
	done := make(chan struct{})
	began := time.Now()
	go func() {
		defer close(done)
		l.Feed(Read{Revision: 5, Records: []Record{{Section: "a", Version: 1, Mod: 5, Raw: []byte(`{"all":{"a.n":"7"}}`)}}})
	}()
	for n.In(l.Current()) == 1 && time.Since(began) < 10*time.Second {
		time.Sleep(time.Millisecond)
	}
	if took := time.Since(began); took < 400*time.Millisecond || n.In(l.Current()) != 7 {
		t.Errorf("in force after %v: %d", took, n.In(l.Current()))
	}
	<-done
}
