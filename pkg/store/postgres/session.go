package postgres

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/pkg/store/rules"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// A batch with rows of proved sessions runs these: the function that proves them
// comes first, as the other one gets what it returns.
const (
	sqlAppendProved = `SELECT o, status, seq, prev_seq, message_id, server_ms, member_version, hash
  FROM imd_append_transaction(imd_sessions($1, $16, $17, $18, $19), $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)`
	sqlAppendSegmentProved = `SELECT o, status, seq, prev_seq, message_id, server_ms, member_version, hash
  FROM imd_append_segment($1, $2, $3, imd_sessions($4, $19, $20, $21, $22), $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18)`
)

// sender is a session that writes rows.
type sender struct {
	user im.UserID
	store.SessionProof
}

// senders are those of a batch that are compared, sorted, as the function takes
// them.
type senders struct {
	users, logins, devices []string
	epochs                 []int64
}

// sendersOf collects them; nil = none is compared.
func sendersOf(rows []store.AppendRow) *senders {
	known := map[sender]bool{}
	for i := range rows {
		if p := rows[i].Proof; p != nil {
			known[sender{rows[i].Sender, *p}] = true
		}
	}
	if len(known) == 0 {
		return nil
	}
	all := make([]sender, 0, len(known))
	for x := range known {
		all = append(all, x)
	}
	slices.SortFunc(all, func(a, b sender) int {
		return cmp.Or(cmp.Compare(a.user, b.user), cmp.Compare(a.Login, b.Login), cmp.Compare(a.Device, b.Device), cmp.Compare(a.Epoch, b.Epoch))
	})
	s := &senders{}
	for _, x := range all {
		s.users, s.logins, s.devices = append(s.users, string(x.user)), append(s.logins, string(x.Login)), append(s.devices, string(x.Device))
		s.epochs = append(s.epochs, int64(x.Epoch))
	}
	return s
}

// displacedBy reads which senders of a batch the server says have been displaced,
// and whether by another login; nil if err is something else.
func displacedBy(err error) map[sender]bool {
	e := (*pgconn.PgError)(nil)
	if !errors.As(err, &e) || e.Code != codeDisplaced {
		return nil
	}
	var list []struct {
		User, Login, Device string
		Epoch               int64
		Replaced            bool
	}
	if json.Unmarshal([]byte(e.Detail), &list) != nil {
		return nil
	}
	out := map[sender]bool{}
	for _, x := range list {
		out[sender{im.UserID(x.User), store.SessionProof{Login: im.LoginID(x.Login), Device: im.DeviceID(x.Device), Epoch: uint64(x.Epoch)}}] = x.Replaced
	}
	return out
}

// appendWithout is Append after the server has named senders that were displaced:
// their rows are answered, and the others stored.
func (s *Store) appendWithout(ctx context.Context, rows []store.AppendRow, gone map[sender]bool) ([]store.AppendResult, error) {
	out := make([]store.AppendResult, len(rows))
	var rest []store.AppendRow
	var place []int
	for i := range rows {
		r := &rows[i]
		if r.Proof != nil {
			if replaced, ok := gone[sender{r.Sender, *r.Proof}]; ok {
				var err error
				if out[i], err = s.storedOr(ctx, r, rules.Displaced(opAppend, replaced)); err != nil {
					return nil, fault(opAppend, err)
				}
				continue
			}
		}
		rest, place = append(rest, *r), append(place, i)
	}
	if len(rest) == len(rows) {
		return nil, fault(opAppend, errors.New("the database refuses sessions that are not in the batch"))
	}
	if len(rest) == 0 {
		return out, nil
	}
	answers, err := s.Append(ctx, rest)
	for i, a := range answers {
		out[place[i]] = a
	}
	return out, err
}

const sqlStored = `SELECT e.seq, e.seq - e.back, e.message_id, e.server_ms, e.body_hash, c.member_version
  FROM conversation c JOIN entry e ON e.conv = c.num AND e.sender = $2 AND e.client_key = $3 WHERE c.id = $1`

// storedOr answers a row as at first if it is stored, and with otherwise if it is
// not.
func (s *Store) storedOr(ctx context.Context, r *store.AppendRow, otherwise *im.Error) (store.AppendResult, error) {
	a := answer{status: statusBefore, seq: new(int64), prev: new(int64), id: new(int64), ms: new(int64), memberVersion: new(int64)}
	_, err := read(ctx, s, func(ctx context.Context, c *pgx.Conn) (struct{}, error) {
		return struct{}{}, c.QueryRow(ctx, sqlStored, string(r.Conversation), string(r.Sender), key(r.ClientMessageID)).
			Scan(a.seq, a.prev, a.id, a.ms, &a.hash, a.memberVersion)
	})
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return store.AppendResult{Err: otherwise}, nil
	case err != nil:
		return store.AppendResult{}, err
	case !slices.Equal(a.hash, r.BodyHash[:hashSize]):
		a.status = statusReused
	}
	return a.result(r), nil
}

const sqlProveSession = `INSERT INTO session AS s (user_id, login, device, epoch, replaced, until_ms)
  SELECT $1, p.l, p.d, $2, p.r, $3 FROM unnest($4::text[], $5::text[], $6::boolean[]) AS p (l, d, r)
  ON CONFLICT (user_id, login, device) DO UPDATE SET
    epoch = CASE WHEN $7 THEN greatest(s.epoch + 1, excluded.epoch) ELSE greatest(s.epoch, excluded.epoch) END,
    replaced = CASE WHEN $7 OR excluded.epoch > s.epoch THEN excluded.replaced ELSE s.replaced END,
    until_ms = greatest(s.until_ms, excluded.until_ms)
  RETURNING login, device, epoch`

// ProveSession is store.Sessions'. Rows are changed in the order in which appends
// lock them.
func (s *Store) ProveSession(ctx context.Context, c store.SessionClaim) (uint64, error) {
	const op = "store.ProveSession"
	own := store.SessionProof{Login: c.Session.Login, Device: c.Session.Device}
	marks := map[store.SessionProof]bool{}
	for _, r := range c.Replaced {
		marks[store.SessionProof{Login: r.Login, Device: r.Device}] = true
	}
	marks[own] = false
	all := make([]store.SessionProof, 0, len(marks))
	for m := range marks {
		all = append(all, m)
	}
	slices.SortFunc(all, func(a, b store.SessionProof) int {
		return cmp.Or(cmp.Compare(a.Login, b.Login), cmp.Compare(a.Device, b.Device))
	})
	logins, devices, replaced := make([]string, len(all)), make([]string, len(all)), make([]bool, len(all))
	for i, m := range all {
		logins[i], devices[i], replaced[i] = string(m.Login), string(m.Device), marks[m]
	}
	epoch, err := change(ctx, s, func(ctx context.Context, conn *pgx.Conn) (uint64, error) {
		rows, err := conn.Query(ctx, sqlProveSession, string(c.User), int64(c.Session.Epoch), millis(c.Until), logins, devices, replaced, c.Rank)
		if err != nil {
			return 0, err
		}
		var login, device string
		var epoch, of int64
		_, err = pgx.ForEachRow(rows, []any{&login, &device, &of}, func() error {
			if login == string(own.Login) && device == string(own.Device) {
				epoch = of
			}
			return nil
		})
		if err == nil && epoch == 0 {
			err = fmt.Errorf("%w: the database does not tell the epoch", store.ErrUnknownOutcome)
		}
		return uint64(epoch), err
	})
	if codeOf(err) == codeLockTimeout {
		return 0, &im.Error{Reason: clientv1.Reason_REASON_BUSY, Op: op, Msg: "a batch of this session is being stored", RetryAfter: time.Second, Err: err}
	}
	return epoch, fault(op, err)
}
