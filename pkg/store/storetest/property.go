package storetest

import (
	"crypto/sha256"
	"fmt"
	"slices"

	"pgregory.net/rapid"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// model is one group as the comments of the port describe it, kept the simple
// way: the log is a list, and visibility is asked entry by entry.
type model struct {
	k       *kit
	conv    im.ConversationID
	prefix  string
	open    bool
	log     []modelEntry
	members map[im.UserID]*modelMember
	sent    []modelSend                    // every send tried, for resends
	clients map[im.UserID]*modelSyncClient // what a device knows from syncs
}

type modelEntry struct {
	sender    im.UserID
	countable bool
}

type modelSend struct {
	row    store.AppendRow
	seq    im.Seq // 0 = was refused
	answer store.AppendResult
}

type modelMember struct {
	present                bool
	stays                  []span // seqs above from up to to; the last is open if present
	cleared, read, deliver im.Seq
}

type span struct{ from, to im.Seq }

// modelSyncClient holds the newest state of the conversation that syncs told.
type modelSyncClient struct {
	token string
	state *store.ConversationState
}

var modelUsers = []string{"o", "a", "b", "c"}

func property(k *kit) {
	rapid.Check(k.T, func(t *rapid.T) {
		n := counter.Add(1)
		m := &model{
			k: k, conv: im.ConversationID(fmt.Sprintf("g_p%d", n)), prefix: fmt.Sprintf("p%d-", n), open: rapid.Bool().Draw(t, "open"),
			members: map[im.UserID]*modelMember{}, clients: map[im.UserID]*modelSyncClient{},
		}
		m.create(t)
		t.Repeat(map[string]func(*rapid.T){
			"send":   m.send,
			"resend": m.resend,
			"add":    m.add,
			"remove": m.remove,
			"leave":  m.leave,
			"clear":  m.clear,
			"read":   m.read,
			"sync":   m.sync,
			"check":  m.check,
		})
		m.check(t)
	})
}

func (m *model) user(t *rapid.T) im.UserID {
	return im.UserID(m.prefix + rapid.SampledFrom(modelUsers).Draw(t, "user"))
}

func (m *model) owner() im.UserID { return im.UserID(m.prefix + "o") }

func (m *model) head() im.Seq { return im.Seq(len(m.log)) }

func (m *model) present(u im.UserID) bool { return m.members[u] != nil && m.members[u].present }

func (m *model) create(t *rapid.T) {
	g := &store.CreateGroup{Name: "n", Owner: m.owner(), Members: []im.UserID{im.UserID(m.prefix + "a")}, OpenHistory: m.open}
	m.change(t, store.Change{Actor: m.owner(), Create: g}, true)
	for _, u := range append(g.Members, g.Owner) {
		m.members[u] = &modelMember{present: true, stays: []span{{0, 0}}}
	}
}

// change applies c to the store and the log.
func (m *model) change(t *rapid.T, c store.Change, works bool) {
	c.Conversation = m.conv
	r, err := m.k.tryChange(c)
	if (err == nil) != works {
		t.Fatalf("change: %v, want it to work: %v", err, works)
	}
	if err != nil {
		return
	}
	m.log = append(m.log, modelEntry{sender: c.Actor})
	if r.Entry.Seq != m.head() || r.Entry.PrevSeq != m.head()-1 {
		t.Fatalf("entry of a change has seq %d after %d, want %d", r.Entry.Seq, r.Entry.PrevSeq, m.head())
	}
}

func (m *model) send(t *rapid.T) {
	var rows []store.AppendRow
	for i := range rapid.IntRange(1, 6).Draw(t, "rows") {
		r := row(m.conv, m.user(t), fmt.Sprint("text ", i))
		r.Countable = rapid.Bool().Draw(t, "countable")
		rows = append(rows, r)
	}
	m.append(t, rows)
}

func (m *model) resend(t *rapid.T) {
	if len(m.sent) == 0 {
		return
	}
	var rows []store.AppendRow
	for range rapid.IntRange(1, 4).Draw(t, "rows") {
		r := m.sent[rapid.IntRange(0, len(m.sent)-1).Draw(t, "which")].row
		r.MessageID = mid()
		if rapid.IntRange(0, 4).Draw(t, "other body") == 0 {
			r.BodyHash = sha256.Sum256([]byte("other"))
		}
		rows = append(rows, r)
	}
	m.append(t, rows)
}

// append sends rows to the store and compares each answer.
func (m *model) append(t *rapid.T, rows []store.AppendRow) {
	res, err := m.k.s.Append(m.k.ctx(), rows)
	if err != nil {
		t.Fatalf("append: %v", err)
	}
	for i, r := range rows {
		m.answer(t, r, res[i])
	}
}

func (m *model) answer(t *rapid.T, r store.AppendRow, got store.AppendResult) {
	i := slices.IndexFunc(m.sent, func(s modelSend) bool {
		return s.seq != 0 && s.row.Sender == r.Sender && s.row.ClientMessageID == r.ClientMessageID
	})
	reason := func() im.Reason {
		if got.Err == nil {
			return 0
		}
		return got.Err.Reason
	}()
	switch {
	case i >= 0 && m.sent[i].row.BodyHash != r.BodyHash:
		if reason != clientv1.Reason_REASON_ID_REUSED {
			t.Fatalf("other body: %+v", got)
		}
	case i >= 0:
		f := m.sent[i].answer
		if reason != 0 || !got.Duplicate || got.Seq != f.Seq || got.MessageID != f.MessageID || got.PrevSeq != f.PrevSeq {
			t.Fatalf("resend: %+v, first %+v", got, f)
		}
	case !m.present(r.Sender):
		if reason != clientv1.Reason_REASON_NOT_MEMBER {
			t.Fatalf("send by a stranger: %+v", got)
		}
		m.sent = append(m.sent, modelSend{row: r})
	default:
		m.log = append(m.log, modelEntry{sender: r.Sender, countable: r.Countable})
		if reason != 0 || got.Duplicate || got.Seq != m.head() || got.PrevSeq != m.head()-1 || got.MessageID != r.MessageID {
			t.Fatalf("send: %+v, want seq %d", got, m.head())
		}
		m.sent = append(m.sent, modelSend{r, got.Seq, got})
	}
}

func (m *model) add(t *rapid.T) {
	u := m.user(t)
	m.change(t, store.Change{Actor: m.owner(), AddMembers: []im.UserID{u}}, !m.present(u))
	if m.present(u) {
		return
	}
	mm := m.members[u]
	if mm == nil {
		mm = &modelMember{}
		m.members[u] = mm
	}
	from := m.head() - 1
	if m.open {
		from = 0
	}
	mm.present, mm.stays = true, append(mm.stays, span{from: from})
}

func (m *model) remove(t *rapid.T) {
	u := m.user(t)
	works := m.present(u) && u != m.owner()
	m.change(t, store.Change{Actor: m.owner(), RemoveMembers: []im.UserID{u}}, works)
	m.gone(u, works)
}

func (m *model) leave(t *rapid.T) {
	u := m.user(t)
	works := m.present(u) && u != m.owner()
	m.change(t, store.Change{Actor: u, Leave: true}, works)
	m.gone(u, works)
}

func (m *model) gone(u im.UserID, works bool) {
	if works {
		mm := m.members[u]
		mm.present, mm.stays[len(mm.stays)-1].to = false, m.head()
	}
}

func (m *model) clear(t *rapid.T) {
	u, seq := m.user(t), im.Seq(rapid.IntRange(-1, int(m.head())+3).Draw(t, "seq"))
	start, err := m.k.s.ClearHistory(m.k.ctx(), m.conv, u, seq)
	if !m.present(u) {
		if err == nil {
			t.Fatal("a stranger clears")
		}
		return
	}
	mm := m.members[u]
	mm.cleared = max(mm.cleared, min(seq, m.head()))
	if err != nil || start != m.start(u) {
		t.Fatalf("clear: %d, %v; want %d", start, err, m.start(u))
	}
}

func (m *model) read(t *rapid.T) {
	p := store.Position{
		Conversation: m.conv, User: m.user(t),
		Read:      im.Seq(rapid.IntRange(0, int(m.head())+2).Draw(t, "read")),
		Delivered: im.Seq(rapid.IntRange(0, int(m.head())+2).Draw(t, "delivered")),
	}
	if _, err := m.k.s.SavePositions(m.k.ctx(), []store.Position{p}); err != nil {
		t.Fatal(err)
	}
	if mm := m.members[p.User]; m.present(p.User) {
		mm.read = max(mm.read, min(p.Read, m.head()))
		mm.deliver = max(mm.deliver, m.start(p.User), mm.read, min(p.Delivered, m.head()))
	}
}

// start is where what the user may see begins, top where its newest stay ends.
func (m *model) start(u im.UserID) im.Seq {
	mm := m.members[u]
	return max(mm.stays[0].from, mm.cleared)
}

func (m *model) top(u im.UserID) im.Seq {
	if mm := m.members[u]; !mm.present {
		return mm.stays[len(mm.stays)-1].to
	}
	return m.head()
}

func (m *model) sees(u im.UserID, seq im.Seq) bool {
	mm := m.members[u]
	if mm == nil || seq <= mm.cleared || seq > m.head() {
		return false
	}
	return slices.ContainsFunc(mm.stays, func(s span) bool { return seq > s.from && (s.to == 0 || seq <= s.to) })
}

func (m *model) unread(u im.UserID) (n int) {
	for i, e := range m.log {
		seq := im.Seq(i + 1)
		if e.countable && e.sender != u && seq > m.members[u].read && seq > m.start(u) && m.sees(u, seq) {
			n++
		}
	}
	return n
}

// sync lets a device of a random user sync; the state it then knows must be
// the one of a full list.
func (m *model) sync(t *rapid.T) {
	u := m.user(t)
	c := m.clients[u]
	if c == nil {
		c = &modelSyncClient{}
		m.clients[u] = c
	}
	states, token := m.k.syncAll(store.SyncQuery{User: u, Token: c.token})
	c.token = token
	if s, ok := states[m.conv]; ok {
		c.state = &s
	}
	full, _ := m.k.syncAll(store.SyncQuery{User: u})
	s, listed := full[m.conv]
	if !listed {
		if m.members[u] != nil {
			t.Fatalf("%s is not listed for %s", m.conv, u)
		}
		return
	}
	if c.state == nil {
		t.Fatalf("%s never heard of %s", u, m.conv)
	}
	known, now := *c.state, s
	known.Last, now.Last = nil, nil // pointers
	if fmt.Sprintf("%+v", known) != fmt.Sprintf("%+v", now) {
		t.Fatalf("a device of %s knows %+v, the list says %+v", u, known, now)
	}
	m.compareState(t, u, s)
}

func (m *model) compareState(t *rapid.T, u im.UserID, s store.ConversationState) {
	mm := m.members[u]
	want := []any{mm.present, m.start(u), m.top(u), mm.read, max(mm.deliver, m.start(u)), m.unread(u)}
	got := []any{s.Role != 0, s.Start, s.Head, s.Read, s.Delivered, s.Unread}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Fatalf("state of %s: %v, want %v", u, got, want)
	}
}

// check reads a random interval as a random user.
func (m *model) check(t *rapid.T) {
	u := m.user(t)
	if m.members[u] == nil {
		return
	}
	q := store.HistoryQuery{
		Reader: u, Conversation: m.conv, Limit: rapid.IntRange(1, 9).Draw(t, "limit"), Backward: rapid.Bool().Draw(t, "backward"),
		After:  im.Seq(rapid.IntRange(0, int(m.head())).Draw(t, "after")),
		Before: im.Seq(rapid.IntRange(0, int(m.head())+2).Draw(t, "before")),
	}
	var want []im.Seq
	for seq := q.After + 1; seq <= m.head() && (q.Before == 0 || seq < q.Before); seq++ {
		if m.sees(u, seq) {
			want = append(want, seq)
		}
	}
	if got := m.k.walk(q); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Fatalf("history %+v: %v, want %v", q, got, want)
	}
	if p, err := m.k.s.Position(m.k.ctx(), m.conv, u); m.present(u) && (err != nil || p.Unread != m.unread(u) || p.Head != m.top(u)) {
		t.Fatalf("position of %s: %+v, %v; want unread %d, head %d", u, p, err, m.unread(u), m.top(u))
	}
}
