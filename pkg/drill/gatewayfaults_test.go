package drill

import (
	"os"
	"path/filepath"
	"testing"
)

func TestFreeNumber(t *testing.T) {
	dir := t.TempDir()
	for i, want := range []uint64{0, 1, 2, 4} {
		if got, err := freeNumber(dir); err != nil || got != want {
			t.Errorf("step %d: %d, %v; want %d", i, got, err, want)
		}
		for _, name := range [][]string{{"0", "3", "21"}, {"1"}, {"2"}, nil}[i] {
			if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := freeNumber(filepath.Join(dir, "none")); err == nil {
		t.Error("a process that has ended has files")
	}
}
