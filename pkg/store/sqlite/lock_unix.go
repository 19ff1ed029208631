//go:build unix

package sqlite

import (
	"os"
	"syscall"
)

// lockFile takes the lock on f for as long as it is open, or fails at once.
func lockFile(f *os.File) error {
	return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
}
