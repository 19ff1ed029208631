package store

import (
	"context"
	"errors"
	"time"
)

// ErrFenced says that somebody else has, or has had since, the fence that the
// caller claims or proves. Nothing was changed. A leader that gets it stands
// down at once.
var ErrFenced = errors.New("the fence has another holder")

// Fences keeps the tokens of leaders and locks. The control plane decides who
// leads, but a process that was paused may not know that it does not any more;
// so every effect proves its token in the transaction that has the effect.
type Fences interface {
	// ClaimFence makes a new token if the claim is newer than the one that the
	// fence was given for: a higher revision, another cluster, or Over is the
	// present token. Tokens of a name begin at 1 and rise by one; no two claims
	// get the same. The same claim again (Cluster, Revision and Holder) gets the
	// same answer as long as no other came between. It waits for transactions
	// that have proved the former token, and shuts out later ones.
	//
	// Errors: ErrFenced if the claim is not newer; the fence as it stands is
	// returned with it. ErrUnknownOutcome.
	ClaimFence(ctx context.Context, c FenceClaim) (Fence, error)
	// Fence reads a fence. Errors: ErrNotFound if it was never claimed.
	Fence(ctx context.Context, name string) (Fence, error)
}

// FenceClaim says on what grounds a process wants the next token.
type FenceClaim struct {
	Name     string // of the election or lock, 1 to 128 bytes
	Holder   string // the process: node id and boot id
	Cluster  string // id of the etcd cluster that Revision counts in
	Revision int64  // at which the claimant's key was created
	// Over, if not 0, makes the claim newer if it is the present token, whatever
	// the revisions say. It is for an etcd whose revisions went back, and only
	// for a claimant that has seen its own key after its claim was refused.
	Over int64
}

// Fence is the newest claim that was accepted.
type Fence struct {
	Name     string
	Token    int64
	Holder   string
	Cluster  string
	Revision int64
	Claimed  time.Time
}

// Proof is what an effect shows of the fence: the transaction does nothing and
// fails with ErrFenced unless the fence still has this token and holder.
type Proof struct {
	Name   string
	Token  int64
	Holder string
}

// Proof is what the holder of the fence shows.
func (f Fence) Proof() Proof { return Proof{Name: f.Name, Token: f.Token, Holder: f.Holder} }
