package postgres

import (
	"errors"
	"testing"

	"github.com/imdhq/imd/pkg/store"
)

// An answer that lacks rows, or cannot be understood, is never taken for one.
func TestAnswersAreWhole(t *testing.T) {
	n := int64(1)
	stored := answer{status: statusStored, seq: &n, prev: &n, id: &n, ms: &n, memberVersion: &n}
	if err := whole([]answer{stored, {status: statusNotMember}}); err != nil {
		t.Error(err)
	}
	short := stored
	short.seq = nil
	for name, bad := range map[string]answer{
		"missing": {status: statusMissing}, "without numbers": {status: statusBefore}, "without its seq": short, "of a newer schema": {status: statusLocked + 1},
	} {
		if err := whole([]answer{stored, bad}); !errors.Is(err, store.ErrUnknownOutcome) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
