package sim

import (
	"slices"
	"strconv"
	"time"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// overlap is how far the token of a sync lies before its read, since an append
// that began earlier may commit later. No append lasts longer.
const overlap = 10 * time.Second

// everything is the time since which all there is has changed.
const everything = -time.Hour

// model is the message store as its port describes it, kept the simple way.
// Each call happens at one instant.
type model struct {
	w       *world
	convs   []*modelConv
	byID    map[im.ConversationID]*modelConv
	epoch   int
	tokens  []syncToken
	changes map[im.ClientMessageID]store.ChangeResult // first answers
}

// modelConv is one conversation: its log, what is stored under which key, and
// who saw what when.
type modelConv struct {
	id      im.ConversationID
	log     []*clientv1.Entry // rising seq
	keys    map[modelKey]*clientv1.Entry
	members map[im.UserID]*modelMember
	users   []im.UserID // of members, sorted
	stamp   time.Duration
	locked  time.Duration // until then a stranger has its row
	backup  *modelBackup
}

type modelKey struct {
	sender im.UserID
	id     im.ClientMessageID
}

// modelMember is a user's place. The last stay is open if to is 0.
type modelMember struct {
	stays []stay
	stamp time.Duration // of the last change of the membership
}

// stay is the seqs in (from, to] that a member sees; to 0 = it goes on.
type stay struct{ from, to int64 }

type modelBackup struct {
	entries int
	members map[im.UserID]*modelMember
}

func (c *modelConv) head() int64 {
	if len(c.log) == 0 {
		return 0
	}
	return c.log[len(c.log)-1].Seq
}

func (c *modelConv) present(u im.UserID) bool {
	m := c.members[u]
	return m != nil && m.stays[len(m.stays)-1].to == 0
}

// start is the seq after which the newest stay begins.
func (c *modelConv) start(u im.UserID) int64 {
	m := c.members[u]
	return m.stays[len(m.stays)-1].from
}

// top is the newest seq that the user may see.
func (c *modelConv) top(u im.UserID) int64 {
	m := c.members[u]
	if to := m.stays[len(m.stays)-1].to; to != 0 {
		return to
	}
	return max(c.head(), c.start(u))
}

func (c *modelConv) sees(u im.UserID, seq int64) bool {
	m := c.members[u]
	if m == nil {
		return false
	}
	for _, s := range m.stays {
		if seq > s.from && (s.to == 0 || seq <= s.to) {
			return true
		}
	}
	return false
}

// at is the entry with a seq, nil if there is none.
func (c *modelConv) at(seq int64) *clientv1.Entry {
	i, ok := slices.BinarySearchFunc(c.log, seq, func(e *clientv1.Entry, s int64) int { return int(e.Seq - s) })
	if !ok {
		return nil
	}
	return c.log[i]
}

// put appends an entry.
func (m *model) put(c *modelConv, e *clientv1.Entry, began time.Duration) {
	e.PrevSeq = c.head()
	e.Seq = e.PrevSeq + 1
	if m.w.plan.holes && m.w.chance(0.2) {
		e.Seq += int64(m.w.rng.IntN(5))
	}
	e.ServerTimeMs = m.w.time().UnixMilli()
	c.log = append(c.log, e)
	c.stamp = max(c.stamp, began)
}

// append stores rows, all or nothing, in one transaction that began earlier.
func (m *model) append(rows []store.AppendRow, began time.Duration) []store.AppendResult {
	res := make([]store.AppendResult, len(rows))
	var runs store.Runs
	for i := range rows {
		if err := runs.Behind(rows[i].Run); err != nil {
			res[i].Err = err
			continue
		}
		res[i] = m.appendOne(&rows[i], began)
		runs.Refused(rows[i].Run, res[i].Err)
	}
	return res
}

func (m *model) appendOne(r *store.AppendRow, began time.Duration) store.AppendResult {
	c := m.byID[r.Conversation]
	k := modelKey{r.Sender, r.ClientMessageID}
	allowed := c.present(r.Sender)
	switch e := c.keys[k]; {
	case c.locked > m.w.now:
		return store.AppendResult{Err: im.Errorf(clientv1.Reason_REASON_UNAVAILABLE, "model", "locked")}
	case !allowed && m.w.bad == PermissionBeforeDedup:
		return store.AppendResult{Err: im.Errorf(clientv1.Reason_REASON_NOT_MEMBER, "model", "")}
	case e != nil && m.w.bad != NoDedup:
		return resultOf(e, true)
	case !allowed:
		return store.AppendResult{Err: im.Errorf(clientv1.Reason_REASON_NOT_MEMBER, "model", "")}
	}
	e := &clientv1.Entry{
		Kind: r.Kind, MessageId: int64(r.MessageID), ClientMessageId: string(r.ClientMessageID),
		Sender: string(r.Sender), Countable: r.Countable,
	}
	m.put(c, e, began)
	c.keys[k] = e
	m.w.commits++
	m.w.judge.committed(c, e)
	return resultOf(e, false)
}

func resultOf(e *clientv1.Entry, duplicate bool) store.AppendResult {
	return store.AppendResult{
		MessageID: im.MessageID(e.MessageId), Seq: im.Seq(e.Seq), PrevSeq: im.Seq(e.PrevSeq),
		ServerTime: time.UnixMilli(e.ServerTimeMs), Duplicate: duplicate,
	}
}

// change adds or removes one member; the entry of a change that came before is
// its answer.
func (m *model) change(ch *store.Change, began time.Duration) (res store.ChangeResult, err error) {
	c := m.byID[ch.Conversation]
	k := modelKey{ch.Actor, ch.RequestID}
	if e := c.keys[k]; e != nil {
		res = m.changes[ch.RequestID]
		res.Duplicate = true
		return res, nil
	}
	if c.locked > m.w.now {
		return res, im.Errorf(clientv1.Reason_REASON_UNAVAILABLE, "model", "locked")
	}
	add := len(ch.AddMembers) > 0
	user := append(slices.Clone(ch.AddMembers), ch.RemoveMembers...)[0]
	if c.present(user) == add {
		return res, im.Errorf(clientv1.Reason_REASON_BAD_REQUEST, "model", "nothing would change")
	}
	e := &clientv1.Entry{
		Kind: clientv1.EntryKind_ENTRY_KIND_MEMBER_CHANGE, MessageId: int64(ch.MessageID), ClientMessageId: string(ch.RequestID),
		MemberChange: &clientv1.MemberChange{UserIds: []string{string(user)}, Action: clientv1.MemberAction_MEMBER_ACTION_ADDED},
	}
	m.put(c, e, began)
	c.keys[k] = e
	if add {
		c.join(user, e.Seq-1)
		e.MemberChange.Start = e.Seq - 1
	} else {
		e.MemberChange.Action = clientv1.MemberAction_MEMBER_ACTION_REMOVED
		stays := c.members[user].stays
		stays[len(stays)-1].to = e.Seq
		res.Removed = []im.UserID{user}
	}
	c.members[user].stamp = began
	m.w.commits++
	defer func() { m.changes[ch.RequestID] = res }()
	res.Conversation, res.Entry = c.id, im.Entry{Seq: im.Seq(e.Seq), MessageID: im.MessageID(e.MessageId)}
	return res, nil
}

func (c *modelConv) join(u im.UserID, from int64) {
	if c.members[u] == nil {
		c.members[u] = &modelMember{}
		i, _ := slices.BinarySearch(c.users, u)
		c.users = slices.Insert(c.users, i, u)
	}
	c.members[u].stays = append(c.members[u].stays, stay{from: from})
}

// page answers a history request.
func (m *model) page(u im.UserID, conv im.ConversationID, q *clientv1.History) (*clientv1.Page, bool) {
	c := m.byID[conv]
	if c == nil || c.members[u] == nil {
		return nil, false
	}
	top := c.top(u)
	if c.present(u) {
		top = c.head()
	}
	lo, hi := q.AfterSeq+1, top
	if q.BeforeSeq != 0 {
		hi = min(hi, q.BeforeSeq-1)
	}
	p := &clientv1.Page{CompleteFrom: lo, CompleteTo: hi, End: true}
	var found []*clientv1.Entry
	for _, e := range c.log {
		if e.Seq >= lo && e.Seq <= hi && c.sees(u, e.Seq) {
			found = append(found, e)
		}
	}
	if limit := int(q.Limit); len(found) > limit {
		p.End = false
		if q.Backward {
			found = found[len(found)-limit:]
			p.CompleteFrom = found[0].Seq
		} else {
			found = found[:limit]
			p.CompleteTo = found[limit-1].Seq
		}
	}
	p.Entries = found
	return p, true
}

// epochName is the data_epoch.
func (m *model) epochName() string { return "e" + strconv.Itoa(m.epoch) }

// syncPage is one page of states, without their pages of entries.
type syncPage struct {
	states []*clientv1.ConversationState
	token  string
	more   bool
	full   bool
	digest uint64
	same   bool // the token is of this history, so cursors count
}

// syncToken is what a token stands for: the place in a listing, or between two
// listings if place is 0.
type syncToken struct {
	epoch int
	since time.Duration // what changed from then on is listed
	next  time.Duration // since, of the next listing
	place int           // conversation to go on with
}

// sync lists what changed for a user since a token.
func (m *model) sync(u im.UserID, token string, cursors map[string]int64, limit int) syncPage {
	p := syncPage{same: token == ""}
	t := syncToken{epoch: m.epoch, since: everything}
	if i, err := strconv.Atoi(token); err == nil && m.tokens[i].epoch == m.epoch {
		t, p.same = m.tokens[i], true
		if t.place == 0 {
			t.since = t.next
		}
	}
	if t.place == 0 {
		t.next = m.w.now - overlap
	}
	if !p.same {
		cursors = nil
	}
	p.full = t.since == everything
	whole := t.place == 0
	for ; t.place < len(m.convs); t.place++ {
		c := m.convs[t.place]
		if c.members[u] == nil || !m.listed(c, u, t.since, cursors) {
			continue
		}
		if len(p.states) == limit {
			p.more = true
			break
		}
		p.states = append(p.states, m.state(c, u))
	}
	if !p.more {
		t.place = 0
	}
	if whole && !p.more {
		p.digest = m.digest(u)
	}
	p.token = strconv.Itoa(len(m.tokens))
	m.tokens = append(m.tokens, t)
	return p
}

// digest is that of the heads of a user.
func (m *model) digest(u im.UserID) (sum uint64) {
	for _, c := range m.convs {
		if c.members[u] != nil && c.present(u) {
			sum += protocol.DigestTerm(string(c.id), c.top(u))
		}
	}
	return sum
}

// listed reports whether a sync names a conversation.
func (m *model) listed(c *modelConv, u im.UserID, since time.Duration, cursors map[string]int64) bool {
	stamp := c.members[u].stamp
	if c.present(u) {
		stamp = max(stamp, c.stamp)
	}
	if have, ok := cursors[string(c.id)]; ok && (c.top(u) > have || !c.present(u)) {
		return true
	}
	return stamp >= since
}

func (m *model) state(c *modelConv, u im.UserID) *clientv1.ConversationState {
	s := &clientv1.ConversationState{
		ConversationId: string(c.id), Kind: clientv1.ConversationKind_CONVERSATION_KIND_GROUP,
		Start: c.start(u), HeadSeq: c.top(u), MemberCount: uint32(len(c.users)),
	}
	if c.present(u) {
		s.Role = clientv1.Role_ROLE_MEMBER
	}
	return s
}

// userHead is the head of one conversation as one user may see it.
type userHead struct {
	user im.UserID
	conv string
	seq  int64
}

// heads lists what changed for users since a time, and the time to go on from.
func (m *model) heads(users []im.UserID, since time.Duration) ([]userHead, time.Duration) {
	var all []userHead
	for _, c := range m.convs {
		for _, u := range users {
			if c.members[u] != nil && m.listed(c, u, since, nil) {
				all = append(all, userHead{u, string(c.id), c.top(u)})
			}
		}
	}
	return all, m.w.now - overlap
}

// keep makes the backup that restore goes back to.
func (m *model) keep() {
	for _, c := range m.convs {
		c.backup = &modelBackup{len(c.log), map[im.UserID]*modelMember{}}
		for u, mm := range c.members {
			c.backup.members[u] = &modelMember{slices.Clone(mm.stays), mm.stamp}
		}
	}
}

// restore goes back to the backup. It is another history from then on.
func (m *model) restore() {
	m.epoch++
	for _, c := range m.convs {
		for _, e := range c.log[c.backup.entries:] {
			delete(c.keys, modelKey{im.UserID(e.Sender), im.ClientMessageID(e.ClientMessageId)})
		}
		c.log = slices.Clone(c.log[:c.backup.entries])
		c.members, c.users = c.backup.members, c.users[:0]
		for u := range c.members {
			c.users = append(c.users, u)
		}
		slices.Sort(c.users)
		c.stamp = m.w.now
	}
}
