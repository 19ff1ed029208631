package gateway

import (
	"time"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// apartTime is how long after its first call a batch is asked about again.
const apartTime = time.Second

// failure is a question that a call did not answer, and why.
type failure[T any] struct {
	x   T
	err error
}

// askApart asks about a batch and returns those that were not answered. If they
// failed for a reason that may lie with one of them, it asks again about one half
// and the other, and so on while that answers somebody: a question that fails
// every call it is in fails alone, after 13 calls for 64, and an outage makes 3
// calls of one.
//
// ask makes one call, answers whom it can, and returns the others.
func askApart[T any](batch []T, now func() time.Time, ask func([]T) []failure[T]) (failed []failure[T]) {
	until := now().Add(apartTime)
	failed = ask(batch)
	for len(failed) > 1 && now().Before(until) {
		sure := failed[:0:0]
		var again []T
		for _, f := range failed {
			if mayBeAnothers(f.err) {
				again = append(again, f.x)
			} else {
				sure = append(sure, f)
			}
		}
		if len(again) < 2 {
			break
		}
		half := len(again) / 2
		rest := append(ask(again[:half]), ask(again[half:])...)
		if failed = append(sure, rest...); len(rest) == len(again) {
			break
		}
	}
	return failed
}

// mayBeAnothers reports whether a question may have failed because of another one
// in its call.
func mayBeAnothers(err error) bool {
	r := im.ReasonOf(err)
	return r == clientv1.Reason_REASON_INTERNAL || r == clientv1.Reason_REASON_UNAVAILABLE
}

// allFailed is all of a batch with one error.
func allFailed[T any](batch []T, err error) []failure[T] {
	failed := make([]failure[T], len(batch))
	for i, x := range batch {
		failed[i] = failure[T]{x, err}
	}
	return failed
}

// unanswered is the error of an answer that has no result.
func unanswered(op string, e *clientv1.Error) error {
	if err := im.FromWire(op, e); err != nil {
		return err
	}
	return im.Errorf(clientv1.Reason_REASON_INTERNAL, op, "")
}
