package imd

import (
	"math/rand/v2"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
	"github.com/imdhq/imd/sdk/go/timeline"
)

// unknownSeq stands for a place in a log that is not known yet.
const unknownSeq = int64(-1)

// maxReceipts is how many members' receipts of a conversation are held.
const maxReceipts = 2 * protocol.LargeGroup

// conv is what the client holds of one conversation. The client's lock guards
// it.
type conv struct {
	id    string
	tl    *timeline.Timeline
	state *clientv1.ConversationState // as told last, nil if never
	term  uint64                      // of the digest, by what sync told last; 0 = the user is no member

	recent     []*clientv1.Entry // everything shown above recentFrom
	recentFrom int64
	first      int64 // where the log began for this client, for those who read all
	liveFrom   int64 // where live delivery began while the log was not known yet
	resets     int   // how often all of it became void
	told       int64

	receipts map[string]receiptNote
	receiptN uint64
	typing   map[string]typingNote
	typingN  uint64
	typedAt  time.Time // when the server was last told that the user types

	ackAt   time.Time // when the next ack is due; zero = none is
	unacked int
	most    int // entries that the next ack has at most; 0 = not drawn
	touched uint64
	place   float64 // above 0 to 1: where in the spread of a hint this device reads; 0 = not drawn
}

type receiptNote struct {
	receipt *clientv1.Receipt
	n       uint64
}

// conv returns a conversation, made if it is new. The lock is held.
func (c *Client) conv(id string) *conv {
	cv := c.convs[id]
	if cv == nil {
		cv = &conv{
			id:         id,
			tl:         timeline.New(c.user, c.opts.KeepItems),
			recentFrom: unknownSeq,
			first:      unknownSeq,
			liveFrom:   unknownSeq,
			receipts:   make(map[string]receiptNote),
		}
		if c.cur == nil || c.cur.syncing {
			cv.tl.Connected()
		}
		c.convs[id] = cv
	}
	return cv
}

// recent returns the conversations, the latest active first.
func (c *Client) recent() []*conv {
	all := make([]*conv, 0, len(c.convs))
	for _, cv := range c.convs {
		all = append(all, cv)
	}
	slices.SortFunc(all, func(a, b *conv) int {
		switch {
		case a.touched > b.touched:
			return -1
		case a.touched < b.touched:
			return 1
		}
		return 0
	})
	return all
}

// reset forgets what was shown.
func (cv *conv) reset() {
	cv.recent, cv.recentFrom, cv.first, cv.liveFrom = nil, unknownSeq, unknownSeq, unknownSeq
	cv.resets++
	cv.receipts = make(map[string]receiptNote)
}

// noteLive remembers where live delivery began in a log that is not known yet.
func (cv *conv) noteLive(after int64) {
	if !cv.tl.Known() && (cv.liveFrom == unknownSeq || after < cv.liveFrom) {
		cv.liveFrom = after
	}
}

// shown keeps what the timeline showed for those who read it.
func (cv *conv) shown(entries []*clientv1.Entry, self string, keep int) {
	for _, e := range entries {
		cv.note(e, self)
	}
	cv.unacked += len(entries)
	cv.recent = append(cv.recent, entries...)
	if !cv.tl.Known() {
		return
	}
	from := cv.tl.From()
	if cv.first == unknownSeq {
		cv.first = from
		if cv.liveFrom != unknownSeq {
			cv.first = max(min(from, cv.liveFrom), cv.tl.Start())
		}
	}
	if from > cv.recentFrom {
		cv.recentFrom = from
		cv.recent = slices.DeleteFunc(cv.recent, func(e *clientv1.Entry) bool { return e.Seq <= from })
	}
	if n := len(cv.recent) - keep; n > 0 {
		cv.recentFrom = cv.recent[n-1].Seq
		cv.recent = slices.Clone(cv.recent[n:])
	}
}

// setState takes what sync told.
func (cv *conv) setState(st *clientv1.ConversationState, self string) {
	page := st.Page
	st.Page = nil
	cv.state = proto.CloneOf(st)
	st.Page = page
	cv.term = 0
	if st.Role != clientv1.Role_ROLE_UNSPECIFIED {
		cv.term = protocol.DigestTerm(cv.id, st.HeadSeq)
	}
	cv.pace()
	for _, r := range st.Receipts {
		if r.UserId != self {
			cv.noteReceipt(r)
		}
	}
}

// note keeps the state in step with an entry.
func (cv *conv) note(e *clientv1.Entry, self string) {
	st := cv.state
	if st == nil || e.Seq <= st.HeadSeq {
		return
	}
	st.HeadSeq = e.Seq
	if e.Kind == clientv1.EntryKind_ENTRY_KIND_MESSAGE {
		st.LastMessage = e
	}
	if cc := e.ConversationChange; cc != nil {
		if cc.Name != nil {
			st.Name = *cc.Name
		}
		if cc.Closed != nil {
			st.Closed = *cc.Closed
		}
	}
	if mc := e.MemberChange; mc != nil {
		cv.noteMembers(mc, self)
		cv.pace()
	}
}

func (cv *conv) noteMembers(mc *clientv1.MemberChange, self string) {
	st, me := cv.state, slices.Contains(mc.UserIds, self)
	switch mc.Action {
	case clientv1.MemberAction_MEMBER_ACTION_ADDED:
		st.MemberCount += uint32(len(mc.UserIds))
		if me {
			st.Role = mc.Role
		}
	case clientv1.MemberAction_MEMBER_ACTION_REMOVED, clientv1.MemberAction_MEMBER_ACTION_LEFT:
		st.MemberCount -= min(st.MemberCount, uint32(len(mc.UserIds)))
		if me {
			st.Role = clientv1.Role_ROLE_UNSPECIFIED
		}
	case clientv1.MemberAction_MEMBER_ACTION_ROLE:
		if me {
			st.Role = mc.Role
		}
	}
}

// noteReceipt keeps the newest receipt of a member. They never go back.
func (cv *conv) noteReceipt(r *clientv1.Receipt) {
	old, known := cv.receipts[r.UserId]
	if !known && len(cv.receipts) >= maxReceipts {
		return
	}
	merged := proto.CloneOf(r)
	merged.ConversationId = cv.id
	if known {
		merged.DeliveredSeq = max(merged.DeliveredSeq, old.receipt.DeliveredSeq)
		merged.ReadSeq = max(merged.ReadSeq, old.receipt.ReadSeq)
	}
	cv.receiptN++
	cv.receipts[r.UserId] = receiptNote{merged, cv.receiptN}
}

func (cv *conv) large() bool { return cv.state.GetMemberCount() > protocol.LargeGroup }

func (cv *conv) ackDelay() time.Duration {
	if cv.large() {
		// At some time of the second half: what one message brings about in all
		// members shall not come back from all at once.
		return protocol.AckDelayLarge/2 + rand.N(protocol.AckDelayLarge/2)
	}
	return protocol.AckDelay
}

// ackNow reports whether an ack is due by time or by count.
func (cv *conv) ackNow(now time.Time) bool {
	return !cv.ackAt.IsZero() && (!now.Before(cv.ackAt) || cv.unacked >= cv.quota())
}

// quota is how many entries are acknowledged together at most. That of the first
// ack is drawn, so that the members of a large group, who are all given the same
// entries, do not go on to acknowledge them at the same moment.
func (cv *conv) quota() int {
	if cv.most == 0 {
		cv.most = 1 + rand.IntN(protocol.AckEntries)
	}
	return cv.most
}

// pace spreads what the members of a large group read because of one hint. The
// place of this device in the spread is drawn once.
func (cv *conv) pace() {
	if cv.place == 0 {
		cv.place = 1 - rand.Float64()
	}
	spread := time.Duration(0)
	if cv.large() {
		spread = min(time.Duration(cv.state.MemberCount)*protocol.PullSpread, protocol.MaxPullSpread)
	}
	cv.tl.Pace(int64(cv.place * float64(spread.Milliseconds())))
}
