package split

import (
	"os"
	"testing"

	"github.com/imdhq/imd/pkg/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Tests{M: m}.Run()) }
