package sim

import "time"

// process is a part of the world that can crash and pause. What is to happen to
// it while it is paused happens when it goes on; what was to happen to an
// earlier life of it does not happen.
type process struct {
	w      *world
	name   string
	life   int // grows with each crash
	down   bool
	paused bool
	held   []func()
	calls  []func() // make the callers of this life hear of its end
}

// later is a timer of this life.
func (p *process) later(d time.Duration, do func()) {
	life := p.life
	p.w.after(d, func() { p.exec(life, do) })
}

// exec lets something happen to a life, now or when it goes on.
func (p *process) exec(life int, do func()) {
	switch {
	case p.down || p.life != life:
	case p.paused:
		p.held = append(p.held, func() { p.exec(life, do) })
	default:
		do()
	}
}

// crash ends this life. Callers hear of it, as their connections are reset.
func (p *process) crash() {
	p.down, p.paused, p.held = true, false, nil
	p.life++
	calls := p.calls
	p.calls = nil
	for _, c := range calls {
		c()
	}
	p.w.tracef("%s crashes", p.name)
}

func (p *process) pause(d time.Duration) {
	if p.down || p.paused {
		return
	}
	p.w.tracef("%s pauses for %v", p.name, d)
	life := p.life
	p.paused = true
	p.w.after(d, func() {
		if p.life == life {
			p.resume()
		}
	})
}

func (p *process) resume() {
	if !p.paused {
		return
	}
	p.w.tracef("%s goes on", p.name)
	p.paused = false
	held := p.held
	p.held = nil
	for _, do := range held {
		do()
	}
}

// call is one call between two processes. serve runs at the callee and answers
// with reply; done hears the answer, or ok = false if none came in time, the
// way there was lost or either end of the connection broke.
type call struct {
	from, to *process
	loss     float64 // chance that a part of it is lost
	timeout  time.Duration
	serve    func(reply func(any))
	done     func(res any, ok bool)
}

func (w *world) call(c call) {
	finished := false
	fromLife := c.from.life
	finish := func(res any, ok bool) {
		c.from.exec(fromLife, func() {
			if !finished {
				finished = true
				c.done(res, ok)
			}
		})
	}
	fail := func() { w.after(w.delay(), func() { finish(nil, false) }) }
	c.from.later(c.timeout, func() { finish(nil, false) })
	lostAnswer := false
	if w.chance(c.loss) {
		switch w.rng.IntN(3) {
		case 0: // refused at once
			fail()
			return
		case 1: // silence
			return
		default:
			lostAnswer = true
		}
	}
	w.after(w.delay(), func() {
		if c.to.down {
			fail()
			return
		}
		c.to.exec(c.to.life, func() {
			c.to.calls = append(c.to.calls, func() {
				if !finished {
					fail()
				}
			})
			c.serve(func(res any) {
				if !lostAnswer {
					w.after(w.delay(), func() { finish(res, true) })
				}
			})
		})
	})
}
