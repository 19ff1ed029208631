package gateway

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// noAnnouncements is the cursor of a session whose client wants none.
const noAnnouncements = -1

// announced is one announcement, or that one was taken back, ready for all sessions.
type announced struct {
	seq     int64     // of it, or of that
	expires time.Time // of the announcement: nobody shows it any more
	frame   *shared
}

// announcer holds what everybody is told, as the leader of the schedulers handed
// it over. It begins with nothing; the leader finds a new gateway within a second.
type announcer struct {
	g *Gateway

	// mu is held while sessions are told, so that a frame of mu's is made once.
	mu      sync.Mutex
	token   int64 // of the leader that handed it over
	version int64
	epoch   string                // of the store
	list    []announced           // by seq
	behind  map[*session]struct{} // sessions for which too much waited, until they are told
}

func newAnnouncer(g *Gateway) *announcer {
	return &announcer{g: g, behind: map[*session]struct{}{}}
}

// announcedOf is what a leader hands over, in the order of the one sequence.
func announcedOf(r *v1.ProclaimRequest) ([]announced, error) {
	var list []announced
	for _, x := range slices.Concat(r.Announcements, r.Withdrawn) {
		b, err := proto.Marshal(&clientv1.ServerFrame{Kind: &clientv1.ServerFrame_Announcement{Announcement: x}})
		if err != nil {
			return nil, err
		}
		one := announced{seq: x.Seq, expires: time.UnixMilli(x.ExpiresMs), frame: &shared{frame: b}}
		if x.Withdrawn {
			one.seq = x.WithdrawalSeq
		}
		list = append(list, one)
	}
	slices.SortFunc(list, func(a, b announced) int { return cmp.Compare(a.seq, b.seq) })
	return list, nil
}

// take puts what a leader says in place of what was there, and tells sessions what
// is new. What is older than what is there is ignored.
func (a *announcer) take(token int64, r *v1.ProclaimRequest, now time.Time) error {
	list, err := announcedOf(r)
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if token < a.token || token == a.token && a.epoch == r.DataEpoch && r.Version < a.version {
		return nil
	}
	a.token, a.version, a.epoch, a.list = token, r.Version, r.DataEpoch, list
	a.tell(now)
	return nil
}

// tell tells all sessions; a.mu is held.
func (a *announcer) tell(now time.Time) {
	var touched []*session
	for _, s := range a.g.hub.all() {
		if a.session(s, now) {
			touched = append(touched, s)
		}
	}
	flush(touched)
}

// session tells one session what it has not been told, and reports whether that
// was something; a.mu is held.
func (a *announcer) session(s *session, now time.Time) (told bool) {
	delete(a.behind, s)
	for _, x := range a.list {
		if !x.expires.After(now) {
			continue
		}
		switch s.announce(x, a.epoch) {
		case announceTold:
			told = true
			a.g.m.announcements.Inc()
		case announceBehind:
			a.behind[s] = struct{}{}
			return told
		}
	}
	return told
}

// greet tells a session that has just begun.
func (a *announcer) greet(s *session) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.session(s, time.Now()) {
		flush([]*session{s})
	}
}

// pay tells sessions that were behind, and forgets those that have ended.
func (a *announcer) pay(now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	var touched []*session
	for s := range a.behind {
		if a.session(s, now) {
			touched = append(touched, s)
		}
	}
	flush(touched)
}

// What became of an announcement for a session.
const (
	announceKnown  = iota // it has it, or wants none
	announceTold          // it is queued
	announceBehind        // too much waits for it
)

// announce queues an announcement that the session was not told, and leaves
// flushing to the caller.
func (s *session) announce(x announced, epoch string) int {
	s.mu.Lock()
	defer s.mu.Mutex.Unlock()
	if s.phase != online || s.announcedSeq == noAnnouncements {
		return announceKnown
	}
	if s.announcedEpoch != epoch { // numbers of another history mean nothing
		s.announcedEpoch, s.announcedSeq = epoch, 0
	}
	if x.seq <= s.announcedSeq {
		return announceKnown
	}
	data, err := x.frame.in(s.enc)
	if err != nil {
		return announceKnown
	}
	if s.q.fill() > relaxedFill || s.q.deliver(outFrame{data: data, kind: kindAnnouncement}) {
		return announceBehind
	}
	s.announcedSeq = x.seq
	return announceTold
}

// Proclaim takes in all announcements that are in force, and what was taken back.
func (s service) Proclaim(_ context.Context, req *v1.ProclaimRequest) (*v1.ProclaimResponse, error) {
	const op = "gateway.Proclaim"
	if err := s.leads(op, req.Leader); err != nil {
		return nil, err
	}
	if max(len(req.Announcements), len(req.Withdrawn)) > store.MaxAnnouncements {
		return nil, im.Errorf(clientv1.Reason_REASON_BAD_REQUEST, op, "more than %d announcements", store.MaxAnnouncements)
	}
	if err := s.g.announcer.take(req.Leader.Token, req, time.Now()); err != nil {
		return nil, im.Errorf(clientv1.Reason_REASON_BAD_REQUEST, op, "an announcement cannot be encoded")
	}
	return &v1.ProclaimResponse{BootId: s.g.Boot}, nil
}
