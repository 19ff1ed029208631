package settings

import (
	"context"
	"errors"
	"time"
)

// HistoryLimit is how many former documents of a section are kept.
const HistoryLimit = 50

// ErrConflict says that somebody else changed the settings meanwhile. Look at
// them again before trying again.
var ErrConflict = errors.New("the settings were changed meanwhile")

// Write is a new document of a section.
type Write struct {
	Section string
	Mod     int64 // of the document it replaces; 0 = there must be none
	Doc     Document
}

// Past is a former or present document of a section.
type Past struct {
	Section  string
	Number   int
	Document Document
}

// Status is what a node reports of itself. It goes with its lease.
type Status struct {
	Node    string    `json:"node"`
	Applied int64     `json:"applied"`           // revision of the newest change in force
	Refused int64     `json:"refused,omitempty"` // newest revision that was not taken and still stands; 0 = none
	Reason  string    `json:"reason,omitempty"`  // why not
	At      time.Time `json:"at"`
}

// Documents keeps the documents. Safe for concurrent use. Every method fails
// with unavailable while etcd is away.
type Documents interface {
	// Put writes documents and their history as one revision, which it returns.
	// Errors: ErrConflict, and nothing was written. After an outcome that is not
	// known it looks whether the documents are there.
	Put(ctx context.Context, writes []Write) (revision int64, err error)
	// History lists what is kept of a section, newest first.
	History(ctx context.Context, section string) ([]Past, error)
	// Statuses lists what the nodes report.
	Statuses(ctx context.Context) ([]Status, error)
}
