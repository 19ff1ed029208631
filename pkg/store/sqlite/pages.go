package sqlite

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// How much of the database connections keep in memory, in KiB as SQLite counts it;
// with what it allocates for each page it is about twice as much.
const (
	writerPages, writerPagesCalm = 64 << 10, 2 << 10
	readerPages, readerPagesCalm = 16 << 10, 512
)

const (
	// calmRate is below how many transactions a second the store is calm: then pages
	// that are not in memory cost less than half a percent of a processor.
	calmRate = 200
	// calmTime is for how long it must be.
	calmTime = 5 * time.Second
	// calmStep is how often it is looked.
	calmStep = time.Second
)

// bustle tells whether there is much to do, from how many transactions begin. It has
// no clock: step is called each calmStep. note and calm are safe for concurrent use.
type bustle struct {
	begun atomic.Int64 // transactions since the last step
	still atomic.Int64 // steps in a row with few of them
}

// note counts a transaction.
func (b *bustle) note() { b.begun.Add(1) }

// calm reports whether there is little to do, and was for calmTime. It ends with the
// transaction that is too many, not with the next step.
func (b *bustle) calm() bool {
	return b.still.Load() >= int64(calmTime/calmStep) && b.begun.Load() < calmRate*int64(calmStep/time.Second)
}

// step reports whether it has become calm just now.
func (b *bustle) step() (now bool) {
	if b.begun.Swap(0) >= calmRate*int64(calmStep/time.Second) {
		b.still.Store(0)
		return false
	}
	return b.still.Add(1) == int64(calmTime/calmStep)
}

// room is how much of the database a connection keeps in memory, in KiB.
type room struct{ busy, calm int }

var (
	writerRoom = room{writerPages, writerPagesCalm}
	readerRoom = room{readerPages, readerPagesCalm}
)

// pragma sets a size as a connection begins with it.
func (r room) pragma() string { return fmt.Sprintf("cache_size(-%d)", r.busy) }

// fit counts a transaction that is about to begin, and gives the connection the room
// that it is to have now.
func (c *conn) fit(b *bustle) error {
	b.note()
	return c.resize(b.calm())
}

// resize gives the connection the room of a calm store, or of a busy one. Not in the
// middle of a transaction.
func (c *conn) resize(calm bool) error {
	if c.c == nil || c.calm == calm {
		return nil
	}
	kib := c.room.busy
	if calm {
		kib = c.room.calm
	}
	if err := c.pragma("cache_size", -int64(kib)); err != nil {
		return err
	}
	c.calm = calm
	return nil
}

// calmer takes pages from the connections of a store that has become calm. They take
// more again by themselves, with their next transaction.
type calmer struct {
	s          *Store
	once       sync.Once
	quit, done chan struct{}
}

func newCalmer(s *Store) *calmer {
	return &calmer{s: s, quit: make(chan struct{}), done: make(chan struct{})}
}

// end ends run, and waits for it.
func (c *calmer) end() {
	c.once.Do(func() { close(c.quit) })
	<-c.done
}

// run works until end.
func (c *calmer) run() {
	defer close(c.done)
	tick := time.NewTicker(calmStep)
	defer tick.Stop()
	for {
		select {
		case <-c.quit:
			return
		case <-tick.C:
		}
		if c.s.w.bustle.step() {
			c.calmAll()
		}
	}
}

// calmAll takes pages from all connections, and from the writer most of what it
// remembers of conversations. One that fails is given up: the next
// transaction makes a new one.
func (c *calmer) calmAll() {
	for range c.s.all {
		select {
		case r := <-c.s.readers:
			if r.resize(true) != nil {
				_ = r.drop() // for the same reason
			}
			c.s.readers <- r
		case <-c.quit:
			return
		}
	}
	w := c.s.w
	select {
	case w.turn <- struct{}{}:
		if w.resize(true) != nil {
			_ = w.drop()
		}
		w.cache.shrink()
		<-w.turn
	case <-c.quit:
	}
}
