//go:build !drill

package failpoint

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// A normal build has no fail points, whatever the environment says.
func TestNothingInNormalBuilds(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rules")
	if err := os.WriteFile(path, []byte("state.before_append panic\nstate.after_append error\nclock shift 1h\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv(FileVar, path)
	t.Setenv(BadVar, string(NoDedupIndex))
	Hit(BeforeAppend)
	if Error(AfterAppend) != nil || Bad(NoDedupIndex) || Built || time.Until(Now()) > time.Minute {
		t.Error("a normal build looks at fail points")
	}
	if n := testing.AllocsPerRun(100, func() { Hit(BeforeAppend); _ = Error(BeforeWrite) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
