package store

import (
	"context"
	"time"

	"github.com/imdhq/imd/pkg/im"
)

// MaxSeen is the most users that SaveSeen, Seen and Visible take.
const MaxSeen = 1000

// Presence keeps when users were last seen, and knows who may see whom.
type Presence interface {
	// SaveSeen notes when users were last seen. An older time than the one that is
	// kept changes nothing. Errors: ErrFenced if the proof does not hold in the same
	// transaction; ErrUnknownOutcome: run it again.
	SaveSeen(ctx context.Context, p Proof, seen []Seen) error
	// Seen tells when users were last seen. Those of whom nothing is kept are left
	// out.
	Seen(ctx context.Context, users []im.UserID) ([]Seen, error)
	// Visible tells which of the others the user may see, in no order: those that
	// are with it in a conversation now, unless one of the two has blocked the
	// other.
	Visible(ctx context.Context, user im.UserID, others []im.UserID) ([]im.UserID, error)
}

// Seen is when a user was last seen.
type Seen struct {
	User im.UserID
	At   time.Time
}
