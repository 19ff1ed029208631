package store

import (
	"errors"
	"fmt"
	"net/url"
	"strconv"

	"github.com/imdhq/imd/pkg/im"
)

// The allocators: how a message store gives out seqs.
const (
	// Transaction numbers within the transaction that stores: dense, and any node
	// may write to any conversation.
	Transaction = "transaction"
	// Segment numbers from memory, in the process that owns the conversation's
	// shard. Only stores that implement Sharded know it.
	Segment = "segment"
)

// Bounds of Numbering.Step. Above the upper one the holes that changes of owners
// leave would soon not fit into what a driver keeps of them.
const (
	MinStep = 10
	MaxStep = 100_000
)

// ErrNotOwner is the cause of a retryable refusal: another process owns the
// shard of the conversation. Nothing was stored by this call, and whatever
// earlier calls of this process sent is stored by now or never will be; so there
// is nothing to run again. The owner answers a repeat with what is stored.
var ErrNotOwner = errors.New("another node owns the conversation")

// Numbering is how seqs are given out.
type Numbering struct {
	Allocator string // Transaction or Segment; "" = what the store records
	Step      int    // numbers that are reserved at a time under Segment; 0 = the default
}

// The parameters of a data source name that carry a Numbering.
const (
	allocatorParameter = "imd_allocator"
	stepParameter      = "imd_step"
)

// Put adds n to the parameters of a data source name.
func (n Numbering) Put(q url.Values) {
	q.Set(allocatorParameter, n.Allocator)
	if n.Step != 0 {
		q.Set(stepParameter, strconv.Itoa(n.Step))
	}
}

// TakeNumbering takes what Put has added out of q; nothing there is the zero
// value. Errors: ErrDSN.
func TakeNumbering(q url.Values) (n Numbering, err error) {
	n.Allocator = q.Get(allocatorParameter)
	if text := q.Get(stepParameter); text != "" {
		if n.Step, err = strconv.Atoi(text); err != nil {
			return n, fmt.Errorf("%s is no number: %w", stepParameter, ErrDSN)
		}
	}
	q.Del(allocatorParameter)
	q.Del(stepParameter)
	return n, n.check()
}

func (n Numbering) check() error {
	switch {
	case n.Allocator != "" && n.Allocator != Transaction && n.Allocator != Segment:
		return fmt.Errorf("there is no allocator %q: %w", n.Allocator, ErrDSN)
	case n.Step != 0 && (n.Step < MinStep || n.Step > MaxStep):
		return fmt.Errorf("a step of %d is not within %d and %d: %w", n.Step, MinStep, MaxStep, ErrDSN)
	}
	return nil
}

// Ring is what a node knows of who should own which shard.
type Ring struct {
	Node im.NodeID
	// Mine reports whether the ring gives the shard (see ring.Shard) to Node; nil
	// = it gives it none.
	Mine func(shard int) bool
	// Cluster and Revision say how new this view is. Only a newer view than that
	// which named the owner takes a shard over. Views of different clusters
	// cannot be compared; then the later takeover counts.
	Cluster  uint64
	Revision int64
}

// Sharded is a MessageStore that may give out seqs under the allocator Segment.
type Sharded interface {
	// Segmented reports whether the store does so. If it does, conversations of
	// one shard must be appended to by one caller at a time to be fast, and rows
	// and changes may be refused with ErrNotOwner.
	Segmented() bool
	// Follow gives the store the node's view of the ring; current is called
	// often and must not block. A store that follows nothing takes every shard
	// over from stores that were opened earlier.
	Follow(current func() Ring)
}
