package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
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

const sqlRevocations = `SELECT login, issued_before_ms, reason, until_ms FROM revocation WHERE user_id = $1 AND until_ms > imd_now_ms() ORDER BY login`

// Revocations is store.Directory's.
func (s *Store) Revocations(ctx context.Context, user im.UserID) ([]store.Revocation, error) {
	out, err := read(ctx, s, func(ctx context.Context, c *pgx.Conn) ([]store.Revocation, error) {
		rows, err := c.Query(ctx, sqlRevocations, string(user))
		if err != nil {
			return nil, err
		}
		return pgx.CollectRows(rows, func(row pgx.CollectableRow) (store.Revocation, error) {
			r := store.Revocation{User: user}
			var before, until int64
			err := row.Scan(&r.Login, &before, &r.Reason, &until)
			r.IssuedBefore, r.Until = moment(before), moment(until)
			return r, err
		})
	})
	return out, fault("store.Revocations", err)
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
