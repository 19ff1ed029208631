package gateway

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"
)

// yielder lets those go on who wait for the network, from the middle of long work.
//
// runtime.Gosched does not: the scheduler looks at sockets only when it finds nothing
// to run, and who has yielded is something to run. As many goroutines as there are
// processors that work and yield hide the network from each other, until once in
// 10 ms a hundred sockets are looked at. So a yielder waits for the network itself,
// with a byte that it has just written to a pipe: it is woken behind everybody whose
// socket was ready before.
//
// For one goroutine at a time.
type yielder struct {
	ear, bell *os.File
	raw       syscall.RawConn // of ear
	rung      bool
	wait      func(fd uintptr) bool
}

// newYielder takes two descriptors, until close.
func newYielder() (*yielder, error) {
	ear, bell, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("make a pipe: %w", err)
	}
	y := &yielder{ear: ear, bell: bell}
	if y.raw, err = ear.SyscallConn(); err != nil {
		return nil, errors.Join(fmt.Errorf("watch a pipe: %w", err), y.close())
	}
	var one [1]byte
	y.wait = func(fd uintptr) bool {
		if !y.rung { // the byte comes after the wait has been announced, so that it ends it
			y.rung = true
			_, err := bell.Write(one[:])
			return err != nil
		}
		_, err := syscall.Read(int(fd), one[:])
		return !errors.Is(err, syscall.EAGAIN)
	}
	return y, nil
}

// yield lets others go on. It does so, less well, on a nil yielder and on one that
// was closed.
func (y *yielder) yield() {
	if y == nil {
		runtime.Gosched()
		return
	}
	y.rung = false
	if y.raw.Read(y.wait) != nil {
		runtime.Gosched()
	}
}

func (y *yielder) close() error { return errors.Join(y.ear.Close(), y.bell.Close()) }
