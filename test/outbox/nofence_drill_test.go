//go:build drill

package outbox

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/imdhq/imd/modules/scheduler"
	"github.com/imdhq/imd/pkg/failpoint"
)

func init() { scheduler.Outlives = 2 * time.Second }

// Without the fence, what a paused leader does when it wakes up takes place, in
// each job, and the test that must notice it does.
func TestNoFenceIsNoticed(t *testing.T) {
	for job, test := range map[string]string{
		"gather": "TestLeaderEndsInEachJob", "tell": "TestLeaderEndsInEachJob", "hand_over": "TestLeaderEndsInEachJob", "push": "TestLeaderEndsInEachJob",
		"trim": "TestLeaderEndsInEachJob", "claim": "TestScheduledOutliveTheirLeader", "settle": "TestScheduledOutliveTheirLeader",
	} {
		t.Run(job, func(t *testing.T) {
			t.Parallel()
			cmd := exec.Command(os.Args[0], "-test.run", "^"+test+"$/^"+job+"_pause$")
			cmd.Env = append(os.Environ(), failpoint.BadVar+"="+string(failpoint.NoFence))
			out, err := cmd.CombinedOutput()
			if err == nil || !strings.Contains(string(out), "took place after one with") {
				t.Errorf("jobs without a fence pass: %v\n%s", err, out)
			}
		})
	}
}
