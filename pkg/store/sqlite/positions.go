package sqlite

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/pkg/store/rules"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// Position is store.Positions'.
func (s *Store) Position(ctx context.Context, conv im.ConversationID, user im.UserID) (store.Position, error) {
	const op = "store.Position"
	var p store.Position
	err := s.read(ctx, func(c *conn) (err error) {
		p, err = c.position(op, conv, user)
		return err
	})
	return p, fault(op, err)
}

// position reads where a present member stands. Errors: not_member.
func (c *conn) position(op string, conv im.ConversationID, user im.UserID) (store.Position, error) {
	st, err := c.stayOf(op, conv, user)
	if err == nil && !st.Present() {
		err = rules.NotMember(op, conv)
	}
	if err != nil {
		return store.Position{}, err
	}
	return c.positionOf(st, true)
}

// positionOf is where a present member stands, with its unread entries if count says so.
func (c *conn) positionOf(st *stay, count bool) (p store.Position, err error) {
	n := 0
	if count {
		n, err = c.unread(st)
	}
	return store.Position{
		Conversation: st.ID, User: st.User, Delivered: st.Here(), Read: st.Read, Start: st.View.Start(), Head: st.View.Head(),
		Unread: n, Members: st.Count, Kind: st.Kind, Peer: st.peer(st.User),
	}, err
}

// sqlStaysOf is sqlStay for a list of users and conversations.
const sqlStaysOf = `SELECT ` + stayColumns + `, j.key FROM json_each(?) j
  CROSS JOIN member m ON m.user_id = json_extract(j.value, '$[0]') AND m.conversation_id = json_extract(j.value, '$[1]')
  CROSS JOIN conversation c ON c.num = m.conv`

// staysOf reads where the members that positions are of stand; nil = it never was one.
func (c *conn) staysOf(ctx context.Context, ps []store.Position) ([]*stay, error) {
	pairs := make([][2]string, len(ps))
	for i := range ps {
		pairs[i] = [2]string{string(ps[i].User), string(ps[i].Conversation)}
	}
	list, _ := json.Marshal(pairs) // texts always encode
	out := make([]*stay, len(ps))
	err := c.each(ctx, sqlStaysOf, []any{string(list)}, func(scan func(...any) error) error {
		row := cellsPool.Get().(*cells)
		defer row.giveBack()
		if err := scan(row.places(stayCells + 1)...); err != nil {
			return err
		}
		st := &stay{}
		out[row.int(stayCells)] = st
		return st.from(row)
	})
	return out, err
}

// SavePositions is store.Positions'. What it returns is read after the commit,
// so that counting does not hold up the writer.
func (s *Store) SavePositions(ctx context.Context, ps []store.Position) ([]store.Position, error) {
	const op = "store.SavePositions"
	err := s.w.run(ctx, func(t *tx) error {
		for i := range ps {
			if err := t.move(&ps[i]); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, fault(op, err)
	}
	out := make([]store.Position, len(ps))
	err = s.read(ctx, func(c *conn) error {
		stays, err := c.staysOf(ctx, ps)
		if err != nil {
			return err
		}
		for i, st := range stays {
			if st == nil || !st.Present() {
				out[i] = store.Position{Conversation: ps[i].Conversation, User: ps[i].User}
				continue
			}
			if err := ctx.Err(); err != nil {
				return err
			}
			if out[i], err = c.positionOf(st, ps[i].Read > 0); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, fault(op, fmt.Errorf("saved, but not read back: %w: %w", store.ErrUnknownOutcome, err))
	}
	return out, nil
}

// move moves one member's positions up.
func (t *tx) move(p *store.Position) error {
	c, err := t.conversation(p.Conversation)
	if err != nil || c == nil {
		return err
	}
	m, err := t.member(c, p.User)
	if err != nil || !m.Present() {
		return err
	}
	next := *m
	next.Read = max(m.Read, min(p.Read, c.Head))
	next.Delivered = max(m.Delivered, m.View.Start(), next.Read, min(p.Delivered, c.Head))
	if next.Read == m.Read && next.Delivered == max(m.Delivered, m.View.Start()) {
		return nil
	}
	if c.Kind == clientv1.ConversationKind_CONVERSATION_KIND_DIRECT {
		t.touch(c) // the peer's list shows it
	}
	if next.Read > m.Read {
		if err := t.withdraw(m.User, c.ID, next.Read); err != nil {
			return err
		}
	}
	return t.put(c, &next)
}

// ClearHistory is store.Membership's.
func (s *Store) ClearHistory(ctx context.Context, conv im.ConversationID, user im.UserID, seq im.Seq) (im.Seq, error) {
	const op = "store.ClearHistory"
	var start im.Seq
	err := s.w.run(ctx, func(t *tx) error {
		c, err := t.conversation(conv)
		if err != nil {
			return err
		}
		var m *rules.Member
		if c != nil {
			if m, err = t.member(c, user); err != nil {
				return err
			}
		}
		if !m.Present() {
			return rules.NotMember(op, conv)
		}
		next := *m
		next.View.Cleared = max(m.View.Cleared, min(seq, c.Head))
		start = max(next.View.Start(), c.kept)
		if next.View.Cleared == m.View.Cleared {
			return nil
		}
		return t.put(c, &next)
	})
	if err != nil {
		return 0, fault(op, err)
	}
	return start, nil
}
