package testenv

import (
	"context"
	"errors"
	"testing"
)

// Runner is a module that was started.
type Runner interface {
	Run(context.Context) error
	Close() error
}

// Run runs m beside the test until stop is called, or the test ends. stop waits
// for m, closes it and returns what both said; when it is called again it does
// nothing. An error at the end of the test fails it.
func Run(t testing.TB, m Runner) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- m.Run(ctx) }()
	stopped := false
	stop = func() error {
		if stopped {
			return nil
		}
		stopped = true
		cancel()
		return errors.Join(<-ended, m.Close())
	}
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
	return stop
}
