package bench

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// sideBySide is how many calls beside the loop run at a time.
const sideBySide = 8

// parallel calls f for 0 to n-1, several at a time, and returns the first error.
func parallel(ctx context.Context, n int, f func(ctx context.Context, i int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	var next atomic.Int64
	for range min(sideBySide, n) {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < n && ctx.Err() == nil; i = int(next.Add(1)) - 1 {
				if err := f(ctx, i); err != nil {
					cancel(err)
				}
			}
		})
	}
	wg.Wait()
	return context.Cause(ctx)
}

// side does work beside the loop; what it returns is done on the loop.
func (r *runner) side(work func(ctx context.Context) func()) {
	r.beside.Add(1)
	go func() {
		defer r.beside.Done()
		done := work(r.ctx)
		r.l.post(done)
	}()
}

func isRefused(err error) bool { return errors.Is(err, unix.ECONNREFUSED) }
