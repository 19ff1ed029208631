package gateway

import (
	"container/list"
	"context"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/obs"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

const (
	// maxGroupMembers is how many members of all groups together are kept.
	maxGroupMembers = 500_000
	// groupIdle is after how long without a delivery the list of a group goes.
	groupIdle = 10 * time.Minute
	// groupLoads is how many lists are read at once.
	groupLoads = 4
	// groupLoad bounds the reading of one list, with the wait for a turn.
	groupLoad = 30 * time.Second
	// groupPage is how many members one call asks for, and groupCall bounds it.
	groupPage = 1000
	groupCall = 2 * time.Second
	// groupTries is how often a call is made, groupPause the wait before the
	// second time; then twice as long.
	groupTries = 3
	groupPause = 50 * time.Millisecond
	// groupRounds is how often a list is read until it has reached what waits.
	groupRounds = 3
	// maxGroupWaiting is how many frames wait for the list of a group.
	maxGroupWaiting = 1024
)

// membersClient is what groups ask of the state role.
type membersClient interface {
	Members(context.Context, *v1.MembersRequest) (*v1.MembersResponse, error)
}

// groups finds the sessions of the members of large groups. Each list is read
// once and then follows the changes that deliveries bring; the sessions follow
// the hub. Safe for concurrent use.
type groups struct {
	state  membersClient
	hub    *hub
	engine *engine
	m      *metrics
	log    *zap.Logger
	ctx    context.Context
	run    func(func()) bool // starts a goroutine; false = too late
	now    func() time.Time
	turns  turns // of those who read lists
	told   func(frames []*shared, sessions int)

	mu     sync.Mutex
	byConv map[string]*list.Element // of *group
	order  *list.List               // front = used last
	total  int                      // members of all
}

// group is one of them. Its lock is held while something is delivered, so that
// one delivery follows the other.
type group struct {
	conv string
	used time.Time // guarded by the lock of groups
	size int       // members as counted in total; likewise

	mu      sync.Mutex
	version int64 // of the membership; -1 = the list is not read yet
	members memberList
	to      audience
	place   map[im.SessionID]spot // where in to a session is
	news    uint64                // of the hub that are in to
	loading bool
	waiting []arrival
	frames  int   // of those that wait
	lost    int64 // newest seq of what had to make room; 0 = nothing had to
}

// spot is a place in an audience.
type spot struct{ shard, i int }

// arrival is a delivery for a group.
type arrival struct {
	to     *v1.Audience
	frames []*shared
}

func newGroups(g *Gateway) *groups {
	return &groups{state: g.State, hub: g.hub, engine: g.engine, m: g.m, log: g.Log, ctx: g.ctx, run: g.another, now: time.Now,
		turns: make(turns, groupLoads), told: g.arrivedAt, byConv: map[string]*list.Element{}, order: list.New()}
}

// deliver hands frames of one group to its members' sessions and returns how many
// there were. Without the list of the members it keeps them, has it read, and
// returns -1.
func (gs *groups) deliver(conv string, a arrival) int {
	g := gs.get(conv)
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.loading && g.reaches(a.to) {
		return gs.hand(g, a)
	}
	g.keep(a, gs.m)
	if !g.loading {
		g.loading = true
		if !gs.run(func() { gs.load(g) }) {
			g.loading, g.waiting, g.frames = false, nil, 0
		}
	}
	return -1
}

// get is the group of a conversation, which may be a new one.
func (gs *groups) get(conv string) *group {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	e := gs.byConv[conv]
	if e == nil {
		e = gs.order.PushFront(&group{conv: conv, version: -1})
		gs.byConv[conv] = e
		gs.m.groups.Inc()
	}
	gs.order.MoveToFront(e)
	g := e.Value.(*group)
	g.used = gs.now()
	return g
}

// sized notes how many members a group has now, and lets go of those used
// longest ago if they are too many.
func (gs *groups) sized(g *group, members int) {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	if e := gs.byConv[g.conv]; e == nil || e.Value != g {
		return // it was let go of
	}
	gs.total += members - g.size
	g.size = members
	for e := gs.order.Back(); e != nil && gs.total > maxGroupMembers; {
		before := e.Prev()
		if old := e.Value.(*group); old != g && old.size > 0 { // not those whose list is still read
			gs.drop(e)
		}
		e = before
	}
	gs.m.groupMembers.Set(float64(gs.total))
}

// drop forgets a group; gs.mu is held.
func (gs *groups) drop(e *list.Element) {
	g := gs.order.Remove(e).(*group)
	delete(gs.byConv, g.conv)
	gs.total -= g.size
	gs.m.groups.Dec()
}

// forget forgets a group.
func (gs *groups) forget(g *group) {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	if e := gs.byConv[g.conv]; e != nil && e.Value == g {
		gs.drop(e)
	}
	gs.m.groupMembers.Set(float64(gs.total))
}

// expire forgets the groups that nothing was delivered to for long.
func (gs *groups) expire(now time.Time) {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	for e := gs.order.Back(); e != nil && now.Sub(e.Value.(*group).used) > groupIdle; e = gs.order.Back() {
		gs.drop(e)
	}
	gs.m.groupMembers.Set(float64(gs.total))
}

// reaches reports whether the list serves an audience, if need be with the change
// that it names.
func (g *group) reaches(a *v1.Audience) bool {
	return g.version >= 0 && (g.version >= a.MemberVersion || a.Change && g.version == a.MemberVersion-1)
}

// keep puts a delivery behind those that wait. The oldest make room.
func (g *group) keep(a arrival, m *metrics) {
	g.waiting = append(g.waiting, a)
	g.frames += len(a.frames)
	for g.frames > maxGroupWaiting && len(g.waiting) > 1 {
		old := g.waiting[0]
		g.waiting[0] = arrival{}
		g.waiting = g.waiting[1:]
		g.frames -= len(old.frames)
		g.lost = max(g.lost, old.frames[len(old.frames)-1].seq)
		m.groupDropped.Add(float64(len(old.frames)))
	}
}

// hand delivers to a group whose list serves the audience; g.mu is held.
func (gs *groups) hand(g *group, a arrival) int {
	gs.follow(g)
	if a.to.Change && g.version < a.to.MemberVersion {
		gs.change(g, a.to)
	}
	n := gs.engine.hand(g.to, a.frames)
	if len(a.to.RemovedUserIds) > 0 {
		n += gs.engine.hand(gs.gone(g, a.to.RemovedUserIds), a.frames[:1])
	}
	gs.told(a.frames, n)
	return n
}

// gone is the sessions of users who are no members any more.
func (gs *groups) gone(g *group, users []string) audience {
	to := make(audience, len(gs.engine.shards))
	for _, u := range users {
		if _, back := g.members.start(im.UserID(u)); back {
			continue
		}
		for _, s := range gs.hub.of(im.UserID(u)) {
			i := gs.engine.of(s)
			to[i] = append(to[i], listener{s, 0})
		}
	}
	return to
}

// change makes the list one of the next version.
func (gs *groups) change(g *group, a *v1.Audience) {
	edits := make([]memberEdit, 0, len(a.RemovedUserIds)+len(a.AddedUserIds))
	for _, u := range a.RemovedUserIds {
		edits = append(edits, memberEdit{user: u, gone: true})
		for _, s := range gs.hub.of(im.UserID(u)) {
			g.leave(s.id)
		}
	}
	for _, u := range a.AddedUserIds {
		edits = append(edits, memberEdit{user: u, start: a.Start})
		for _, s := range gs.hub.of(im.UserID(u)) {
			gs.join(g, s, a.Start)
		}
	}
	g.members.apply(edits)
	g.version = a.MemberVersion
	gs.sized(g, g.members.len())
}

// follow brings the sessions of a group up to what the hub has now.
func (gs *groups) follow(g *group) {
	now, ok := gs.hub.news.since(g.news, func(c hubChange) {
		start, member := g.members.start(c.user)
		switch {
		case !member:
		case !c.came:
			g.leave(c.id)
		default:
			if s := gs.hub.session(c.id); s != nil {
				gs.join(g, s, start)
			}
		}
	})
	if g.news = now; !ok {
		gs.look(g)
	}
}

// look finds the sessions of a group anew.
func (gs *groups) look(g *group) {
	g.news = gs.hub.news.now()
	g.to, g.place = make(audience, len(gs.engine.shards)), map[im.SessionID]spot{}
	gs.hub.each(func(s *session) {
		if start, member := g.members.start(s.user); member {
			gs.join(g, s, start)
		}
	})
}

// join adds a session of a member, if it is not there.
func (gs *groups) join(g *group, s *session, start int64) {
	i := gs.engine.of(s)
	if p, there := g.place[s.id]; there {
		g.to[p.shard][p.i].start = start
		return
	}
	g.place[s.id] = spot{i, len(g.to[i])}
	g.to[i] = append(g.to[i], listener{s, start})
}

// leave takes a session away, if it is there.
func (g *group) leave(id im.SessionID) {
	p, there := g.place[id]
	if !there {
		return
	}
	delete(g.place, id)
	some := g.to[p.shard]
	last := len(some) - 1
	if p.i != last {
		some[p.i] = some[last]
		g.place[some[p.i].id] = p
	}
	some[last] = listener{}
	g.to[p.shard] = some[:last]
}

// load reads the list of a group until it has reached all that waits, and
// delivers that.
func (gs *groups) load(g *group) {
	ctx, cancel := context.WithTimeout(gs.ctx, groupLoad)
	defer cancel()
	if !gs.turns.take(ctx, groupLoad) {
		gs.failed(g, im.Errorf(clientv1.Reason_REASON_BUSY, "gateway.groups", "too many lists are read"))
		return
	}
	defer gs.turns.give()
	for range groupRounds {
		version, members, err := gs.read(ctx, g.conv)
		if err != nil {
			gs.failed(g, err)
			return
		}
		if gs.loaded(g, version, members) {
			gs.m.groupLoads.WithLabelValues("read").Inc()
			return
		}
	}
	gs.failed(g, im.Errorf(clientv1.Reason_REASON_INTERNAL, "gateway.groups", "the list of members does not reach what was delivered"))
}

// loaded takes over a list and delivers what it has reached; false = something
// still waits for a newer one.
func (gs *groups) loaded(g *group, version int64, members memberList) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.version, g.members = version, members
	gs.look(g)
	gs.sized(g, members.len())
	if g.lost > 0 {
		gs.engine.hand(g.to, []*shared{{conv: g.conv, seq: g.lost}})
		g.lost = 0
	}
	for len(g.waiting) > 0 {
		a := g.waiting[0]
		if !g.reaches(a.to) {
			return false
		}
		g.waiting[0] = arrival{}
		g.waiting = g.waiting[1:]
		g.frames -= len(a.frames)
		gs.hand(g, a)
	}
	g.waiting, g.loading = nil, false
	return true
}

// failed gives up what waits for a list. Clients find it by their cursors.
func (gs *groups) failed(g *group, err error) {
	g.mu.Lock()
	n := g.frames
	g.waiting, g.frames, g.loading, g.lost = nil, 0, false, 0
	g.version, g.members, g.to, g.place = -1, memberList{}, nil, nil
	g.mu.Unlock()
	gs.forget(g)
	gs.m.groupLoads.WithLabelValues("failed").Inc()
	gs.m.groupDropped.Add(float64(n))
	if gs.ctx.Err() == nil {
		gs.log.Warn("the members of a group were not read; its deliveries are found by cursors", obs.Conv(im.ConversationID(g.conv)), zap.Int("frames", n), obs.Err(err))
	}
}

// read asks for all members. The version is that before the first page: who
// joined or left while it was read is told again by a delivery of that change.
func (gs *groups) read(ctx context.Context, conv string) (version int64, members memberList, err error) {
	version = -1
	after, edits := "", make([]memberEdit, 0, groupPage)
	for {
		page, err := gs.page(ctx, conv, after)
		if err != nil {
			return 0, memberList{}, err
		}
		if version < 0 {
			version = page.MemberVersion
		}
		edits = edits[:0]
		for _, m := range page.Members {
			edits = append(edits, memberEdit{user: m.UserId, start: m.Start})
			after = m.UserId
		}
		members.apply(edits)
		if page.End || len(page.Members) == 0 {
			return version, members, nil
		}
	}
}

// page asks for one page, and again if there was no answer.
func (gs *groups) page(ctx context.Context, conv, after string) (*v1.MembersResponse, error) {
	wait := groupPause
	for try := 1; ; try++ {
		call, cancel := context.WithTimeout(ctx, groupCall)
		page, err := gs.state.Members(call, &v1.MembersRequest{ConversationId: conv, AfterUserId: after, Limit: groupPage})
		cancel()
		if err == nil || try == groupTries || !im.Retryable(err) {
			return page, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(wait):
			wait *= 2
		}
	}
}
