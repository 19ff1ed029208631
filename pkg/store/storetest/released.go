package storetest

import (
	"crypto/sha256"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
	"testing"
)

// Released wants the migrations up to a version, in the folder files, to be what they
// were at the last release, by their sum in hexadecimal digits. They never change after
// a release, and none is added among them: databases that have passed them would stay
// without it. Whoever makes a release raises both.
func Released(t testing.TB, files fs.FS, upTo int64, sum string) {
	t.Helper()
	names, err := fs.Glob(files, "*.sql")
	if err != nil {
		t.Fatal(err)
	}
	h := sha256.New()
	for _, name := range names {
		number, _, _ := strings.Cut(name, "_")
		if v, err := strconv.ParseInt(number, 10, 64); err != nil {
			t.Fatal(err)
		} else if v > upTo {
			continue
		}
		text, err := fs.ReadFile(files, name)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(h, "%s %d\n%s", name, len(text), text)
	}
	if got := fmt.Sprintf("%x", h.Sum(nil)); got != sum {
		t.Errorf("migrations that are released have changed: their sum is %s", got)
	}
}
