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

// Change is store.Membership's.
func (s *Store) Change(ctx context.Context, c store.Change) (store.ChangeResult, error) {
	if err := rules.CheckChange(c); err != nil {
		return store.ChangeResult{}, err
	}
	apply := func(ctx context.Context, c store.Change) (store.ChangeResult, error) { return s.change(ctx, c, nil) }
	if s.owner != nil {
		apply = s.owner.change
	}
	out, err := apply(ctx, c)
	again := errors.Is(err, errCreatedMeanwhile) ||
		codeOf(err) == codeUnique && !errors.Is(err, store.ErrUnknownOutcome) && s.heal(ctx, []string{string(c.Conversation)}) == nil
	if again {
		out, err = apply(ctx, c)
	}
	if codeOf(err) == codeLockTimeout && !errors.Is(err, store.ErrUnknownOutcome) {
		err = &store.BusyConversationError{Conversations: []im.ConversationID{c.Conversation}, Err: err}
	}
	if err != nil {
		return store.ChangeResult{}, fault(rules.OpChange, err)
	}
	s.wrote.Store(time.Now().UnixNano())
	return out, nil
}

// change applies c in a transaction, under the right of p if it is given.
func (s *Store) change(ctx context.Context, c store.Change, p *proof) (store.ChangeResult, error) {
	return call(ctx, s.appends, true, func(ctx context.Context, conn *pgx.Conn) (store.ChangeResult, error) {
		return transact(ctx, conn, func(t *tx) (store.ChangeResult, error) {
			if err := t.prove(p); err != nil {
				return store.ChangeResult{}, err
			}
			if c.Create != nil {
				return t.create(c)
			}
			return t.change(c)
		})
	})
}

const (
	sqlCreation    = `SELECT c.id FROM creation r JOIN conversation c ON c.num = r.conv WHERE r.actor = $1 AND r.client_key = $2`
	sqlAddCreation = `INSERT INTO creation (actor, client_key, conv) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING`
)

// errCreatedMeanwhile says that another transaction has made the group of the
// same request.
var errCreatedMeanwhile = errors.New("the same request has made a group meanwhile")

// created finds the group that the request has made; nil if it has made none.
func (t *tx) created(q store.Change) (*conversation, error) {
	var id string
	err := t.row(sqlCreation, []any{string(q.Actor), key(q.RequestID)}, &id)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return t.lock(im.ConversationID(id))
}

// create makes a group, or finds the one that this request has made.
func (t *tx) create(q store.Change) (store.ChangeResult, error) {
	c, err := t.created(q)
	if err != nil {
		return store.ChangeResult{}, err
	}
	if c != nil {
		return t.repeated(c, q)
	}
	if err := t.begun(); err != nil {
		return store.ChangeResult{}, err
	}
	return t.group(q)
}

// group writes a new group, its members and its first entry.
func (t *tx) group(q store.Change) (store.ChangeResult, error) {
	group, p := rules.Found(q)
	c := &conversation{Conversation: group}
	if ok, err := t.add(c); err != nil {
		return store.ChangeResult{}, err
	} else if !ok {
		if same, err := t.created(q); err != nil || same != nil {
			return store.ChangeResult{}, errors.Join(err, errCreatedMeanwhile)
		}
		return store.ChangeResult{}, refuse(clientv1.Reason_REASON_BAD_REQUEST, rules.OpChange, "%s exists", q.Conversation)
	}
	if n, err := t.exec(sqlAddCreation, string(q.Actor), key(q.RequestID), c.num); err != nil {
		return store.ChangeResult{}, err
	} else if n == 0 {
		return store.ChangeResult{}, errCreatedMeanwhile
	}
	return t.apply(c, q, p)
}

// change applies everything but the making of a group.
func (t *tx) change(q store.Change) (store.ChangeResult, error) {
	c, err := t.lock(q.Conversation)
	if err != nil {
		return store.ChangeResult{}, err
	}
	if c == nil {
		return store.ChangeResult{}, rules.NotMember(rules.OpChange, q.Conversation)
	}
	if r, err := t.repeated(c, q); err == nil || !errors.Is(err, pgx.ErrNoRows) {
		return r, err
	}
	p, err := rules.Decide(&c.Conversation, q, roster{t, c})
	if err != nil {
		return store.ChangeResult{}, err
	}
	return t.apply(c, q, p)
}

// roster is the rules.Roster of a locked conversation.
type roster struct {
	t *tx
	c *conversation
}

// Members is rules.Roster's; it locks what it finds.
func (r roster) Members(users ...im.UserID) (map[im.UserID]*rules.Member, error) {
	return r.t.members(r.c, users...)
}

const sqlOwners = `SELECT count(*) FROM (SELECT 1 FROM member WHERE conv = $1 AND role > 0 AND role = $2 LIMIT 2) AS o`

// Owners is rules.Roster's.
func (r roster) Owners() (n int, err error) {
	err = r.t.row(sqlOwners, []any{r.c.num, int16(clientv1.Role_ROLE_OWNER)}, &n)
	return n, err
}

const sqlKnow = `SELECT imd_know($1, $2)`

// apply writes what p does to c, with the entry last.
func (t *tx) apply(c *conversation, q store.Change, p rules.Plan) (store.ChangeResult, error) {
	prev, seq := c.Head, t.following(c)
	if users := p.Newcomers(); len(users) > 0 {
		if _, err := t.exec(sqlKnow, rules.Texts(users), t.now.UnixMilli()); err != nil {
			return store.ChangeResult{}, err
		}
	}
	p.Apply(&c.Conversation)
	if members := p.Members(prev, seq); len(members) > 0 {
		if err := t.put(c, members); err != nil {
			return store.ChangeResult{}, err
		}
	}
	e, err := p.Entry(q, prev)
	if err != nil {
		return store.ChangeResult{}, err
	}
	if err := t.insert(c, &e); err != nil {
		return store.ChangeResult{}, err
	}
	return rules.Result(&c.Conversation, e)
}

const sqlByKey = `SELECT ` + entryColumns + ` FROM entry e WHERE e.conv = $1 AND e.sender = $2 AND e.client_key = $3`

// repeated answers a change that has been made before. Errors: pgx.ErrNoRows.
func (t *tx) repeated(c *conversation, q store.Change) (store.ChangeResult, error) {
	var e im.Entry
	if err := scanEntry(t.QueryRow(t.ctx, sqlByKey, c.num, string(q.Actor), key(q.RequestID)), &e); err != nil {
		return store.ChangeResult{}, err
	}
	return rules.Repeat(&c.Conversation, e)
}
