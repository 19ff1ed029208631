package scheduler

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/obs"
	"github.com/imdhq/imd/pkg/presence"
	"github.com/imdhq/imd/pkg/store"
)

const (
	// bookBatch is how many users one call to the store names.
	bookBatch = 500
	// bookTime bounds such a call, and bookPause is the wait after one that failed.
	bookTime  = 2 * time.Second
	bookPause = 500 * time.Millisecond
	// noteEvery is how long times are collected before they are saved.
	noteEvery = time.Second
	// maxBook is how many times may wait to be saved.
	maxBook = 100_000
)

// book keeps when users were last seen, in the message store. Safe for concurrent
// use.
type book struct {
	f    *following
	wake chan struct{}

	mu    sync.Mutex
	loads []im.UserID
	saves map[im.UserID]time.Time
}

func newBook(f *following) *book {
	return &book{f: f, wake: make(chan struct{}, 1), saves: map[im.UserID]time.Time{}}
}

// add takes what a step wants loaded and saved.
func (b *book) add(fx presence.Effects) {
	for _, x := range fx.Save {
		b.note(x)
	}
	if len(fx.Load) == 0 {
		return
	}
	b.mu.Lock()
	b.loads = append(b.loads, fx.Load...)
	b.mu.Unlock()
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// note has a time saved.
func (b *book) note(x presence.Seen) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, there := b.saves[x.User]; !there && len(b.saves) >= maxBook {
		b.f.s.presence.saved.WithLabelValues("dropped").Inc()
		return
	}
	if x.At.After(b.saves[x.User]) {
		b.saves[x.User] = x.At
	}
}

// run loads and saves until ctx is done.
func (b *book) run(ctx context.Context) {
	save := time.NewTicker(noteEvery)
	defer save.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-b.wake:
			for b.load(ctx) {
			}
		case <-save.C:
			for b.saveSome(ctx) {
			}
		}
	}
}

// load finds out when some users were last seen; false = nothing is left to do,
// or ctx is done. Until it succeeds, whoever asked waits and then asks the route
// store.
func (b *book) load(ctx context.Context) bool {
	b.mu.Lock()
	n := min(len(b.loads), bookBatch)
	users := b.loads[:n:n]
	b.mu.Unlock()
	if n == 0 || ctx.Err() != nil {
		return false
	}
	found, err := b.read(ctx, users)
	if err != nil {
		b.f.s.Log.Warn("when users were last seen was not read; it is tried again", obs.Err(err))
		return pause(ctx, bookPause)
	}
	at := make(map[im.UserID]time.Time, len(found))
	for _, x := range found {
		at[x.User] = x.At
	}
	ev := presence.Loaded{}
	b.mu.Lock()
	b.loads = b.loads[n:]
	for _, u := range users {
		if waits := b.saves[u]; waits.After(at[u]) { // it is not saved yet
			at[u] = waits
		}
		ev.Users = append(ev.Users, presence.Seen{User: u, At: at[u]})
	}
	b.mu.Unlock()
	select {
	case b.f.inbox <- ev:
		return true
	case <-ctx.Done():
		return false
	}
}

func (b *book) read(ctx context.Context, users []im.UserID) ([]store.Seen, error) {
	ctx, cancel := context.WithTimeout(ctx, bookTime)
	defer cancel()
	st, err := b.f.s.Store()
	if err != nil {
		return nil, err
	}
	return st.Seen(ctx, users)
}

// saveSome saves some times; false = nothing is left to do, or it is to be tried
// later.
func (b *book) saveSome(ctx context.Context) bool {
	b.mu.Lock()
	batch := make([]store.Seen, 0, min(len(b.saves), bookBatch))
	for u, at := range b.saves {
		if len(batch) == bookBatch {
			break
		}
		batch = append(batch, store.Seen{User: u, At: at})
		delete(b.saves, u)
	}
	b.mu.Unlock()
	if len(batch) == 0 || ctx.Err() != nil {
		return false
	}
	err := b.save(ctx, batch)
	switch {
	case err == nil:
		b.f.s.presence.saved.WithLabelValues("ok").Add(float64(len(batch)))
		return true
	case errors.Is(err, store.ErrFenced):
		b.f.end(err)
		return false
	}
	b.f.s.presence.saved.WithLabelValues("failed").Add(float64(len(batch)))
	b.f.s.Log.Warn("when users were last seen was not saved; it is tried again", obs.Err(err))
	for _, x := range batch {
		b.note(presence.Seen{User: x.User, At: x.At})
	}
	return false
}

func (b *book) save(ctx context.Context, batch []store.Seen) error {
	ctx, cancel := context.WithTimeout(ctx, bookTime)
	defer cancel()
	st, err := b.f.s.Store()
	if err != nil {
		return err
	}
	return st.SaveSeen(ctx, b.f.t.Proof(), batch)
}

// pause waits, and reports false if ctx ends first.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
