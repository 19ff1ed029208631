package state

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// memStore keeps just enough of a message store in memory for tests of this
// package. fault, if set, may refuse or delay a call before it does anything,
// and after it.
type memStore struct {
	store.MessageStore // what a test does not need panics

	mu        sync.Mutex
	fault     func(op string, after bool) error
	calls     map[string]int
	convs     map[im.ConversationID]*memConv
	users     map[im.UserID]store.User
	revoked   []store.Revocation
	mutes     []store.Mute
	keys      map[string]store.Key
	requests  map[im.ClientMessageID]store.ChangeResult
	positions []store.Position // as saved
	version   int
	held      map[im.ConversationID]bool  // by somebody else
	hashes    map[im.MessageID]([32]byte) // of the contents
	epoch     string
	noWaits   int // rows that did not want to wait for a lock
	agenda    agenda
}

type memConv struct {
	kind    clientv1.ConversationKind
	log     []im.Entry
	members map[im.UserID]*store.Member
	gone    map[im.UserID]bool
	version int64
	changed int
}

func newMemStore() *memStore {
	return &memStore{
		epoch: "e1", calls: map[string]int{}, convs: map[im.ConversationID]*memConv{}, users: map[im.UserID]store.User{},
		keys: map[string]store.Key{}, requests: map[im.ClientMessageID]store.ChangeResult{},
		held: map[im.ConversationID]bool{}, hashes: map[im.MessageID]([32]byte){},
	}
}

// do runs one call under the fault of the test.
func (m *memStore) do(op string, f func() error) error {
	m.mu.Lock()
	m.calls[op]++
	fault := m.fault
	m.mu.Unlock()
	if fault != nil {
		if err := fault(op, false); err != nil {
			return err
		}
	}
	m.mu.Lock()
	err := f()
	m.mu.Unlock()
	if fault != nil && err == nil {
		err = fault(op, true)
	}
	return err
}

func (m *memStore) setFault(f func(op string, after bool) error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fault = f
}

func (m *memStore) count(op string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.calls[op]
}

func (m *memStore) DataEpoch() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.epoch
}
func (m *memStore) Writers() int { return 2 }

// group makes a group with members.
func (m *memStore) group(id im.ConversationID, users ...im.UserID) *memConv {
	c := &memConv{kind: clientv1.ConversationKind_CONVERSATION_KIND_GROUP, members: map[im.UserID]*store.Member{}, gone: map[im.UserID]bool{}, version: 1}
	for _, u := range users {
		c.members[u] = &store.Member{User: u, Role: clientv1.Role_ROLE_MEMBER}
	}
	m.convs[id] = c
	return c
}

func (m *memStore) put(id im.ConversationID, c *memConv, e im.Entry) im.Entry {
	e.Seq, e.PrevSeq, e.ServerTime = im.Seq(len(c.log)+1), im.Seq(len(c.log)), time.UnixMilli(time.Now().UnixMilli())
	c.log = append(c.log, e)
	m.version++
	c.changed = m.version
	return e
}

func (m *memStore) Append(_ context.Context, rows []store.AppendRow) (res []store.AppendResult, err error) {
	err = m.do("Append", func() error {
		for _, r := range rows {
			if r.NoWait {
				m.noWaits++
			}
			if m.held[r.Conversation] {
				return &store.BusyConversationError{Conversations: []im.ConversationID{r.Conversation}}
			}
		}
		for _, r := range rows {
			res = append(res, m.appendOne(r))
		}
		return nil
	})
	return res, err
}

func (m *memStore) appendOne(r store.AppendRow) store.AppendResult {
	c := m.convs[r.Conversation]
	if c == nil && r.Peer != "" {
		c = m.group(r.Conversation, r.Sender, r.Peer)
		c.kind = clientv1.ConversationKind_CONVERSATION_KIND_DIRECT
	}
	if c == nil || r.Sender != "" && c.members[r.Sender] == nil {
		return store.AppendResult{Err: im.Errorf(clientv1.Reason_REASON_NOT_MEMBER, "mem", "")}
	}
	for _, e := range c.log {
		if e.Sender == r.Sender && e.ClientMessageID == r.ClientMessageID {
			if m.hashes[e.MessageID] != r.BodyHash {
				return store.AppendResult{Err: im.Errorf(clientv1.Reason_REASON_ID_REUSED, "mem", "")}
			}
			return store.AppendResult{MessageID: e.MessageID, Seq: e.Seq, PrevSeq: e.PrevSeq, ServerTime: e.ServerTime, Duplicate: true, MemberVersion: c.version}
		}
	}
	e := m.put(r.Conversation, c, im.Entry{
		Kind: r.Kind, MessageID: r.MessageID, ClientMessageID: r.ClientMessageID, Sender: r.Sender, Content: r.Content, Countable: r.Countable,
	})
	m.hashes[e.MessageID] = r.BodyHash
	return store.AppendResult{MessageID: e.MessageID, Seq: e.Seq, PrevSeq: e.PrevSeq, ServerTime: e.ServerTime, MemberVersion: c.version}
}

// hold lets somebody else hold a conversation, or let go of it.
func (m *memStore) hold(conv im.ConversationID, on bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.held[conv] = on
}

func (m *memStore) Change(_ context.Context, ch store.Change) (res store.ChangeResult, err error) {
	err = m.do("Change", func() error {
		if old, ok := m.requests[ch.RequestID]; ok {
			res, res.Duplicate = old, true
			return nil
		}
		e := im.Entry{Kind: clientv1.EntryKind_ENTRY_KIND_MEMBER_CHANGE, MessageID: ch.MessageID, Sender: ch.Actor, ClientMessageID: ch.RequestID}
		mc := &clientv1.MemberChange{}
		if ch.Create != nil {
			m.group(ch.Conversation, append(slices.Clone(ch.Create.Members), ch.Actor)...)
			mc.Action = clientv1.MemberAction_MEMBER_ACTION_ADDED
		}
		c := m.convs[ch.Conversation]
		if c == nil {
			return im.Errorf(clientv1.Reason_REASON_NOT_MEMBER, "mem", "")
		}
		for _, u := range ch.RemoveMembers {
			delete(c.members, u)
			res.Removed = append(res.Removed, u)
		}
		c.version++
		e.Change, _ = proto.Marshal(mc)
		res.Conversation, res.MemberVersion, res.Entry = ch.Conversation, c.version, m.put(ch.Conversation, c, e)
		m.requests[ch.RequestID] = res
		return nil
	})
	return res, err
}

func (m *memStore) Members(_ context.Context, conv im.ConversationID, _, after im.UserID, limit int) (p store.MemberPage, err error) {
	err = m.do("Members", func() error {
		c := m.convs[conv]
		if c == nil {
			return im.Errorf(clientv1.Reason_REASON_NOT_MEMBER, "mem", "")
		}
		for _, mem := range c.members {
			if mem.User > after {
				p.Members = append(p.Members, *mem)
			}
		}
		slices.SortFunc(p.Members, func(a, b store.Member) int { return int(a.User[0]) - int(b.User[0]) })
		p.End = len(p.Members) <= limit
		p.Members = p.Members[:min(limit, len(p.Members))]
		p.Kind, p.Count, p.MemberVersion = c.kind, len(c.members), c.version
		return nil
	})
	return p, err
}

func (m *memStore) History(_ context.Context, q store.HistoryQuery) (p store.HistoryPage, err error) {
	err = m.do("History", func() error {
		c := m.convs[q.Conversation]
		if c == nil {
			return im.Errorf(clientv1.Reason_REASON_NOT_MEMBER, "mem", "")
		}
		p = c.page(q)
		return nil
	})
	return p, err
}

// page is what a history query brings.
func (c *memConv) page(q store.HistoryQuery) (p store.HistoryPage) {
	before := q.Before
	if before == 0 || int(before) > len(c.log)+1 {
		before = im.Seq(len(c.log) + 1)
	}
	p.CompleteFrom, p.CompleteTo, p.End = q.After+1, before-1, true
	if n := before - q.After - 1; int(n) > q.Limit {
		p.End = false
		if q.Backward {
			p.CompleteFrom = before - im.Seq(q.Limit)
		} else {
			p.CompleteTo = q.After + im.Seq(q.Limit)
		}
	}
	for s := p.CompleteFrom; s <= p.CompleteTo; s++ {
		p.Entries = append(p.Entries, c.log[s-1])
	}
	return p
}

func (m *memStore) SyncMany(ctx context.Context, qs []store.SyncQuery) (pages []store.SyncPage, err error) {
	for _, q := range qs {
		p, err := m.Sync(ctx, q)
		if err != nil {
			return nil, err
		}
		pages = append(pages, p)
	}
	return pages, nil
}

func (m *memStore) Sync(_ context.Context, q store.SyncQuery) (p store.SyncPage, err error) {
	err = m.do("Sync", func() error {
		since := -1
		if _, serr := fmt.Sscan(q.Token, &since); serr != nil {
			p.Full = true
		}
		for id, c := range m.convs {
			if c.members[q.User] != nil && c.changed > since {
				p.States = append(p.States, store.ConversationState{
					Conversation: id, Kind: c.kind, Role: c.members[q.User].Role, Head: im.Seq(len(c.log)), Members: len(c.members),
				})
			}
		}
		slices.SortFunc(p.States, func(a, b store.ConversationState) int {
			return m.convs[a.Conversation].changed - m.convs[b.Conversation].changed
		})
		for i, s := range p.States {
			p.TokenAfter = append(p.TokenAfter, fmt.Sprint(m.convs[s.Conversation].changed))
			if q.Entries > 0 {
				have, known := q.Cursors[s.Conversation]
				page := m.convs[s.Conversation].page(store.HistoryQuery{After: have, Limit: q.Entries, Backward: !known})
				p.States[i].Page = &page
			}
			for u, mem := range m.convs[s.Conversation].members {
				if s.Kind == clientv1.ConversationKind_CONVERSATION_KIND_DIRECT && u != q.User {
					peer := *mem
					p.States[i].PeerMember, p.States[i].Peer = &peer, u
				}
			}
		}
		p.Token = fmt.Sprint(m.version)
		return nil
	})
	return p, err
}

func (m *memStore) position(conv im.ConversationID, user im.UserID) (store.Position, bool) {
	c := m.convs[conv]
	if c == nil || c.members[user] == nil {
		return store.Position{}, false
	}
	mem := c.members[user]
	p := store.Position{Conversation: conv, User: user, Delivered: mem.Delivered, Read: mem.Read, Head: im.Seq(len(c.log)), Members: len(c.members), Kind: c.kind}
	for _, e := range c.log {
		if e.Seq > mem.Read && e.Sender != user && e.Countable {
			p.Unread++
		}
	}
	for u := range c.members {
		if c.kind == clientv1.ConversationKind_CONVERSATION_KIND_DIRECT && u != user {
			p.Peer = u
		}
	}
	return p, true
}

func (m *memStore) Position(_ context.Context, conv im.ConversationID, user im.UserID) (p store.Position, err error) {
	err = m.do("Position", func() error {
		var ok bool
		if p, ok = m.position(conv, user); !ok {
			return im.Errorf(clientv1.Reason_REASON_NOT_MEMBER, "mem", "")
		}
		return nil
	})
	return p, err
}

func (m *memStore) SavePositions(_ context.Context, in []store.Position) (out []store.Position, err error) {
	err = m.do("SavePositions", func() error {
		for _, p := range in {
			m.positions = append(m.positions, p)
			if at, ok := m.position(p.Conversation, p.User); ok {
				mem := m.convs[p.Conversation].members[p.User]
				mem.Read = max(mem.Read, min(p.Read, at.Head))
				mem.Delivered = max(mem.Delivered, min(max(p.Delivered, p.Read), at.Head))
			}
			at, ok := m.position(p.Conversation, p.User)
			if !ok {
				at = store.Position{Conversation: p.Conversation, User: p.User}
			}
			out = append(out, at)
		}
		return nil
	})
	return out, err
}

func (m *memStore) ClearHistory(_ context.Context, _ im.ConversationID, _ im.UserID, seq im.Seq) (im.Seq, error) {
	return seq, m.do("ClearHistory", func() error { return nil })
}

func (m *memStore) Heads(_ context.Context, users []im.UserID, version string) (heads []store.UserHead, next string, err error) {
	err = m.do("Heads", func() error {
		for _, u := range users {
			heads = append(heads, store.UserHead{User: u, Conversation: "g_1", Seq: 4})
		}
		return nil
	})
	return heads, version + "+", err
}

func (m *memStore) User(_ context.Context, id im.UserID) (u store.User, err error) {
	err = m.do("User", func() error {
		var ok bool
		if u, ok = m.users[id]; !ok {
			return store.ErrNotFound
		}
		return nil
	})
	return u, err
}

func (m *memStore) PutUser(_ context.Context, id im.UserID) (u store.User, err error) {
	err = m.do("PutUser", func() error {
		u = store.User{ID: id, Created: time.Now()}
		m.users[id] = u
		return nil
	})
	return u, err
}

func (m *memStore) SetDisabled(_ context.Context, id im.UserID, disabled bool) error {
	return m.do("SetDisabled", func() error { m.users[id] = store.User{ID: id, Disabled: disabled}; return nil })
}

func (m *memStore) SetBlock(context.Context, im.UserID, im.UserID, bool) error {
	return m.do("SetBlock", func() error { return nil })
}

func (m *memStore) SetMute(_ context.Context, conv im.ConversationID, user im.UserID, until time.Time) error {
	return m.do("SetMute", func() error {
		m.mutes = append(m.mutes, store.Mute{User: user, Conversation: conv, Until: until})
		return nil
	})
}

func (m *memStore) Mutes(_ context.Context, _ im.UserID, after im.ConversationID, limit int) (out []store.Mute, err error) {
	err = m.do("Mutes", func() error {
		for _, one := range m.mutes {
			if one.Conversation > after && len(out) < limit {
				out = append(out, one)
			}
		}
		return nil
	})
	return out, err
}

func (m *memStore) RevokeLogin(_ context.Context, r store.Revocation) error {
	return m.do("RevokeLogin", func() error { m.revoked = append(m.revoked, r); return nil })
}

func (m *memStore) Revocations(_ context.Context, user im.UserID) (r []store.Revocation, err error) {
	err = m.do("Revocations", func() error {
		for _, x := range m.revoked {
			if x.User == user {
				r = append(r, x)
			}
		}
		return nil
	})
	return r, err
}

func (m *memStore) Callers(_ context.Context, users []im.UserID) (map[im.UserID]store.Caller, error) {
	out := map[im.UserID]store.Caller{}
	err := m.do("Callers", func() error {
		for _, id := range users {
			u, ok := m.users[id]
			if !ok {
				continue
			}
			c := store.Caller{User: u}
			for _, x := range m.revoked {
				if x.User == id {
					c.Revocations = append(c.Revocations, x)
				}
			}
			out[id] = c
		}
		return nil
	})
	return out, err
}

func (m *memStore) PutKey(_ context.Context, k store.Key) error {
	return m.do("PutKey", func() error { m.keys[k.ID] = k; return nil })
}

func (m *memStore) Key(_ context.Context, id string) (k store.Key, err error) {
	err = m.do("Key", func() error {
		var ok bool
		if k, ok = m.keys[id]; !ok {
			return store.ErrNotFound
		}
		return nil
	})
	return k, err
}

func (m *memStore) Keys(context.Context) (all []store.Key, err error) {
	err = m.do("Keys", func() error {
		for _, k := range m.keys {
			all = append(all, k)
		}
		return nil
	})
	return all, err
}

func (m *memStore) Starts(_ context.Context, conv im.ConversationID, users []im.UserID) (out map[im.UserID]im.Seq, err error) {
	err = m.do("Starts", func() error {
		out = map[im.UserID]im.Seq{}
		if c := m.convs[conv]; c != nil {
			for _, u := range users {
				if mem := c.members[u]; mem != nil && !c.gone[u] {
					out[u] = mem.Start
				}
			}
		}
		return nil
	})
	return out, err
}
