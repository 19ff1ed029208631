//go:build drill

package redis

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/imdhq/imd/pkg/failpoint"
)

// Each mistake is noticed by a test that passes without it.
func TestDefectsAreNoticed(t *testing.T) {
	for defect, test := range map[failpoint.Defect]string{
		failpoint.ReleaseAnySession: "TestRoutes/only the exact session is released",
		failpoint.EpochWithoutTime:  "TestRoutes/route epochs rise over a loss",
		failpoint.AbsenceCached:     "TestAbsenceIsNotRemembered",
	} {
		t.Run(string(defect), func(t *testing.T) {
			for _, bad := range []failpoint.Defect{"", defect} {
				cmd := exec.Command(os.Args[0], "-test.run", "^"+strings.ReplaceAll(test, " ", "_")+"$")
				cmd.Env = append(os.Environ(), failpoint.BadVar+"="+string(bad))
				out, err := cmd.CombinedOutput()
				if noticed := err != nil; noticed != (bad != "") {
					t.Errorf("with %q: noticed %v\n%s", bad, noticed, out)
				}
				if bad != "" && !strings.Contains(string(out), "--- FAIL: "+strings.SplitN(test, "/", 2)[0]) {
					t.Errorf("it failed for another reason\n%s", out)
				}
			}
		})
	}
}
