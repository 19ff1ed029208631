package gateway

import (
	"sync"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/tally"
)

// hub knows the connections of this node: all of them, and those with a
// session by session and by user. Safe for concurrent use.
type hub struct {
	mu       sync.RWMutex
	conns    map[*session]struct{}
	sessions map[im.SessionID]*session
	users    map[im.UserID][]*session
}

func newHub() *hub {
	return &hub{
		conns:    make(map[*session]struct{}),
		sessions: make(map[im.SessionID]*session),
		users:    make(map[im.UserID][]*session),
	}
}

// open notes a connection that has no session yet.
func (h *hub) open(s *session) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.conns[s] = struct{}{}
}

// register makes a session findable. Its user must not change afterwards.
func (h *hub) register(s *session) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.sessions[s.id] = s
	h.users[s.user] = append(h.users[s.user], s)
}

// remove forgets the connection and its session, if it has one.
func (h *hub) remove(s *session) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.conns, s)
	if h.sessions[s.id] != s {
		return
	}
	delete(h.sessions, s.id)
	list := h.users[s.user]
	for i, o := range list {
		if o == s {
			list[i] = list[len(list)-1]
			list[len(list)-1] = nil
			list = list[:len(list)-1]
			break
		}
	}
	if len(list) == 0 {
		delete(h.users, s.user)
		return
	}
	h.users[s.user] = list
}

// find appends the sessions with these ids to found, and ids that are not here
// to missing.
func (h *hub) find(ids []string, found []*session, missing []string) ([]*session, []string) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	for _, id := range ids {
		if s := h.sessions[im.SessionID(id)]; s != nil {
			found = append(found, s)
		} else {
			missing = append(missing, id)
		}
	}
	return found, missing
}

// of returns the sessions of a user.
func (h *hub) of(user im.UserID) []*session {
	h.mu.RLock()
	defer h.mu.RUnlock()
	return append([]*session(nil), h.users[user]...)
}

// online returns the users that have sessions here.
func (h *hub) online() []string {
	h.mu.RLock()
	defer h.mu.RUnlock()
	out := make([]string, 0, len(h.users))
	for u := range h.users {
		out = append(out, string(u))
	}
	return out
}

// all returns every connection.
func (h *hub) all() []*session {
	h.mu.RLock()
	defer h.mu.RUnlock()
	out := make([]*session, 0, len(h.conns))
	for s := range h.conns {
		out = append(out, s)
	}
	return out
}

// len is how many connections there are.
func (h *hub) len() int {
	h.mu.RLock()
	defer h.mu.RUnlock()
	return len(h.conns)
}

// present is who is here, as it is counted for the cluster.
func (h *hub) present() tally.Present {
	h.mu.RLock()
	defer h.mu.RUnlock()
	p := tally.Present{Sessions: map[string]int64{}, Users: int64(len(h.users))}
	for _, s := range h.sessions {
		p.Sessions[string(s.class)]++
	}
	return p
}

// counts is how many connections, sessions and users are here.
func (h *hub) counts() (conns, sessions, users int) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	return len(h.conns), len(h.sessions), len(h.users)
}
