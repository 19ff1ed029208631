package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sort"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/imdhq/imd/pkg/failpoint"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/pkg/store/rules"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

const opAppend = "store.Append"

// hashSize is how much of a body's hash is stored.
const hashSize = 16

// Append is store.Log's.
func (s *Store) Append(ctx context.Context, rows []store.AppendRow) ([]store.AppendResult, error) {
	if len(rows) > store.MaxAppendRows {
		return nil, refuse(clientv1.Reason_REASON_BAD_REQUEST, opAppend, "more than %d rows", store.MaxAppendRows)
	}
	out, err := s.numbered(ctx, rows)
	if gone := displacedBy(err); gone != nil {
		return s.appendWithout(ctx, rows, gone)
	}
	return out, fault(opAppend, err)
}

// numbered stores rows with the numbers of the store's allocator.
func (s *Store) numbered(ctx context.Context, rows []store.AppendRow) ([]store.AppendResult, error) {
	if s.owner != nil {
		return s.owner.append(ctx, rows)
	}
	b := newBatch(rows)
	if err := s.commit(ctx, b); err != nil {
		return nil, err
	}
	return b.out, nil
}

// commit stores the batch and answers its rows.
func (s *Store) commit(ctx context.Context, b *batch) error {
	if len(b.ids) == 0 {
		return ctx.Err()
	}
	if err := failpoint.Error(failpoint.BeforeCommit); err != nil {
		return err
	}
	answers, err := s.append(ctx, b)
	if err != nil {
		return err
	}
	failpoint.Hit(failpoint.AfterCommit)
	b.answer(answers)
	s.known.add(b)
	s.wrote.Store(time.Now().UnixNano())
	return nil
}

// append stores the batch. Tries that stored nothing for a reason that goes away
// are made again, each reason once.
func (s *Store) append(ctx context.Context, b *batch) ([]answer, error) {
	makes, waited, healed := s.known.news(b), false, false
	for {
		answers, err := s.try(ctx, b, makes)
		switch code := codeOf(err); {
		case err == nil || errors.Is(err, store.ErrUnknownOutcome):
			return answers, err
		case code == codeToMake && !makes:
			makes = true
		case code == codeLockTimeout && b.separable && len(b.patient) > 0:
			b.patient, b.hasty = []string{}, b.ids // somebody holds one of them; which shows when those are left out
		case (code == codeLockTimeout || code == codeDeadlock) && !waited:
			waited = true
		case code == codeUnique && !healed:
			if healed = true; s.heal(ctx, b.ids) != nil {
				return nil, err
			}
		default:
			return nil, err
		}
	}
}

const sqlAppend = `SELECT o, status, seq, prev_seq, message_id, server_ms, member_version, hash
  FROM imd_append_transaction($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)`

// try runs the server's function on a batch.
func (s *Store) try(ctx context.Context, b *batch, makes bool) ([]answer, error) {
	query, args := sqlAppend, []any{makes, b.ids, b.patient, b.hasty, b.ci, b.senders, b.peers, b.mayMake, b.keys, b.hashes, b.messageIDs, b.kinds, b.countables, b.targets, b.bodies}
	if p := b.proof; p != nil {
		query, args = sqlAppendSegment, append([]any{p.shards, p.fences, p.firsts}, args...)
	}
	if x := b.sessions; x != nil {
		query, args = sqlAppendProved, append(args, x.users, x.logins, x.devices, x.epochs)
		if b.proof != nil {
			query = sqlAppendSegmentProved
		}
	}
	return call(ctx, s.appends, true, func(ctx context.Context, c *pgx.Conn) ([]answer, error) {
		rows, err := c.Query(ctx, query, args...)
		if err != nil {
			return nil, err
		}
		answers := make([]answer, len(b.ci))
		for i := range answers {
			answers[i].status = statusMissing
		}
		for rows.Next() {
			var a answer
			var o int64
			if err := rows.Scan(&o, &a.status, &a.seq, &a.prev, &a.id, &a.ms, &a.memberVersion, &a.hash); err != nil {
				rows.Close()
				return nil, err
			}
			if o < 1 || int(o) > len(answers) {
				rows.Close()
				return nil, fmt.Errorf("%w: the database answered row %d of %d", store.ErrUnknownOutcome, o, len(answers))
			}
			answers[o-1] = a
		}
		if err := rows.Err(); err != nil {
			return nil, err
		}
		return answers, whole(answers)
	})
}

// whole says whether every row has an answer that can be understood. What has none
// may be stored or not, so the batch has to run again.
func whole(answers []answer) error {
	for i, a := range answers {
		told := a.seq != nil && a.prev != nil && a.id != nil && a.ms != nil && a.memberVersion != nil
		if a.status < statusStored || a.status > statusLocked || a.status <= statusBefore && !told {
			return fmt.Errorf("%w: the database answered row %d of %d with status %d", store.ErrUnknownOutcome, i+1, len(answers), a.status)
		}
	}
	return nil
}

// statusMissing is the status of a row that the function has not answered.
const statusMissing = -1

// What the function says of a row.
const (
	statusStored = iota
	statusBefore
	statusReused
	statusNotMember
	statusClosed
	statusBlocked
	statusWrongPeer
	statusLocked
)

// What a row may do about a direct conversation that does not exist.
const (
	mayNotMake = iota
	mayMake
	wrongPeer
)

// answer is what the function says of one row. Numbers are NULL where there is
// nothing to tell.
type answer struct {
	status                           int32
	seq, prev, id, ms, memberVersion *int64
	hash                             []byte // of what is stored, if it is another
}

// batch is the rows of an Append as the function takes them: sorted by
// conversation, each key once.
type batch struct {
	rows []store.AppendRow
	out  []store.AppendResult
	// separable says that no run has rows of several conversations, so that one
	// conversation can be left out.
	separable bool
	// proof is under what right its rows are numbered; nil = the store numbers.
	proof *proof
	// sessions are the senders that are compared; nil = none is.
	sessions *senders

	ids        []string // each in patient or hasty too
	patient    []string // to be waited for
	hasty      []string // to be left out if somebody else has locked them
	place      []int    // in rows, of each element below
	copies     []repeat
	ci         []int32
	senders    []string
	peers      []string
	mayMake    []int16
	keys       [][]byte
	hashes     [][]byte
	messageIDs []int64
	kinds      []int16
	countables []bool
	targets    []int64
	bodies     [][]byte
}

// repeat is a row whose key an earlier row of the batch has.
type repeat struct{ row, of int } // places in rows and in batch.place

type rowKey struct {
	conv   im.ConversationID
	sender im.UserID
	id     im.ClientMessageID
}

// newBatch sorts rows. Those that have no key are answered at once.
func newBatch(rows []store.AppendRow) *batch {
	b := &batch{rows: rows, out: make([]store.AppendResult, len(rows)), separable: true, sessions: sendersOf(rows)}
	order := make([]int, 0, len(rows))
	runs := make(map[int]im.ConversationID, len(rows))
	hasty := map[im.ConversationID]bool{}
	for i := range rows {
		r := &rows[i]
		if r.ClientMessageID == "" {
			b.out[i].Err = refuse(clientv1.Reason_REASON_BAD_REQUEST, opAppend, "no client message id")
			continue
		}
		if c, ok := runs[r.Run]; ok && c != r.Conversation {
			b.separable = false
		}
		runs[r.Run] = r.Conversation
		if r.NoWait {
			hasty[r.Conversation] = true
		}
		order = append(order, i)
	}
	sort.SliceStable(order, func(x, y int) bool { return rows[order[x]].Conversation < rows[order[y]].Conversation })
	b.grow(len(order))
	first := make(map[rowKey]int, len(order))
	for _, i := range order {
		r := &rows[i]
		k := rowKey{r.Conversation, r.Sender, r.ClientMessageID}
		if of, twice := first[k]; twice {
			b.copies = append(b.copies, repeat{i, of})
			continue
		}
		first[k] = len(b.place)
		b.add(i, r)
	}
	b.patient, b.hasty = make([]string, 0, len(b.ids)), []string{}
	for _, id := range b.ids {
		if b.separable && hasty[im.ConversationID(id)] {
			b.hasty = append(b.hasty, id)
		} else {
			b.patient = append(b.patient, id)
		}
	}
	return b
}

func (b *batch) grow(n int) {
	b.place, b.ci, b.mayMake, b.kinds = make([]int, 0, n), make([]int32, 0, n), make([]int16, 0, n), make([]int16, 0, n)
	b.senders, b.peers, b.countables = make([]string, 0, n), make([]string, 0, n), make([]bool, 0, n)
	b.keys, b.hashes, b.bodies = make([][]byte, 0, n), make([][]byte, 0, n), make([][]byte, 0, n)
	b.messageIDs, b.targets = make([]int64, 0, n), make([]int64, 0, n)
}

func (b *batch) add(i int, r *store.AppendRow) {
	if n := len(b.ids); n == 0 || b.ids[n-1] != string(r.Conversation) {
		b.ids = append(b.ids, string(r.Conversation))
	}
	b.place = append(b.place, i)
	b.ci = append(b.ci, int32(len(b.ids)))
	b.senders = append(b.senders, string(r.Sender))
	b.peers = append(b.peers, string(r.Peer))
	b.mayMake = append(b.mayMake, makes(r))
	b.keys = append(b.keys, key(r.ClientMessageID))
	b.hashes = append(b.hashes, r.BodyHash[:hashSize])
	b.messageIDs = append(b.messageIDs, int64(r.MessageID))
	b.kinds = append(b.kinds, int16(r.Kind))
	b.countables = append(b.countables, r.Countable)
	b.targets = append(b.targets, int64(r.TargetSeq))
	b.bodies = append(b.bodies, r.Content)
}

// makes is what the row may do about a conversation that does not exist.
func makes(r *store.AppendRow) int16 {
	switch {
	case !r.Conversation.Direct() || r.Peer == "" || r.Sender == "":
		return mayNotMake
	case r.Peer == r.Sender || protocol.DirectID(string(r.Sender), string(r.Peer)) != string(r.Conversation):
		return wrongPeer
	}
	return mayMake
}

// answer fills in the results.
func (b *batch) answer(answers []answer) {
	for i, a := range answers {
		b.out[b.place[i]] = a.result(&b.rows[b.place[i]])
	}
	for _, c := range b.copies {
		r, a := &b.rows[c.row], answers[c.of]
		first := &b.rows[b.place[c.of]]
		switch a.status {
		case statusStored, statusBefore:
			a.status, a.hash = statusBefore, first.BodyHash[:hashSize]
			fallthrough
		case statusReused:
			if a.status = statusReused; slices.Equal(a.hash, r.BodyHash[:hashSize]) {
				a.status = statusBefore
			}
		}
		b.out[c.row] = a.result(r)
	}
}

// result is the answer to a row in the words of the port.
func (a *answer) result(r *store.AppendRow) store.AppendResult {
	refused := func(reason im.Reason, text string) store.AppendResult {
		return store.AppendResult{Err: refuse(reason, opAppend, "%s", text)}
	}
	switch a.status {
	case statusStored, statusBefore:
		return store.AppendResult{
			MessageID: im.MessageID(*a.id), Seq: im.Seq(*a.seq), PrevSeq: im.Seq(*a.prev), ServerTime: time.UnixMilli(*a.ms),
			Duplicate: a.status == statusBefore, MemberVersion: *a.memberVersion,
		}
	case statusReused:
		return refused(clientv1.Reason_REASON_ID_REUSED, "this client message id was used with other content")
	case statusClosed:
		return store.AppendResult{Err: rules.Closed(opAppend, r.Conversation)}
	case statusBlocked:
		return refused(clientv1.Reason_REASON_FORBIDDEN, "the recipient does not take messages from you")
	case statusWrongPeer:
		return refused(clientv1.Reason_REASON_BAD_REQUEST, string(r.Conversation)+" is not the conversation of these users")
	case statusLocked:
		return refused(clientv1.Reason_REASON_BUSY, "the conversation is locked")
	}
	return store.AppendResult{Err: rules.NotMember(opAppend, r.Conversation)}
}
