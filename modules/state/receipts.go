package state

import (
	"context"
	"sync"
	"time"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// Limits of receipts to others.
const (
	// receiptEvery is the least time between two receipts of one member.
	receiptEvery = time.Second
	// maxReceipts is how many members are remembered for that.
	maxReceipts = 65536
	// membersTTL is how long the members of a group are remembered.
	membersTTL = 10 * time.Second
	// maxMemberLists is for how many groups.
	maxMemberLists = 4096
	// membersTimeout bounds the read of a group's members.
	membersTimeout = time.Second
)

// memberStore is what receipts ask of the message store.
type memberStore interface {
	Members(ctx context.Context, conv im.ConversationID, reader, after im.UserID, limit int) (store.MemberPage, error)
}

// receipts tells the others in direct conversations and small groups how far a
// member has received and read: at most once in receiptEvery a member, the
// newest wins. Safe for concurrent use.
type receipts struct {
	members memberStore
	most    func() int // members of a group up to which others see receipts
	out     func(...fanoutItem)
	lists   *cache[im.ConversationID, []im.UserID]
	wake    chan struct{} // capacity 1: a first receipt waits

	mu     sync.Mutex
	states map[memberKey]*receiptState // of those told of in the last receiptEvery
	queue  []memberKey                 // the keys of states
}

type receiptState struct {
	at      store.Position
	due     time.Time // when the next receipt may leave
	waiting bool      // there is one
}

func newReceipts(m memberStore, most func() int, out func(...fanoutItem)) *receipts {
	return &receipts{
		members: m, most: most, out: out, lists: newCache[im.ConversationID, []im.UserID](membersTTL, maxMemberLists),
		wake: make(chan struct{}, 1), states: map[memberKey]*receiptState{},
	}
}

// moved notes that a member's position is now at. It never waits.
func (r *receipts) moved(k memberKey, at store.Position) {
	direct := at.Kind == clientv1.ConversationKind_CONVERSATION_KIND_DIRECT
	if !direct && (at.Kind != clientv1.ConversationKind_CONVERSATION_KIND_GROUP || int(at.Members) > r.most()) {
		return
	}
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.states[k]
	if s == nil {
		if len(r.states) >= maxReceipts {
			return // newest wins: a later one replaces it
		}
		s = &receiptState{due: now}
		r.states[k] = s
		r.queue = append(r.queue, k)
		select {
		case r.wake <- struct{}{}:
		default:
		}
	}
	s.at, s.waiting = at, true
}

// run sends receipts until ctx is done.
func (r *receipts) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.wake:
		case <-timer.C:
		}
		due, next := r.take(time.Now())
		for k, at := range due {
			r.send(ctx, k, at)
		}
		if next > 0 {
			timer.Reset(next)
		}
	}
}

// take takes the receipts that are due, forgets members that may be told of
// again at any time, and says when to come again; 0 = when something moves.
func (r *receipts) take(now time.Time) (due map[memberKey]store.Position, next time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	due = map[memberKey]store.Position{}
	keep := r.queue[:0]
	for _, k := range r.queue {
		s := r.states[k]
		if s.due.After(now) {
			keep = append(keep, k)
			if d := s.due.Sub(now); next == 0 || d < next {
				next = d
			}
			continue
		}
		if s.waiting {
			due[k] = s.at
			s.waiting, s.due = false, now.Add(receiptEvery)
			keep = append(keep, k)
			if next == 0 {
				next = receiptEvery
			}
			continue
		}
		delete(r.states, k)
	}
	r.queue = keep
	return due, next
}

// send tells the others of one position.
func (r *receipts) send(ctx context.Context, k memberKey, at store.Position) {
	if at.Kind == clientv1.ConversationKind_CONVERSATION_KIND_DIRECT {
		if at.Peer != "" {
			r.out(receiptItem(receiptOf(k, at), []im.UserID{at.Peer}, ""))
		}
		return
	}
	others, ok := r.others(ctx, k)
	if ok && len(others) > 0 {
		r.out(receiptItem(receiptOf(k, at), others, ""))
	}
}

// others lists the members of a small group but for one; false if the group is
// large, the one has left, or the store is away: then the next receipt must do.
func (r *receipts) others(ctx context.Context, k memberKey) ([]im.UserID, bool) {
	now, most := time.Now(), r.most()
	list, ok := r.lists.get(k.conv, now)
	if !ok {
		ctx, cancel := context.WithTimeout(ctx, membersTimeout)
		defer cancel()
		page, err := r.members.Members(ctx, k.conv, "", "", maxReceiptMembers+1)
		if err != nil {
			return nil, false
		}
		for _, m := range page.Members {
			list = append(list, m.User)
		}
		r.lists.put(k.conv, list, now)
	}
	if len(list) > most {
		return nil, false
	}
	others, member := make([]im.UserID, 0, len(list)), false
	for _, u := range list {
		if u == k.user {
			member = true
			continue
		}
		others = append(others, u)
	}
	return others, member
}
