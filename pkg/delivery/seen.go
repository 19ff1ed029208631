package delivery

// seenGeneration is how many conversations one generation of seen remembers.
const seenGeneration = 256

// Told is how far a connection has been told about a conversation.
type Told struct {
	Deliver int64 // newest deliver written to it
	Any     int64 // newest seq it knows of: by deliver, head or its own ack
}

// Seen remembers how far a connection has been told, for recently used
// conversations, in two generations: a full new one replaces the old one.
// Forgetting costs a superfluous head. The zero value is ready; not safe for
// concurrent use.
type Seen struct {
	young, old map[string]Told
}

// Get returns how far the connection has been told; zero if that is forgotten.
func (s *Seen) Get(conv string) Told {
	if t, ok := s.young[conv]; ok {
		return t
	}
	return s.old[conv]
}

func (s *Seen) put(conv string, t Told) {
	if s.young == nil || len(s.young) >= seenGeneration {
		if _, there := s.young[conv]; !there {
			s.old, s.young = s.young, make(map[string]Told)
		}
	}
	s.young[conv] = t
}

// Delivered notes a deliver; false if one with this or a higher seq went before
// it, so that it must not be written.
func (s *Seen) Delivered(conv string, seq int64) bool {
	t := s.Get(conv)
	if seq <= t.Deliver {
		return false
	}
	t.Deliver, t.Any = seq, max(t.Any, seq)
	s.put(conv, t)
	return true
}

// Knows notes that the device was Told of seq; false if it knew already.
func (s *Seen) Knows(conv string, seq int64) bool {
	t := s.Get(conv)
	if seq <= t.Any {
		return false
	}
	t.Any = seq
	s.put(conv, t)
	return true
}
