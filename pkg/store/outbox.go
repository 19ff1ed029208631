package store

import (
	"context"
	"time"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// Outbox is what others outside have to be told. While it is on, every commit
// leaves a mark in its own transaction. The leader turns marks into events, which
// are numbered from 1 on without holes: a place in that list is a cursor. Who is
// told has a receiver row with a cursor of its own.
//
// Of two events of one conversation the one with the lower seq has the lower
// position. Every method with a Proof fails with ErrFenced, and changes nothing,
// if the proof does not hold in the same transaction.
type Outbox interface {
	// SetFeed makes commits leave marks, or stops it. It holds from the next
	// transaction on, in all processes. Stopping drops the marks that are left.
	SetFeed(ctx context.Context, p Proof, on bool) error
	// OutboxState tells how far the outbox is.
	OutboxState(ctx context.Context) (OutboxState, error)
	// Gather turns the oldest marks, at most limit of them, into events and returns
	// how many marks that were.
	Gather(ctx context.Context, p Proof, limit int) (int, error)
	// PutEvents adds events of UserOnline and UserOffline, in order. Their Position
	// and Conversation are set by the store. One that says of a user what the
	// newest event says already is left out, and so is a UserOffline of a user of
	// whom there is none: calling it again changes nothing. ErrUnknownOutcome: run
	// it again.
	PutEvents(ctx context.Context, p Proof, events []Event) error
	// OnlineUsers lists the users of whom the newest event says that they are
	// online, behind a user, in the order of their ids.
	OnlineUsers(ctx context.Context, after im.UserID, limit int) ([]im.UserID, error)
	// Events returns events behind a position, in order, without their entries.
	Events(ctx context.Context, after int64, limit int) ([]Event, error)
	// EventsAt returns the events at these positions, in order, with their entries
	// as they are now. What is not there any more is left out.
	EventsAt(ctx context.Context, positions []int64) ([]Event, error)
	// TrimEvents removes the oldest events that happened before a time, at most
	// limit, and dead letters of them. It returns how many events.
	TrimEvents(ctx context.Context, p Proof, before time.Time, limit int) (int, error)

	// Receivers lists all receiver rows by name.
	Receivers(ctx context.Context) ([]Receiver, error)
	// SaveReceiver stores where a receiver stands. Its Generation must be what the
	// row has (0 = there must be no row): false if it is not, and nothing was
	// changed. settled says what became of dead letters and pushes by the way.
	SaveReceiver(ctx context.Context, p Proof, r Receiver, settled Settled) (bool, error)
	// Rewind makes a receiver begin anew behind a position, for an operator; or,
	// with dead, get its dead letters once more. It returns how many dead letters.
	// Errors: ErrNotFound.
	Rewind(ctx context.Context, name string, after int64, dead bool) (int, error)
	// RemoveReceiver forgets a receiver and its dead letters. Errors: ErrNotFound.
	RemoveReceiver(ctx context.Context, name string) error
	// DeadLetters lists dead letters of a receiver behind a position, in order.
	DeadLetters(ctx context.Context, name string, after int64, limit int) ([]DeadLetter, error)

	Pushes
}

// Pushes is what offline users have to be told: one row for each conversation of
// a user, whatever number of messages that is.
type Pushes interface {
	// Unacked lists who has not received messages: for each event in (after, upto]
	// that is a countable message, the members that are to see it and have neither
	// received nor read it, unless they sent it or muted the conversation; in groups
	// of at most members only. Of several messages of a conversation a user gets
	// the newest one.
	Unacked(ctx context.Context, after, upto int64, members int) ([]Push, error)
	// DuePushes lists pushes that are due at a time, the oldest first.
	DuePushes(ctx context.Context, now time.Time, limit int) ([]Push, error)
	// SettlePushes stores what became of pushes. A row that has got a newer message,
	// or that was read, since it was listed stays due as it is.
	SettlePushes(ctx context.Context, p Proof, done []PushResult) error
	// PushCounts tells how many rows are in each state.
	PushCounts(ctx context.Context) (map[PushState]int, error)
	// Badges counts the unread entries of users in all conversations that they have
	// not muted, up to MaxUnread. Users without any are missing.
	Badges(ctx context.Context, users []im.UserID) (map[im.UserID]int, error)
	// SetMute keeps pushes of a conversation away from a member until a time, those
	// that are due among them; a time that is past, or zero, lifts it. What the user
	// was told before is still withdrawn when it is read. Errors: not_member.
	SetMute(ctx context.Context, conv im.ConversationID, user im.UserID, until time.Time) error
	// Mutes lists what a user has muted now, by conversation, behind one.
	Mutes(ctx context.Context, user im.UserID, after im.ConversationID, limit int) ([]Mute, error)
}

// OutboxState is how far the outbox is.
type OutboxState struct {
	On    bool
	First int64 // position of the oldest event that is kept; Last+1 if there is none
	Last  int64 // position of the newest event ever; 0 = none
	Marks bool  // some wait to be gathered
}

// Event is something that happened.
type Event struct {
	Position int64
	Kind     EventKind
	At       time.Time // whole milliseconds
	// Key is the same for events that must be told in order; never 0.
	Key int64
	// Of a conversation; "" of other events, and without their entries.
	Conversation im.ConversationID
	Seq          im.Seq
	Entry        *im.Entry // by EventsAt only
	User         im.UserID // of UserOnline and UserOffline
}

// EventKind is what happened. Those below 100 are kinds of entries.
type EventKind int16

// Kinds of events that are no entries.
const (
	UserOnline  EventKind = 101
	UserOffline EventKind = 102
)

// Entry is the kind of the entry that the event is about; unspecified if it is
// about none.
func (k EventKind) Entry() clientv1.EntryKind {
	if k >= 100 {
		return clientv1.EntryKind_ENTRY_KIND_UNSPECIFIED
	}
	return clientv1.EntryKind(k)
}

// Receiver is where one receiver stands: what is up to Cursor is settled but for
// Open.
type Receiver struct {
	Name       string // 1 to 64 bytes
	Cursor     int64
	Open       []Open // rising
	Reached    int64  // the highest cursor ever: what is up to it may have been told before
	Generation int64  // rises with each Rewind; set by the store but for SaveReceiver
	Saved      time.Time
	Dead       int // dead letters; set by the store
}

// Open is an event below the cursor that is not settled.
type Open struct {
	Position int64
	Tries    int
}

// Settled is what is stored together with a receiver.
type Settled struct {
	Dead    []DeadLetter // new ones; Receiver is set by the store
	Revived []int64      // dead letters that are dead no more
	Pushes  []Push       // to be made due
}

// DeadLetter is an event that a receiver was not told, and will not be unless
// somebody asks for it.
type DeadLetter struct {
	Receiver string
	Position int64
	At       time.Time // when it was given up
	Tries    int
	Reason   string // at most 200 bytes
	Again    bool   // somebody has asked for it
}

// PushState is what has to be done about a push.
type PushState int16

// The states.
const (
	PushDue      PushState = 1 // the user has to be told
	PushSent     PushState = 2 // the user was told
	PushWithdraw PushState = 3 // the user was told and has read it since: it has to be taken back
	PushGivenUp  PushState = 4 // the receiver took it at no try
)

// Push is what a user has to be told of a conversation.
type Push struct {
	User         im.UserID
	Conversation im.ConversationID
	Seq          im.Seq // newest message that it is about
	MessageID    im.MessageID
	Sender       im.UserID
	State        PushState
	At           time.Time // when it was made due
	Due          time.Time // next try
	Tries        int
}

// PushResult is what became of a push that DuePushes has listed.
type PushResult struct {
	Push           // as it was listed
	Next PushState // PushSent, PushGivenUp, or the same state as before: it stays due
	// Again is when to try again, with the same state; or, with PushSent, before when
	// a newer message of the conversation is not told.
	Again time.Time
	Told  bool // the user may have been told by this try, of what was due; with PushSent it was
	Gone  bool // the row is not needed any more
}

// Tells reports whether the user was told of something new, or may have been: it has
// to be withdrawn when it is read.
func (r *PushResult) Tells() bool { return r.State == PushDue && (r.Told || r.Next == PushSent) }
