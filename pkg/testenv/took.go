package testenv

import "time"

const (
	// tookTick is how often Took looks at the clock.
	tookTick = 5 * time.Millisecond
	// tookMost is what it counts at most from one look to the next.
	tookMost = 2 * tookTick
)

// Took is how long f takes while this process runs. A time in which nothing of it
// runs, because the machine stands still or others have it, counts 10 ms at most, so
// what is waited for can be told from what the machine does besides. On a machine of
// its own it is the time of the clock.
func Took(f func()) (took time.Duration) {
	ended, sum := make(chan struct{}), make(chan time.Duration)
	began := time.Now()
	go func() {
		look := time.NewTicker(tookTick)
		defer look.Stop()
		w := watch{last: began}
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
}

func (w *watch) look(now time.Time) {
	w.counted += min(now.Sub(w.last), tookMost)
	w.last = now
}
