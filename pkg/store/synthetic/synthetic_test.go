package synthetic

import (
	"net/url"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/pkg/store/sqlite"
	"github.com/imdhq/imd/pkg/store/transfer"
)

func small() Plan {
	return Plan{Users: 40, Conversations: 61, Entries: 1037, Big: 500, Members: 7, Busy: 20, Size: 64, Until: time.Now()}
}

// All rows of all tables agree with each other: heads with entries, members with
// conversations, senders with members, and nothing is there twice.
func TestRowsAgree(t *testing.T) {
	p := small()
	if err := p.Check(); err != nil {
		t.Fatal(err)
	}
	s := New(p)
	read := func(table store.Table) *store.Batch {
		t.Helper()
		all := &store.Batch{}
		for !all.End {
			b, err := s.Export(t.Context(), table, all.After, 100)
			if err != nil {
				t.Fatal(err)
			}
			all.Users, all.Conversations = append(all.Users, b.Users...), append(all.Conversations, b.Conversations...)
			all.Members, all.Entries = append(all.Members, b.Members...), append(all.Entries, b.Entries...)
			all.After, all.End = b.After, b.End
		}
		return all
	}
	type membership struct {
		conv int64
		user im.UserID
	}
	heads, ids := map[int64]im.Seq{}, map[im.ConversationID]bool{}
	for _, c := range read(store.Conversations).Conversations {
		heads[c.Num], ids[c.ID] = c.Head, true
	}
	if len(heads) != p.Conversations || len(ids) != p.Conversations || heads[1] != im.Seq(p.Big) {
		t.Errorf("%d conversations with %d ids, the group has %d entries", len(heads), len(ids), heads[1])
	}
	members, busy := map[membership]bool{}, 0
	for _, m := range read(store.Members).Members {
		members[membership{m.Conv, m.User}] = true
		if m.User == User(0) && m.Conv > 1 {
			busy++
		}
	}
	if want := p.Members + 2*(p.Conversations-1); len(members) != want || busy != p.Busy {
		t.Errorf("%d members, want %d; the busy user has %d", len(members), want, busy)
	}
	if n := len(read(store.Users).Users); n != p.Users {
		t.Errorf("%d users", n)
	}
	last, messages, keys := map[int64]im.Seq{}, map[im.MessageID]bool{}, map[im.ClientMessageID]bool{}
	all := read(store.Entries).Entries
	for _, e := range all {
		if e.Seq != last[e.Conv]+1 || e.PrevSeq != last[e.Conv] || !members[membership{e.Conv, e.Sender}] {
			t.Fatalf("entry %+v behind %d", e, last[e.Conv])
		}
		last[e.Conv] = e.Seq
		messages[e.MessageID], keys[e.ClientMessageID] = true, true
	}
	if int64(len(all)) != p.Entries || len(messages) != len(all) || len(keys) != len(all) {
		t.Errorf("%d entries, %d message ids, %d keys", len(all), len(messages), len(keys))
	}
	for conv, head := range heads {
		if last[conv] != head {
			t.Errorf("conversation %d ends at %d, its head is %d", conv, last[conv], head)
		}
	}
}

// A store that was filled serves.
func TestServes(t *testing.T) {
	u := &url.URL{Scheme: "sqlite", Path: filepath.Join(t.TempDir(), "imd.db")}
	to, err := sqlite.OpenTarget(t.Context(), u, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	p := small()
	if _, err := transfer.Copy(t.Context(), New(p), to, transfer.Options{}); err != nil {
		t.Fatal(err)
	}
	if err := to.Close(); err != nil {
		t.Fatal(err)
	}
	s, err := sqlite.OpenURL(t.Context(), u, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	h, err := s.History(t.Context(), store.HistoryQuery{Reader: User(1), Conversation: Group, Limit: 50, Backward: true})
	if err != nil || len(h.Entries) != 50 || h.Entries[49].Seq != im.Seq(p.Big) {
		t.Errorf("history: %d entries, %v", len(h.Entries), err)
	}
	page, err := s.Sync(t.Context(), store.SyncQuery{User: User(0), Limit: 200})
	if err != nil || len(page.States) != p.Busy+1 {
		t.Errorf("sync: %d conversations, %v", len(page.States), err)
	}
}

func TestCheck(t *testing.T) {
	for _, spoil := range []func(*Plan){
		func(p *Plan) { p.Users = 3 }, func(p *Plan) { p.Conversations = 1 }, func(p *Plan) { p.Members = 1 }, func(p *Plan) { p.Busy = p.Users },
		func(p *Plan) { p.Conversations = 2000 }, func(p *Plan) { p.Big = p.Entries }, func(p *Plan) { p.Size = 1 },
	} {
		p := small()
		spoil(&p)
		if p.Check() == nil {
			t.Errorf("%+v can be made", p)
		}
	}
}
