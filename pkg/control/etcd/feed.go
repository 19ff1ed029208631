package etcd

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/imdhq/imd/pkg/control"
)

const (
	feedWindow = 100 * time.Millisecond // changes this close together are told together
	feedDepth  = 256                    // deletions that are remembered
)

// errNoFeed is the answer while this process does not follow etcd itself.
var errNoFeed = errors.New("control: this node does not follow etcd at the moment")

// feed answers subscribers from the copy that the watch keeps. It holds nothing
// for a subscriber but its waiting call: one that is too far behind gets all
// records.
type feed struct {
	prefix string

	mu      sync.Mutex
	has     bool
	shown   replica // what subscribers see
	newest  replica // what they see at the end of the window
	horizon int64   // changes since this revision and later are known
	gone    []deletion
	changed chan struct{} // closed when shown changes
	last    time.Time     // of the last change of shown
	timer   *time.Timer   // ends the window; nil = none runs
}

// deletion is a key that went, and the revision by which it was gone.
type deletion struct {
	key string
	rev int64
}

func newFeed(prefix string) *feed { return &feed{prefix: prefix, changed: make(chan struct{})} }

// offer takes in a new copy.
func (f *feed) offer(next replica) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.newest = next
	wait := feedWindow - time.Since(f.last)
	switch {
	case f.timer != nil: // it will show what is newest
	case !f.has || wait <= 0:
		f.show()
	default:
		f.timer = time.AfterFunc(wait, func() {
			f.mu.Lock()
			defer f.mu.Unlock()
			if f.timer != nil {
				f.timer = nil
				f.show()
			}
		})
	}
}

// withdraw ends all answers until the next offer: the copy may be old.
func (f *feed) withdraw() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.has && f.timer == nil {
		return
	}
	f.has = false
	if f.timer != nil {
		f.timer.Stop()
		f.timer = nil
	}
	f.wake()
}

// show makes the newest copy visible. The caller holds mu.
func (f *feed) show() {
	next := f.newest
	if !f.has || next.cluster != f.shown.cluster || next.rev < f.shown.rev {
		f.gone, f.horizon = nil, next.rev
	} else {
		for k := range f.shown.records {
			if _, ok := next.records[k]; !ok {
				f.gone = append(f.gone, deletion{k, next.rev})
			}
		}
		if extra := len(f.gone) - feedDepth; extra > 0 {
			f.horizon = f.gone[extra-1].rev
			f.gone = slices.Clone(f.gone[extra:])
		}
	}
	f.has, f.shown, f.last = true, next, time.Now()
	f.wake()
}

func (f *feed) wake() {
	close(f.changed)
	f.changed = make(chan struct{})
}

// Changes answers one subscriber; see control.Feed.
func (f *feed) Changes(ctx context.Context, at control.Cursor, wait time.Duration) (control.Batch, error) {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	for {
		b, changed, ok := f.since(at)
		switch {
		case !ok:
			return control.Batch{}, errNoFeed
		case b.Full, len(b.Put) > 0, len(b.Deleted) > 0, ctx.Err() != nil:
			return b, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
}

// since is what a subscriber at a cursor lacks.
func (f *feed) since(at control.Cursor) (b control.Batch, changed <-chan struct{}, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.has {
		return b, nil, false
	}
	b.Cursor = control.Cursor{Revision: f.shown.rev, Cluster: f.shown.cluster}
	b.Full = at.Revision == 0 || at.Cluster != b.Cluster || at.Revision < f.horizon || at.Revision > b.Revision
	for k, r := range f.shown.records {
		if b.Full || r.mod > at.Revision {
			b.Put = append(b.Put, control.Record{Key: strings.TrimPrefix(k, f.prefix), Value: r.raw, Revision: r.mod, Lease: r.lease})
		}
	}
	slices.SortFunc(b.Put, func(x, y control.Record) int { return strings.Compare(x.Key, y.Key) })
	if !b.Full {
		for _, g := range f.gone {
			if _, back := f.shown.records[g.key]; g.rev > at.Revision && !back {
				b.Deleted = append(b.Deleted, strings.TrimPrefix(g.key, f.prefix))
			}
		}
	}
	return b, f.changed, true
}
