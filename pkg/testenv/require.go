package testenv

import (
	"fmt"
	"os"
	"testing"
)

// Omit leaves the test out because something is not on this machine, and says
// so at the end of `make test`. With IMD_TEST_REQUIRE=all it fails the test
// instead. install is the command that would bring it.
func Omit(t testing.TB, what, install string) {
	t.Helper()
	if os.Getenv("IMD_TEST_REQUIRE") == "all" {
		t.Fatalf("%s is required but missing: %s", what, install)
	}
	if path := os.Getenv("IMD_TEST_OMITTED"); path != "" {
		if f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY|os.O_CREATE, 0o600); err == nil {
			fmt.Fprintf(f, "%s: %s: %s\n", t.Name(), what, install)
			f.Close()
		}
	}
	t.Skipf("left out: %s (%s)", what, install)
}
