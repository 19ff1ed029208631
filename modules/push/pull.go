package push

import (
	"context"
	"math"
	"sync"
	"time"

	"github.com/imdhq/imd/pkg/im"
)

const (
	// pullWindow is over which time the messages a second of a group are averaged.
	pullWindow = 2 * time.Second
	// maxPulls is how many groups are watched; those without messages for pullIdle
	// make room.
	maxPulls = 4096
	pullIdle = time.Minute
)

// hint is that a conversation has entries up to seq, for members as of version.
type hint struct {
	conv    string
	seq     int64
	version int64
}

// pull decides for one large group whether its devices are given messages or
// hints. The zero value gives messages. It has no clock.
type pull struct {
	weight  float64 // of the messages, halved and halved again with time
	at      time.Time
	pulling bool
	online  map[im.NodeID]int // sessions of its members, as the gateways last told
	every   time.Duration
	next    time.Time // before it no further hint goes
	waits   *hint     // goes at next
}

// note takes n messages; pulled = they are to be read. now is a hint that goes at
// once.
func (p *pull) note(now time.Time, t pullTuning, h hint, sessions, n int) (pulled bool, at *hint) {
	p.weight = p.weight*math.Exp(-float64(now.Sub(p.at))/float64(pullWindow)) + float64(n)
	p.at = now
	load := float64(sessions) * p.weight / pullWindow.Seconds()
	switch {
	case sessions <= t.sessions:
		p.pulling = false
	case load > t.load:
		p.pulling = true
	case load < t.load/2:
		p.pulling = false
	}
	if !p.pulling {
		return false, nil // what waits still goes
	}
	if now.Before(p.next) {
		if p.waits == nil || p.waits.seq < h.seq {
			p.waits = &h
		}
		return true, nil
	}
	p.next, p.waits, p.every = now.Add(t.interval), nil, t.interval
	return true, &h
}

// due is the hint that waits, if its time has come.
func (p *pull) due(now time.Time) *hint {
	if p.waits == nil || now.Before(p.next) {
		return nil
	}
	h := p.waits
	p.next, p.waits = now.Add(p.every), nil
	return h
}

// pulls are the groups that may be read. Safe for concurrent use.
type pulls struct {
	wake chan struct{} // capacity 1: a hint waits, or all are to go

	mu     sync.Mutex
	byConv map[string]*pull
	now    bool // hints wait no more
	taken  int  // hints that were taken and are not told yet
}

func newPulls() *pulls {
	return &pulls{wake: make(chan struct{}, 1), byConv: map[string]*pull{}}
}

// note is pull.note for the group of h, with the sessions on the gateways.
func (ps *pulls) note(now time.Time, t pullTuning, h hint, to target, n int) (pulled bool, at *hint) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	p := ps.byConv[h.conv]
	if p == nil {
		if to.members <= t.sessions {
			return false, nil
		}
		if len(ps.byConv) >= maxPulls {
			if ps.tidy(now); len(ps.byConv) >= maxPulls {
				return false, nil
			}
		}
		p = &pull{online: map[im.NodeID]int{}}
		ps.byConv[h.conv] = p
	}
	sessions := 0
	for _, node := range to.nodes {
		sessions += p.online[node]
	}
	waited := p.waits != nil
	pulled, at = p.note(now, t, h, sessions, n)
	if p.waits != nil && (!waited || ps.now) {
		ps.signal()
	}
	return pulled, at
}

// heard notes to how many sessions a gateway has delivered.
func (ps *pulls) heard(conv string, node im.NodeID, sessions int) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if p := ps.byConv[conv]; p != nil {
		p.online[node] = sessions
	}
}

// tidy forgets groups in which nothing happens. ps.mu is held.
func (ps *pulls) tidy(now time.Time) {
	for conv, p := range ps.byConv {
		if p.waits == nil && now.Sub(p.at) > pullIdle {
			delete(ps.byConv, conv)
		}
	}
}

// due takes the hints whose time has come, and tells when the next one's does.
func (ps *pulls) due(now time.Time) (list []hint, next time.Time) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	for _, p := range ps.byConv {
		if ps.now {
			p.next = time.Time{}
		}
		if h := p.due(now); h != nil {
			list = append(list, *h)
		} else if p.waits != nil && (next.IsZero() || p.next.Before(next)) {
			next = p.next
		}
	}
	ps.taken = len(list)
	return list, next
}

// told notes that the hints which were taken are told.
func (ps *pulls) told() {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	ps.taken = 0
}

// hurry lets all hints go at once, and returns how many there still are.
func (ps *pulls) hurry() (n int) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	ps.now = true
	for _, p := range ps.byConv {
		if p.waits != nil {
			n++
		}
	}
	if n > 0 {
		ps.signal()
	}
	return n + ps.taken
}

func (ps *pulls) signal() {
	select {
	case ps.wake <- struct{}{}:
	default:
	}
}

// run tells each hint when its time comes, until ctx is done.
func (ps *pulls) run(ctx context.Context, tell func(hint)) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		list, next := ps.due(time.Now())
		for _, h := range list {
			tell(h)
		}
		ps.told()
		if next.IsZero() {
			next = time.Now().Add(pullIdle)
		}
		timer.Reset(time.Until(next))
		select {
		case <-ctx.Done():
			return
		case <-ps.wake:
		case <-timer.C:
		}
	}
}
