//go:build drill

package election

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/imdhq/imd/pkg/failpoint"
)

// Without the fence, the paused leader's effect takes place, and the test that
// must notice it does.
func TestNoFenceIsNoticed(t *testing.T) {
	cmd := exec.Command(os.Args[0], "-test.run", "^TestPausedLeadersEffectIsRefused$")
	cmd.Env = append(os.Environ(), failpoint.BadVar+"="+string(failpoint.NoFence))
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "took place after one with") {
		t.Errorf("a cluster without a fence passes: %v\n%s", err, out)
	}
}
