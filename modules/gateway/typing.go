package gateway

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/obs"
	"github.com/imdhq/imd/pkg/rate"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

const (
	// typingPause is how often one user's typing in a conversation is passed on.
	typingPause = 2 * time.Second
	// typingFresh is how old the list of those who hear of it may be.
	typingFresh = time.Second
	// typingKept is how long a conversation in which nobody types is remembered, and
	// maxTyping how many are.
	typingKept = 10 * time.Second
	maxTyping  = 10_000
	// typingTime bounds finding out who has to hear of it, and telling them.
	typingTime = time.Second
)

// typingRate is how much typing of all of one conversation one node passes on.
var typingRate = rate.Limit{PerSecond: 5, Burst: 10}

// typing passes on who types. Safe for concurrent use.
type typing struct {
	g *Gateway

	some  atomic.Bool // convs is not empty
	mu    sync.Mutex
	convs map[string]*typingIn
}

// typingIn is one conversation in which somebody types.
type typingIn struct {
	bucket rate.Bucket
	last   map[im.UserID]time.Time // when it was last passed on
	newest time.Time
	users  []im.UserID // who is in it; as of at
	at     time.Time
}

func newTyping(g *Gateway) *typing { return &typing{g: g, convs: map[string]*typingIn{}} }

// typing takes a frame that says that the user types.
func (s *session) typing(now time.Time, id uint32, t *clientv1.Typing) {
	if !validConversation(t.ConversationId) {
		s.bad(id, "invalid_id", "conversation_id is no id of a conversation")
		return
	}
	if !s.g.typing.take(now, t.ConversationId, s.user) {
		s.g.m.typing.WithLabelValues("limited").Inc()
		return
	}
	select {
	case s.g.requests <- struct{}{}:
	default: // what is asked for comes first
		s.g.m.typing.WithLabelValues("limited").Inc()
		return
	}
	s.g.goroutine(func() {
		ctx, cancel := context.WithTimeout(s.g.ctx, typingTime)
		defer cancel()
		err := s.g.typing.pass(ctx, t.ConversationId, s.user)
		<-s.g.requests
		switch im.ReasonOf(err) {
		case clientv1.Reason_REASON_NOT_MEMBER, clientv1.Reason_REASON_FORBIDDEN:
			s.reply(errorFrame(id, im.Wire(err)))
		}
	})
}

// take decides whether typing is passed on now.
func (t *typing) take(now time.Time, conv string, user im.UserID) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.convs[conv]
	if c == nil {
		if len(t.convs) >= maxTyping {
			return false
		}
		c = &typingIn{last: map[im.UserID]time.Time{}}
		t.convs[conv] = c
		t.some.Store(true)
	}
	c.newest = now
	if now.Sub(c.last[user]) < typingPause {
		return false
	}
	if ok, _ := c.bucket.Take(now, typingRate); !ok {
		return false
	}
	c.last[user] = now
	return true
}

// sent notes that the user has sent what it typed: what it types next is passed on
// at once, as far as the conversation's rate allows.
func (t *typing) sent(conv string, user im.UserID) {
	if !t.some.Load() {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if c := t.convs[conv]; c != nil {
		delete(c.last, user)
	}
}

// forget drops conversations in which nobody has typed for a while.
func (t *typing) forget(now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for id, c := range t.convs {
		if now.Sub(c.newest) > typingKept {
			delete(t.convs, id)
		}
	}
	t.some.Store(len(t.convs) > 0)
}

// pass tells the others of a conversation that a user types. Errors: not_member,
// forbidden (a block), and why nobody was told.
func (t *typing) pass(ctx context.Context, conv string, user im.UserID) error {
	users, err := t.members(ctx, conv, user)
	if err == nil && len(users) > 0 {
		err = t.tell(ctx, conv, user, users)
	}
	switch {
	case err != nil:
		t.g.m.typing.WithLabelValues("failed").Inc()
		t.g.Log.Debug("typing was not passed on", obs.Conv(im.ConversationID(conv)), obs.Err(err))
	case len(users) == 0:
		t.g.m.typing.WithLabelValues("large").Inc()
	default:
		t.g.m.typing.WithLabelValues("passed").Inc()
	}
	return err
}

// members lists who is in the conversation; none = it is too large. Errors:
// not_member, forbidden (a block in a direct conversation), those of state.
func (t *typing) members(ctx context.Context, conv string, user im.UserID) ([]im.UserID, error) {
	now := time.Now()
	t.mu.Lock()
	if c := t.convs[conv]; c != nil && now.Sub(c.at) < typingFresh && slices.Contains(c.users, user) {
		users := c.users
		t.mu.Unlock()
		return users, nil
	}
	t.mu.Unlock()
	most := int32(t.g.tuned.Get().typingMembers)
	res, err := t.g.State.Members(ctx, &v1.MembersRequest{ConversationId: conv, UserId: string(user), Limit: most})
	if err != nil || !res.End {
		return nil, err
	}
	var users []im.UserID
	for _, m := range res.Members {
		users = append(users, im.UserID(m.UserId))
	}
	if res.Kind == clientv1.ConversationKind_CONVERSATION_KIND_DIRECT {
		ask := &v1.VisibleRequest{UserId: string(user)}
		for _, u := range users {
			if u != user {
				ask.UserIds = append(ask.UserIds, string(u))
			}
		}
		seen, err := t.g.Directory.Visible(ctx, ask)
		if err != nil {
			return nil, err
		}
		if len(seen.UserIds) == 0 { // a block
			return nil, im.Errorf(clientv1.Reason_REASON_FORBIDDEN, "gateway.typing", "")
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if c := t.convs[conv]; c != nil {
		c.users, c.at = users, now
	}
	return users, nil
}

// tell hands the frame to the gateways of the other members.
func (t *typing) tell(ctx context.Context, conv string, user im.UserID, users []im.UserID) error {
	routes, err := t.g.Routes()
	if err != nil {
		return err
	}
	others := slices.DeleteFunc(slices.Clone(users), func(u im.UserID) bool { return u == user })
	found, err := routes.Recent(ctx, others)
	if err != nil {
		return err
	}
	frame, err := proto.Marshal(&clientv1.ServerFrame{Kind: &clientv1.ServerFrame_Typing{
		Typing: &clientv1.Typing{ConversationId: conv, UserId: string(user)}}})
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	for node, ids := range byNode(found[:min(len(found), maxTypingRoutes)]) {
		wg.Go(func() {
			d := &v1.Delivery{ConversationId: conv, Frame: frame, SessionIds: ids, Relaxed: true}
			if _, err := t.g.Peer(node).Deliver(ctx, &v1.DeliverRequest{Deliveries: []*v1.Delivery{d}}); err != nil {
				t.g.Log.Debug("a gateway was not told who types", obs.Peer(string(node)), obs.Err(err))
			}
		})
	}
	wg.Wait()
	return nil
}

// maxTypingRoutes is how many sessions hear of one who types.
const maxTypingRoutes = 1000
