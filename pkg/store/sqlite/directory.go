package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

const sqlUser = `SELECT created_ms, disabled FROM user WHERE id = ?`

// User is store.Directory's.
func (s *Store) User(ctx context.Context, id im.UserID) (store.User, error) {
	u := store.User{ID: id}
	err := s.read(ctx, func(c *conn) error {
		var ms int64
		err := c.row(sqlUser, []any{string(id)}, &ms, &u.Disabled)
		u.Created = time.UnixMilli(ms)
		return missing(err)
	})
	if err != nil {
		return store.User{}, fault("store.User", err)
	}
	return u, nil
}

// missing turns "no row" into the port's word.
func missing(err error) error {
	if errors.Is(err, sql.ErrNoRows) {
		return store.ErrNotFound
	}
	return err
}

const sqlKnow = `INSERT INTO user (id, created_ms, disabled) VALUES (?, ?, 0) ON CONFLICT DO NOTHING`

// know makes user known.
func (t *tx) know(user im.UserID) error {
	n, err := t.exec(sqlKnow, string(user), t.now.UnixMilli())
	t.changed = t.changed || n > 0
	return err
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

// write runs one statement in a transaction of its own.
func (s *Store) write(ctx context.Context, op, query string, args ...any) (int64, error) {
	var rows int64
	err := s.w.run(ctx, func(t *tx) error {
		n, err := t.exec(query, args...)
		t.changed, rows = n > 0, n
		return err
	})
	if err != nil {
		return 0, fault(op, err)
	}
	return rows, nil
}

// SetDisabled is store.Directory's.
func (s *Store) SetDisabled(ctx context.Context, id im.UserID, disabled bool) error {
	const op = "store.SetDisabled"
	if id == "" {
		return refuse(clientv1.Reason_REASON_INVALID_ID, op, "an empty user id")
	}
	_, err := s.write(ctx, op, `INSERT INTO user (id, created_ms, disabled) VALUES (?, ?, ?)
	  ON CONFLICT (id) DO UPDATE SET disabled = excluded.disabled`, string(id), time.Now().UnixMilli(), disabled)
	return err
}

// SetBlock is store.Directory's.
func (s *Store) SetBlock(ctx context.Context, user, blocked im.UserID, on bool) error {
	const op = "store.SetBlock"
	if user == "" || blocked == "" || user == blocked {
		return refuse(clientv1.Reason_REASON_BAD_REQUEST, op, "a user can block another user")
	}
	query := `INSERT INTO block (user_id, blocked) VALUES (?, ?) ON CONFLICT DO NOTHING`
	if !on {
		query = `DELETE FROM block WHERE user_id = ? AND blocked = ?`
	}
	return fault(op, s.w.run(ctx, func(t *tx) error {
		delete(t.cache.blocks, [2]im.UserID{user, blocked}) // the next send reads it
		if err := t.know(user); err != nil {
			return err
		}
		n, err := t.exec(query, string(user), string(blocked))
		t.changed = t.changed || n > 0
		return err
	}))
}

// RevokeLogin is store.Directory's. A second revocation of the same login
// holds until the later of the two times, with the newer reason.
func (s *Store) RevokeLogin(ctx context.Context, r store.Revocation) error {
	_, err := s.write(ctx, "store.RevokeLogin", `INSERT INTO revocation (user_id, login, issued_before_ms, reason, until_ms)
	  VALUES (?, ?, ?, ?, ?) ON CONFLICT (user_id, login) DO UPDATE SET reason = excluded.reason,
	  issued_before_ms = max(issued_before_ms, excluded.issued_before_ms), until_ms = max(until_ms, excluded.until_ms)`,
		string(r.User), string(r.Login), millis(r.IssuedBefore), r.Reason, millis(r.Until))
	return err
}

// Revocations is store.Directory's.
func (s *Store) Revocations(ctx context.Context, user im.UserID) ([]store.Revocation, error) {
	var out []store.Revocation
	err := s.read(ctx, func(c *conn) error {
		return c.revocations(ctx, jsonList(map[im.UserID]bool{user: true}), func(r store.Revocation) { out = append(out, r) })
	})
	return out, fault("store.Revocations", err)
}

const sqlRevocations = `SELECT r.user_id, r.login, r.issued_before_ms, r.reason, r.until_ms
  FROM json_each(?) j JOIN revocation r ON r.user_id = j.value WHERE r.until_ms > ?`

// revocations calls got for each that holds of users, a JSON array.
func (c *conn) revocations(ctx context.Context, users string, got func(store.Revocation)) error {
	return c.each(ctx, sqlRevocations, []any{users, time.Now().UnixMilli()}, func(scan func(...any) error) error {
		var r store.Revocation
		var before, until int64
		err := scan(&r.User, &r.Login, &before, &r.Reason, &until)
		r.IssuedBefore, r.Until = moment(before), moment(until)
		got(r)
		return err
	})
}

const sqlUsers = `SELECT u.id, u.created_ms, u.disabled FROM json_each(?) j JOIN user u ON u.id = j.value`

// Callers is store.Directory's.
func (s *Store) Callers(ctx context.Context, users []im.UserID) (map[im.UserID]store.Caller, error) {
	const op = "store.Callers"
	if len(users) > store.MaxCallers {
		return nil, refuse(clientv1.Reason_REASON_BAD_REQUEST, op, "more than %d users", store.MaxCallers)
	}
	set := make(map[im.UserID]bool, len(users))
	for _, u := range users {
		set[u] = true
	}
	list, out := jsonList(set), make(map[im.UserID]store.Caller, len(users))
	err := s.read(ctx, func(c *conn) error {
		err := c.each(ctx, sqlUsers, []any{list}, func(scan func(...any) error) error {
			var u store.User
			var ms int64
			err := scan(&u.ID, &ms, &u.Disabled)
			u.Created = time.UnixMilli(ms)
			out[u.ID] = store.Caller{User: u}
			return err
		})
		if err != nil {
			return err
		}
		return c.revocations(ctx, list, func(r store.Revocation) {
			if x, known := out[r.User]; known {
				x.Revocations = append(x.Revocations, r)
				out[r.User] = x
			}
		})
	})
	return out, fault(op, err)
}

// sqlExpire removes what is over, a kind each.
var sqlExpire = []string{
	`DELETE FROM revocation WHERE (user_id, login) IN (SELECT user_id, login FROM revocation WHERE until_ms <= ? ORDER BY until_ms LIMIT ?)`,
	`DELETE FROM session WHERE (user_id, login, device) IN (SELECT user_id, login, device FROM session WHERE until_ms <= ? ORDER BY until_ms LIMIT ?)`,
	`DELETE FROM mute WHERE (user_id, conversation_id) IN (SELECT user_id, conversation_id FROM mute WHERE until_ms <= ? ORDER BY until_ms LIMIT ?)`,
}

// Expire is store.Directory's.
func (s *Store) Expire(ctx context.Context, p store.Proof, now time.Time) (int, error) {
	gone := int64(0)
	err := s.proved(ctx, "store.Expire", p, func(t *tx) error {
		for _, query := range sqlExpire {
			n, err := t.exec(query, now.UnixMilli(), store.MaxExpire)
			if err != nil {
				return err
			}
			gone += n
		}
		t.changed = gone > 0
		clear(t.cache.sessions)
		return nil
	})
	if err != nil {
		return 0, err
	}
	return int(gone), nil
}

// PutKey is store.Directory's.
func (s *Store) PutKey(ctx context.Context, k store.Key) error {
	scopes, err := json.Marshal(k.Scopes)
	if err != nil {
		return err
	}
	_, err = s.write(ctx, "store.PutKey", `INSERT INTO api_key (id, name, scopes, secret_hash, created_ms, revoked_ms)
	  VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET name = excluded.name, scopes = excluded.scopes,
	  secret_hash = excluded.secret_hash, created_ms = excluded.created_ms, revoked_ms = excluded.revoked_ms`,
		k.ID, k.Name, string(scopes), k.SecretHash[:], millis(k.Created), millis(k.Revoked))
	return err
}

const sqlKeys = `SELECT id, name, scopes, secret_hash, created_ms, revoked_ms FROM api_key `

// Key is store.Directory's.
func (s *Store) Key(ctx context.Context, id string) (store.Key, error) {
	keys, err := s.keys(ctx, sqlKeys+`WHERE id = ?`, id)
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
	var out []store.Key
	err := s.read(ctx, func(c *conn) error {
		return c.each(ctx, query, args, func(scan func(...any) error) error {
			var k store.Key
			var scopes string
			var hash []byte
			var created, revoked int64
			if err := scan(&k.ID, &k.Name, &scopes, &hash, &created, &revoked); err != nil {
				return err
			}
			if err := json.Unmarshal([]byte(scopes), &k.Scopes); err != nil {
				return fmt.Errorf("scopes of key %s: %w", k.ID, err)
			}
			copy(k.SecretHash[:], hash)
			k.Created, k.Revoked = moment(created), moment(revoked)
			out = append(out, k)
			return nil
		})
	})
	return out, err
}

// millis is how times are stored; the zero time is 0.
func millis(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

// moment is the reverse of millis.
func moment(ms int64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms)
}
