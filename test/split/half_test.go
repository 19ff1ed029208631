package split

import (
	"testing"
	"time"

	"github.com/imdhq/imd/pkg/testenv"
)

// Half of the hosts cannot be reached, and do not reach etcd either: what they
// had to do the others do, and after a moment nobody notices, also not when the
// network is whole again.
func TestHalfTheNetwork(t *testing.T) {
	t.Parallel()
	testenv.InOwnNetwork(t, func(t *testing.T) {
		c := &cluster{Node: &testenv.Node{Dir: t.TempDir() + "/data", Args: testenv.NoLimits(), Layout: testenv.Hosts}}
		c.Begin(t)
		senders, stop := startSenders(t, c, "half", 12)
		load(t, senders, 2*time.Second)
		heal := c.CutHalf()
		time.Sleep(15 * time.Second) // how long it lasts: longer than the leases of those that are away
		heal()
		load(t, senders, 3*time.Second)
		stop()
		worst, sent := time.Duration(0), 0
		for _, s := range senders {
			worst, sent = max(worst, s.slowest), sent+len(s.acked)
			judge(t, c, s)
		}
		t.Logf("%d messages; the slowest send took %v", sent, worst.Round(time.Millisecond))
		if worst > 4*time.Second {
			t.Errorf("a send took %v", worst)
		}
	})
}
