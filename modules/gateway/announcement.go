package gateway

import (
	"context"
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

// announced is one announcement, ready for all sessions.
type announced struct {
	seq     int64
	expires time.Time
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
	epoch   string // of the store
	list    []announced
	behind  map[*session]struct{} // sessions for which too much waited, until they are told
}

func newAnnouncer(g *Gateway) *announcer {
	return &announcer{g: g, behind: map[*session]struct{}{}}
}

func announcementFrame(a *clientv1.Announcement) (*shared, error) {
	b, err := proto.Marshal(&clientv1.ServerFrame{Kind: &clientv1.ServerFrame_Announcement{Announcement: a}})
	return &shared{frame: b}, err
}

// take puts what a leader says in place of what was there, and tells sessions what
// is new and what was taken back. What is older than what is there is ignored.
func (a *announcer) take(token int64, r *v1.ProclaimRequest, now time.Time) error {
	var list []announced
	for _, x := range r.Announcements {
		f, err := announcementFrame(x)
		if err != nil {
			return err
		}
		list = append(list, announced{seq: x.Seq, expires: time.UnixMilli(x.ExpiresMs), frame: f})
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if token < a.token || token == a.token && a.epoch == r.DataEpoch && r.Version < a.version {
		return nil
	}
	var gone []*shared
	for _, had := range a.list {
		if had.expires.After(now) && a.epoch == r.DataEpoch && !holds(list, had.seq) {
			f, err := announcementFrame(&clientv1.Announcement{Seq: had.seq, Withdrawn: true})
			if err != nil {
				return err
			}
			f.seq = had.seq
			gone = append(gone, f)
		}
	}
	a.token, a.version, a.epoch, a.list = token, r.Version, r.DataEpoch, list
	a.tell(now, gone)
	return nil
}

func holds(list []announced, seq int64) bool {
	for _, x := range list {
		if x.seq == seq {
			return true
		}
	}
	return false
}

// tell tells all sessions; a.mu is held.
func (a *announcer) tell(now time.Time, gone []*shared) {
	var touched []*session
	for _, s := range a.g.hub.all() {
		told := s.withdraw(gone)
		if a.session(s, now) || told {
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

// withdraw tells the session what was taken back of what it was told. Who is
// behind goes without: it stops showing it when it expires.
func (s *session) withdraw(gone []*shared) (told bool) {
	for _, f := range gone {
		s.mu.Lock()
		wants := s.announcedSeq != noAnnouncements && s.announcedSeq >= f.seq
		s.mu.Mutex.Unlock()
		if wants && s.relax(f, kindAnnouncement) {
			told = true
		}
	}
	return told
}

// Proclaim takes in all announcements that are in force.
func (s service) Proclaim(_ context.Context, req *v1.ProclaimRequest) (*v1.ProclaimResponse, error) {
	const op = "gateway.Proclaim"
	if err := s.leads(op, req.Leader); err != nil {
		return nil, err
	}
	if len(req.Announcements) > store.MaxAnnouncements {
		return nil, im.Errorf(clientv1.Reason_REASON_BAD_REQUEST, op, "more than %d announcements", store.MaxAnnouncements)
	}
	if err := s.g.announcer.take(req.Leader.Token, req, time.Now()); err != nil {
		return nil, im.Errorf(clientv1.Reason_REASON_BAD_REQUEST, op, "an announcement cannot be encoded")
	}
	return &v1.ProclaimResponse{BootId: s.g.Boot}, nil
}
