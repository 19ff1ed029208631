package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/ring"
	"github.com/imdhq/imd/pkg/segment"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/pkg/store/rules"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

const sqlAppendSegment = `SELECT o, status, seq, prev_seq, message_id, server_ms, member_version, hash
  FROM imd_append_segment($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18)`

// proof is the right under which rows are numbered: shards, sorted, the fence of
// each, and for each conversation of the batch the number of its first new row.
type proof struct {
	shards []int32
	fences []int64
	firsts []int64

	grants []segment.Grant // by conversation, as the batch has them
	owned  map[int]int64   // the fence of each shard
}

// proofOf collects the grants of conversations.
func proofOf(ids []string, grants map[string]segment.Grant) *proof {
	p := &proof{owned: map[int]int64{}}
	for _, id := range ids {
		g := grants[id]
		p.grants, p.firsts = append(p.grants, g), append(p.firsts, g.First)
		p.owned[g.Shard] = g.Fence
	}
	var shards []int
	shards, p.fences = sorted(p.owned)
	p.shards = int32s(shards)
	return p
}

// overtaken says that the head of a conversation is not below the number that
// its owner gave.
type overtaken struct {
	conv int // place in the batch
	head int64
}

func (e *overtaken) Error() string {
	return fmt.Sprintf("the conversation has moved to %d, past its number", e.head)
}

// overtakenBy reads what the server says of a number that was overtaken; nil if
// err is something else.
func overtakenBy(err error) *overtaken {
	if e := (*overtaken)(nil); errors.As(err, &e) {
		return e
	}
	e, o := (*pgconn.PgError)(nil), &overtaken{}
	if !errors.As(err, &e) || e.Code != codeOvertaken {
		return nil
	}
	if _, err := fmt.Sscanf(e.Detail, "%d,%d", &o.conv, &o.head); err != nil {
		return nil
	}
	o.conv-- // the server counts from 1
	return o
}

// append is Append for rows that this process numbers. Rows of conversations
// that it does not own, or not yet, are refused, and the others are stored.
func (o *owner) append(ctx context.Context, rows []store.AppendRow) ([]store.AppendResult, error) {
	needs, shards := needsOf(rows)
	end, err := o.turn(ctx, shards)
	if err != nil {
		return nil, err
	}
	defer end()
	for range maxPasses {
		r, err := o.rightsTo(ctx, needs)
		if err != nil {
			return nil, err
		}
		out, place, rest := r.refuse(rows)
		b := newBatch(rest)
		b.proof = proofOf(b.ids, r.grants)
		err = o.store.commit(ctx, b)
		if err == nil {
			o.used(b)
			for i, res := range b.out {
				out[place[i]] = res
			}
			return out, nil
		}
		if again, err := o.failed(err, b.proof); !again {
			return nil, err
		}
	}
	return nil, errors.New("the numbers of the conversations do not settle")
}

// failed tells the machine what a failure means for it. again: nothing was
// stored, and another try may go better.
func (o *owner) failed(err error, p *proof) (again bool, _ error) {
	if o.lost(err, p.owned) {
		return true, nil
	}
	if over := overtakenBy(err); over != nil && over.conv < len(p.grants) {
		g := p.grants[over.conv]
		o.step(store.Ring{}, segment.Overtaken{Conv: g.Conv, Shard: g.Shard, Head: over.head})
		return true, nil
	}
	if codeOf(err) == codeUnique { // another call of ours stores the same now: the same again finds it
		err = unsure(err)
	}
	return false, err
}

// used tells the machine which numbers a batch has taken.
func (o *owner) used(b *batch) {
	last := make([]int64, len(b.ids))
	for i, at := range b.place {
		if res := &b.out[at]; res.Err == nil && !res.Duplicate {
			c := b.ci[i] - 1
			last[c] = max(last[c], int64(res.Seq))
		}
	}
	for c, g := range b.proof.grants {
		if last[c] > 0 {
			o.step(store.Ring{}, segment.Appended{Conv: g.Conv, Shard: g.Shard, Last: last[c]})
		}
	}
}

// needsOf is what rows need: for each conversation as many numbers as it has
// rows, and the shards of all, sorted.
func needsOf(rows []store.AppendRow) (needs []segment.Need, shards []int) {
	at := make(map[im.ConversationID]int, len(rows))
	have := map[int]bool{}
	for i := range rows {
		c := rows[i].Conversation
		n, ok := at[c]
		if !ok {
			n = len(needs)
			at[c] = n
			id := ring.Shard(string(c))
			have[id] = true
			needs = append(needs, segment.Need{Conv: string(c), Shard: id})
		}
		needs[n].Rows++
	}
	slices.SortFunc(needs, func(a, b segment.Need) int { return cmp.Compare(a.Conv, b.Conv) })
	return needs, slices.Sorted(maps.Keys(have))
}

// refuse answers the rows that may not be written now, and returns the others
// with their places.
func (r rights) refuse(rows []store.AppendRow) (out []store.AppendResult, place []int, rest []store.AppendRow) {
	out = make([]store.AppendResult, len(rows))
	if len(r.elsewhere)+len(r.busy) == 0 {
		place = make([]int, len(rows))
		for i := range place {
			place[i] = i
		}
		return out, place, rows
	}
	var runs store.Runs
	for i := range rows {
		c := string(rows[i].Conversation)
		switch {
		case r.elsewhere[c]:
			out[i].Err = notOwner(opAppend)
		case r.busy[c]:
			out[i].Err = refuse(clientv1.Reason_REASON_BUSY, opAppend, "the conversation is being taken over")
			out[i].Err.RetryAfter = takeoverPause
		default:
			out[i].Err = runs.Behind(rows[i].Run)
		}
		if runs.Refused(rows[i].Run, out[i].Err); out[i].Err == nil {
			place, rest = append(place, i), append(rest, rows[i])
		}
	}
	return out, place, rest
}

// notOwner refuses what another process must write.
func notOwner(op string) *im.Error {
	return &im.Error{Reason: clientv1.Reason_REASON_UNAVAILABLE, Op: op, Msg: "another node has the conversation", Err: store.ErrNotOwner}
}

// change is Change for a conversation that this process numbers.
func (o *owner) change(ctx context.Context, c store.Change) (store.ChangeResult, error) {
	var none store.ChangeResult
	id := ring.Shard(string(c.Conversation))
	end, err := o.turn(ctx, []int{id})
	if err != nil {
		return none, err
	}
	defer end()
	conv := string(c.Conversation)
	for range maxPasses {
		r, err := o.rightsTo(ctx, []segment.Need{{Conv: conv, Shard: id, Rows: 1}})
		switch {
		case err != nil:
			return none, err
		case r.elsewhere[conv]:
			return none, notOwner(rules.OpChange)
		case r.busy[conv]:
			return none, &store.BusyConversationError{Conversations: []im.ConversationID{c.Conversation}}
		}
		p := proofOf([]string{conv}, r.grants)
		out, err := o.store.change(ctx, c, p)
		if err == nil {
			if !out.Duplicate && out.Conversation == c.Conversation {
				o.step(store.Ring{}, segment.Appended{Conv: conv, Shard: id, Last: int64(out.Entry.Seq)})
			}
			return out, nil
		}
		if again, err := o.failed(err, p); !again {
			return none, err
		}
	}
	return none, errors.New("the numbers of the conversation do not settle")
}

const sqlProve = `SELECT imd_prove($1, $2)`

// prove proves the right to number and holds it to the commit; nil needs none.
func (t *tx) prove(p *proof) error {
	if p == nil {
		return nil
	}
	t.first = im.Seq(p.firsts[0])
	_, err := t.exec(sqlProve, p.shards, p.fences)
	return err
}

// following is the seq of the entry that the transaction writes to c.
func (t *tx) following(c *conversation) im.Seq {
	if t.first > 0 {
		return t.first
	}
	return c.Head + 1
}
