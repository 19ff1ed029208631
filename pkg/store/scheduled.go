package store

import (
	"context"
	"time"

	"github.com/imdhq/imd/pkg/im"
)

const (
	// MaxScheduledPage is the most rows that Scheduled returns.
	MaxScheduledPage = 200
	// MaxScheduledClaim is the most rows that one claim takes and that one
	// settlement stores.
	MaxScheduledClaim = 1000
)

// Schedules keeps messages that are to be sent later. A row waits until the
// leader claims it; from then on it cannot be cancelled, and is sent, or dropped
// because nobody may send it any more. Every method with a Proof fails with
// ErrFenced, and changes nothing, if the proof does not hold in the same
// transaction. ErrUnknownOutcome: run it again.
type Schedules interface {
	// PutScheduled stores a message for later, in the state ScheduledWaiting, if its
	// sender may send it now. The same RequestID of the same sender again returns
	// the row as it is, with true. most is how many open rows a sender may have; the
	// system may have any number.
	//
	// Errors: those of Append about who may send; id_reused (the request id stands
	// for another message); rate_limited (the sender has as many as it may).
	PutScheduled(ctx context.Context, m Scheduled, most int) (Scheduled, bool, error)
	// Scheduled lists rows by the time at which they are due.
	Scheduled(ctx context.Context, q ScheduledQuery) ([]Scheduled, error)
	// CancelScheduled cancels a row that waits, and returns the row as it is then: in
	// every other state it has not changed. user is who asks, and finds its own rows
	// only; "" = the system. Errors: ErrNotFound.
	CancelScheduled(ctx context.Context, id int64, user im.UserID) (Scheduled, error)
	// ClaimScheduled takes rows whose turn has come at Now, the earliest first, at
	// most Limit: they are in the state ScheduledSending then. What is not settled
	// before Until comes again then. With First, what was claimed and not settled comes
	// at once, whoever claimed it; what was settled to come again keeps its time.
	ClaimScheduled(ctx context.Context, p Proof, c ScheduledClaim) ([]Scheduled, error)
	// SettleScheduled stores what became of claimed rows. Rows that are not in the
	// state ScheduledSending stay as they are.
	SettleScheduled(ctx context.Context, p Proof, done []ScheduledResult) error
	// TrimScheduled removes rows that ended before a time, at most limit, and
	// returns how many.
	TrimScheduled(ctx context.Context, p Proof, before time.Time, limit int) (int, error)
	// ScheduledCounts tells how many rows are open, and since when the first of them
	// is due.
	ScheduledCounts(ctx context.Context) (ScheduledCounts, error)
}

// ScheduledState is what has become of a message that is to be sent later.
type ScheduledState int16

// The states. The first two are open.
const (
	ScheduledWaiting   ScheduledState = 1
	ScheduledSending   ScheduledState = 2 // a leader has begun to send it
	ScheduledSent      ScheduledState = 3
	ScheduledDropped   ScheduledState = 4 // it could not be sent; Reason says why
	ScheduledCancelled ScheduledState = 5
)

// Scheduled is a message that is to be sent later. Times are whole milliseconds.
type Scheduled struct {
	ID        int64              // names it everywhere
	RequestID im.ClientMessageID // of the call that scheduled it
	// ClientMessageID is that of the message: made from the ID, so that all who try
	// to send it send the same.
	ClientMessageID im.ClientMessageID
	Conversation    im.ConversationID
	Peer            im.UserID // the other user of a direct conversation that need not exist yet
	Sender          im.UserID // "" = the system
	Content         []byte    // an encoded clientv1.Content
	BodyHash        [32]byte
	Due             time.Time
	Created         time.Time

	State     ScheduledState
	Tries     int          // that have not settled it
	Reason    im.Reason    // with ScheduledDropped
	MessageID im.MessageID // with ScheduledSent
	Seq       im.Seq       // the same
	Ended     time.Time    // when it left the open states; zero = it has not
	Disabled  bool         // set by ClaimScheduled: the sender is
}

// ScheduledQuery asks for rows.
type ScheduledQuery struct {
	User  im.UserID // of this sender; "" = of all
	Ended bool      // also those that are not open any more
	After time.Time // behind the row with this time
	ID    int64     // and this id; both zero = from the first
	Limit int       // 1 to MaxScheduledPage
	// Request, if not "", asks for the row of this request of User, whatever its
	// state, and here "" is the system.
	Request im.ClientMessageID
}

// ScheduledClaim says what a leader takes.
type ScheduledClaim struct {
	Now, Until time.Time
	Limit      int  // 1 to MaxScheduledClaim
	First      bool // also what was claimed and not settled
}

// ScheduledResult is what became of a claimed row.
type ScheduledResult struct {
	ID        int64
	State     ScheduledState // ScheduledSent, ScheduledDropped, or ScheduledSending: it comes again
	Again     time.Time      // with ScheduledSending: when
	Reason    im.Reason
	MessageID im.MessageID
	Seq       im.Seq
	At        time.Time // of this result
}

// ScheduledCounts is how much is to be sent later.
type ScheduledCounts struct {
	Open int
	Next time.Time // when the first of them is due; zero = there is none
}
