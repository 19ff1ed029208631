package sqlite

import (
	"context"
	"database/sql"
	"errors"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/pkg/store/rules"
)

// sessionKey is a login on a device.
type sessionKey struct {
	user   im.UserID
	login  im.LoginID
	device im.DeviceID
}

// sessionRow is what is noted of it; the zero value = nothing.
type sessionRow struct {
	epoch    uint64
	replaced bool
}

const sqlSession = `SELECT epoch, replaced FROM session WHERE user_id = ? AND login = ? AND device = ?`

const sqlPutSession = `INSERT INTO session (user_id, login, device, epoch, replaced, until_ms) VALUES (?, ?, ?, ?, ?, ?)
  ON CONFLICT (user_id, login, device) DO UPDATE SET epoch = excluded.epoch, replaced = excluded.replaced, until_ms = max(until_ms, excluded.until_ms)`

// session is what is noted of a login on a device.
func (t *tx) session(k sessionKey) (sessionRow, error) {
	if r, ok := t.cache.sessions[k]; ok {
		return r, nil
	}
	var r sessionRow
	err := t.row(sqlSession, []any{string(k.user), string(k.login), string(k.device)}, &r.epoch, &r.replaced)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return r, err
	}
	if !t.proving {
		t.cache.sessions[k] = r
	}
	return r, nil
}

// ProveSession is store.Sessions'.
func (s *Store) ProveSession(ctx context.Context, c store.SessionClaim) (epoch uint64, err error) {
	err = s.w.run(ctx, func(t *tx) error {
		own := sessionKey{c.User, c.Session.Login, c.Session.Device}
		have, err := t.session(own)
		if err != nil {
			return err
		}
		epoch = max(have.epoch, c.Session.Epoch)
		if c.Rank {
			epoch = max(have.epoch+1, c.Session.Epoch)
		}
		have.replaced = have.replaced && epoch == have.epoch
		if err := t.putSession(own, sessionRow{epoch, have.replaced}, millis(c.Until)); err != nil {
			return err
		}
		for _, r := range c.Replaced {
			k := sessionKey{c.User, r.Login, r.Device}
			have, err := t.session(k)
			if err == nil && have.epoch < c.Session.Epoch {
				err = t.putSession(k, sessionRow{c.Session.Epoch, true}, millis(c.Until))
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return 0, fault("store.ProveSession", err)
	}
	return epoch, nil
}

// putSession notes r. Memory gets to know it after the commit.
func (t *tx) putSession(k sessionKey, r sessionRow, until int64) error {
	t.changed, t.proving = true, true
	delete(t.cache.sessions, k)
	_, err := t.exec(sqlPutSession, string(k.user), string(k.login), string(k.device), r.epoch, r.replaced, until)
	return err
}

// displaced is why the session that sends a row may not write any more; nil if it
// may.
func (t *tx) displaced(row *store.AppendRow) (*im.Error, error) {
	if row.Proof == nil {
		return nil, nil
	}
	r, err := t.session(sessionKey{row.Sender, row.Proof.Login, row.Proof.Device})
	if err != nil || r.epoch <= row.Proof.Epoch {
		return nil, err
	}
	return rules.Displaced(opAppend, r.replaced), nil
}
