package drill

import (
	"os"
	"os/exec"
	"runtime"

	"golang.org/x/sys/unix"
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
	go s.find()
	return s
}

// find takes a thread that ends with its goroutine, which the main thread of a
// process never does.
func (s *spawner) find() {
	runtime.LockOSThread()
	if unix.Gettid() != os.Getpid() {
		s.work()
		return
	}
	taken := make(chan struct{})
	go func() {
		runtime.LockOSThread() // another thread, as the main one is held meanwhile
		close(taken)
		s.work()
	}()
	<-taken
	runtime.UnlockOSThread()
}

// work starts what it is asked to. The thread is never unlocked.
func (s *spawner) work() {
	defer close(s.done)
	for f := range s.todo {
		f()
	}
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
