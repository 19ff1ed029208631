package gateway

import "time"

// overtakenTime is for how long a session may still hear of a claim of the one that it
// overtook: until its route was refreshed once more.
const overtakenTime = refreshTime + 2*routeTimeout

// overtake ends the sessions of the same login and device whose hello came before this
// one and is still looked at: their client has given them up. Claims of several hellos
// come true in any order, so the claim of an older one could make it the newest. Whoever
// has hung up overtakes nobody: after a standstill hellos are read in any order, too.
func (s *session) overtake() {
	for _, o := range s.g.hub.of(s.user) {
		if o == s || o.login != s.login || o.device != s.device {
			continue
		}
		older, newer := o, s
		if int32(o.order-s.order) > 0 {
			older, newer = s, o
		}
		if older.joins() && newer.stays() {
			until := time.Now().Add(overtakenTime)
			newer.overtook.Store(&until)
			older.end("superseded", endTexts["superseded"], 0)
		}
	}
}

// hasOvertaken reports whether a hello that the session overtook may displace it.
func (s *session) hasOvertaken() bool {
	until := s.overtook.Load()
	return until != nil && time.Now().Before(*until)
}

// joins reports whether its hello is looked at.
func (s *session) joins() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.phase == joining
}

// stays reports whether nobody has ended it, neither here nor at the other side.
func (s *session) stays() bool { return s.live() && !hungUp(s.wire.Conn) }
