package sqlite

import (
	"context"
	"time"

	"github.com/imdhq/imd/pkg/failpoint"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

const (
	sqlRetainLook = `SELECT num, id, kind, head, kept FROM conversation WHERE num > ? ORDER BY num LIMIT ?`
	sqlRetainAges = `SELECT seq, server_time_ms FROM entry WHERE conv = ? AND seq > ? ORDER BY seq LIMIT ?`
	sqlRetainMove = `UPDATE conversation SET kept = ? WHERE num = ?`
	sqlRetainWipe = `UPDATE entry SET content = NULL WHERE conv = ? AND seq > ? AND seq <= ? AND body_hash IS NOT NULL`
)

// border is one that is to rise.
type border struct {
	conv     im.ConversationID
	num      int64
	from, to im.Seq
}

// Retain is store.Retention's. It looks with a reader, so that the writer is
// only held for what goes; nobody but a leader moves borders, and appends only
// add what is young.
func (s *Store) Retain(ctx context.Context, p store.Proof, r store.Retain) (store.Retained, error) {
	const op = "store.Retain"
	var out store.Retained
	var list []border
	err := s.read(ctx, func(c *conn) (err error) {
		out, list, err = c.due(ctx, r)
		return err
	})
	if err != nil {
		return store.Retained{}, fault(op, err)
	}
	err = s.proved(ctx, op, p, func(t *tx) error {
		for _, b := range list {
			if err := t.retain(b); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return store.Retained{}, err
	}
	return out, nil
}

// retainable is a conversation that is looked at.
type retainable struct {
	border
	kind clientv1.ConversationKind
	head im.Seq
}

// due finds the borders that are to rise.
func (c *conn) due(ctx context.Context, r store.Retain) (out store.Retained, list []border, err error) {
	looks, room := min(max(r.Looks, 1), store.MaxRetainLooks), min(max(r.Entries, 1), store.MaxRetain)
	var convs []retainable
	err = c.each(ctx, sqlRetainLook, []any{r.After, looks}, func(scan func(...any) error) error {
		var x retainable
		err := scan(&x.num, &x.conv, &x.kind, &x.head, &x.from)
		convs = append(convs, x)
		return err
	})
	out.Next = r.After
	for _, x := range convs {
		if err != nil {
			return out, nil, err
		}
		out.Looked++
		before := r.Group
		if x.kind == clientv1.ConversationKind_CONVERSATION_KIND_DIRECT {
			before = r.Direct
		}
		n := 0
		if x.from < x.head && !before.IsZero() {
			x.to, n, err = c.old(ctx, x.border, before, room-out.Entries)
		}
		if n > 0 {
			list = append(list, x.border)
		}
		if out.Entries += n; out.Entries == room {
			return out, list, err // there may be more in this one
		}
		out.Next = x.num
	}
	out.End = len(convs) < looks
	return out, list, err
}

// old is the newest entry behind a border that has only old ones before it, and
// how many there are, at most most.
func (c *conn) old(ctx context.Context, b border, before time.Time, most int) (to im.Seq, n int, err error) {
	to, cut := b.from, cutoff(before)
	young := false
	err = c.each(ctx, sqlRetainAges, []any{b.num, b.from, most}, func(scan func(...any) error) error {
		var seq im.Seq
		var ms int64
		err := scan(&seq, &ms)
		if young = young || ms >= cut; !young {
			to, n = seq, n+1
		}
		return err
	})
	return to, n, err
}

// cutoff is the age from which on entries go.
func cutoff(t time.Time) int64 {
	if failpoint.Bad(failpoint.RetainYoung) && !t.IsZero() {
		t = t.Add(time.Hour)
	}
	return millis(t)
}

// retain raises a border and removes what is behind it.
func (t *tx) retain(b border) error {
	c, err := t.conversation(b.conv)
	if err != nil || c == nil || c.kept != b.from {
		return err
	}
	t.touch(c)
	c.kept = b.to
	if _, err := t.exec(sqlRetainMove, b.to, b.num); err != nil {
		return err
	}
	_, err = t.exec(sqlRetainWipe, b.num, b.from, b.to)
	return err
}
