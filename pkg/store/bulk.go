package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// Why stores are not copied.
var (
	// ErrOccupied says that a store holds data that this copy did not bring.
	ErrOccupied = errors.New("the store is not empty")
	// ErrUnfinished says that a store is the target of a copy that has not come to
	// its end. No node serves from it; the copy goes on when it is run again.
	ErrUnfinished = errors.New("the copy into this store is not finished")
	// ErrChanged says that the source has changed since the copy began, so that it
	// cannot go on: empty the target and begin anew.
	ErrChanged = errors.New("the source has changed since the copy began")
)

// Table names what is copied from store to store.
type Table string

// The tables. Not copied are leases of worker numbers, which end in seconds; notes of
// sessions, which end with the processes that used the source; marks, events and dead
// letters, which receivers were told of or have given up; and rows of jobs, which
// begin early at worst.
const (
	Users         Table = "users"
	Blocks        Table = "blocks"
	Mutes         Table = "mutes"
	Revocations   Table = "revocations"
	Keys          Table = "keys"
	Conversations Table = "conversations"
	Creations     Table = "creations"
	Members       Table = "members"
	Entries       Table = "entries"
	WorkerMarks   Table = "worker_marks"
	FenceTokens   Table = "fences"
	ReceiverNames Table = "receivers"
	LastSeen      Table = "last_seen"
	Online        Table = "online"
	PushRows      Table = "pushes"
	Later         Table = "scheduled"
	Posted        Table = "announcements"
	PostedUpTo    Table = "announced"
)

// Tables are all of them, in the order in which they are copied.
func Tables() []Table {
	return []Table{Users, Blocks, Revocations, Keys, Conversations, Creations, Members, Entries, WorkerMarks, FenceTokens, Mutes, ReceiverNames, LastSeen,
		Online, PushRows, Later, Posted, PostedUpTo}
}

// Batch is some rows of one table, in the slice of its name.
type Batch struct {
	Users         []User
	Blocks        []Block
	Revocations   []Revocation
	Keys          []Key
	Conversations []ConversationRow
	Creations     []Creation
	Members       []MemberRow
	Entries       []EntryRow
	WorkerMarks   []WorkerMark
	FenceTokens   []Fence
	Mutes         []Mute
	ReceiverNames []ReceiverName
	LastSeen      []Seen
	Online        []OnlineUser
	PushRows      []PushRow
	Later         []ScheduledRow
	Posted        []Announcement
	PostedUpTo    []AnnouncedUpTo

	After string // the place behind the last row, for the next Export
	End   bool   // there are no more rows
}

// Len is how many rows there are.
func (b *Batch) Len() int {
	return len(b.Users) + len(b.Blocks) + len(b.Revocations) + len(b.Keys) + len(b.Conversations) + len(b.Creations) +
		len(b.Members) + len(b.Entries) + len(b.WorkerMarks) + len(b.FenceTokens) + len(b.Mutes) + len(b.ReceiverNames) + len(b.LastSeen) +
		len(b.Online) + len(b.PushRows) + len(b.Later) + len(b.Posted) + len(b.PostedUpTo)
}

// Block says that a user does not take direct messages of another one.
type Block struct{ User, Blocked im.UserID }

// Mute keeps pushes of a conversation away from a user.
type Mute struct {
	User         im.UserID
	Conversation im.ConversationID
	Until        time.Time
}

// ReceiverName is a receiver that was told of everything in the source. In the
// target it begins with the first event, and commits leave marks from the first
// one on.
type ReceiverName struct{ Name string }

// OnlineUser is a user of whom receivers were told last that they are online.
type OnlineUser struct{ User im.UserID }

// PushRow is a push as it is stored.
type PushRow struct {
	Push
	Told bool // its user may have been told of it, or of an older message
}

// ScheduledRow is a message that is to be sent later as it is stored. Who claimed it
// is not copied, nor whether it waits to be sent again: the first claim of a leader
// takes all that were begun.
type ScheduledRow struct {
	Scheduled
	Turn time.Time // when it is tried next
}

// Token is that of the claim with which the row is stored: of nobody, but a claim, if
// its sending has begun; else 0.
func (r *ScheduledRow) Token() int64 {
	if r.State == ScheduledSending {
		return -1
	}
	return 0
}

// AnnouncedUpTo is how far announcements are. There is one row.
type AnnouncedUpTo struct {
	Seq     int64 // the highest number that was given
	Version int64
}

// ConversationRow is a conversation as it is stored.
type ConversationRow struct {
	Num           int64 // what other rows call it; a copy keeps it
	ID            im.ConversationID
	Kind          clientv1.ConversationKind
	Name          string
	Closed        bool
	OpenHistory   bool
	UserA, UserB  im.UserID // of a direct one; UserA is the lower
	Head          im.Seq
	Kept          im.Seq // nobody sees what is up to here, and its sends have no content
	Members       int    // present ones
	MemberVersion int64
}

// Creation remembers the request that made a group.
type Creation struct {
	Actor     im.UserID
	RequestID im.ClientMessageID
	Conv      int64 // its Num
}

// MemberRow is a present or former member as it is stored.
type MemberRow struct {
	User         im.UserID
	Conversation im.ConversationID
	Conv         int64         // its Num
	Role         clientv1.Role // unspecified = not a member any more
	Start        im.Seq        // of the newest stretch, which is (Start, End]
	End          im.Seq        // 0 = still open
	Earlier      []Stretch     // before it, rising
	Cleared      im.Seq        // sees nothing up to here
	Delivered    im.Seq
	Read         im.Seq
	LeftName     string // the conversation's name when they left
}

// Stretch is a closed part (Start, End] of a log that a member may see.
type Stretch struct{ Start, End im.Seq }

// EntryRow is an entry as it is stored. BodyHash is that of sends, at least its
// first half; nil for changes.
type EntryRow struct {
	im.Entry
	Conv     int64 // Num of its conversation
	BodyHash []byte
}

// WorkerMark is a time, in whole microseconds, that no id of a worker has
// passed.
type WorkerMark struct {
	Worker int
	Mark   time.Time
}

// Origin says what a copy is of.
type Origin struct {
	DataEpoch string
	State     string // another one as soon as anything in the source changes
	Newest    time.Time
	// MovedEpoch and MovedState are DataEpoch and State of the source when a copy
	// retired it; "" = none has. MovedState is "" also if it has changed since.
	MovedEpoch, MovedState string
}

// Taken says what a target already has of a source.
type Taken struct {
	Tables   map[Table]Progress
	Finished bool // all of it, and the target is open to servers
	Moved    bool // also finished, and the source is retired: nothing is left to do
}

// Meet compares the copy that a target holds, of a source that had this data_epoch
// and state, with the source o. Targets call it in Begin.
//
// Errors: ErrOccupied, ErrChanged.
func (o Origin) Meet(epoch, state string, finished bool) (moved bool, err error) {
	switch {
	case epoch == o.DataEpoch && state == o.State:
		return false, nil
	case epoch == o.DataEpoch && !finished:
		return false, ErrChanged
	case epoch == o.DataEpoch:
		return false, fmt.Errorf("a copy into it was finished before: %w", ErrOccupied)
	case epoch == o.MovedEpoch && finished && state == o.MovedState:
		return true, nil
	case epoch == o.MovedEpoch && finished:
		return false, fmt.Errorf("the source was copied into it before, and has been used since: %w", ErrOccupied)
	}
	return false, fmt.Errorf("it is the copy of another store: %w", ErrOccupied)
}

// Exporter reads a store from one end to the other.
type Exporter interface {
	// Export returns the rows of a table behind the place after ("" = from the
	// beginning), at most limit of them, in an order that is always the same.
	Export(ctx context.Context, t Table, after string, limit int) (*Batch, error)
}

// Source is a store that is copied. It is held, so that no server uses it, and
// not changed before Retire. Not safe for concurrent use.
type Source interface {
	Exporter
	// Origin says what the store is.
	Origin() Origin
	// Retire gives the store a new data_epoch, which it returns: the old one lives
	// on in the copy, and two stores must not have the same.
	Retire(ctx context.Context) (string, error)
	// Close lets go of the store.
	Close() error
}

// Progress is how far one table has come in a target.
type Progress struct {
	After string // the place in the source
	End   bool   // all of it is there
	Rows  int64
	Sum   string // of the rows, as the copier counts it
}

// Target is a store that is filled. It is held, so that no second copy and no
// server use it. Not safe for concurrent use.
type Target interface {
	Exporter
	// Begin takes up the copy of o where it stands, or begins it in an empty store;
	// from now on no server opens the store until Finish.
	//
	// Errors: ErrOccupied, ErrChanged.
	Begin(ctx context.Context, o Origin) (Taken, error)
	// Import stores rows and how far the table has come then, both or nothing.
	// Errors: ErrUnknownOutcome: Begin tells on the next run.
	Import(ctx context.Context, t Table, b *Batch, p Progress) error
	// Finish gives the store the data_epoch of its origin and opens it to servers.
	Finish(ctx context.Context) error
	// Close lets go of the store.
	Close() error
}

// Place encodes the keys of a row as a place in a table.
func Place(keys ...string) string {
	b, _ := json.Marshal(keys) // strings always can be
	return string(b)
}

// PlaceKeys is the reverse of Place, for n keys.
func PlaceKeys(place string, n int) ([]string, error) {
	var keys []string
	if err := json.Unmarshal([]byte(place), &keys); err != nil || len(keys) != n {
		return nil, fmt.Errorf("bad place %q", place)
	}
	return keys, nil
}
