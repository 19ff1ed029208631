package election

import (
	"syscall"
	"testing"
	"time"

	"github.com/imdhq/imd/pkg/testenv"
)

// measure ends one leader after the other, with three members of etcd.
func measure(b *testing.B, leaseOnly bool, sig syscall.Signal) {
	s := newSuccession(b, 3, leaseOnly)
	var took []time.Duration
	for b.Loop() {
		took = append(took, s.next(sig))
	}
	s.judge()
	testenv.ReportTimes(b, took)
}

// The leader's process is killed; until three observers see the next one.
func BenchmarkLeaderKilled(b *testing.B) { measure(b, false, syscall.SIGKILL) }

// The same without the fast takeover.
func BenchmarkLeaderKilledLeaseOnly(b *testing.B) { measure(b, true, syscall.SIGKILL) }

// The leader is told to stop, and resigns.
func BenchmarkLeaderStopped(b *testing.B) { measure(b, false, syscall.SIGTERM) }
