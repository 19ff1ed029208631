package tally

import (
	"maps"
	"slices"
	"sync"
	"time"

	v1 "github.com/imdhq/imd/proto/gen/internalv1"
)

// Minutes is how many minutes are kept besides the present one.
const Minutes = 30

// slots is more than is kept, so that a minute is never written over while it is
// told.
const slots = Minutes + 2

// minuteOf is the minute of a time, counted from 1970.
func minuteOf(t time.Time) int64 { return t.Unix() / 60 }

// Present is who is connected to a process.
type Present struct {
	Sessions map[string]int64 // by device class; nil = the process has no gateway
	Users    int64
}

// Book is what one process counts. The methods of a nil Book do nothing. Safe for
// concurrent use.
type Book struct {
	now func() time.Time

	mu      sync.Mutex
	minutes [slots]count
	present func() Present // nil = the process has no gateway
	cluster *v1.Tally      // what the leader told last; nil = nothing
}

// count is one minute.
type count struct{ minute, stored, delivered int64 }

// New makes a Book that reads the time from now.
func New(now func() time.Time) *Book { return &Book{now: now} }

// Stored counts messages that were stored.
func (b *Book) Stored(n int) { b.add(int64(n), 0) }

// Delivered counts messages that were queued for sessions.
func (b *Book) Delivered(n int) { b.add(0, int64(n)) }

func (b *Book) add(stored, delivered int64) {
	if b == nil || stored+delivered == 0 {
		return
	}
	m := minuteOf(b.now())
	b.mu.Lock()
	defer b.mu.Unlock()
	c := &b.minutes[m%slots]
	if c.minute != m {
		*c = count{minute: m}
	}
	c.stored += stored
	c.delivered += delivered
}

// Watch says who is asked for who is connected; it must be quick. Once, before
// anybody asks.
func (b *Book) Watch(present func() Present) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.present = present
}

// Tell is what this process counted; the caller adds who it is.
func (b *Book) Tell() *v1.TallyResponse {
	res := &v1.TallyResponse{}
	if b == nil {
		return res
	}
	now := minuteOf(b.now())
	b.mu.Lock()
	present := b.present
	for _, c := range b.minutes {
		if c.minute > now-Minutes-1 && c.minute <= now {
			res.Minutes = append(res.Minutes, &v1.TallyMinute{Minute: c.minute, Stored: c.stored, Delivered: c.delivered})
		}
	}
	b.mu.Unlock()
	slices.SortFunc(res.Minutes, func(x, y *v1.TallyMinute) int { return int(x.Minute - y.Minute) })
	if present != nil {
		p := present()
		res.Gateway, res.Sessions, res.Users = true, maps.Clone(p.Sessions), p.Users
	}
	return res
}

// Keep keeps what a leader told of the cluster, unless something newer is kept:
// of a later leader, or of the same one at a later time. It is not changed
// afterwards.
func (b *Book) Keep(t *v1.Tally) {
	if b == nil || t == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if !older(t, b.cluster) {
		b.cluster = t
	}
}

// Cluster is what is kept; nil = nothing. It must not be changed.
func (b *Book) Cluster() *v1.Tally {
	if b == nil {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.cluster
}

// older reports whether a was told before b; nothing is older than anything.
func older(a, b *v1.Tally) bool {
	if a == nil || b == nil {
		return a == nil && b != nil
	}
	return a.Token < b.Token || a.Token == b.Token && a.AtMs < b.AtMs
}
