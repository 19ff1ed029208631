package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/pkg/store/rules"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

const sqlUser = `SELECT created_ms, disabled FROM account WHERE id = $1`

// User is store.Directory's.
func (s *Store) User(ctx context.Context, id im.UserID) (store.User, error) {
	u, err := read(ctx, s, func(ctx context.Context, c *pgx.Conn) (store.User, error) {
		u := store.User{ID: id}
		var ms int64
		err := c.QueryRow(ctx, sqlUser, string(id)).Scan(&ms, &u.Disabled)
		u.Created = time.UnixMilli(ms)
		return u, missing(err)
	})
	if err != nil {
		return store.User{}, fault("store.User", err)
	}
	return u, nil
}

// PutUser is store.Directory's.
func (s *Store) PutUser(ctx context.Context, id im.UserID) (store.User, error) {
	const op = "store.PutUser"
	if id == "" {
		return store.User{}, refuse(clientv1.Reason_REASON_INVALID_ID, op, "an empty user id")
	}
	u, err := s.User(ctx, id)
	if !errors.Is(err, store.ErrNotFound) {
		return u, err
	}
	u, err = s.intake.Put(ctx, id)
	if err != nil {
		return store.User{}, fault(op, err)
	}
	return u, nil
}

// SetDisabled is store.Directory's.
func (s *Store) SetDisabled(ctx context.Context, id im.UserID, disabled bool) error {
	const op = "store.SetDisabled"
	if id == "" {
		return refuse(clientv1.Reason_REASON_INVALID_ID, op, "an empty user id")
	}
	_, err := s.exec(ctx, op, `INSERT INTO account (id, created_ms, disabled) VALUES ($1, imd_now_ms(), $2)
	  ON CONFLICT (id) DO UPDATE SET disabled = excluded.disabled`, string(id), disabled)
	return err
}

// SetBlock is store.Directory's.
func (s *Store) SetBlock(ctx context.Context, user, blocked im.UserID, on bool) error {
	const op = "store.SetBlock"
	if user == "" || blocked == "" || user == blocked {
		return refuse(clientv1.Reason_REASON_BAD_REQUEST, op, "a user can block another user")
	}
	query := `WITH u AS (INSERT INTO account (id, created_ms, disabled) VALUES ($1, imd_now_ms(), false) ON CONFLICT DO NOTHING)
	  INSERT INTO block (user_id, blocked) VALUES ($1, $2) ON CONFLICT DO NOTHING`
	if !on {
		query = `DELETE FROM block WHERE user_id = $1 AND blocked = $2`
	}
	_, err := s.exec(ctx, op, query, string(user), string(blocked))
	return err
}

// RevokeLogin is store.Directory's. A second revocation of the same login
// holds until the later of the two times, with the newer reason.
func (s *Store) RevokeLogin(ctx context.Context, r store.Revocation) error {
	_, err := s.exec(ctx, "store.RevokeLogin", `INSERT INTO revocation AS r (user_id, login, issued_before_ms, reason, until_ms)
	  VALUES ($1, $2, $3, $4, $5) ON CONFLICT (user_id, login) DO UPDATE SET reason = excluded.reason,
	  issued_before_ms = greatest(r.issued_before_ms, excluded.issued_before_ms), until_ms = greatest(r.until_ms, excluded.until_ms)`,
		string(r.User), string(r.Login), millis(r.IssuedBefore), int32(r.Reason), millis(r.Until))
	return err
}

const sqlRevocations = `SELECT user_id, login, issued_before_ms, reason, until_ms FROM revocation WHERE user_id = $1 AND until_ms > imd_now_ms() ORDER BY login`

// Revocations is store.Directory's.
func (s *Store) Revocations(ctx context.Context, user im.UserID) ([]store.Revocation, error) {
	out, err := read(ctx, s, func(ctx context.Context, c *pgx.Conn) (out []store.Revocation, err error) {
		rows, err := c.Query(ctx, sqlRevocations, string(user))
		if err != nil {
			return nil, err
		}
		return pgx.CollectRows(rows, func(row pgx.CollectableRow) (store.Revocation, error) {
			var r revocationRow
			err := row.Scan(&r.user, &r.login, &r.before, &r.reason, &r.until)
			return r.revocation(), err
		})
	})
	return out, fault("store.Revocations", err)
}

// revocationRow takes a row of the table, or of a join that has found none.
type revocationRow struct {
	user, login   *string
	before, until *int64
	reason        *int32
}

// revocation is a row that is there.
func (r *revocationRow) revocation() store.Revocation {
	if r.user == nil {
		return store.Revocation{}
	}
	return store.Revocation{User: im.UserID(*r.user), Login: im.LoginID(*r.login), IssuedBefore: moment(*r.before),
		Reason: im.Reason(*r.reason), Until: moment(*r.until)}
}

// sqlCallers finds users and what revokes their logins, all in one statement.
const sqlCallers = `SELECT a.id, a.created_ms, a.disabled, r.user_id, r.login, r.issued_before_ms, r.reason, r.until_ms
  FROM account a LEFT JOIN revocation r ON r.user_id = a.id AND r.until_ms > imd_now_ms() WHERE a.id = ANY ($1)`

// Callers is store.Directory's.
func (s *Store) Callers(ctx context.Context, users []im.UserID) (map[im.UserID]store.Caller, error) {
	const op = "store.Callers"
	if len(users) > store.MaxCallers {
		return nil, refuse(clientv1.Reason_REASON_BAD_REQUEST, op, "more than %d users", store.MaxCallers)
	}
	out, err := read(ctx, s, func(ctx context.Context, c *pgx.Conn) (map[im.UserID]store.Caller, error) {
		rows, err := c.Query(ctx, sqlCallers, rules.Texts(users))
		if err != nil {
			return nil, err
		}
		defer rows.Close()
		out := make(map[im.UserID]store.Caller, len(users))
		for rows.Next() {
			var u store.User
			var ms int64
			var r revocationRow
			if err := rows.Scan(&u.ID, &ms, &u.Disabled, &r.user, &r.login, &r.before, &r.reason, &r.until); err != nil {
				return nil, err
			}
			u.Created = time.UnixMilli(ms)
			x := out[u.ID]
			x.User = u
			if r.user != nil {
				x.Revocations = append(x.Revocations, r.revocation())
			}
			out[u.ID] = x
		}
		return out, rows.Err()
	})
	return out, fault(op, err)
}

// PutKey is store.Directory's.
func (s *Store) PutKey(ctx context.Context, k store.Key) error {
	scopes := k.Scopes
	if scopes == nil {
		scopes = []string{}
	}
	_, err := s.exec(ctx, "store.PutKey", `INSERT INTO api_key (id, name, scopes, secret_hash, created_ms, revoked_ms)
	  VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (id) DO UPDATE SET name = excluded.name, scopes = excluded.scopes,
	  secret_hash = excluded.secret_hash, created_ms = excluded.created_ms, revoked_ms = excluded.revoked_ms`,
		k.ID, k.Name, scopes, k.SecretHash[:], millis(k.Created), millis(k.Revoked))
	return err
}

const sqlKeys = `SELECT id, name, scopes, secret_hash, created_ms, revoked_ms FROM api_key `

// Key is store.Directory's.
func (s *Store) Key(ctx context.Context, id string) (store.Key, error) {
	keys, err := s.keys(ctx, sqlKeys+`WHERE id = $1`, id)
	if err == nil && len(keys) == 0 {
		err = store.ErrNotFound
	}
	if err != nil {
		return store.Key{}, fault("store.Key", err)
	}
	return keys[0], nil
}

// Keys is store.Directory's.
func (s *Store) Keys(ctx context.Context) ([]store.Key, error) {
	keys, err := s.keys(ctx, sqlKeys+`ORDER BY created_ms, id`)
	return keys, fault("store.Keys", err)
}

func (s *Store) keys(ctx context.Context, query string, args ...any) ([]store.Key, error) {
	return read(ctx, s, func(ctx context.Context, c *pgx.Conn) ([]store.Key, error) {
		rows, err := c.Query(ctx, query, args...)
		if err != nil {
			return nil, err
		}
		return pgx.CollectRows(rows, func(row pgx.CollectableRow) (store.Key, error) {
			var k store.Key
			var hash []byte
			var created, revoked int64
			err := row.Scan(&k.ID, &k.Name, &k.Scopes, &hash, &created, &revoked)
			copy(k.SecretHash[:], hash)
			k.Created, k.Revoked = moment(created), moment(revoked)
			return k, err
		})
	})
}
