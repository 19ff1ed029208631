package imd

import (
	"time"

	"github.com/imdhq/imd/sdk/go/protocol"
)

// maxUnanswered is how many unanswered hellos a client remembers.
const maxUnanswered = 16

// unanswered is when attempts were given up on which hello was written and neither
// welcome nor a reason came, oldest first. A server that stood still, or whose
// packets were late, may take such a hello afterwards, and then ends the session
// that the client has by now with superseded.
type unanswered []time.Time

// add notes that an attempt is given up.
func (u *unanswered) add(now time.Time) {
	if len(*u) == maxUnanswered {
		*u = (*u)[1:]
	}
	*u = append(*u, now)
}

// excuse reports whether superseded may come from one of them, and forgets that
// one: two programs that share a login and device must not push each other out for
// ever.
func (u *unanswered) excuse(now time.Time) bool {
	for len(*u) > 0 {
		at := (*u)[0]
		if *u = (*u)[1:]; now.Sub(at) <= protocol.LateHello {
			return true
		}
	}
	return false
}
