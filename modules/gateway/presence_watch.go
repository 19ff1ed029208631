package gateway

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/obs"
	"github.com/imdhq/imd/pkg/presence"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

const (
	// knowTime is how long a client waits for what the leader knows; then it gets
	// what the route store says.
	knowTime = 700 * time.Millisecond
	// renewTime bounds finding out whom a session may go on watching, and
	// renewRetry is when it is tried again.
	renewTime  = time.Second
	renewRetry = 10 * time.Second
	// renewals is how many sessions are looked at at once.
	renewals = 4
	// statesFrame is how many states one frame holds.
	statesFrame = 250
)

// watchPresence replaces whom the session watches, and answers with what is known
// of them.
func (s *session) watchPresence(id uint32, r *clientv1.WatchPresence) {
	if len(r.UserIds) > protocol.MaxWatchedUsers || len(r.ConversationIds) > protocol.MaxWatchedConversations {
		s.bad(id, "too_large", "at most 200 users and 8 conversations are watched at once")
		return
	}
	for _, u := range r.UserIds {
		if !protocol.ValidID(u) {
			s.bad(id, "invalid_id", "user_ids has something that is no id")
			return
		}
	}
	for _, c := range r.ConversationIds {
		if !validConversation(c) {
			s.bad(id, "invalid_id", "conversation_ids has something that is no id of a conversation")
			return
		}
	}
	list := &watchList{order: s.g.watchers.asked.Add(1), users: slices.Clone(r.UserIds), convs: slices.Clone(r.ConversationIds)}
	s.ask(id, "watch_presence", func(ctx context.Context) (*clientv1.ServerFrame, error) {
		if err := s.g.see(ctx, s.user, list, true); err != nil {
			return nil, err
		}
		s.g.watchers.begin(ctx, s, id, list)
		return nil, nil
	})
}

// see finds out whom of a list a user may see now. What is not to be seen is left
// out; strict refuses a list of which nothing is left, or with a conversation that
// is too large.
func (g *Gateway) see(ctx context.Context, user im.UserID, list *watchList, strict bool) error {
	const op = "gateway.watch_presence"
	want := slices.Clone(list.users)
	for _, c := range list.convs {
		res, err := g.State.Members(ctx, &v1.MembersRequest{ConversationId: c, UserId: string(user), Limit: protocol.MaxWatchedMembers})
		switch {
		case im.ReasonOf(err) == clientv1.Reason_REASON_NOT_MEMBER:
			continue
		case err != nil:
			return err
		case !res.End && strict:
			return im.Errorf(clientv1.Reason_REASON_TOO_LARGE, op, "conversations of up to 200 members can be watched")
		case !res.End:
			continue // it has grown
		}
		for _, m := range res.Members {
			want = append(want, m.UserId)
		}
	}
	slices.Sort(want)
	want = slices.Compact(want)
	if len(want) > protocol.MaxWatchedInAll {
		return im.Errorf(clientv1.Reason_REASON_TOO_LARGE, op, "at most 1,000 users are watched at once")
	}
	res, err := g.Directory.Visible(ctx, &v1.VisibleRequest{UserId: string(user), UserIds: want})
	if err != nil {
		return err
	}
	list.seen = nil
	for _, u := range want {
		if u == string(user) || slices.Contains(res.UserIds, u) {
			list.seen = append(list.seen, im.UserID(u))
		}
	}
	if strict && len(list.seen) == 0 && len(list.users)+len(list.convs) > 0 {
		return im.Errorf(clientv1.Reason_REASON_FORBIDDEN, op, "there is no conversation with any of them")
	}
	list.renewAt = time.Now().Add(time.Duration(float64(g.tuned.Get().presenceLease) * jitter()))
	return nil
}

// begin makes a session watch, waits until all are known, and answers.
func (p *watchers) begin(ctx context.Context, s *session, id uint32, list *watchList) {
	wt := p.set(s, list)
	if wt != nil && !p.quiet(time.Now()) {
		t := time.NewTimer(knowTime)
		select {
		case <-wt.done:
		case <-t.C:
		case <-s.done:
		case <-ctx.Done():
		}
		t.Stop()
	}
	if wt != nil {
		p.giveUp(wt)
	}
	p.fill(ctx, s, list.seen)
	p.show.Lock()
	defer p.show.Unlock()
	known, _ := p.states(list.seen)
	for len(known) > statesFrame {
		s.reply(presenceFrame(0, known[:statesFrame]))
		known = known[statesFrame:]
	}
	s.reply(presenceFrame(id, known))
}

// fill asks the route store for what is not known, or for all if the leader is
// away. Without an answer it stays unknown, and becomes an event.
func (p *watchers) fill(ctx context.Context, asking *session, users []im.UserID) {
	_, ask := p.states(users)
	if p.quiet(time.Now()) {
		ask = ask[:0]
		for _, u := range users {
			ask = append(ask, string(u))
		}
	}
	if len(ask) == 0 {
		return
	}
	routes, err := p.g.Routes()
	var found []*clientv1.UserPresence
	if err == nil {
		ctx, cancel := context.WithTimeout(ctx, routeTimeout)
		defer cancel()
		found, err = presence.Read(ctx, routes, p.g.Directory, ask)
	}
	if err != nil {
		p.g.Log.Warn("presence is not known; watchers hear when it is", obs.Err(err))
		return
	}
	p.show.Lock()
	defer p.show.Unlock()
	for _, u := range found {
		sessions := slices.DeleteFunc(p.learn(u, false), func(s *session) bool { return s == asking })
		if len(sessions) > 0 {
			flush(p.send(u, sessions))
		}
	}
}

// run pays what is owed and renews what sessions watch, until ctx is done.
func (p *watchers) run(ctx context.Context) {
	tick := time.NewTicker(presenceStep)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			p.payOwed()
			p.renew(ctx, now)
			p.g.typing.forget(now)
			p.g.announcer.pay(now)
		}
	}
}

// renew looks again whom sessions may watch whose time has come.
func (p *watchers) renew(ctx context.Context, now time.Time) {
	due := map[*session]*watchList{}
	p.mu.Lock()
	for s, l := range p.lists {
		if !now.Before(l.renewAt) {
			due[s] = l
		}
	}
	p.mu.Unlock()
	var wg sync.WaitGroup
	slot := make(chan struct{}, renewals)
	for s, l := range due {
		if ctx.Err() != nil {
			break
		}
		slot <- struct{}{}
		wg.Go(func() {
			defer func() { <-slot }()
			p.renewOne(ctx, s, l)
		})
	}
	wg.Wait()
}

func (p *watchers) renewOne(ctx context.Context, s *session, l *watchList) {
	ctx, cancel := context.WithTimeout(ctx, renewTime)
	defer cancel()
	next := &watchList{order: l.order, users: l.users, convs: l.convs}
	if err := p.g.see(ctx, s.user, next, false); err != nil {
		if !errors.Is(err, context.Canceled) {
			p.g.Log.Warn("whom a session may watch was not looked up; it goes on for a while", obs.Session(s.id), obs.Err(err))
		}
		p.mu.Lock()
		l.renewAt = time.Now().Add(renewRetry)
		p.mu.Unlock()
		return
	}
	if wt := p.set(s, next); wt != nil {
		p.giveUp(wt)
	}
	p.catchUp(s, l.seen, next.seen)
}

// catchUp tells a session of those it watches anew and of whom something is known
// already; the others become events.
func (p *watchers) catchUp(s *session, before, now []im.UserID) {
	p.show.Lock()
	defer p.show.Unlock()
	for _, u := range now {
		if slices.Contains(before, u) {
			continue
		}
		if known, _ := p.states([]im.UserID{u}); len(known) > 0 {
			flush(p.send(known[0], []*session{s}))
		}
	}
}
