//go:build !drill

package gateway

// subscribe makes the session findable, so that from now on deliveries reach it.
func (s *session) subscribe() { s.g.hub.register(s) }
