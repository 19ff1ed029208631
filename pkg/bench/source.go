package bench

import "time"

// source makes a device begin operations: a number of them unanswered or, under
// a rate, each at its time. What cannot begin in time waits without a place in
// memory: only the time of the oldest is kept.
type source struct {
	r       *runner
	d       *device
	begin   func(s *source, at time.Duration) // begins one that should begin at the time
	rec     *recorder                         // of what has not begun at the end
	limit   int                               // unanswered operations
	pending int
	gap     time.Duration // between two; 0 = closed loop
	due     time.Duration // of the next one
	set     bool          // a timer is
	tick    func()
}

// The most unanswered operations under a rate.
const (
	sendWindow    = 32
	requestWindow = 12
)

// drive makes d begin operations from now on, at its part of the rate if share
// devices do so.
func (r *runner) drive(d *device, share int, window int, rec *recorder, begin func(*source, time.Duration)) {
	if r.o.Rate > 0 {
		r.pace(d, r.o.Rate/float64(share), window, rec, begin)
	} else {
		r.push(d, rec, begin)
	}
}

// push keeps the operations of a device unanswered that the options say.
func (r *runner) push(d *device, rec *recorder, begin func(*source, time.Duration)) {
	r.add(&source{r: r, d: d, begin: begin, rec: rec, limit: max(r.o.Outstanding, 1)})
}

// pace makes d begin operations at a rate of its own.
func (r *runner) pace(d *device, rate float64, window int, rec *recorder, begin func(*source, time.Duration)) {
	s := &source{r: r, d: d, begin: begin, rec: rec, limit: window, gap: max(time.Duration(float64(time.Second)/rate), 1)}
	s.due = r.l.now + time.Duration(r.rng.Float64()*float64(s.gap))
	r.add(s)
}

func (r *runner) add(s *source) {
	s.tick = func() {
		s.set = false
		s.kick()
	}
	s.d.sources = append(s.d.sources, s)
	r.sources = append(r.sources, s)
	s.kick()
}

// kick begins what may begin.
func (s *source) kick() {
	r := s.r
	for !r.over && s.d.online() && s.pending < s.limit {
		at := r.l.now
		if s.gap > 0 {
			if s.due > r.l.now {
				if !s.set {
					s.set = true
					r.l.at(s.due, s.tick)
				}
				return
			}
			at = s.due
			s.due += s.gap
		}
		s.pending++
		r.open++
		s.begin(s, at)
	}
}

// ended makes room for the next operation.
func (s *source) ended() {
	s.pending--
	s.kick()
}

// giveUp counts what has no answer at the end of a run, and what was not begun.
func (r *runner) giveUp() {
	for _, s := range r.sources {
		for ; s.gap > 0 && s.due < r.end; s.due += s.gap {
			r.late("not begun", s.rec, s.due)
		}
	}
	for _, d := range r.devices {
		for _, l := range d.out.lanes {
			for _, p := range l.sends {
				r.late("unanswered", l.rec, p.intended)
			}
		}
	}
}
