package dedup

import (
	"context"
	"strings"
	"time"

	"github.com/imdhq/imd/pkg/im"
)

// Limits of what a cache keeps.
const (
	// DefaultTryTTL is how long a try keeps others informed.
	DefaultTryTTL = 10 * time.Second
	// DefaultTTL is how long a confirmed answer is kept.
	DefaultTTL = 10 * time.Minute
	// MaxKeys is the most keys of one call.
	MaxKeys = 1024
)

// Cache remembers sends. All methods are safe for concurrent use and return
// soon: within a few milliseconds (Try) or 200 ms (the others), whatever
// happens to what they depend on. Arguments are the caller's again when a call
// has returned. Errors are *Error.
type Cache interface {
	// Try looks keys up, at most MaxKeys, and marks those that nobody works on as
	// the owner's until the time of a try has passed; trying again prolongs the
	// own mark. One Found for each key, in order. After an error nothing is
	// known, and the store has to be asked.
	Try(ctx context.Context, owner string, keys []Key) ([]Found, error)
	// Confirm remembers what the store acknowledged, at most MaxKeys, whatever was
	// there before.
	// Call it only with what the store said. An error may leave some remembered.
	Confirm(ctx context.Context, done []Confirmed) error
	// Cancel takes the owner's marks back; those of others and what is confirmed
	// stay.
	Cancel(ctx context.Context, owner string, keys []Key) error
	// Open reports whether calls are answered at once with an error of the class
	// Open, because the cache did not answer lately.
	Open() bool
	// Close ends what the cache does on its own. No call may follow.
	Close() error
}

// Key names one send for good. Without the conversation, the same id sent to
// another one would get the first one's answer; without the data_epoch, a row
// that a failover has lost would still be vouched for.
type Key struct {
	DataEpoch       string
	Conversation    im.ConversationID
	Sender          im.UserID
	ClientMessageID im.ClientMessageID
}

// String is the key as drivers use it. No part can hold a colon.
func (k Key) String() string {
	return strings.Join([]string{"imd:dd", k.DataEpoch, string(k.Conversation), string(k.Sender), string(k.ClientMessageID)}, ":")
}

// Answer is what the store once acknowledged.
type Answer struct {
	MessageID     im.MessageID
	Seq           im.Seq
	PrevSeq       im.Seq
	ServerTime    time.Time // whole milliseconds
	MemberVersion int64     // membership at that time, or later
	BodyHash      [32]byte
}

// Confirmed is one answer with its key.
type Confirmed struct {
	Key    Key
	Answer Answer
}

// State is what a Try found.
type State uint8

// The states.
const (
	// Claimed: nothing was there, and the owner's mark is now.
	Claimed State = iota
	// InFlight: another owner works on it.
	InFlight
	// Known: Answer is what the store acknowledged.
	Known
	// Unreadable: what is there is not ours to understand; ask the store.
	Unreadable
)

// Found is what a Try found under one key.
type Found struct {
	State  State
	Answer Answer // if Known
}

// Options say how long a cache remembers; zero values = the defaults.
type Options struct {
	TryTTL time.Duration
	TTL    time.Duration
}

// WithDefaults fills in what is zero.
func (o Options) WithDefaults() Options {
	if o.TryTTL == 0 {
		o.TryTTL = DefaultTryTTL
	}
	if o.TTL == 0 {
		o.TTL = DefaultTTL
	}
	return o
}
