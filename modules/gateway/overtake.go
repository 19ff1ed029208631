package gateway

import "time"

// overtakenTime is for how long a claim of a session that was overtaken may still come
// true: longer than a call to the route store lasts, and than it takes until all have
// heard of it.
const overtakenTime = 10 * time.Second

// overtake ends the sessions of the same login and device whose hello came before this
// one and is still looked at: their client has given them up. Claims of several hellos
// come true in any order, so the claim of an older one could make it the newest.
func (s *session) overtake() {
	for _, o := range s.g.hub.of(s.user) {
		if o == s || o.login != s.login || o.device != s.device {
			continue
		}
		older, newer := o, s
		if int32(o.order-s.order) > 0 {
			older, newer = s, o
		}
		if older.joins() {
			newer.overtook.Store(time.Now().Add(overtakenTime).UnixNano())
			older.end("superseded", endTexts["superseded"], 0)
		}
	}
}

// joins reports whether its hello is looked at.
func (s *session) joins() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.phase == joining
}
