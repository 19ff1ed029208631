package gateway

import (
	"hash/maphash"
	"sync"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/tally"
)

const (
	// hubParts is in how many parts the hub is, each with a lock of its own, so that
	// those who log in and those who are delivered to hardly wait for each other.
	hubParts = 32
	// hubNews is how many comings and goings are remembered for those who follow
	// them.
	hubNews = 4096
)

// hub knows the connections of this node: all of them, and those with a
// session by session and by user. Safe for concurrent use.
type hub struct {
	seed  maphash.Seed
	parts [hubParts]hubPart
	news  hubLog
}

// hubPart has the sessions and the users whose ids fall to it.
type hubPart struct {
	mu       sync.RWMutex
	conns    map[*session]struct{}
	sessions map[im.SessionID]*session
	users    map[im.UserID][]*session
}

// hubLog is the newest comings and goings of sessions.
type hubLog struct {
	mu   sync.Mutex
	n    uint64 // how many there were
	ring [hubNews]hubChange
}

// hubChange is one session that came or went.
type hubChange struct {
	id   im.SessionID
	user im.UserID
	came bool
}

func newHub() *hub {
	h := &hub{seed: maphash.MakeSeed()}
	for i := range h.parts {
		h.parts[i] = hubPart{conns: map[*session]struct{}{}, sessions: map[im.SessionID]*session{}, users: map[im.UserID][]*session{}}
	}
	return h
}

// part is where an id falls.
func (h *hub) part(id string) *hubPart { return &h.parts[maphash.String(h.seed, id)%hubParts] }

// open notes a connection that has no session yet.
func (h *hub) open(s *session) {
	p := h.part(string(s.id))
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conns[s] = struct{}{}
}

// register makes a session findable. Its user must not change afterwards.
func (h *hub) register(s *session) {
	p := h.part(string(s.id))
	p.mu.Lock()
	p.sessions[s.id] = s
	p.mu.Unlock()
	u := h.part(string(s.user))
	u.mu.Lock()
	u.users[s.user] = append(u.users[s.user], s)
	u.mu.Unlock()
	h.news.add(hubChange{s.id, s.user, true})
}

// remove forgets the connection and its session, if it has one.
func (h *hub) remove(s *session) {
	p := h.part(string(s.id))
	p.mu.Lock()
	delete(p.conns, s)
	had := p.sessions[s.id] == s
	if had {
		delete(p.sessions, s.id)
	}
	p.mu.Unlock()
	if !had {
		return
	}
	h.part(string(s.user)).leave(s)
	h.news.add(hubChange{s.id, s.user, false})
}

// leave takes a session from those of its user.
func (p *hubPart) leave(s *session) {
	p.mu.Lock()
	defer p.mu.Unlock()
	list := p.users[s.user]
	for i, o := range list {
		if o == s {
			list[i] = list[len(list)-1]
			list[len(list)-1] = nil
			list = list[:len(list)-1]
			break
		}
	}
	if len(list) == 0 {
		delete(p.users, s.user)
		return
	}
	p.users[s.user] = list
}

// find appends the sessions with these ids to found, and ids that are not here
// to missing.
func (h *hub) find(ids []string, found []*session, missing []string) ([]*session, []string) {
	for _, id := range ids {
		if s := h.session(im.SessionID(id)); s != nil {
			found = append(found, s)
		} else {
			missing = append(missing, id)
		}
	}
	return found, missing
}

// session is the one with this id; nil = it is not here.
func (h *hub) session(id im.SessionID) *session {
	p := h.part(string(id))
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.sessions[id]
}

// of returns the sessions of a user.
func (h *hub) of(user im.UserID) []*session {
	p := h.part(string(user))
	p.mu.RLock()
	defer p.mu.RUnlock()
	return append([]*session(nil), p.users[user]...)
}

// online returns the users that have sessions here.
func (h *hub) online() []string {
	_, _, n := h.counts()
	out := make([]string, 0, n)
	for i := range h.parts {
		p := &h.parts[i]
		p.mu.RLock()
		for u := range p.users {
			out = append(out, string(u))
		}
		p.mu.RUnlock()
	}
	return out
}

// each calls f for every session, part after part.
func (h *hub) each(f func(*session)) {
	for i := range h.parts {
		p := &h.parts[i]
		p.mu.RLock()
		for _, s := range p.sessions {
			f(s)
		}
		p.mu.RUnlock()
	}
}

// all returns every connection.
func (h *hub) all() []*session {
	out := make([]*session, 0, h.len())
	for i := range h.parts {
		p := &h.parts[i]
		p.mu.RLock()
		for s := range p.conns {
			out = append(out, s)
		}
		p.mu.RUnlock()
	}
	return out
}

// len is how many connections there are.
func (h *hub) len() int {
	conns, _, _ := h.counts()
	return conns
}

// present is who is here, as it is counted for the cluster.
func (h *hub) present() tally.Present {
	_, _, users := h.counts()
	p := tally.Present{Sessions: map[string]int64{}, Users: int64(users)}
	for i := range h.parts {
		h.parts[i].mu.RLock()
		for _, s := range h.parts[i].sessions {
			p.Sessions[string(s.class)]++
		}
		h.parts[i].mu.RUnlock()
	}
	return p
}

// counts is how many connections, sessions and users are here.
func (h *hub) counts() (conns, sessions, users int) {
	for i := range h.parts {
		p := &h.parts[i]
		p.mu.RLock()
		conns, sessions, users = conns+len(p.conns), sessions+len(p.sessions), users+len(p.users)
		p.mu.RUnlock()
	}
	return conns, sessions, users
}

// add notes a change that has happened.
func (l *hubLog) add(c hubChange) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ring[l.n%hubNews] = c
	l.n++
}

// now is how many changes there were.
func (l *hubLog) now() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.n
}

// since calls f for the changes from the n-th on and returns how many there were;
// false = the first of them are not remembered any more.
func (l *hubLog) since(n uint64, f func(hubChange)) (now uint64, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.n-n > hubNews {
		return l.n, false
	}
	for ; n < l.n; n++ {
		f(l.ring[n%hubNews])
	}
	return l.n, true
}
