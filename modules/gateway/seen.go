package gateway

// seenGeneration is how many conversations one generation of seen remembers.
const seenGeneration = 256

// told is how far a connection has been told about a conversation.
type told struct {
	deliver int64 // newest deliver written to it
	any     int64 // newest seq it knows of: by deliver, head or its own ack
}

// seen remembers that for recently used conversations, in two generations: a
// full new one replaces the old one. Forgetting costs a superfluous head.
type seen struct {
	young, old map[string]told
}

func (s *seen) get(conv string) told {
	if t, ok := s.young[conv]; ok {
		return t
	}
	return s.old[conv]
}

func (s *seen) put(conv string, t told) {
	if s.young == nil || len(s.young) >= seenGeneration {
		if _, there := s.young[conv]; !there {
			s.old, s.young = s.young, make(map[string]told)
		}
	}
	s.young[conv] = t
}

// delivered notes a deliver; false if one with this or a higher seq went before
// it, so that it must not be written.
func (s *seen) delivered(conv string, seq int64) bool {
	t := s.get(conv)
	if seq <= t.deliver {
		return false
	}
	t.deliver, t.any = seq, max(t.any, seq)
	s.put(conv, t)
	return true
}

// knows notes that the device was told of seq; false if it knew already.
func (s *seen) knows(conv string, seq int64) bool {
	t := s.get(conv)
	if seq <= t.any {
		return false
	}
	t.any = seq
	s.put(conv, t)
	return true
}
