package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/pkg/store/rules"
)

// Position is store.Positions'.
func (s *Store) Position(ctx context.Context, conv im.ConversationID, user im.UserID) (store.Position, error) {
	const op = "store.Position"
	out, err := s.positions(ctx, []store.Position{{Conversation: conv, User: user}}, func(store.Position) bool { return true })
	if err != nil {
		return store.Position{}, fault(op, err)
	}
	if out[0].Kind == 0 {
		return store.Position{}, rules.NotMember(op, conv)
	}
	return out[0], nil
}

const sqlPositions = `SELECT ` + stayColumns + `, p.i FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS p (user_id, conv, i)
  JOIN member m ON m.user_id = p.user_id AND m.conversation_id = p.conv JOIN conversation c ON c.num = m.conv WHERE m.role > 0`

// positions reads where the users of ps stand, one for one, and counts the unread
// of those for which count says so. Those that are no members now have only
// Conversation and User.
func (s *Store) positions(ctx context.Context, ps []store.Position, count func(store.Position) bool) ([]store.Position, error) {
	return read(ctx, s, func(ctx context.Context, c *pgx.Conn) ([]store.Position, error) {
		out := make([]store.Position, len(ps))
		users, convs := make([]string, len(ps)), make([]string, len(ps))
		for i, p := range ps {
			users[i], convs[i] = string(p.User), string(p.Conversation)
			out[i] = store.Position{Conversation: p.Conversation, User: p.User}
		}
		list, places, err := staysAt(ctx, c, users, convs)
		if err != nil {
			return nil, err
		}
		var counted []*stay
		var which []int // of each counted one: its place
		for n, st := range list {
			if count(ps[places[n]]) {
				counted, which = append(counted, st), append(which, places[n])
			}
		}
		sights, err := seen(ctx, c, counted, false)
		if err != nil {
			return nil, err
		}
		for n, st := range list {
			out[places[n]] = store.Position{
				Conversation: st.id, User: st.User, Delivered: st.Here(), Read: st.Read, Start: st.View.Start(), Head: st.View.Head(),
				Members: st.count, Kind: st.kind, Peer: st.peer(),
			}
		}
		for n, sight := range sights {
			out[which[n]].Unread = sight.unread
		}
		return out, nil
	})
}

// staysAt finds the present members among pairs, and the place of each.
func staysAt(ctx context.Context, c *pgx.Conn, users, convs []string) (list []*stay, places []int, err error) {
	rows, err := c.Query(ctx, sqlPositions, users, convs)
	if err != nil {
		return nil, nil, err
	}
	defer rows.Close()
	for rows.Next() {
		st, i := &stay{}, 0
		if err := scanStay(rows, st, &i); err != nil {
			return nil, nil, err
		}
		list, places = append(list, st), append(places, i-1)
	}
	rows.Close()
	return list, places, rows.Err()
}

const sqlMark = `SELECT imd_mark($1, $2, $3, $4)`

// SavePositions is store.Positions'. What it returns is read after the commit,
// so that counting holds up nobody.
func (s *Store) SavePositions(ctx context.Context, ps []store.Position) ([]store.Position, error) {
	const op = "store.SavePositions"
	n := len(ps)
	convs, users, delivered, reads := make([]string, n), make([]string, n), make([]int64, n), make([]int64, n)
	for i, p := range ps {
		convs[i], users[i], delivered[i], reads[i] = string(p.Conversation), string(p.User), int64(p.Delivered), int64(p.Read)
	}
	if _, err := s.exec(ctx, op, sqlMark, convs, users, delivered, reads); err != nil {
		return nil, err
	}
	out, err := s.positions(ctx, ps, func(p store.Position) bool { return p.Read > 0 })
	if err != nil {
		return nil, fault(op, fmt.Errorf("saved, but not read back: %w", unsure(err)))
	}
	return out, nil
}

const sqlClear = `UPDATE member m SET cleared = least($3, c.head), version = imd_xid() FROM conversation c
  WHERE m.user_id = $1 AND m.conversation_id = $2 AND m.role > 0 AND c.num = m.conv AND m.cleared < least($3, c.head)`

// ClearHistory is store.Membership's.
func (s *Store) ClearHistory(ctx context.Context, conv im.ConversationID, user im.UserID, seq im.Seq) (im.Seq, error) {
	const op = "store.ClearHistory"
	start, err := change(ctx, s, func(ctx context.Context, c *pgx.Conn) (im.Seq, error) {
		if _, err := c.Exec(ctx, sqlClear, string(user), string(conv), int64(seq)); err != nil {
			return 0, err
		}
		st, err := stayOf(ctx, c, op, conv, user)
		if err == nil && !st.Present() {
			err = rules.NotMember(op, conv)
		}
		if err != nil {
			return 0, err
		}
		return st.View.Start(), nil
	})
	return start, fault(op, err)
}
