package postgres

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/obs"
	"github.com/imdhq/imd/pkg/ring"
	"github.com/imdhq/imd/pkg/segment"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

const (
	// takers is how many takeovers wait for a former owner's calls at once.
	takers = 2
	// refillers is how many segments are reserved ahead at once.
	refillers = 2
	// maxPasses bounds how often a call asks the machine again after it did what
	// was missing: take shards over, reserve, and again for those that were lost
	// meanwhile.
	maxPasses = 16
	// takeoverPause is what senders to a conversation are asked to wait whose
	// shard or numbers somebody holds.
	takeoverPause = 200 * time.Millisecond
)

// owner numbers for this process under the allocator segment: it carries out
// what a segment.Machine says. Safe for concurrent use.
type owner struct {
	store   *Store
	pool    *pool
	process string
	ring    atomic.Pointer[func() store.Ring]
	// turns has for each shard who writes in it: capacity 1, so that the next
	// call leaves when the outcome of the last one is known.
	turns [ring.Shards]chan struct{}

	waits   chan int                 // capacity of all shards: each waits once
	refills chan segment.Reservation // a full one refuses, and the call that needs the numbers reserves them
	stop    context.CancelFunc
	done    sync.WaitGroup

	mu      sync.Mutex
	machine *segment.Machine
}

// Segmented is store.Sharded's.
func (s *Store) Segmented() bool { return s.owner != nil }

// Follow is store.Sharded's.
func (s *Store) Follow(current func() store.Ring) {
	if s.owner != nil {
		s.owner.ring.Store(&current)
	}
}

// own makes the store number from segments.
func (s *Store) own(ctx context.Context, src source, step int) error {
	now := time.Now()
	o := &owner{
		store: s, process: fmt.Sprintf("%016x-%s", now.UnixNano(), strings.ToLower(rand.Text()[:8])),
		waits: make(chan int, ring.Shards), refills: make(chan segment.Reservation, 1024), machine: segment.New(int64(step)),
	}
	for i := range o.turns {
		o.turns[i] = make(chan struct{}, 1)
	}
	alone := store.Ring{Mine: func(int) bool { return true }, Revision: now.UnixMicro()}
	follow := func() store.Ring { return alone }
	o.ring.Store(&follow)
	var err error
	o.pool, err = newPool(src.config, limits{
		conns: takers + refillers + s.writers, lock: time.Second, statement: 2500 * time.Millisecond, call: 3500 * time.Millisecond, wait: time.Second,
	}, s.identify)
	if err != nil {
		return err
	}
	if err := o.weaken(ctx); err != nil {
		o.pool.Close()
		return err
	}
	ctx, o.stop = context.WithCancel(context.WithoutCancel(ctx))
	s.owner = o
	for range takers {
		o.done.Go(func() { o.takeWaiting(ctx) })
	}
	for range refillers {
		o.done.Go(func() { o.refillAhead(ctx) })
	}
	return nil
}

// close ends the background work. No call may follow.
func (o *owner) close() {
	o.stop()
	o.done.Wait()
	o.pool.Close()
}

// now is the ring as the node sees it.
func (o *owner) now() store.Ring { return (*o.ring.Load())() }

func viewOf(r store.Ring) segment.View {
	return segment.View{Version: segment.Version{Cluster: r.Cluster, Revision: r.Revision}, Mine: r.Mine}
}

// step hands an event to the machine and starts what belongs to the background.
func (o *owner) step(r store.Ring, ev segment.Event) segment.Effects {
	o.mu.Lock()
	defer o.mu.Unlock()
	fx := o.machine.Step(viewOf(r), ev)
	for _, id := range fx.Wait {
		select {
		case o.waits <- id:
		default:
			o.machine.Step(segment.View{}, segment.Gone{Shard: id})
		}
	}
	for _, f := range fx.Refill {
		select {
		case o.refills <- f:
		default:
			o.machine.Step(segment.View{}, segment.Unreserved{Conv: f.Conv, Shard: f.Shard})
		}
	}
	return fx
}

// turn waits until this call alone writes in the shards, which are sorted, and
// returns what ends that.
func (o *owner) turn(ctx context.Context, shards []int) (end func(), err error) {
	for i, id := range shards {
		select {
		case o.turns[id] <- struct{}{}:
		case <-ctx.Done():
			o.endTurn(shards[:i])
			return nil, ctx.Err()
		}
	}
	return func() { o.endTurn(shards) }, nil
}

func (o *owner) endTurn(shards []int) {
	for _, id := range shards {
		<-o.turns[id]
	}
}

// rights is what may be written now, by conversation.
type rights struct {
	grants    map[string]segment.Grant
	elsewhere map[string]bool // another process owns it
	busy      map[string]bool // to be tried again later
}

// rightsTo takes over and reserves what is missing. A shard whose owner is just
// writing, and a conversation whose numbers somebody holds, are busy: nothing
// here waits for one of them.
func (o *owner) rightsTo(ctx context.Context, needs []segment.Need) (rights, error) {
	for range maxPasses {
		r := o.now()
		fx := o.step(r, segment.Want{Needs: needs})
		switch {
		case len(fx.Take) > 0:
			o.early(ctx, needs)
			if err := o.take(ctx, r, false, fx.Take); err != nil {
				return rights{}, err
			}
		case len(fx.Reserve) > 0:
			if err := o.reserve(ctx, fx.Reserve); err != nil {
				return rights{}, err
			}
		default:
			return rightsOf(fx), nil
		}
	}
	return rights{}, errors.New("the ownership of the conversations does not settle")
}

func rightsOf(fx segment.Effects) rights {
	out := rights{grants: map[string]segment.Grant{}, elsewhere: map[string]bool{}, busy: map[string]bool{}}
	for _, g := range fx.Grants {
		out.grants[g.Conv] = g
	}
	for _, c := range fx.Elsewhere {
		out.elsewhere[c] = true
	}
	for _, c := range fx.Busy {
		out.busy[c] = true
	}
	return out
}

const sqlTake = `SELECT id, outcome, fence FROM imd_take($1, $2, $3, $4, $5, $6)`

// What imd_take says of a shard.
const (
	takeDone = iota
	takeRefused
	takeHeld
)

// take takes shards over and tells the machine. Without wait it leaves out those
// that their owner writes in; with it, it waits up to the lock timeout. The
// error says nothing about rows: none was written.
func (o *owner) take(ctx context.Context, r store.Ring, wait bool, shards []int) error {
	events, err := call(ctx, o.pool, true, func(ctx context.Context, c *pgx.Conn) ([]segment.Event, error) {
		rows, err := c.Query(ctx, sqlTake, wait, int32s(shards), string(r.Node), o.process, strconv.FormatUint(r.Cluster, 16), r.Revision)
		if err != nil {
			return nil, err
		}
		defer rows.Close()
		var events []segment.Event
		for rows.Next() {
			var id, outcome int
			var fence int64
			if err := rows.Scan(&id, &outcome, &fence); err != nil {
				return nil, err
			}
			switch outcome {
			case takeDone:
				events = append(events, segment.Taken{Shard: id, Fence: fence})
			case takeRefused:
				events = append(events, segment.Refused{Shard: id, View: viewOf(r).Version})
			case takeHeld:
				events = append(events, segment.Held{Shard: id})
			}
		}
		return events, rows.Err()
	})
	if err != nil {
		return unwritten(err)
	}
	for _, ev := range events {
		o.step(r, ev)
	}
	return nil
}

// unwritten is a failure before any row was sent. It is no unknown outcome,
// whatever happened to the shard or the segment that it was about.
func unwritten(err error) error {
	if codeOf(err) == codeFenced {
		return err
	}
	return &im.Error{Reason: clientv1.Reason_REASON_UNAVAILABLE, Op: "store.segment", Msg: "the message store cannot do this now", Err: errors.New(err.Error())}
}

// takeWaiting takes shards over whose owners are writing, one after the other. A
// shard that stays held goes to the end of the queue.
func (o *owner) takeWaiting(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case id := <-o.waits:
			r := o.now()
			if r.Mine == nil || !r.Mine(id) {
				o.step(r, segment.Gone{Shard: id})
				continue
			}
			if err := o.take(ctx, r, true, []int{id}); err == nil {
				continue
			} else if ctx.Err() == nil {
				o.store.log.Warn("a shard is still held by its former owner's writes", zap.Int("shard", id), obs.Err(err))
			}
			o.step(r, segment.Gone{Shard: id}) // whoever needs it asks again
		}
	}
}

// refillAhead reserves segments before they are needed.
func (o *owner) refillAhead(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case f := <-o.refills:
			if err := o.reserve(ctx, []segment.Reservation{f}); err != nil && ctx.Err() == nil {
				o.store.log.Warn("no segment was reserved ahead", obs.Err(err))
			}
		}
	}
}

const sqlReserve = `SELECT conversation, after, upto FROM imd_reserve($1, $2, $3, $4)`

// reserve reserves segments and tells the machine. Conversations whose row
// somebody holds get none now.
func (o *owner) reserve(ctx context.Context, list []segment.Reservation) error {
	if list = o.reserved(list); len(list) == 0 {
		return nil
	}
	slices.SortFunc(list, func(a, b segment.Reservation) int { return strings.Compare(a.Conv, b.Conv) })
	byConv := make(map[string]segment.Reservation, len(list))
	shards, convs, counts := map[int]int64{}, make([]string, len(list)), make([]int64, len(list))
	for i, f := range list {
		byConv[f.Conv], shards[f.Shard], convs[i], counts[i] = f, f.Fence, f.Conv, f.Count
	}
	ids, fences := sorted(shards)
	got, err := call(ctx, o.pool, true, func(ctx context.Context, c *pgx.Conn) ([]segment.Reserved, error) {
		rows, err := c.Query(ctx, sqlReserve, int32s(ids), fences, convs, counts)
		if err != nil {
			return nil, err
		}
		return pgx.CollectRows(rows, func(row pgx.CollectableRow) (r segment.Reserved, err error) {
			return r, row.Scan(&r.Conv, &r.After, &r.Upto)
		})
	})
	view := store.Ring{}
	for _, g := range got {
		f := byConv[g.Conv]
		g.Shard, g.Fence = f.Shard, f.Fence
		o.step(view, g)
		delete(byConv, g.Conv)
	}
	for _, f := range byConv {
		o.step(view, segment.Unreserved{Conv: f.Conv, Shard: f.Shard})
	}
	switch {
	case err == nil, o.lost(err, shards):
		return nil
	case codeOf(err) == codeLockTimeout && len(list) > 1: // somebody makes the row of one; the others need not wait
		for _, f := range list {
			if err := o.reserve(ctx, []segment.Reservation{f}); err != nil {
				return err
			}
		}
		return nil
	case codeOf(err) == codeLockTimeout:
		return nil
	}
	return unwritten(err)
}

// lost tells the machine which shards have another owner if that is what err
// says, and reports whether it is.
func (o *owner) lost(err error, fences map[int]int64) bool {
	e := (*pgconn.PgError)(nil)
	if !errors.As(err, &e) || e.Code != codeFenced {
		return false
	}
	for _, text := range strings.Split(e.Detail, ",") {
		if id, err := strconv.Atoi(text); err == nil {
			o.store.log.Info("a shard has another owner", zap.Int("shard", id), zap.Int64("fence", fences[id]))
			o.step(store.Ring{}, segment.Fenced{Shard: id, Fence: fences[id]})
		}
	}
	return true
}

// sorted are the keys of m in order and their values.
func sorted(m map[int]int64) (keys []int, values []int64) {
	keys = slices.Sorted(maps.Keys(m))
	for _, k := range keys {
		values = append(values, m[k])
	}
	return keys, values
}

func int32s(list []int) []int32 {
	out := make([]int32, len(list))
	for i, n := range list {
		out[i] = int32(n)
	}
	return out
}
