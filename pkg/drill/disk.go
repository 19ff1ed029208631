package drill

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// diskSize is how large the file system of a node's data folder is, if disks
// may become full.
const diskSize = 768 << 20

// mount puts a small file system of memory at path.
func mount(path string) error {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return err
	}
	if err := unix.Mount("imd-drill", path, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, fmt.Sprintf("size=%d,mode=0700", diskSize)); err != nil {
		return fmt.Errorf("mount a file system at %s: %w", path, err)
	}
	return nil
}

// mountable is nil if this process may mount; it has tried.
var mountable = sync.OnceValue(func() error {
	if os.Geteuid() != 0 {
		return unix.EPERM
	}
	dir, err := os.MkdirTemp("", "imd-mount-")
	if err != nil {
		return err
	}
	if err = mount(dir); err == nil {
		err = unmount(dir)
	}
	return errors.Join(err, os.Remove(dir))
})

func unmount(path string) error {
	if err := unix.Unmount(path, unix.MNT_DETACH); err != nil {
		return fmt.Errorf("unmount %s: %w", path, err)
	}
	return nil
}

// ballast fills the file system of a folder to the last block, until the
// returned function is called.
func ballast(dir string) (release func() error, err error) {
	path := filepath.Join(dir, "ballast")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	release = func() error { return os.Remove(path) }
	block := make([]byte, 1<<20)
	for size := len(block); size >= 512; {
		_, err := f.Write(block[:size])
		switch {
		case errors.Is(err, unix.ENOSPC):
			size /= 2
		case err != nil:
			return nil, errors.Join(err, release())
		}
	}
	return release, nil
}

// writeLock is the byte of the write lock in SQLite's file of shared memory.
const writeLock = 120

// stall takes the write lock of a node's message store, as a process would that
// hangs in a transaction, until the returned function is called.
func stall(dir string) (release func() error, err error) {
	path := ""
	_ = filepath.WalkDir(dir, func(p string, _ fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(p, ".db-shm") {
			path = p
		}
		return nil
	})
	if path == "" {
		return nil, errors.New("there is no SQLite store to stall")
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	lock := unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart, Start: writeLock, Len: 1}
	deadline := time.Now().Add(5 * time.Second)
	for {
		err := unix.FcntlFlock(f.Fd(), unix.F_SETLK, &lock)
		switch {
		case err == nil:
			return f.Close, nil
		case !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EACCES) || time.Now().After(deadline):
			return nil, errors.Join(fmt.Errorf("lock the store: %w", err), f.Close())
		}
		time.Sleep(100 * time.Microsecond) // between two transactions
	}
}
