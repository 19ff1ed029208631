package drill

import (
	"os/exec"
	"runtime"
)

// spawner starts processes from one thread that lives as long as it does: the
// kernel sends a child its death signal when the thread that made it ends, not
// the process.
type spawner struct {
	todo chan func()
	done chan struct{}
}

func newSpawner() *spawner {
	s := &spawner{todo: make(chan func()), done: make(chan struct{})}
	go func() {
		defer close(s.done)
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		for f := range s.todo {
			f()
		}
	}()
	return s
}

// start starts cmd.
func (s *spawner) start(cmd *exec.Cmd) error {
	err := make(chan error, 1) // one answer
	s.todo <- func() { err <- cmd.Start() }
	return <-err
}

// close ends the thread, and with it every child that still runs.
func (s *spawner) close() {
	close(s.todo)
	<-s.done
}
