package imd

import (
	"context"
	"errors"
	"iter"
	"slices"
	"time"

	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// Presence is what others see of a user.
type Presence struct {
	UserID   string
	Online   bool
	Classes  []string  // with which classes of devices it is online; must not be changed
	LastSeen time.Time // when its last session ended; zero = it is online, or that is not known
}

// PresenceWatch follows the presence of some users. It outlives connections.
type PresenceWatch struct {
	client *Client
	users  []string
	convs  []string
	wake   chan struct{}
	fresh  []string // users that changed, in order, each once
	err    error    // why the server refused; nil = it did not
	closed bool
}

// WatchPresence follows users with whom the client's user shares a conversation;
// nothing is told of the others. A client watches at most
// protocol.MaxWatchedUsers users, in all of its watches together. Close ends it.
func (c *Client) WatchPresence(userIDs ...string) *PresenceWatch {
	return c.watch(slices.Clone(userIDs), nil)
}

// WatchPresence follows the members of a conversation of at most
// protocol.MaxWatchedMembers. Newcomers are followed within some minutes. What other
// watches of the client follow may be told as well.
func (cv *Conversation) WatchPresence() *PresenceWatch {
	return cv.client.watch(nil, []string{cv.id})
}

func (c *Client) watch(users, convs []string) *PresenceWatch {
	w := &PresenceWatch{client: c, users: users, convs: convs, wake: make(chan struct{}, 1)}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.watches[w] = struct{}{}
	for _, u := range users {
		if _, known := c.presence[u]; known {
			w.fresh = append(w.fresh, u)
		}
	}
	c.askPresence()
	return w
}

// Close ends the watch, and Events of it.
func (w *PresenceWatch) Close() {
	c := w.client
	c.mu.Lock()
	defer c.mu.Unlock()
	if w.closed {
		return
	}
	w.closed = true
	signal(w.wake)
	delete(c.watches, w)
	c.askPresence()
}

// Get returns what is known of a user; ok is false if that is nothing.
func (w *PresenceWatch) Get(userID string) (p Presence, ok bool) {
	w.client.mu.Lock()
	defer w.client.mu.Unlock()
	p, ok = w.client.presence[userID]
	return p, ok
}

// Events returns what is known of each user, and then each change; of changes
// that a slow loop missed only the newest of a user. The loop ends with Close, or
// with an error: the context's, why the client ended, or what the server says, such
// as protocol.ReasonForbidden if there is a conversation with none of the users.
func (w *PresenceWatch) Events(ctx context.Context) iter.Seq2[Presence, error] {
	return func(yield func(Presence, error) bool) {
		for {
			fresh, closed, err := w.take()
			for _, p := range fresh {
				if !yield(p, nil) {
					return
				}
			}
			if closed {
				return
			}
			if err == nil {
				select {
				case <-w.wake:
					continue
				case <-ctx.Done():
					err = ctx.Err()
				case <-w.client.ctx.Done():
					err = w.client.Err()
				}
			}
			yield(Presence{}, err)
			return
		}
	}
}

func (w *PresenceWatch) take() (fresh []Presence, closed bool, err error) {
	c := w.client
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, u := range w.fresh {
		fresh = append(fresh, c.presence[u])
	}
	w.fresh = nil
	return fresh, w.closed, w.err
}

// wants reports whether the watch is told of a user.
func (w *PresenceWatch) wants(user string) bool {
	return len(w.convs) > 0 || slices.Contains(w.users, user)
}

// askPresence tells the server whom all watches follow. The lock is held.
func (c *Client) askPresence() {
	c.watchRetry = time.Time{}
	s := c.cur
	if s == nil || s.cause != nil || s.closing {
		return // the next session asks
	}
	f := &clientv1.WatchPresence{}
	for w := range c.watches {
		f.UserIds = append(f.UserIds, w.users...)
		f.ConversationIds = append(f.ConversationIds, w.convs...)
	}
	slices.Sort(f.UserIds)
	slices.Sort(f.ConversationIds)
	f.UserIds, f.ConversationIds = slices.Compact(f.UserIds), slices.Compact(f.ConversationIds)
	if len(f.ConversationIds) == 0 {
		for u := range c.presence {
			if _, followed := slices.BinarySearch(f.UserIds, u); !followed {
				delete(c.presence, u)
			}
		}
	}
	c.watchN++
	n := c.watchN
	s.request(&clientv1.ClientFrame{Kind: &clientv1.ClientFrame_WatchPresence{WatchPresence: f}}, func(answer *clientv1.ServerFrame, err error) {
		if n != c.watchN || errors.Is(err, errMoved) {
			return // another question follows
		}
		if err != nil && retryable(err) {
			c.watchRetry = time.Now().Add(retryAfter(err) + backoff(c.watchTries, 0))
			c.watchTries++
			signal(c.wake)
			return
		}
		c.watchTries = 0
		for w := range c.watches {
			w.err = err
			signal(w.wake)
		}
		c.tellPresence(answer.GetPresence())
	})
	signal(c.wake)
}

// tellPresence takes in what the server says. The lock is held.
func (c *Client) tellPresence(f *clientv1.Presence) {
	for _, u := range f.GetUsers() {
		p := Presence{UserID: u.UserId, Online: u.Online, Classes: u.Classes}
		if u.LastSeenMs > 0 {
			p.LastSeen = time.UnixMilli(u.LastSeenMs)
		}
		for w := range c.watches {
			if !w.wants(u.UserId) {
				continue
			}
			c.presence[u.UserId] = p
			if !slices.Contains(w.fresh, u.UserId) {
				w.fresh = append(w.fresh, u.UserId)
			}
			signal(w.wake)
		}
	}
}

// typingEvery is how often the server is told that the user types.
const typingEvery = protocol.TypingTTL / 2

// Typing tells the others that the user types; call it with each key that is
// pressed. It holds for protocol.TypingTTL, or until the user sends a message. Nothing
// is told in large groups, or while there is no connection.
func (cv *Conversation) Typing() {
	c := cv.client
	c.mu.Lock()
	defer c.mu.Unlock()
	now, s := time.Now(), c.cur
	inner := c.convs[cv.id]
	if s == nil || s.cause != nil || inner == nil || now.Sub(inner.typedAt) < typingEvery {
		return
	}
	inner.typedAt = now
	s.send(&clientv1.ClientFrame{Kind: &clientv1.ClientFrame_Typing{Typing: &clientv1.Typing{ConversationId: cv.id}}})
	signal(c.wake)
}

// TypingEvent tells that a member types. It holds for protocol.TypingTTL, or until an
// entry of that member comes.
type TypingEvent struct {
	ConversationID string
	UserID         string
}

// Conversation returns the id of the conversation.
func (e *TypingEvent) Conversation() string { return e.ConversationID }

// typingNote is that somebody types, for those who read the conversation.
type typingNote struct {
	n  uint64
	at time.Time
}

// maxTyping is how many members may type at once.
const maxTyping = protocol.LargeGroup

// noteTyping takes in that somebody types. The lock is held.
func (c *Client) noteTyping(t *clientv1.Typing, now time.Time) {
	cv := c.convs[t.ConversationId]
	if cv == nil || t.UserId == c.user {
		return
	}
	for u, note := range cv.typing {
		if now.Sub(note.at) > protocol.TypingTTL {
			delete(cv.typing, u)
		}
	}
	if cv.typing == nil {
		cv.typing = map[string]typingNote{}
	}
	if _, known := cv.typing[t.UserId]; !known && len(cv.typing) >= maxTyping {
		return
	}
	cv.typingN++
	cv.typing[t.UserId] = typingNote{cv.typingN, now}
	c.mark(cv)
}

// typing returns who types that is new to the reader. The lock is held.
func (r *reader) typing(cv *conv) []Event {
	if cv.typingN == r.typingN {
		return nil
	}
	var events []Event
	for u, note := range cv.typing {
		if note.n > r.typingN && time.Since(note.at) < protocol.TypingTTL {
			events = append(events, &TypingEvent{ConversationID: cv.id, UserID: u})
		}
	}
	r.typingN = cv.typingN
	return events
}
