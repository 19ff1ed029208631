package machine

import "time"

const (
	// tookTick is how often Took looks at the clock.
	tookTick = 5 * time.Millisecond
	// tookMost is what it counts at most from one look to the next.
	tookMost = 2 * tookTick
)

// Took is how long f takes in the time of a machine that has nothing else to do:
// while more wants to run than there are processors it goes by more slowly. A time in which nothing of this process runs, because the machine
// stands still, counts 10 ms at most. So what is waited for can be told from what
// the machine does besides.
func Took(f func()) (took time.Duration) { return tookAmong(Crowd, f) }

// tookAmong is Took with a look at what wants to run.
func tookAmong(crowd func() float64, f func()) (took time.Duration) {
	ended, sum := make(chan struct{}), make(chan time.Duration)
	began := time.Now()
	go func() {
		look := time.NewTicker(tookTick)
		defer look.Stop()
		w := watch{last: began, crowd: crowd}
		for {
			var over bool
			select {
			case <-ended:
				over = true
			case <-look.C:
			}
			if w.look(time.Now()); over {
				sum <- w.counted
				return
			}
		}
	}()
	defer func() { // also if f ends the test
		close(ended)
		took = <-sum
	}()
	f()
	return took
}

// watch counts the time between looks.
type watch struct {
	last    time.Time
	counted time.Duration
	crowd   func() float64
}

func (w *watch) look(now time.Time) {
	w.counted += time.Duration(float64(min(now.Sub(w.last), tookMost)) / Slowdown(w.crowd()))
	w.last = now
}
