package scheduler

import (
	"context"
	"sync"
	"time"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/obs"
	"github.com/imdhq/imd/pkg/presence"
	"github.com/imdhq/imd/pkg/store"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

const (
	// followWait is how long a gateway waits for something to tell; it is below the
	// time of one attempt of a call.
	followWait = 300 * time.Millisecond
	// followPace is the least time between two questions, so that what happens at
	// once comes in one answer.
	followPace = 50 * time.Millisecond
	// linkPause is the wait after a call that failed.
	linkPause = 250 * time.Millisecond
	// showBatch is how many states one call carries.
	showBatch = 1000
)

// link is the leader's line to one gateway. Only the newest state of a user
// waits, so that what waits is bounded by whom the gateway asked for.
type link struct {
	f      *following
	home   store.Home
	gw     GatewayClient
	cancel context.CancelFunc
	wake   chan struct{}

	mu         sync.Mutex
	states     map[im.UserID]presence.State
	superseded map[im.SessionID]struct{}
}

// link begins to follow a gateway.
func (f *following) link(ctx context.Context, h store.Home) *link {
	ctx, cancel := context.WithCancel(ctx)
	l := &link{f: f, home: h, gw: f.s.Gateway(h.Node), cancel: cancel, wake: make(chan struct{}, 1),
		states: map[im.UserID]presence.State{}, superseded: map[im.SessionID]struct{}{}}
	f.wg.Go(func() { l.follow(ctx) })
	f.wg.Go(func() { l.show(ctx) })
	return l
}

// add queues what the gateway has to hear.
func (l *link) add(t presence.Tell) {
	l.mu.Lock()
	for _, s := range t.States {
		l.states[s.User] = s
	}
	for _, s := range t.Superseded {
		l.superseded[s] = struct{}{}
	}
	l.mu.Unlock()
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// proof is the term's, as calls carry it.
func (l *link) proof() *v1.LeaderProof {
	p := l.f.t.Proof()
	return &v1.LeaderProof{Election: p.Name, Token: p.Token}
}

// failed deals with a call that failed; false = the term or ctx is over.
func (l *link) failed(ctx context.Context, what string, err error) bool {
	if ctx.Err() != nil {
		return false
	}
	if im.ReasonOf(err) == clientv1.Reason_REASON_FORBIDDEN {
		l.f.end(err)
		return false
	}
	l.f.s.Log.Debug(what, obs.Peer(string(l.home.Node)), obs.Err(err))
	return pause(ctx, linkPause)
}

// follow asks the gateway what happens, until ctx is done.
func (l *link) follow(ctx context.Context) {
	req := &v1.FollowRequest{}
	for {
		begin := time.Now()
		req = &v1.FollowRequest{Leader: l.proof(), After: req.After, Offset: req.Offset, WaitMs: int32(followWait.Milliseconds())}
		res, err := l.gw.Follow(ctx, req)
		if err != nil {
			if !l.failed(ctx, "a gateway does not tell who is online", err) {
				return
			}
			continue
		}
		if res.BootId != l.home.Boot { // another process has its address now, and the view will say so
			if !pause(ctx, linkPause) {
				return
			}
			continue
		}
		req.After, req.Offset = res.After, 0
		if res.Snapshot && res.More {
			req.Offset = res.Offset
		}
		if !l.report(ctx, res) {
			return
		}
		if wait := followPace - time.Since(begin); !res.More && wait > 0 && !pause(ctx, wait) {
			return
		}
	}
}

// report hands an answer to the core; false = ctx is done.
func (l *link) report(ctx context.Context, res *v1.FollowResponse) bool {
	r := presence.Report{Home: l.home, First: res.Snapshot && res.Offset == uint64(len(res.Changes)), Last: res.Snapshot && !res.More}
	for _, c := range res.Changes {
		if x, ok := changeOf(c); ok {
			r.Changes = append(r.Changes, x)
		}
	}
	select {
	case l.f.inbox <- r:
		return true
	case <-ctx.Done():
		return false
	}
}

// changeOf is a change as the core takes it; false = a kind of a newer program.
func changeOf(c *v1.SessionChange) (presence.Change, bool) {
	switch w := c.What.(type) {
	case *v1.SessionChange_Began:
		b := w.Began
		return presence.Change{Kind: presence.Began, Session: presence.Session{User: im.UserID(b.UserId), ID: im.SessionID(b.SessionId),
			Place: b.Place, Class: im.Class(b.Class), Epoch: b.RouteEpoch}}, true
	case *v1.SessionChange_Ended:
		e := w.Ended
		return presence.Change{Kind: presence.Ended, Session: presence.Session{User: im.UserID(e.UserId), ID: im.SessionID(e.SessionId)},
			At: time.UnixMilli(e.AtMs), Returns: e.Returns}, true
	case *v1.SessionChange_Watch:
		return presence.Change{Kind: presence.Watch, Session: presence.Session{User: im.UserID(w.Watch)}}, true
	case *v1.SessionChange_Unwatch:
		return presence.Change{Kind: presence.Unwatch, Session: presence.Session{User: im.UserID(w.Unwatch)}}, true
	}
	return presence.Change{}, false
}

// show tells the gateway what waits, one call at a time, until ctx is done.
func (l *link) show(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.wake:
		}
		for states, ends := l.take(); len(states)+len(ends) > 0; states, ends = l.take() {
			req := &v1.ShowRequest{Leader: l.proof()}
			for _, s := range states {
				req.Users = append(req.Users, presence.Wire(s))
			}
			for _, s := range ends {
				req.SupersededSessionIds = append(req.SupersededSessionIds, string(s))
			}
			if _, err := l.gw.Show(ctx, req); err != nil {
				l.putBack(states, ends)
				if !l.failed(ctx, "a gateway was not told who is online; it is tried again", err) {
					return
				}
			}
		}
	}
}

// take takes some of what waits.
func (l *link) take() (states []presence.State, ends []im.SessionID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for u, s := range l.states {
		if len(states) == showBatch {
			break
		}
		states = append(states, s)
		delete(l.states, u)
	}
	for s := range l.superseded {
		ends = append(ends, s)
	}
	clear(l.superseded)
	return states, ends
}

// putBack queues again what was not told, unless something newer waits.
func (l *link) putBack(states []presence.State, ends []im.SessionID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range states {
		if _, newer := l.states[s.User]; !newer {
			l.states[s.User] = s
		}
	}
	for _, s := range ends {
		l.superseded[s] = struct{}{}
	}
}
