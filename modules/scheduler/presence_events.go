package scheduler

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/obs"
	"github.com/imdhq/imd/pkg/outbox"
	"github.com/imdhq/imd/pkg/presence"
	"github.com/imdhq/imd/pkg/store"
)

const (
	// turnBatch is how many users one call to the store names, and maxTurns how many
	// may wait. When there are more, all are compared anew later.
	turnBatch = 500
	maxTurns  = 100_000
	// turnTime bounds such a call.
	turnTime = 2 * time.Second
)

// turned are users that came or went and of whom no event says so yet. Only the
// newest turn of a user waits. The store has of each user what its newest event
// says, so nothing is told twice, by whichever leader. Safe for concurrent use.
type turned struct {
	f    *following
	wake chan struct{}

	mu    sync.Mutex
	waits map[im.UserID]presence.Turn
	lost  bool // some were dropped
}

// turnedFor makes them if a receiver wants to hear of users; else nil.
func turnedFor(f *following) *turned {
	if !slices.ContainsFunc(f.s.receivers, func(r receiver) bool {
		wants := outbox.Wanted(r.Events)
		return wants(store.UserOnline) || wants(store.UserOffline)
	}) {
		return nil
	}
	return &turned{f: f, wake: make(chan struct{}, 1), waits: map[im.UserID]presence.Turn{}}
}

// add takes turns.
func (w *turned) add(list []presence.Turn) {
	if w == nil || len(list) == 0 {
		return
	}
	w.mu.Lock()
	for _, t := range list {
		if _, there := w.waits[t.User]; !there && len(w.waits) >= maxTurns {
			w.lost = true
			continue
		}
		w.waits[t.User] = t
	}
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// run makes events of turns until ctx is done.
func (w *turned) run(ctx context.Context) {
	if !w.learn(ctx) {
		return
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.wake:
		}
		for w.some(ctx) {
		}
		if w.incomplete() && !w.learn(ctx) {
			return
		}
	}
}

// incomplete reports whether turns were dropped since it was last asked.
func (w *turned) incomplete() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	lost := w.lost
	w.lost = false
	return lost
}

// learn tells the core what the events say so far; false = ctx is done.
func (w *turned) learn(ctx context.Context) bool {
	told := presence.Told{First: true}
	var after im.UserID
	for !told.Last {
		users, err := w.read(ctx, after)
		if err != nil {
			w.f.s.Log.Warn("of whom events say that they are online was not read; it is tried again", obs.Err(err))
			if !pause(ctx, bookPause) {
				return false
			}
			continue
		}
		told.Users, told.Last = users, len(users) < turnBatch
		if len(users) > 0 {
			after = users[len(users)-1]
		}
		select {
		case w.f.inbox <- told:
		case <-ctx.Done():
			return false
		}
		told.First = false
	}
	return true
}

func (w *turned) read(ctx context.Context, after im.UserID) ([]im.UserID, error) {
	ctx, cancel := context.WithTimeout(ctx, turnTime)
	defer cancel()
	st, err := w.f.s.Store()
	if err != nil {
		return nil, err
	}
	return st.OnlineUsers(ctx, after, turnBatch)
}

// some makes events of some turns; false = nothing is left to do, or the term is
// over.
func (w *turned) some(ctx context.Context) bool {
	batch := w.take()
	if len(batch) == 0 || ctx.Err() != nil {
		return false
	}
	err := w.put(ctx, batch)
	switch {
	case err == nil:
		w.f.s.presence.turns.WithLabelValues("ok").Add(float64(len(batch)))
		w.f.s.news.tell()
		return true
	case errors.Is(err, store.ErrFenced):
		w.f.end(err)
		return false
	}
	w.f.s.presence.turns.WithLabelValues("failed").Add(float64(len(batch)))
	w.f.s.Log.Warn("who came and went has not become events; it is tried again", zap.Int("users", len(batch)), obs.Err(err))
	w.putBack(batch)
	return pause(ctx, bookPause)
}

func (w *turned) take() (batch []presence.Turn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for u, t := range w.waits {
		if len(batch) == turnBatch {
			break
		}
		batch = append(batch, t)
		delete(w.waits, u)
	}
	slices.SortFunc(batch, func(a, b presence.Turn) int { return a.At.Compare(b.At) })
	return batch
}

// putBack queues again what was not stored, unless something newer waits.
func (w *turned) putBack(batch []presence.Turn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, t := range batch {
		if _, newer := w.waits[t.User]; !newer {
			w.waits[t.User] = t
		}
	}
}

func (w *turned) put(ctx context.Context, batch []presence.Turn) error {
	ctx, cancel := context.WithTimeout(ctx, turnTime)
	defer cancel()
	st, err := w.f.s.Store()
	if err != nil {
		return err
	}
	events := make([]store.Event, len(batch))
	for i, t := range batch {
		events[i] = store.Event{Kind: store.UserOffline, User: t.User, At: t.At}
		if t.Online {
			events[i].Kind = store.UserOnline
		}
	}
	return st.PutEvents(ctx, w.f.t.Proof(), events)
}
