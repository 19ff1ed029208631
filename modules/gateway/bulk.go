package gateway

import "runtime"

// bulk is work for many sessions that come at once, such as a page for each
// member of a large group. It has a share of the processors: one piece is done for
// each at a time, and after it everybody else who can go on does. Those who wait
// for their turn wait outside of the scheduler's queue, in which a direct message
// would be behind all of them. Safe for concurrent use.
type bulk struct{ free chan *yielder }

func newBulk() *bulk {
	n := min(max(runtime.GOMAXPROCS(0), 1), maxShards)
	b := &bulk{free: make(chan *yielder, n)}
	for range n {
		b.free <- nil
	}
	return b
}

// open takes descriptors to yield with, before any work; close gives them back,
// after it.
func (b *bulk) open() error {
	for range cap(b.free) {
		<-b.free
		y, err := newYielder()
		b.free <- y
		if err != nil {
			return err
		}
	}
	return nil
}

func (b *bulk) close() {
	for range cap(b.free) {
		y := <-b.free
		if y != nil {
			_ = y.close() // nothing was written that could be lost
		}
		b.free <- nil
	}
}

// do does one piece of work, of less than a millisecond, in its turn.
func (b *bulk) do(piece func()) {
	y := <-b.free
	defer func() {
		y.yield()
		b.free <- y
	}()
	piece()
}
