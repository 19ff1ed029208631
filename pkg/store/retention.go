package store

import (
	"context"
	"time"
)

// Bounds of one call of Retain.
const (
	// MaxRetainLooks is the most conversations that are looked at.
	MaxRetainLooks = 1000
	// MaxRetain is the most entries that go.
	MaxRetain = 200
)

// Retention lets what is old go. Entries are not removed: of each conversation a
// border rises, nobody sees anything up to it any more, and the sends there lose
// their content. What is left of a send, its key and the hash of its body, still
// answers a repeat as at first. Changes keep what they say.
type Retention interface {
	// Retain looks through conversations in the order of their numbers, and raises
	// borders over entries that are older than a time and have only such ones
	// before them. What goes in one call goes in one transaction, so that a border
	// and what is behind it always agree; it waits for nobody who appends.
	//
	// Errors: ErrFenced if the proof does not hold in the same transaction;
	// ErrUnknownOutcome: go on from where the call began.
	Retain(ctx context.Context, p Proof, r Retain) (Retained, error)
}

// Retain says what goes.
type Retain struct {
	After         int64     // where the call before ended; 0 = begin with the first conversation
	Direct, Group time.Time // what is older goes; zero = nothing of that kind of conversation does
	Looks         int       // conversations to look at, at most MaxRetainLooks
	Entries       int       // entries to let go, at most MaxRetain
}

// Retained is what went.
type Retained struct {
	Next    int64 // for the next call
	End     bool  // all conversations have been looked at
	Looked  int   // conversations
	Entries int
}
