package store

import (
	"context"
	"time"

	"github.com/imdhq/imd/pkg/im"
)

// SessionProof is the rank of a session among those of its login and device.
type SessionProof struct {
	Login  im.LoginID
	Device im.DeviceID
	Epoch  uint64 // route epoch; at most 1<<63 - 1
}

// SessionClaim says who may send for a user from now on.
type SessionClaim struct {
	User im.UserID
	// Session is who claims. Those of the same login and device with a lower
	// epoch are superseded.
	Session SessionProof
	// Rank asks for an epoch: the lowest that is at least Session.Epoch and above
	// all that are noted for this login and device.
	Rank bool
	// Replaced are sessions of other logins that are refused up to Session.Epoch.
	Replaced []SessionProof
	// Until is when no session of these logins can live any more; the notes are
	// removed after it.
	Until time.Time
}

// Sessions compares who sends with who claimed last. It holds nothing of sessions
// that never proved themselves: they are not refused.
type Sessions interface {
	// ProveSession notes a claim, never an older one over a newer, and returns the
	// highest epoch that is noted for its login and device. Above the one of the
	// claim, a newer session has proved itself. Appends that have begun are waited
	// for: when it returns, no row of a session with a lower epoch is stored any
	// more. Errors: busy (an append holds it for too long), ErrUnknownOutcome: the
	// same claim once more.
	ProveSession(ctx context.Context, c SessionClaim) (epoch uint64, err error)
}
