package drill

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/imdhq/imd/modules/scheduler"
	outcome "github.com/imdhq/imd/pkg/drill"
	"github.com/imdhq/imd/pkg/testenv"
)

// play runs `imd drill` and reads its outcome; nil if there was no verdict.
func play(t *testing.T, limit time.Duration, env []string, args ...string) *outcome.Outcome {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, testenv.Binary(t), append([]string{"drill", "-o", "json"}, args...)...)
	cmd.Env = append(os.Environ(), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // so that it takes its mounts down
	cmd.WaitDelay = time.Minute
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("imd drill: %v", err)
	}
	out := new(outcome.Outcome)
	if json.Unmarshal(stdout.Bytes(), out) != nil || out.Verdict == nil {
		t.Logf("imd drill %s: %v\n%s", strings.Join(args, " "), err, stderr.String())
		return nil
	}
	if status := cmd.ProcessState.ExitCode(); out.Good != (status == 0) || !out.Good && status != 1 {
		t.Errorf("good is %v, the exit status %d", out.Good, status)
	}
	return out
}

// text is an outcome for people.
func text(o *outcome.Outcome) string {
	var b strings.Builder
	o.Text(&b)
	return b.String()
}

// A short drill with every fault that is possible here, also of etcd, finds
// nothing.
func TestSmoke(t *testing.T) {
	clock, began := testenv.NewClock(t), time.Now()
	out := play(t, 6*time.Minute, nil, "--layout", "control", "--minutes", "0.45", "--conns", "60", "--users", "50", "--rate", "100", "--seed", "34", "--keep", filepath.Join(t.TempDir(), "drill"))
	if out == nil {
		t.Fatal("no verdict")
	}
	slowness := float64(time.Since(began)) / float64(max(clock.Now(), 1))
	// On a slow machine healing leaves no time for some of the faults, and nothing of what
	// they are to show.
	least := 7
	if slowness >= 2 || clock.Stood() > time.Second {
		least = 3
	}
	if !out.Good || out.Planned < 7 || out.Begun < least {
		t.Errorf("%s", text(out))
	}
	t.Logf("%d of %d faults, %d operations, %.1f s, of a machine %.1f times slower than usual", out.Begun, out.Planned, out.Operations, out.Took, slowness)
	if idle := out.Verdict.Idle(); len(idle) > 0 && (least == 7 || out.Begun == out.Planned) {
		t.Errorf("nothing was checked for %v", idle)
	}
}

// A drill hits leaders in the middle of every job that there is.
func TestDrillsKnowAllJobs(t *testing.T) {
	var all []string
	for _, j := range scheduler.Jobs() {
		all = append(all, j.Name)
	}
	slices.Sort(all)
	if got := outcome.JobsOfLeaders(); !slices.Equal(got, all) {
		t.Errorf("drills know %v, there are %v", got, all)
	}
}
