package testenv

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Metrics is the text of /metrics.
func (n *Node) Metrics() string {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, n.OpsURL()+"/metrics", nil)
	if err != nil {
		n.t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		n.t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		n.t.Fatal(err)
	}
	return string(text)
}

// Metric is the value of one series of /metrics, named with its labels as it
// is printed there. A series that does not exist fails the test.
func (n *Node) Metric(series string) float64 {
	n.t.Helper()
	for s := bufio.NewScanner(strings.NewReader(n.Metrics())); s.Scan(); {
		if text, ok := strings.CutPrefix(s.Text(), series+" "); ok {
			v, err := strconv.ParseFloat(text, 64)
			if err != nil {
				n.t.Fatal(err)
			}
			return v
		}
	}
	n.t.Fatalf("no metric %s", series)
	return 0
}

// Resident is how many bytes of memory the process holds.
func (n *Node) Resident() int64 {
	n.t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", n.PID()))
	if err != nil {
		n.t.Fatal(err)
	}
	var size, pages int64
	if _, err := fmt.Sscan(string(data), &size, &pages); err != nil {
		n.t.Fatal(err)
	}
	return pages * int64(os.Getpagesize())
}

// Command runs the binary with args and --data-dir of the node, as its
// operator would. It returns what was printed and the exit status.
func (n *Node) Command(args ...string) (stdout, stderr string, status int) {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 3*ReadyIn) // only ends what would hang
	defer cancel()
	cmd := exec.CommandContext(ctx, Binary(n.t), append(args, "--data-dir", n.Dir)...)
	var out, errOut strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errOut
	err := cmd.Run()
	var ended *exec.ExitError
	if err != nil && !errors.As(err, &ended) {
		n.t.Fatal(err)
	}
	return out.String(), errOut.String(), cmd.ProcessState.ExitCode()
}

// Stall takes SQLite's write lock from outside, so that every commit waits. It
// returns what lets go of it, which may be called more than once.
func (n *Node) Stall() (release func()) {
	n.t.Helper()
	var shm string
	_ = filepath.WalkDir(n.StoreDir(), func(path string, _ fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, ".db-shm") {
			shm = path
		}
		return nil
	})
	f, err := os.OpenFile(shm, os.O_RDWR, 0)
	if err != nil {
		n.t.Fatal(err)
	}
	const writeLock = 120 // byte of the write lock in the shared-memory file
	lock := unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart, Start: writeLock, Len: 1}
	deadline := time.Now().Add(Patience)
	for unix.FcntlFlock(f.Fd(), unix.F_SETLK, &lock) != nil {
		if time.Now().After(deadline) {
			n.t.Fatal("the write lock is never free")
		}
		time.Sleep(100 * time.Microsecond)
	}
	release = func() { _ = f.Close() } // the lock goes with the file
	n.t.Cleanup(release)
	return release
}
