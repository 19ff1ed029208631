package redis

import (
	"crypto/rand"
	"syscall"
	"testing"
)

func rnd() string { return rand.Text() }

// cpu is the CPU that this process used for each operation so far, in
// microseconds.
func cpu(b *testing.B) float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1000 / float64(b.N)
}
