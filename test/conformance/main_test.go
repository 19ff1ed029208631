package conformance

import (
	"flag"
	"os"
	"testing"

	"github.com/imdhq/imd/pkg/testenv"
)

// More tests at once than there are processors: most of the time they wait.
func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", "6"); err != nil {
		panic(err)
	}
	os.Exit(testenv.Tests{M: m}.Run())
}
