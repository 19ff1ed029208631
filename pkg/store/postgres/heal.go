package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/obs"
)

const sqlHeal = `UPDATE conversation c SET head = t.top, version = imd_xid(), head_version = imd_xid() FROM (
  SELECT l.num, (SELECT e.seq FROM entry e WHERE e.conv = l.num ORDER BY e.seq DESC LIMIT 1) AS top
  FROM (SELECT num FROM conversation WHERE id = ANY ($1) ORDER BY id FOR NO KEY UPDATE) l) t
  WHERE c.num = t.num AND t.top > c.head RETURNING c.id, c.head`

// heal moves the heads of conversations past entries that somebody else has
// written above them, so that numbering goes on.
func (s *Store) heal(ctx context.Context, ids []string) error {
	type behind struct {
		id  im.ConversationID
		top im.Seq
	}
	list, err := call(ctx, s.appends, true, func(ctx context.Context, c *pgx.Conn) ([]behind, error) {
		rows, err := c.Query(ctx, sqlHeal, ids)
		if err != nil {
			return nil, err
		}
		return pgx.CollectRows(rows, func(row pgx.CollectableRow) (b behind, err error) {
			err = row.Scan(&b.id, &b.top)
			return b, err
		})
	})
	for _, b := range list {
		s.log.Error("head of a conversation was behind its log", obs.Conv(b.id), obs.Seq(b.top))
	}
	return err
}
