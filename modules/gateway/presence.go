package gateway

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/presence"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

const (
	// changesKept is how many of the newest changes are kept for the leader. One
	// that is further behind gets a snapshot.
	changesKept = 8192
	// changesPage is how many changes one answer to the leader holds.
	changesPage = 2000
	// followWait is the longest that the leader waits for a change.
	followWait = 400 * time.Millisecond
	// silentTime is how long the leader may be silent before what it said last is
	// not given to newcomers any more.
	silentTime = 5 * time.Second
	// presenceStep is how often it is looked for what is owed or to be renewed.
	presenceStep = time.Second
	// relaxedFill is how full a queue may be for frames of which nothing is lost.
	relaxedFill = 0.5
)

// watchers is what this node tells the leader of the schedulers of its sessions
// and of whom they watch, and what it hears from it. Locks are taken in this
// order: show, a session's, mu.
type watchers struct {
	g *Gateway
	// show is held while sessions are told of a state, so that none is told of an
	// older one after it.
	show sync.Mutex

	asked  atomic.Uint64 // lists that clients have sent
	mu     sync.Mutex
	last   uint64 // number of the newest change; never 0
	kept   []*v1.SessionChange
	news   chan struct{} // closed at the next change; nil = nobody waits
	snap   []*v1.SessionChange
	snapAt uint64 // last when snap was begun
	users  map[im.UserID]*watched
	lists  map[*session]*watchList
	owed   map[*session]map[im.UserID]struct{}
	heard  time.Time // when the leader last asked
}

// watched is one user that somebody here watches.
type watched struct {
	state    *clientv1.UserPresence // nil = not known
	known    bool                   // the leader has said so
	sessions map[*session]struct{}
	waiting  []*waiter
}

// waiter is a session that waits until some users are known.
type waiter struct {
	session *session // nil = it has given up, and wants events
	left    int
	done    chan struct{} // closed when left is 0
}

// watchList is whom one session watches.
type watchList struct {
	order        uint64   // a client's later list has a greater one
	users, convs []string // as the client asked
	seen         []im.UserID
	renewAt      time.Time
}

func newWatchers(g *Gateway) *watchers {
	return &watchers{g: g, last: changesKept - 1, users: map[im.UserID]*watched{}, lists: map[*session]*watchList{},
		owed: map[*session]map[im.UserID]struct{}{}}
}

// began tells that a session is there, or has its route now. The session's lock
// is held.
func (p *watchers) began(s *session) {
	s.announced = true
	c := s.beganChange()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.add(c)
}

// beganChange is the session as the leader hears of it; its lock is held.
func (s *session) beganChange() *v1.SessionChange {
	b := &v1.SessionBegan{UserId: string(s.user), SessionId: string(s.id), Place: presence.PlaceOf(s.login, s.device), Class: string(s.class)}
	if s.place.claimed {
		b.RouteEpoch = s.place.epoch
	}
	return &v1.SessionChange{What: &v1.SessionChange_Began{Began: b}}
}

// ended tells that a session is over, and drops what it watched. The session's
// lock is held.
func (p *watchers) ended(s *session, reason string) {
	if !s.announced {
		return
	}
	s.announced = false
	c := &v1.SessionChange{What: &v1.SessionChange_Ended{Ended: &v1.SessionEnded{UserId: string(s.user), SessionId: string(s.id),
		AtMs: time.Now().UnixMilli(), Returns: protocol.CloseCode(reason) > 0 && protocol.NewBye(reason, "", 0).Reconnect}}}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.add(c)
	p.drop(s)
}

// add notes a change for the leader; p.mu is held.
func (p *watchers) add(c *v1.SessionChange) {
	p.last++
	if i := p.last % changesKept; i < uint64(len(p.kept)) {
		p.kept[i] = c
	} else {
		p.kept = append(p.kept, c)
	}
	if p.news != nil {
		close(p.news)
		p.news = nil
	}
}

// follow answers the leader: a page of a snapshot, or what changed behind a
// number, for which it waits.
func (p *watchers) follow(ctx context.Context, r *v1.FollowRequest) *v1.FollowResponse {
	wait := min(max(time.Duration(r.WaitMs)*time.Millisecond, 0), followWait)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.heard = time.Now()
	if r.Offset > 0 && r.Offset <= uint64(len(p.snap)) {
		return p.page(r.Offset)
	}
	if r.After == 0 || r.Offset > 0 || r.After > p.last || p.last-r.After > uint64(len(p.kept)) {
		p.snapshot()
		return p.page(0)
	}
	p.snap = nil
	if r.After == p.last && wait > 0 {
		p.await(ctx, wait)
	}
	if p.last-r.After > uint64(len(p.kept)) { // so many have come that the next question gets a snapshot
		return &v1.FollowResponse{BootId: p.g.Boot, After: r.After}
	}
	res := &v1.FollowResponse{BootId: p.g.Boot}
	for res.After = r.After; res.After < p.last && len(res.Changes) < changesPage; {
		res.After++
		res.Changes = append(res.Changes, p.kept[res.After%changesKept])
	}
	return res
}

// await gives p.mu up until something changes, for a while.
func (p *watchers) await(ctx context.Context, wait time.Duration) {
	if p.news == nil {
		p.news = make(chan struct{})
	}
	news := p.news
	p.mu.Unlock()
	defer p.mu.Lock()
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-news:
	case <-t.C:
	case <-ctx.Done():
	}
}

// snapshot collects all there is, behind the ends that are still kept: no leader
// may have heard of them. What changes meanwhile comes again behind it, which is
// harmless. p.mu is held, and given up meanwhile.
func (p *watchers) snapshot() {
	at := p.last
	var all []*v1.SessionChange
	for _, c := range p.kept {
		if c.GetEnded() != nil {
			all = append(all, c)
		}
	}
	p.mu.Unlock()
	for _, s := range p.g.hub.all() {
		s.mu.Lock()
		if s.announced {
			all = append(all, s.beganChange())
		}
		s.mu.Unlock()
	}
	p.mu.Lock()
	for u := range p.users {
		all = append(all, &v1.SessionChange{What: &v1.SessionChange_Watch{Watch: string(u)}})
	}
	p.snap, p.snapAt = all, at
}

// page is one page of the snapshot; p.mu is held.
func (p *watchers) page(offset uint64) *v1.FollowResponse {
	rest := p.snap[offset:]
	n := min(len(rest), changesPage)
	res := &v1.FollowResponse{BootId: p.g.Boot, Changes: rest[:n:n], After: p.snapAt, Snapshot: true,
		Offset: offset + uint64(n), More: n < len(rest)}
	if !res.More {
		p.snap = nil
	}
	return res
}

// told takes in what the leader says others see of users, and tells the sessions
// that watch them.
func (p *watchers) told(users []*clientv1.UserPresence) {
	p.show.Lock()
	defer p.show.Unlock()
	var touched []*session
	for _, u := range users {
		if sessions := p.learn(proto.CloneOf(u), true); len(sessions) > 0 {
			touched = append(touched, p.send(u, sessions)...)
		}
	}
	flush(touched) // all that one call brings to a session leaves in one message
}

// learn notes a state and returns who has to hear of it. p.show is held.
func (p *watchers) learn(u *clientv1.UserPresence, leader bool) []*session {
	p.mu.Lock()
	defer p.mu.Unlock()
	w := p.users[im.UserID(u.UserId)]
	if w == nil {
		return nil
	}
	had := w.state
	w.state = u
	asking := map[*session]bool{} // they get an answer
	if leader {
		w.known = true
		for _, x := range w.waiting {
			asking[x.session] = true
			if x.left--; x.left == 0 {
				close(x.done)
			}
		}
		w.waiting = nil
	}
	if proto.Equal(had, u) {
		return nil
	}
	return slices.DeleteFunc(slices.Collect(maps.Keys(w.sessions)), func(s *session) bool { return asking[s] })
}

// giveUp ends waiting: what becomes known later is an event.
func (p *watchers) giveUp(w *waiter) {
	p.mu.Lock()
	defer p.mu.Unlock()
	w.session = nil
}

// send tells sessions of a state, and returns those that are to be flushed.
// p.show is held.
func (p *watchers) send(u *clientv1.UserPresence, sessions []*session) (touched []*session) {
	frame, err := proto.Marshal(presenceFrame(0, []*clientv1.UserPresence{u}))
	if err != nil {
		return nil // ids are checked before they get here
	}
	f := &shared{frame: frame}
	for _, s := range sessions {
		if s.relax(f, kindPresence) {
			p.g.m.presence.WithLabelValues("sent").Inc()
			touched = append(touched, s)
			continue
		}
		p.g.m.presence.WithLabelValues("owed").Inc()
		p.mu.Lock()
		if p.owed[s] == nil {
			p.owed[s] = map[im.UserID]struct{}{}
		}
		p.owed[s][im.UserID(u.UserId)] = struct{}{}
		p.mu.Unlock()
	}
	return touched
}

// relax queues a frame that need not arrive, and leaves flushing to the caller;
// false = the session is behind.
func (s *session) relax(f *shared, k kind) bool {
	s.mu.Lock()
	defer s.mu.Mutex.Unlock()
	if s.phase != online {
		return true
	}
	if s.q.fill() > relaxedFill {
		return false
	}
	data, err := f.in(s.enc)
	return err == nil && !s.q.deliver(outFrame{data: data, kind: k})
}

func presenceFrame(id uint32, users []*clientv1.UserPresence) *clientv1.ServerFrame {
	return &clientv1.ServerFrame{Id: id, Kind: &clientv1.ServerFrame_Presence{Presence: &clientv1.Presence{Users: users}}}
}

// payOwed tells sessions that were behind what is now. Who is still behind goes
// on waiting.
func (p *watchers) payOwed() {
	p.show.Lock()
	defer p.show.Unlock()
	p.mu.Lock()
	owed := p.owed
	p.owed = map[*session]map[im.UserID]struct{}{}
	p.mu.Unlock()
	for s, users := range owed {
		for u := range users {
			p.mu.Lock()
			w := p.users[u]
			var state *clientv1.UserPresence
			if w != nil {
				if _, watches := w.sessions[s]; watches {
					state = w.state
				}
			}
			p.mu.Unlock()
			if state != nil {
				flush(p.send(state, []*session{s}))
			}
		}
	}
}

// set replaces whom a session watches. It returns what is to be waited for until
// all of them are known: nil if they are.
func (p *watchers) set(s *session, list *watchList) *waiter {
	p.mu.Lock()
	defer p.mu.Unlock()
	before := p.lists[s]
	if !s.live() || before != nil && before.order > list.order {
		return nil
	}
	p.lists[s] = list
	wt := &waiter{session: s, done: make(chan struct{})}
	for _, u := range list.seen {
		w := p.users[u]
		if w == nil {
			w = &watched{sessions: map[*session]struct{}{}}
			p.users[u] = w
			p.add(&v1.SessionChange{What: &v1.SessionChange_Watch{Watch: string(u)}})
		}
		w.sessions[s] = struct{}{}
		if !w.known {
			wt.left++
			w.waiting = append(w.waiting, wt)
		}
	}
	if before != nil {
		p.leave(s, before.seen, list.seen)
	}
	p.count()
	if wt.left == 0 {
		return nil
	}
	return wt
}

// leave takes a session off the users that it watched and does not any more;
// p.mu is held.
func (p *watchers) leave(s *session, before, now []im.UserID) {
	stay := make(map[im.UserID]bool, len(now))
	for _, u := range now {
		stay[u] = true
	}
	for _, u := range before {
		w := p.users[u]
		if w == nil || stay[u] {
			continue
		}
		delete(w.sessions, s)
		if len(w.sessions) == 0 {
			delete(p.users, u)
			p.add(&v1.SessionChange{What: &v1.SessionChange_Unwatch{Unwatch: string(u)}})
		}
	}
}

// drop forgets a session; p.mu is held.
func (p *watchers) drop(s *session) {
	if l := p.lists[s]; l != nil {
		delete(p.lists, s)
		p.leave(s, l.seen, nil)
		p.count()
	}
	delete(p.owed, s)
}

// count shows how much is watched; p.mu is held.
func (p *watchers) count() {
	p.g.m.watchers.Set(float64(len(p.lists)))
	p.g.m.watched.Set(float64(len(p.users)))
}

// quiet reports whether the leader has not asked for a while.
func (p *watchers) quiet(now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return now.Sub(p.heard) > silentTime
}

// silence is how long the leader has not asked; 0 before it ever did.
func (p *watchers) silence() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.heard.IsZero() {
		return 0
	}
	return time.Since(p.heard)
}

// states are what is known of users, in their order.
func (p *watchers) states(users []im.UserID) (known []*clientv1.UserPresence, unknown []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, u := range users {
		if w := p.users[u]; w != nil && w.state != nil {
			known = append(known, w.state)
		} else {
			unknown = append(unknown, string(u))
		}
	}
	return known, unknown
}

// Follow tells the leader of the schedulers what happened here.
func (s service) Follow(ctx context.Context, req *v1.FollowRequest) (*v1.FollowResponse, error) {
	if err := s.leads("gateway.Follow", req.Leader); err != nil {
		return nil, err
	}
	return s.g.watchers.follow(ctx, req), nil
}

// Show hands what others see of users to those who watch them here, and ends
// sessions that newer ones elsewhere have displaced.
func (s service) Show(_ context.Context, req *v1.ShowRequest) (*v1.ShowResponse, error) {
	if err := s.leads("gateway.Show", req.Leader); err != nil {
		return nil, err
	}
	s.g.watchers.told(req.Users)
	found, _ := s.g.hub.find(req.SupersededSessionIds, nil, nil)
	for _, x := range found {
		x.displace("superseded")
	}
	return &v1.ShowResponse{}, nil
}

// leads refuses a call that is not that of a leader, or of one that has been
// followed.
func (s service) leads(op string, p *v1.LeaderProof) error {
	if p == nil {
		return im.Errorf(clientv1.Reason_REASON_FORBIDDEN, op, "this is for the leader of the schedulers")
	}
	return s.admit(op, p)
}

// relaxed lets a frame leave on sessions; those that are behind go without.
func relaxed(f *shared, sessions []*session) {
	for _, x := range sessions {
		x.relax(f, kindTypingOut)
	}
	flush(sessions)
}
