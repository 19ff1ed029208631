package state

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/dedup"
	"github.com/imdhq/imd/pkg/failpoint"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/lane"
	"github.com/imdhq/imd/pkg/obs"
	"github.com/imdhq/imd/pkg/store"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

const (
	// maxNotes bounds what waits to be written to the dedup cache.
	maxNotes = 8192
	// noteBatch is the most of it in one call.
	noteBatch = 512
	// noteTimeout bounds one call.
	noteTimeout = time.Second
)

// repeats answers sends that come again from the dedup cache, and tells the
// cache, behind the acks, what became of sends. The cache is no authority: what
// it does not know, or knows otherwise, goes to the store. Which sends are on
// their way in this process is known to the lanes.
type repeats struct {
	cache dedup.Cache
	owner string // this process, in the cache
	m     *metrics
	log   *zap.Logger
	wake  chan struct{} // capacity 1: there is something to write

	mu    sync.Mutex
	notes notes
}

// notes is what the cache should know.
type notes struct {
	done   []dedup.Confirmed
	failed []dedup.Key // marked as ours, and failed for good
}

func (n *notes) len() int { return len(n.done) + len(n.failed) }

func newRepeats(c dedup.Cache, node im.NodeID, m *metrics, log *zap.Logger) *repeats {
	return &repeats{cache: c, owner: fmt.Sprintf("%s.%016x", node, rand.Uint64()), m: m, log: log, wake: make(chan struct{}, 1)}
}

// spot is one send of a call.
type spot struct{ run, send int }

// looked is what the cache said of the resends of a call. The zero value: nothing.
type looked struct {
	known map[spot]dedup.Answer // acknowledged by the store, with the same content
	mine  map[spot]dedup.Key    // marked as this process's now
}

// lookUp asks the cache, in one call, about the sends that are marked as
// resends. Runs may be nil.
func (r *repeats) lookUp(ctx context.Context, epoch string, runs []*v1.Run) looked {
	var keys []dedup.Key
	var places []spot
	for i, run := range runs {
		for j, s := range run.GetSends() {
			if s.Resend && len(s.BodyHash) == 32 && protocol.ValidUUID(s.ClientMessageId) && protocol.ValidID(run.ConversationId) &&
				(run.UserId == "" || protocol.ValidID(run.UserId)) {
				keys = append(keys, dedup.Key{
					DataEpoch: epoch, Conversation: im.ConversationID(run.ConversationId), Sender: im.UserID(run.UserId),
					ClientMessageID: im.ClientMessageID(s.ClientMessageId),
				})
				places = append(places, spot{i, j})
			}
		}
	}
	if len(keys) == 0 || failpoint.Bad(failpoint.PermissionBeforeDedup) { // which is asked of the store alone
		return looked{}
	}
	found, err := r.cache.Try(ctx, r.owner, keys)
	if err != nil {
		r.m.dedupLookups.WithLabelValues("failed").Add(float64(len(keys)))
		r.m.dedupErrors.WithLabelValues(string(dedup.ClassOf(err))).Inc()
		return looked{}
	}
	l := looked{map[spot]dedup.Answer{}, map[spot]dedup.Key{}}
	for i, f := range found {
		at := places[i]
		result := "miss"
		switch {
		case f.State == dedup.Known && (string(f.Answer.BodyHash[:]) == string(runs[at.run].Sends[at.send].BodyHash) || failpoint.Bad(failpoint.CacheIsAuthority)):
			l.known[at], result = f.Answer, "hit"
		case f.State == dedup.Known:
			result = "other_content"
		case f.State == dedup.InFlight:
			result = "in_flight"
		case f.State == dedup.Unreadable:
			result = "unreadable"
		default:
			l.mine[at] = keys[i]
		}
		r.m.dedupLookups.WithLabelValues(result).Inc()
	}
	return l
}

// resultOf is an answer of the cache in the form of the store's.
func resultOf(a dedup.Answer) store.AppendResult {
	return store.AppendResult{
		MessageID: a.MessageID, Seq: a.Seq, PrevSeq: a.PrevSeq, ServerTime: a.ServerTime, MemberVersion: a.MemberVersion, Duplicate: true,
	}
}

// confirmed notes what the store has acknowledged under an epoch. It never
// waits; what does not fit is dropped and counted.
func (r *repeats) confirmed(epoch string, done []lane.Committed) {
	dropped := 0
	r.mu.Lock()
	for i := range done {
		d := &done[i]
		switch {
		case d.Send == nil:
		case r.notes.len() >= maxNotes:
			dropped++
		default:
			r.notes.done = append(r.notes.done, confirmedOf(epoch, d))
		}
	}
	r.mu.Unlock()
	r.noted(dropped)
}

func confirmedOf(epoch string, d *lane.Committed) dedup.Confirmed {
	row, res := &d.Send.Row, &d.Result
	return dedup.Confirmed{
		Key: dedup.Key{DataEpoch: epoch, Conversation: row.Conversation, Sender: row.Sender, ClientMessageID: row.ClientMessageID},
		Answer: dedup.Answer{
			MessageID: res.MessageID, Seq: res.Seq, PrevSeq: res.PrevSeq, ServerTime: res.ServerTime,
			MemberVersion: res.MemberVersion, BodyHash: row.BodyHash,
		},
	}
}

// cancelled notes that a send which was marked as ours failed for good.
func (r *repeats) cancelled(k dedup.Key) {
	dropped := 0
	r.mu.Lock()
	if r.notes.len() < maxNotes {
		r.notes.failed = append(r.notes.failed, k)
	} else {
		dropped = 1
	}
	r.mu.Unlock()
	r.noted(dropped)
}

// noted wakes who writes the notes.
func (r *repeats) noted(dropped int) {
	if dropped > 0 {
		r.m.dedupNotes.WithLabelValues("dropped").Add(float64(dropped))
	}
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// run writes notes until ctx is done.
func (r *repeats) run(ctx context.Context) {
	var spare notes // its arrays are used again
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.wake:
		}
		taken := r.take(spare)
		for b := range slices.Chunk(taken.done, noteBatch) {
			r.tell(ctx, len(b), func(ctx context.Context) error { return r.cache.Confirm(ctx, b) })
		}
		for b := range slices.Chunk(taken.failed, noteBatch) {
			r.tell(ctx, len(b), func(ctx context.Context) error { return r.cache.Cancel(ctx, r.owner, b) })
		}
		clear(taken.done) // lets go of what they name
		clear(taken.failed)
		spare = taken
	}
}

// take takes all notes, and leaves the arrays of spare to the next ones.
func (r *repeats) take(spare notes) notes {
	r.mu.Lock()
	defer r.mu.Unlock()
	taken := r.notes
	r.notes = notes{done: spare.done[:0], failed: spare.failed[:0]}
	return taken
}

// tell makes one call to the cache. A note that is lost costs a question to the
// store.
func (r *repeats) tell(ctx context.Context, n int, call func(context.Context) error) {
	ctx, cancel := context.WithTimeout(ctx, noteTimeout)
	defer cancel()
	result := "written"
	if err := call(ctx); err != nil {
		result = "failed"
		r.m.dedupErrors.WithLabelValues(string(dedup.ClassOf(err))).Inc()
		r.log.Debug("the dedup cache did not take notes; the store answers instead", zap.Int("notes", n), obs.Err(err))
	}
	r.m.dedupNotes.WithLabelValues(result).Add(float64(n))
}
