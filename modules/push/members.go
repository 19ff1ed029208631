package push

import (
	"container/list"
	"context"
	"sync"
	"time"

	"github.com/imdhq/imd/pkg/im"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
)

// Bounds of the member cache.
const (
	// maxCachedMembers is how many members of all conversations are kept.
	maxCachedMembers = 500_000
	// memberPage is how many members one call asks for.
	memberPage = 1000
	// largeFor is how long a group counts as large without another look.
	largeFor = 5 * time.Minute
)

// memberList is the membership of a conversation at one version, or that it is
// a large group, whose list the gateways have. Read only.
type memberList struct {
	version int64
	large   int       // how many members a large group has about; 0 = the list is here
	until   time.Time // of a large group: when its size is asked for again
	users   []im.UserID
	starts  []int64 // of the user at the same index: it sees entries above
}

// memberCache keeps the lists of recently used conversations. A list serves
// every item whose version it has reached: members who came later are held back
// by their start. Safe for concurrent use; a conversation is loaded by one
// worker at a time because only one has it.
type memberCache struct {
	state stateClient
	m     *metrics

	mu    sync.Mutex
	byID  map[string]*list.Element // of *cached
	order *list.List               // front = used last
	total int
}

type cached struct {
	conv string
	list *memberList
}

func newMemberCache(state stateClient, m *metrics) *memberCache {
	return &memberCache{state: state, m: m, byID: map[string]*list.Element{}, order: list.New()}
}

// at returns a list that has reached version. Of a group with more than large
// members it returns only that; 0 = of none.
func (c *memberCache) at(ctx context.Context, conv string, version int64, large int) (*memberList, error) {
	if l := c.get(conv); l != nil && l.serves(version, large) {
		return l, nil
	}
	l, err := c.load(ctx, conv, large)
	if err != nil {
		return nil, err
	}
	c.put(conv, l)
	return l, nil
}

// serves reports whether the list is good for an item.
func (l *memberList) serves(version int64, large int) bool {
	if l.large > 0 {
		return large > 0 && l.large > large && time.Now().Before(l.until)
	}
	return l.version >= version && (large == 0 || len(l.users) <= large)
}

// grew notes that a large group has so many more members.
func (c *memberCache) grew(conv string, by int) {
	if l := c.get(conv); l != nil && l.large > 0 && by != 0 {
		c.put(conv, &memberList{version: l.version, large: max(l.large+by, 1), until: l.until})
	}
}

func (c *memberCache) get(conv string) *memberList {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.byID[conv]
	if e == nil {
		return nil
	}
	c.order.MoveToFront(e)
	return e.Value.(*cached).list
}

func (c *memberCache) put(conv string, l *memberList) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.byID[conv]; e != nil {
		c.remove(e)
	}
	c.byID[conv] = c.order.PushFront(&cached{conv, l})
	c.total += cost(l)
	for c.total > maxCachedMembers && c.order.Len() > 1 {
		c.remove(c.order.Back())
	}
}

func (c *memberCache) remove(e *list.Element) {
	v := c.order.Remove(e).(*cached)
	delete(c.byID, v.conv)
	c.total -= cost(v.list)
}

// cost is what a list counts against the bound; an empty one counts too.
func cost(l *memberList) int { return len(l.users) + 8 }

// load reads all pages, or the first one of a large group. A change between two
// pages makes it begin again.
func (c *memberCache) load(ctx context.Context, conv string, large int) (*memberList, error) {
	c.m.memberLoads.Inc()
	l := &memberList{version: -1}
	after := ""
	for {
		page, err := c.state.Members(ctx, &v1.MembersRequest{ConversationId: conv, AfterUserId: after, Limit: memberPage})
		if err != nil {
			return nil, err
		}
		if large > 0 && int(page.MemberCount) > large {
			return &memberList{version: page.MemberVersion, large: int(page.MemberCount), until: time.Now().Add(largeFor)}, nil
		}
		if l.version != page.MemberVersion {
			if l.version >= 0 {
				l, after = &memberList{version: -1}, ""
				continue
			}
			l.version = page.MemberVersion
			l.users = make([]im.UserID, 0, page.MemberCount)
			l.starts = make([]int64, 0, page.MemberCount)
		}
		for _, m := range page.Members {
			l.users = append(l.users, im.UserID(m.UserId))
			l.starts = append(l.starts, m.Start)
			after = m.UserId
		}
		if page.End || len(page.Members) == 0 {
			return l, nil
		}
	}
}
