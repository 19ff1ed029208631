package rules

import (
	"slices"
	"testing"

	"github.com/imdhq/imd/pkg/im"
)

func TestDistinct(t *testing.T) {
	if got := Distinct([]im.UserID{"b", "a", "b", "c", "a"}); !slices.Equal(got, []im.UserID{"b", "a", "c"}) {
		t.Errorf("Distinct() = %v", got)
	}
	if got := Distinct(nil); got != nil {
		t.Errorf("Distinct(nil) = %v", got)
	}
}
