//go:build drill

package crash

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/imdhq/imd/pkg/failpoint"
	"github.com/imdhq/imd/pkg/testenv"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// An id that comes again with other content was not stored with it, whatever
// the cache knows of the id.
func TestOtherContentIsAskedOfTheStore(t *testing.T) {
	redis := testenv.StartRedis(t)
	r := newRigWith(t, []string{"IMD_REDIS_URL=" + redis.URL()}, "storage.dedup=redis")
	ann := r.login("ann")
	m := message("first")
	ann.MustSend(m)
	for l := testenv.NewLimit(testenv.Patience); r.Metric(`imd_dedup_notes_total{result="written"}`) == 0; time.Sleep(10 * time.Millisecond) {
		if l.Over() {
			t.Fatal("the cache was never told")
		}
	}
	other := again(m)
	other.Content = message("other").Content
	known := func() float64 {
		return r.Metric(`imd_dedup_lookups_total{result="other_content"}`) + r.Metric(`imd_dedup_lookups_total{result="hit"}`)
	}
	for l := testenv.NewLimit(testenv.Patience); known() == 0; { // a look-up may be given up on a busy machine, and so may a send
		if got := ann.Send(other); got.Status != clientv1.Ack_ACK_RETRY && (got.Status != clientv1.Ack_ACK_FAIL || got.Error.GetReason() != "id_reused") {
			t.Fatalf("other content under the same id got %v", got)
		}
		if l.Over() {
			t.Fatal("the cache never answers")
		}
	}
}

// A server with one of these defects fails the test that must notice it.
func TestDefectsAreNoticed(t *testing.T) {
	for defect, tt := range map[failpoint.Defect]struct{ test, says string }{
		failpoint.CacheIsAuthority: {"TestOtherContentIsAskedOfTheStore", "other content under the same id got"},
		failpoint.NoAntiEntropy:    {"TestComparingHeadsHealsALostFanout", "a hint"},
	} {
		cmd := exec.Command(os.Args[0], "-test.run", "^"+tt.test+"$")
		cmd.Env = append(os.Environ(), failpoint.BadVar+"="+string(defect), "IMD_TEST_BIN="+testenv.Binary(t))
		out, err := cmd.CombinedOutput()
		if err == nil || !strings.Contains(string(out), tt.says) {
			t.Errorf("%s passes: %v\n%s", defect, err, out)
		}
	}
}
