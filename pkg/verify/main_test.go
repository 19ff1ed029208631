package verify

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/imdhq/imd/pkg/verify/verifytest"
)

// judgeDir names a folder that the test binary judges instead of running tests,
// so that its memory can be measured from outside.
const judgeDir = "IMD_VERIFY_JUDGE"

func TestMain(m *testing.M) {
	dir := os.Getenv(judgeDir)
	if dir == "" {
		goleak.VerifyTestMain(m)
		return
	}
	h, err := Load(dir)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(3)
	}
	if r := Judge(h, Options{}); !r.Good {
		r.Text(os.Stderr)
		os.Exit(1)
	}
	fmt.Println(residentMiB())
}

// residentMiB is the most memory that this process ever had resident.
func residentMiB() float64 {
	raw, _ := os.ReadFile("/proc/self/status")
	_, rest, _ := strings.Cut(string(raw), "VmHWM:")
	var kib float64
	_, _ = fmt.Sscan(rest, &kib)
	return kib / 1024
}

// What two million records cost: seconds and resident memory of a process that
// loads and judges them.
func BenchmarkTwoMillionRecords(b *testing.B) {
	made := verifytest.Good(7, verifytest.Size{Users: 1000, Conversations: 500, Members: 2, Messages: 118_000, Faults: 25})
	dir := filepath.Join(b.TempDir(), "history")
	if err := made.Write(dir); err != nil {
		b.Fatal(err)
	}
	records := len(made.Entries)
	for b.Loop() {
		cmd := exec.Command(os.Args[0])
		cmd.Env, cmd.Stderr = append(os.Environ(), judgeDir+"="+dir), os.Stderr
		began := time.Now()
		out, err := cmd.Output()
		if err != nil {
			b.Fatal(err)
		}
		var mib float64
		_, _ = fmt.Sscan(string(out), &mib)
		b.ReportMetric(time.Since(began).Seconds(), "s")
		b.ReportMetric(mib, "MiB")
	}
	b.ReportMetric(float64(records), "records")
}
