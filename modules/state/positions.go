package state

import (
	"container/list"
	"context"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/obs"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// Limits of the positions in memory.
const (
	// saveEvery is the least time between two writes of one member's delivered
	// position.
	saveEvery = 5 * time.Second
	// saveTick is how often what is due is looked for.
	saveTick = time.Second
	// saveRows is the most positions of one call to the store.
	saveRows = 500
	// saveTimeout bounds one call to the store.
	saveTimeout = 2 * time.Second
	// maxPositions is how many members' positions are kept; maxSpill how many
	// more may wait to be written after they had to make room.
	maxPositions = 65536
	maxSpill     = 8192
	// maxKnownHeads is how many conversations' heads are remembered.
	maxKnownHeads = 65536
	// headsTTL is how long a head is remembered. It may be old: it is a lower
	// bound.
	headsTTL = 10 * time.Minute
)

// memberKey names one member of one conversation.
type memberKey struct {
	conv im.ConversationID
	user im.UserID
}

// place is where one member stands.
type place struct {
	key   memberKey
	at    store.Position // as last read or saved, with delivered and read moved since
	saved time.Time      // last read from or written to the store
	dirty bool           // delivered moved since
}

// positionStore is what positions ask of the message store.
type positionStore interface {
	Position(ctx context.Context, conv im.ConversationID, user im.UserID) (store.Position, error)
	SavePositions(ctx context.Context, p []store.Position) ([]store.Position, error)
}

// positions keeps delivered positions in memory and writes them behind, at most
// once in saveEvery a member. A position that is lost with the process shows
// others "delivered" later than it was, and nothing else. Safe for concurrent
// use.
type positions struct {
	store positionStore
	m     *metrics
	log   *zap.Logger
	heads *cache[im.ConversationID, im.Seq] // committed here

	mu    sync.Mutex
	all   map[memberKey]*list.Element // of lru; values are *place
	lru   *list.List                  // front = used last
	dirty map[memberKey]*place        // moved since they were saved
	spill int                         // dirty ones that are not in all any more
}

func newPositions(s positionStore, m *metrics, log *zap.Logger) *positions {
	return &positions{
		store: s, m: m, log: log, heads: newCache[im.ConversationID, im.Seq](headsTTL, maxKnownHeads),
		all: map[memberKey]*list.Element{}, lru: list.New(), dirty: map[memberKey]*place{},
	}
}

// committed remembers the head of a conversation.
func (p *positions) committed(conv im.ConversationID, head im.Seq) {
	p.heads.put(conv, head, time.Now())
}

// changed forgets what a change of the conversation may have made wrong.
func (p *positions) changed(c *store.ChangeResult) {
	p.heads.forget(c.Conversation)
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, u := range c.Removed {
		k := memberKey{c.Conversation, u}
		if e := p.all[k]; e != nil {
			p.lru.Remove(e)
			delete(p.all, k)
		} else if p.dirty[k] != nil {
			p.spill--
		}
		delete(p.dirty, k)
	}
}

// find returns the place of a member that is in memory. The caller holds mu.
func (p *positions) find(k memberKey) *place {
	if e := p.all[k]; e != nil {
		p.lru.MoveToFront(e)
		return e.Value.(*place)
	}
	if pl := p.dirty[k]; pl != nil {
		p.spill--
		p.keep(pl)
		return pl
	}
	return nil
}

// keep puts a place into memory, and lets the longest unused make room. The
// caller holds mu.
func (p *positions) keep(pl *place) {
	p.all[pl.key] = p.lru.PushFront(pl)
	for p.lru.Len() > maxPositions {
		e := p.lru.Back()
		old := p.lru.Remove(e).(*place)
		delete(p.all, old.key)
		if !old.dirty {
			continue
		}
		if p.spill >= maxSpill {
			delete(p.dirty, old.key)
			p.m.positions.WithLabelValues("dropped").Inc()
			continue
		}
		p.spill++
		old.saved = time.Time{} // due at once
	}
}

// delivered moves a member's delivered position to seq if what lies between is
// delivered too. moved is false if nothing changed. Errors: not_member, and
// those of a store that is away.
func (p *positions) delivered(ctx context.Context, k memberKey, after, seq im.Seq) (at store.Position, moved bool, err error) {
	for fresh := false; ; fresh = true {
		p.mu.Lock()
		if pl := p.find(k); pl != nil {
			at, moved, known := p.move(pl, after, seq, fresh)
			p.mu.Unlock()
			if known {
				return at, moved, nil
			}
		} else {
			p.mu.Unlock()
		}
		if err := p.load(ctx, k); err != nil {
			return at, false, err
		}
	}
}

// move applies the rule of delivered. known is false if the place was not read
// recently enough to tell whether seq exists. The caller holds mu.
func (p *positions) move(pl *place, after, seq im.Seq, fresh bool) (at store.Position, moved, known bool) {
	if seq <= pl.at.Delivered || after > pl.at.Delivered {
		return pl.at, false, true
	}
	head := pl.at.Head
	if seq > head {
		if h, ok := p.heads.get(pl.key.conv, time.Now()); ok {
			head = max(head, h)
		}
	}
	if seq > head && !fresh {
		return pl.at, false, false
	}
	seq = min(seq, head)
	if seq <= pl.at.Delivered {
		return pl.at, false, true
	}
	pl.at.Delivered, pl.at.Head, pl.dirty = seq, head, true
	p.dirty[pl.key] = pl
	return pl.at, true, true
}

// load reads the position of a member.
func (p *positions) load(ctx context.Context, k memberKey) error {
	at, err := p.store.Position(ctx, k.conv, k.user)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.merge(k, at)
	return nil
}

// merge takes over what the store says; what moved in memory since stays moved.
// The caller holds mu.
func (p *positions) merge(k memberKey, at store.Position) *place {
	pl := p.find(k)
	if pl == nil {
		pl = &place{key: k, at: at, saved: time.Now()}
		p.keep(pl)
		return pl
	}
	at.Delivered, at.Read, at.Head = max(at.Delivered, pl.at.Delivered), max(at.Read, pl.at.Read), max(at.Head, pl.at.Head)
	pl.at = at
	return pl
}

// read moves read positions up in the store, and delivered ones with them. It
// returns where the members stand; who is none is not in it.
func (p *positions) read(ctx context.Context, marks []store.Position) (map[memberKey]store.Position, error) {
	var got []store.Position
	err := settleCall(ctx, func() (err error) {
		got, err = p.store.SavePositions(ctx, marks)
		return err
	})
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	stand := make(map[memberKey]store.Position, len(got))
	for _, at := range got {
		if at.Kind == clientv1.ConversationKind_CONVERSATION_KIND_UNSPECIFIED {
			continue // no member
		}
		k := memberKey{at.Conversation, at.User}
		merged := p.merge(k, at).at
		merged.Unread = at.Unread
		stand[k] = merged
	}
	return stand, nil
}

// overlay is the delivered position of a member, if memory knows a later one
// than seq.
func (p *positions) overlay(k memberKey, seq im.Seq) im.Seq {
	p.mu.Lock()
	defer p.mu.Unlock()
	if pl := p.dirty[k]; pl != nil {
		return max(seq, pl.at.Delivered)
	}
	return seq
}

// run writes what is due until ctx is done.
func (p *positions) run(ctx context.Context) {
	tick := time.NewTicker(saveTick)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			p.flush(ctx, false)
		}
	}
}

// flush writes what is due, or everything. What could not be written stays for
// the next time.
func (p *positions) flush(ctx context.Context, all bool) {
	due := p.due(time.Now(), all)
	for len(due) > 0 && ctx.Err() == nil {
		n := min(len(due), saveRows)
		if err := p.save(ctx, due[:n]); err != nil {
			if ctx.Err() == nil {
				p.log.Warn("delivered positions were not saved; they are tried again", zap.Int("rows", n), obs.Err(err))
			}
			return
		}
		p.m.positions.WithLabelValues("saved").Add(float64(n))
		due = due[n:]
	}
}

// due copies the positions that are to be written now.
func (p *positions) due(now time.Time, all bool) []store.Position {
	p.mu.Lock()
	defer p.mu.Unlock()
	var due []store.Position
	for _, pl := range p.dirty {
		if all || now.Sub(pl.saved) >= saveEvery {
			due = append(due, store.Position{Conversation: pl.key.conv, User: pl.key.user, Delivered: pl.at.Delivered})
		}
	}
	return due
}

// save writes positions and takes over what became of them.
func (p *positions) save(ctx context.Context, due []store.Position) error {
	ctx, cancel := context.WithTimeout(ctx, saveTimeout)
	defer cancel()
	got, err := p.store.SavePositions(ctx, due)
	if err != nil {
		return err
	}
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, was := range due {
		p.saved(memberKey{was.Conversation, was.User}, was.Delivered, now)
	}
	for _, at := range got {
		if pl := p.find(memberKey{at.Conversation, at.User}); pl != nil && !pl.dirty {
			pl.at = at
		}
	}
	return nil
}

// saved notes that a position was written, or that its user is no member any
// more. The caller holds mu.
func (p *positions) saved(k memberKey, delivered im.Seq, now time.Time) {
	pl := p.dirty[k]
	if pl == nil {
		return
	}
	pl.saved = now
	if pl.at.Delivered > delivered {
		return // moved meanwhile
	}
	pl.dirty = false
	delete(p.dirty, k)
	if p.all[k] == nil {
		p.spill--
	}
}
