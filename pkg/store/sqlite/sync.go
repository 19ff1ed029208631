package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"slices"
	"strings"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/pkg/store/rules"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// tokens are this driver's. They count commits.
const tokens rules.Tokens = 1

// Sync is store.Reader's. The walk lists, in order of conversation ids, what
// changed after the commit its token names. What changes while it goes on has
// a later commit than the one it began at, and so comes in the next walk, if
// not in this one already.
func (s *Store) Sync(ctx context.Context, q store.SyncQuery) (store.SyncPage, error) {
	q.Limit = min(max(q.Limit, 1), store.MaxSyncPage)
	var page store.SyncPage
	err := s.read(ctx, func(c *conn) error {
		commits, err := c.commits()
		if err != nil {
			return err
		}
		t, ok := tokens.Parse(q.Token)
		if void := !ok || t.Epoch != s.w.epoch || t.Since > commits || t.Upto > commits; void {
			t = rules.Token{Epoch: s.w.epoch}
			if q.Token != "" {
				q.Cursors = nil // they are of the other history too
			}
		}
		if t.Upto == 0 {
			t.Upto = commits
		}
		page, err = c.walk(ctx, q, t)
		return err
	})
	s.late(ctx, &page)
	return page, fault("store.Sync", err)
}

const sqlCommits = `SELECT commits FROM store WHERE id = 1`

// commits is the number of the newest commit of this snapshot.
func (c *conn) commits() (n int64, err error) {
	err = c.row(sqlCommits, nil, &n)
	return n, err
}

// walk returns the page that begins behind t.
func (c *conn) walk(ctx context.Context, q store.SyncQuery, t rules.Token) (store.SyncPage, error) {
	stays, err := c.changed(ctx, q, t)
	if err != nil {
		return store.SyncPage{}, err
	}
	asked, err := c.asked(ctx, q, t, stays)
	if err != nil {
		return store.SyncPage{}, err
	}
	stays = append(stays, asked...)
	slices.SortFunc(stays, func(a, b *stay) int { return strings.Compare(string(a.ID), string(b.ID)) })
	p := store.SyncPage{Full: t.Since == 0}
	if p.More = len(stays) > q.Limit; p.More {
		stays = stays[:q.Limit]
	}
	room := q.MaxBytes
	for _, st := range stays {
		state, err := c.state(ctx, st)
		if err == nil && q.Entries > 0 && st.num != 0 {
			state.Page, err = c.pageOf(ctx, st, q, &room)
		}
		if err != nil {
			return store.SyncPage{}, err
		}
		p.States = append(p.States, state)
		p.TokenAfter = append(p.TokenAfter, tokens.Format(rules.Token{Epoch: t.Epoch, Since: t.Since, Upto: t.Upto, After: st.ID}))
	}
	if p.More {
		p.Token = p.TokenAfter[len(p.TokenAfter)-1]
		return p, nil
	}
	p.Token = tokens.Format(rules.Token{Epoch: t.Epoch, Since: t.Upto})
	if n := len(p.TokenAfter); n > 0 {
		p.TokenAfter[n-1] = p.Token
	}
	return p, nil
}

// pageOf reads what belongs on a state while there is room; nil if there is none.
func (c *conn) pageOf(ctx context.Context, st *stay, q store.SyncQuery, room *int) (*store.HistoryPage, error) {
	if q.MaxBytes > 0 && *room <= 0 {
		return nil, nil
	}
	have, known := q.Cursors[st.ID]
	p, err := c.page(ctx, st.num, st.View, store.HistoryQuery{
		After: max(have, 0), Limit: min(q.Entries, store.MaxPage), Backward: !known, MaxBytes: max(*room, 0),
	})
	for i := range p.Entries {
		*room -= len(p.Entries[i].Content) + len(p.Entries[i].Change)
	}
	if err != nil || q.MaxBytes > 0 && *room < 0 {
		return nil, err
	}
	return &p, nil
}

const sqlChanged = `SELECT ` + stayColumns + stayTables + `WHERE m.user_id = ? AND m.conversation_id > ?
  AND (m.version > ? OR (m.role > 0 AND c.version > ?)) ORDER BY m.conversation_id LIMIT ?`

// changed are the next conversations of the walk that have changed, one more
// than fits on the page if there are more.
func (c *conn) changed(ctx context.Context, q store.SyncQuery, t rules.Token) ([]*stay, error) {
	var out []*stay
	err := c.each(ctx, sqlChanged, []any{string(q.User), string(t.After), t.Since, t.Since, q.Limit + 1}, func(scan func(...any) error) error {
		st := &stay{}
		out = append(out, st)
		return scanStay(scan, st)
	})
	return out, err
}

const sqlAsked = `SELECT ` + stayColumns + stayTables + `WHERE m.user_id = ?
  AND m.conversation_id IN (SELECT value FROM json_each(?))`

// asked are the conversations beyond the token that a cursor brings into the
// walk: there is something above it, or the user is not in it (any more).
func (c *conn) asked(ctx context.Context, q store.SyncQuery, t rules.Token, already []*stay) ([]*stay, error) {
	open := map[im.ConversationID]bool{}
	for id := range q.Cursors {
		if id > t.After {
			open[id] = true
		}
	}
	for _, st := range already {
		delete(open, st.ID)
	}
	if len(open) == 0 {
		return nil, nil
	}
	var out []*stay
	err := c.each(ctx, sqlAsked, []any{string(q.User), jsonList(open)}, func(scan func(...any) error) error {
		st := &stay{}
		if err := scanStay(scan, st); err != nil {
			return err
		}
		delete(open, st.ID)
		if !st.Present() || st.View.Head() > q.Cursors[st.ID] {
			out = append(out, st)
		}
		return nil
	})
	for id := range open {
		st := &stay{} // never was a member, or no such conversation
		st.ID, st.User = id, q.User
		out = append(out, st)
	}
	return out, err
}

// jsonList is a JSON array of the keys of m.
func jsonList[K ~string](m map[K]bool) string {
	list := make([]string, 0, len(m))
	for k := range m {
		list = append(list, string(k))
	}
	b, _ := json.Marshal(list) // a list of strings always encodes
	return string(b)
}

// state is what the user of st sees of its conversation.
func (c *conn) state(ctx context.Context, st *stay) (store.ConversationState, error) {
	if st.num == 0 {
		return store.ConversationState{Conversation: st.ID}, nil
	}
	out := store.ConversationState{
		Conversation: st.ID, Kind: st.Kind, Name: st.LeftName, Peer: st.peer(st.User), Role: st.Role,
		Start: st.View.Start(), Head: st.View.Head(), Read: st.Read, Delivered: st.Here(),
	}
	if st.Present() { // who has left learns nothing of what came after
		out.Name, out.Closed, out.Members = st.Name, st.Closed, st.Count
	}
	var err error
	if out.Unread, err = c.unread(st); err != nil {
		return out, err
	}
	if out.Last, err = c.last(ctx, st); err != nil {
		return out, err
	}
	if out.Peer != "" {
		peer, err := c.stayOf("store.Sync", st.ID, out.Peer)
		if err != nil {
			return out, err
		}
		m := peer.Public()
		out.PeerMember = &m
	}
	return out, nil
}

const sqlHeads = `SELECT m.user_id, m.conversation_id, CASE WHEN m.end_seq > 0 THEN m.end_seq ELSE c.head END
  FROM json_each(?) j JOIN member m ON m.user_id = j.value JOIN conversation c ON c.num = m.conv
  WHERE (m.role > 0 AND c.head_version > ?) OR (m.role = 0 AND m.version > ?)`

// Heads is store.Reader's. A version of another history is void: it begins
// anew, since every client does the same. The overlap that the port allows is
// not needed with one writer.
func (s *Store) Heads(ctx context.Context, users []im.UserID, version string) ([]store.UserHead, string, error) {
	const op = "store.Heads"
	if len(users) > store.MaxHeadUsers {
		return nil, "", refuse(clientv1.Reason_REASON_BAD_REQUEST, op, "more than %d users", store.MaxHeadUsers)
	}
	var out []store.UserHead
	var next string
	err := s.read(ctx, func(c *conn) error {
		commits, err := c.commits()
		if err != nil {
			return err
		}
		next = tokens.Format(rules.Token{Epoch: s.w.epoch, Since: commits})
		t, ok := tokens.Parse(version)
		if !ok || t.Epoch != s.w.epoch || t.Since > commits || t.Since == commits || len(users) == 0 {
			return nil
		}
		set := make(map[im.UserID]bool, len(users))
		for _, u := range users {
			set[u] = true
		}
		return c.each(ctx, sqlHeads, []any{jsonList(set), t.Since, t.Since}, func(scan func(...any) error) error {
			var h store.UserHead
			err := scan(&h.User, &h.Conversation, &h.Seq)
			out = append(out, h)
			return err
		})
	})
	return out, next, fault(op, err)
}

const sqlMembers = `SELECT ` + stayColumns + stayTables + `WHERE m.conv = ? AND m.role > 0 AND m.user_id > ?
  ORDER BY m.user_id LIMIT ?`

const sqlGroup = `SELECT num, kind, members, member_version FROM conversation WHERE id = ?`

// Members is store.Membership's.
func (s *Store) Members(ctx context.Context, conv im.ConversationID, reader, after im.UserID, limit int) (store.MemberPage, error) {
	const op = "store.Members"
	limit = min(max(limit, 1), store.MaxMemberPage)
	var p store.MemberPage
	err := s.read(ctx, func(c *conn) error {
		if reader != "" {
			if st, err := c.stayOf(op, conv, reader); err != nil {
				return err
			} else if !st.Present() {
				return rules.NotMember(op, conv)
			}
		}
		var num int64
		err := c.row(sqlGroup, []any{string(conv)}, &num, &p.Kind, &p.Count, &p.MemberVersion)
		if errors.Is(err, sql.ErrNoRows) {
			return rules.NotMember(op, conv)
		}
		if err != nil {
			return err
		}
		p.End = true
		return c.each(ctx, sqlMembers, []any{num, string(after), limit + 1}, func(scan func(...any) error) error {
			if len(p.Members) == limit {
				p.End = false
				return nil
			}
			var st stay
			if err := scanStay(scan, &st); err != nil {
				return err
			}
			p.Members = append(p.Members, st.Public())
			return nil
		})
	})
	return p, fault(op, err)
}

// Starts is store.Membership's.
func (s *Store) Starts(ctx context.Context, conv im.ConversationID, users []im.UserID) (map[im.UserID]im.Seq, error) {
	const op = "store.Starts"
	out := make(map[im.UserID]im.Seq, len(users))
	err := s.read(ctx, func(c *conn) error {
		for _, u := range users {
			if err := ctx.Err(); err != nil {
				return err
			}
			st, err := c.stayOf(op, conv, u)
			switch {
			case im.ReasonOf(err) == clientv1.Reason_REASON_NOT_MEMBER:
			case err != nil:
				return err
			case st.Present():
				out[u] = st.View.Since()
			}
		}
		return nil
	})
	return out, fault(op, err)
}
