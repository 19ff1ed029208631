package drill

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// Where mounting is possible, a full disk is full to the last byte, and has
// room again afterwards; where it is not, the fault is left out of what is
// possible.
func TestFullDisk(t *testing.T) {
	if mountable() != nil {
		if Impossible(Disk, AllInOne()) == "" {
			t.Error("a full disk is held to be possible without the right to mount")
		}
		return
	}
	dir := filepath.Join(t.TempDir(), "data")
	if err := mount(dir); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unmount(dir); err != nil {
			t.Error(err)
		}
	})
	release, err := ballast(dir)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("x"), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("a full disk takes a file: %v", err)
	}
	if err := release(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, make([]byte, 1<<20), 0o600); err != nil {
		t.Error(err)
	}
}

func TestStallWithoutAStore(t *testing.T) {
	if _, err := stall(t.TempDir()); err == nil {
		t.Error("a store that is not there is stalled")
	}
}
