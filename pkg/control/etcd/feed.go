package etcd

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/imdhq/imd/pkg/control"
)

const (
	feedWindow = 100 * time.Millisecond // changes of nodes this close together are told together
	feedDepth  = 256                    // changes that are remembered
	feedBytes  = 1 << 20                // of their keys and values
)

// errNoFeed is the answer while this process does not follow etcd itself.
var errNoFeed = errors.New("control: this node does not follow etcd at the moment")

// feed answers subscribers of one area from the copy that the watch keeps. It
// holds nothing for a subscriber but its waiting call: one that is too far behind
// gets all records.
type feed struct {
	prefix string
	window time.Duration
	every  bool // each change is told by itself; else the newest of each key

	mu      sync.Mutex
	has     bool
	shown   replica  // what subscribers see
	newest  replica  // what they see at the end of the window
	horizon int64    // changes since this revision and later are known
	past    []change // by revision; without every, only deletions
	bytes   int      // of past
	waiting int
	changed chan struct{} // closed when shown changes
	last    time.Time     // of the last change of shown
	timer   *time.Timer   // ends the window; nil = none runs
}

// change is what became of a key, and the revision by which it did.
type change struct {
	key  string
	rev  int64
	rec  record
	gone bool
}

func (c change) size() int { return len(c.key) + len(c.rec.raw) }

// newFeed makes a feed of the keys below prefix. Changes within window are told
// together; every tells each change by itself, and wants no window.
func newFeed(prefix string, window time.Duration, every bool) *feed {
	return &feed{prefix: prefix, window: window, every: every, changed: make(chan struct{})}
}

// offer takes in a new copy, and the events that led to it; none if all was read.
func (f *feed) offer(next replica, events []*clientv3.Event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.every && f.has {
		f.record(next, events)
	}
	f.newest = next
	wait := f.window - time.Since(f.last)
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

// record remembers the events. Changes whose events were missed are not known
// one by one. The caller holds mu.
func (f *feed) record(next replica, events []*clientv3.Event) {
	if len(events) == 0 && next.differences(f.shown) > 0 {
		f.forget(next.rev)
		return
	}
	for _, ev := range events {
		if ev.Kv.ModRevision > f.shown.rev {
			c := change{key: string(ev.Kv.Key), rev: ev.Kv.ModRevision, gone: ev.Type == clientv3.EventTypeDelete}
			if !c.gone {
				c.rec = next.parse(ev.Kv)
			}
			f.remember(c)
		}
	}
}

// remember adds a change, within the bounds. The caller holds mu.
func (f *feed) remember(c change) {
	f.past = append(f.past, c)
	f.bytes += c.size()
	n := 0
	for len(f.past)-n > feedDepth || f.bytes > feedBytes && n < len(f.past) {
		f.horizon, f.bytes = f.past[n].rev, f.bytes-f.past[n].size()
		n++
	}
	if n > 0 {
		f.past = slices.Clone(f.past[n:])
	}
}

// forget begins anew at a revision. The caller holds mu.
func (f *feed) forget(rev int64) { f.past, f.bytes, f.horizon = nil, 0, rev }

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
	switch {
	case !f.has || next.cluster != f.shown.cluster || next.rev < f.shown.rev:
		f.forget(next.rev)
	case !f.every:
		for k := range f.shown.records {
			if _, ok := next.records[k]; !ok {
				f.remember(change{key: k, rev: next.rev, gone: true})
			}
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
	f.asked(1)
	defer f.asked(-1)
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	for {
		b, changed, ok := f.since(at)
		switch {
		case !ok:
			return control.Batch{}, errNoFeed
		case b.Full, len(b.Records) > 0, ctx.Err() != nil:
			return b, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
}

func (f *feed) asked(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.waiting += n
}

// asking is how many calls wait.
func (f *feed) asking() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.waiting
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
	if b.Full || !f.every {
		for k, r := range f.shown.records {
			if b.Full || r.mod > at.Revision {
				b.Records = append(b.Records, f.told(change{key: k, rev: r.mod, rec: r}))
			}
		}
	}
	if !b.Full {
		for _, c := range f.past {
			if _, back := f.shown.records[c.key]; c.rev > at.Revision && (f.every || !back) {
				b.Records = append(b.Records, f.told(c))
			}
		}
	}
	slices.SortStableFunc(b.Records, func(x, y control.Record) int {
		return cmp.Or(cmp.Compare(x.Revision, y.Revision), strings.Compare(x.Key, y.Key))
	})
	return b, f.changed, true
}

// told is a change as subscribers get it.
func (f *feed) told(c change) control.Record {
	return control.Record{
		Key: strings.TrimPrefix(c.key, f.prefix), Value: c.rec.raw, Revision: c.rev, Gone: c.gone,
		Created: c.rec.create, Version: c.rec.version, Lease: c.rec.lease,
	}
}
