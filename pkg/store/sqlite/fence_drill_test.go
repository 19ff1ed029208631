//go:build drill

package sqlite

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/imdhq/imd/pkg/failpoint"
)

// The suite notices a store that lets a replaced leader have effects.
func TestNoFenceIsNoticed(t *testing.T) {
	cmd := exec.Command(os.Args[0], "-test.run", "TestConformance/an_effect_without_the_newest_token")
	cmd.Env = append(os.Environ(), failpoint.BadVar+"="+string(failpoint.NoFence))
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "FAIL: TestConformance/an_effect_without_the_newest_token") {
		t.Errorf("a store without a fence passes: %v\n%s", err, out)
	}
}
