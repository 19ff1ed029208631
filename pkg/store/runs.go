package store

import (
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// Runs applies the order rule of Append: once a row of a run has a retryable
// error, every later row of that run is behind. The zero value is ready; not
// safe for concurrent use.
type Runs struct{ held map[int]bool }

// Behind is the answer to a row of a run that is held back; nil if it is not.
func (r *Runs) Behind(run int) *im.Error {
	if !r.held[run] {
		return nil
	}
	return im.Errorf(clientv1.Reason_REASON_BEHIND, "store.Append", "an earlier send of this run was refused")
}

// Refused notes the error that a row of a run got; nil is allowed.
func (r *Runs) Refused(run int, err *im.Error) {
	if err == nil || !im.Retryable(err) {
		return
	}
	if r.held == nil {
		r.held = map[int]bool{}
	}
	r.held[run] = true
}
