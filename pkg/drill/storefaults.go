package drill

import (
	"context"
	"errors"
	"syscall"
	"time"

	"github.com/imdhq/imd/pkg/history"
)

const (
	terminateEvery = 50 * ms // between two rounds that end what commits
	mixEvery       = 50 * ms // between two rounds that mix answers up
)

// pgKill crashes Postgres.
func (f *fault) pgKill(ctx context.Context) error {
	f.b.db.crash()
	hold(ctx, f.For)
	return f.b.db.begin()
}

// pgStop ends Postgres at once, as an operator in a hurry does: all sessions are
// cut, and it recovers at the next start.
func (f *fault) pgStop(ctx context.Context) error {
	err := f.b.db.endBy(func() error { return f.b.db.signal(syscall.SIGQUIT) })
	hold(ctx, f.For)
	return errors.Join(err, f.b.db.begin())
}

func (f *fault) pgStall(ctx context.Context) error {
	if err := f.b.db.freeze(true); err != nil {
		return err
	}
	hold(ctx, f.For)
	return f.b.db.freeze(false)
}

// pgTerminate ends the sessions of nodes while they commit, again and again.
func (f *fault) pgTerminate(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, f.For)
	defer cancel()
	ended := 0
	for ctx.Err() == nil {
		n, err := f.b.db.sql.Terminate(ctx, true)
		if err != nil && ctx.Err() == nil {
			return err
		}
		ended += n
		hold(ctx, terminateEvery)
	}
	if ended == 0 {
		return errors.New("no session was at work")
	}
	return nil
}

// pgLock holds the rows of groups of the load.
func (f *fault) pgLock(ctx context.Context) error {
	var convs []string
	for _, g := range f.b.world.someGroups(f.rng, 2) {
		convs = append(convs, g.conv)
	}
	release, err := f.b.db.sql.Hold(ctx, convs)
	if err != nil {
		return err
	}
	hold(ctx, f.For)
	return release()
}

// pgPool leaves nodes without connections.
func (f *fault) pgPool(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, f.For)
	defer cancel()
	took, err := f.b.db.sql.Exhaust(ctx)
	if err == nil && took == 0 {
		err = errors.New("no connection was free")
	}
	return err
}

// pgPartition lets nothing through between one node and Postgres.
func (f *fault) pgPartition(ctx context.Context) error {
	f.b.db.cut(f.n.spec.Name, true)
	hold(ctx, f.For)
	f.b.db.cut(f.n.spec.Name, false)
	return nil
}

func (f *fault) redisFlush(context.Context) error {
	return f.b.where.lost("", func() error { return f.b.cache.do("FLUSHALL") })
}

// redisClock lets an empty server whose clock is behind take the place of Redis, as after a
// failover to another machine. It is so until Redis loses everything again.
func (f *fault) redisClock(ctx context.Context) error {
	shift, err := time.ParseDuration(f.Level)
	if err != nil {
		return err
	}
	return f.b.where.lost(history.ClockSlow, func() error {
		f.b.cache.kill()
		hold(ctx, f.For)
		f.b.cache.closeDoors(true) // nobody is there before its clock is wrong
		defer f.b.cache.closeDoors(false)
		return errors.Join(f.b.cache.begin(), f.b.cache.shift(shift))
	})
}

// redisMix gives remembered sends the answers of others, first while answers are
// lost, so that many devices ask again.
func (f *fault) redisMix(ctx context.Context) error {
	f.mute(false)
	end := time.Now().Add(f.For)
	hold(ctx, lost)
	err := f.b.cache.do("EVAL", mixed, "0")
	f.unmute()
	for err == nil && time.Now().Before(end) && hold(ctx, mixEvery) {
		err = f.b.cache.do("EVAL", mixed, "0")
	}
	return err
}

func (f *fault) redisStall(ctx context.Context) error {
	if err := f.b.cache.freeze(true); err != nil {
		return err
	}
	hold(ctx, f.For)
	return f.b.cache.freeze(false)
}

func (f *fault) redisRestart(ctx context.Context) error {
	return f.b.where.lost("", func() error {
		f.b.cache.kill()
		hold(ctx, f.For)
		return f.b.cache.begin()
	})
}
