package sqlite

import (
	"container/list"
	"database/sql"
	"errors"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store/rules"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

const (
	// cacheWeight bounds what the writer keeps in memory: conversations and
	// members together, roughly 200 bytes each.
	cacheWeight = 200_000
	// cacheMembers bounds the members of one conversation in memory.
	cacheMembers = 20_000
	// cacheBlocks bounds the pairs of users in memory.
	cacheBlocks = 50_000
	// cacheSessions bounds the notes of sessions in memory.
	cacheSessions = 50_000
)

// conversation is a row of the table, as the writer's next transaction would
// read it.
type conversation struct {
	rules.Conversation
	num                  int64
	kept                 im.Seq    // nobody sees what is up to here
	a, b                 im.UserID // direct: its users
	version, headVersion int64
	dirty                bool                        // on tx.dirty
	members              map[im.UserID]*rules.Member // those looked up so far; nil = known to be none
	node                 *list.Element
	weight               int // as counted by the cache
}

// peer is the other user of a direct conversation; "" for groups.
func (c *conversation) peer(of im.UserID) im.UserID {
	switch {
	case c.Kind != clientv1.ConversationKind_CONVERSATION_KIND_DIRECT:
		return ""
	case of == c.a:
		return c.b
	}
	return c.a
}

// cache holds recently used conversations and blocks.
type cache struct {
	convs  map[im.ConversationID]*conversation
	order  *list.List // of *conversation, newest first
	weight int
	blocks map[[2]im.UserID]bool
	// sessions are notes as they are committed, also that there is none.
	sessions map[sessionKey]sessionRow
}

func newCache() *cache {
	return &cache{convs: map[im.ConversationID]*conversation{}, order: list.New(), blocks: map[[2]im.UserID]bool{}, sessions: map[sessionKey]sessionRow{}}
}

func (h *cache) get(id im.ConversationID) *conversation {
	c := h.convs[id]
	if c != nil {
		h.order.MoveToFront(c.node)
	}
	return c
}

func (h *cache) add(c *conversation) {
	c.node = h.order.PushFront(c)
	h.convs[c.ID] = c
	h.weigh(c)
}

// weigh counts c anew after its members have changed.
func (h *cache) weigh(c *conversation) {
	w := 1 + len(c.members)
	h.weight += w - c.weight
	c.weight = w
}

func (h *cache) remove(c *conversation) {
	if h.convs[c.ID] != c {
		return
	}
	delete(h.convs, c.ID)
	h.order.Remove(c.node)
	h.weight -= c.weight
	c.weight = 0
}

// shrink drops what was not used lately, until a tenth of the bound is left. Only
// between transactions.
func (h *cache) shrink() {
	for h.weight > cacheWeight/10 {
		h.remove(h.order.Back().Value.(*conversation))
	}
}

// trim enforces the bounds. Only between transactions: what one has changed in
// memory must stay until it is flushed.
func (h *cache) trim() {
	for h.weight > cacheWeight {
		h.remove(h.order.Back().Value.(*conversation))
	}
	if len(h.blocks) > cacheBlocks {
		clear(h.blocks)
	}
	if len(h.sessions) > cacheSessions {
		clear(h.sessions)
	}
}

const sqlConversation = `SELECT num, kind, name, closed, open_history, user_a, user_b, head, kept, members,
  member_version, version, head_version FROM conversation WHERE id = ?`

// conversation finds a conversation; nil if there is none.
func (t *tx) conversation(id im.ConversationID) (*conversation, error) {
	if c := t.cache.get(id); c != nil {
		return c, nil
	}
	c := &conversation{members: map[im.UserID]*rules.Member{}}
	c.ID = id
	err := t.row(sqlConversation, []any{string(id)}, &c.num, &c.Kind, &c.Name, &c.Closed, &c.OpenHistory, &c.a, &c.b,
		&c.Head, &c.kept, &c.Count, &c.MemberVersion, &c.version, &c.headVersion)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	t.cache.add(c)
	return c, nil
}

const sqlAddConversation = `INSERT INTO conversation (id, kind, name, closed, open_history, user_a, user_b,
  head, members, member_version, version, head_version) VALUES (?, ?, ?, 0, ?, ?, ?, 0, 0, 0, ?, ?)`

const sqlNum = `SELECT num FROM conversation WHERE id = ?`

// add makes a new conversation from c.
func (t *tx) add(c *conversation) error {
	c.members = map[im.UserID]*rules.Member{}
	_, err := t.exec(sqlAddConversation, string(c.ID), c.Kind, c.Name, c.OpenHistory, string(c.a), string(c.b), t.version, t.version)
	if err != nil {
		return err
	}
	if err := t.row(sqlNum, []any{string(c.ID)}, &c.num); err != nil {
		return err
	}
	t.cache.add(c)
	t.touch(c)
	return nil
}

// touch notes that c has changed in what all its members see.
func (t *tx) touch(c *conversation) {
	t.changed = true
	c.version = t.version
	if !c.dirty {
		c.dirty = true
		t.dirty = append(t.dirty, c)
	}
}

const sqlFlush = `UPDATE conversation SET name = ?, closed = ?, head = ?, members = ?, member_version = ?, version = ?,
  head_version = ? WHERE num = ?`

func (t *tx) flush(c *conversation) error {
	_, err := t.exec(sqlFlush, c.Name, c.Closed, c.Head, c.Count, c.MemberVersion, c.version, c.headVersion, c.num)
	return err
}

const sqlMember = `SELECT role, start_seq, end_seq, earlier, cleared, delivered, read, left_name
  FROM member WHERE user_id = ? AND conversation_id = ?`

// member finds a present or former member of c; nil if there is none.
func (t *tx) member(c *conversation, user im.UserID) (*rules.Member, error) {
	if m, ok := c.members[user]; ok {
		return m, nil
	}
	m := &rules.Member{User: user}
	var earlier []byte
	err := t.row(sqlMember, []any{string(user), string(c.ID)}, &m.Role, &m.View.Last.Start, &m.View.Last.End, &earlier,
		&m.View.Cleared, &m.Delivered, &m.Read, &m.LeftName)
	if errors.Is(err, sql.ErrNoRows) {
		m, err = nil, nil
	} else if err == nil {
		m.View.Earlier, err = rules.DecodeStretches(earlier)
	}
	if err != nil {
		return nil, err
	}
	t.remember(c, user, m)
	return m, nil
}

// remember keeps m in memory.
func (t *tx) remember(c *conversation, user im.UserID, m *rules.Member) {
	if len(c.members) >= cacheMembers {
		clear(c.members)
	}
	c.members[user] = m
	t.cache.weigh(c)
}

const sqlPutMember = `INSERT INTO member (user_id, conversation_id, conv, role, start_seq, end_seq, earlier, cleared,
  delivered, read, left_name, version) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (user_id, conversation_id) DO UPDATE SET role = excluded.role, start_seq = excluded.start_seq,
  end_seq = excluded.end_seq, earlier = excluded.earlier, cleared = excluded.cleared, delivered = excluded.delivered,
  read = excluded.read, left_name = excluded.left_name, version = excluded.version`

// put stores m, which may be new, and drops what memory holds of c should the
// transaction fail.
func (t *tx) put(c *conversation, m *rules.Member) error {
	t.changed = true
	if !c.dirty { // the row of c stays as it is, but its members in memory change
		c.dirty = true
		t.dirty = append(t.dirty, c)
	}
	_, err := t.exec(sqlPutMember, string(m.User), string(c.ID), c.num, m.Role, m.View.Last.Start, m.View.Last.End,
		rules.EncodeStretches(m.View.Earlier), m.View.Cleared, m.Delivered, m.Read, m.LeftName, t.version)
	if err != nil {
		return err
	}
	t.remember(c, m.User, m)
	return nil
}

const sqlBlocked = `SELECT EXISTS (SELECT 1 FROM block WHERE user_id = ? AND blocked = ?)`

// blocked reports whether user has blocked other.
func (t *tx) blocked(user, other im.UserID) (bool, error) {
	k := [2]im.UserID{user, other}
	if b, ok := t.cache.blocks[k]; ok {
		return b, nil
	}
	var b bool
	if err := t.row(sqlBlocked, []any{string(user), string(other)}, &b); err != nil {
		return false, err
	}
	t.cache.blocks[k] = b
	return b, nil
}
