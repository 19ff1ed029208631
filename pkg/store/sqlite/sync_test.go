package sqlite

import (
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// Where nothing has changed a resume is one statement, and where a conversation
// moved a little it is one more.
func TestStatementsOfSync(t *testing.T) {
	s := openAt(t, filepath.Join(t.TempDir(), "imd.db"))
	defer s.Close()
	conv := im.ConversationID(protocol.DirectID("ann", "bob"))
	send := func(n int) {
		t.Helper()
		row := store.AppendRow{Conversation: conv, Peer: "bob", Sender: "ann", MessageID: im.MessageID(n), ClientMessageID: im.ClientMessageID(rune('a' + n)),
			Content: []byte("x"), Kind: clientv1.EntryKind_ENTRY_KIND_MESSAGE, Countable: true}
		if res, err := s.Append(t.Context(), []store.AppendRow{row}); err != nil || res[0].Err != nil {
			t.Fatal(res, err)
		}
	}
	// ran are the statements that a sync prepares on connections that have none.
	ran := func(q store.SyncQuery) (page store.SyncPage, list []string) {
		t.Helper()
		for _, c := range s.all {
			if err := c.drop(); err != nil {
				t.Fatal(err)
			}
		}
		page, err := s.Sync(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range s.all {
			for query := range c.stmts {
				if query != "BEGIN" && query != "ROLLBACK" {
					list = append(list, query)
				}
			}
		}
		slices.Sort(list)
		return page, list
	}
	send(1)
	first, _ := ran(store.SyncQuery{User: "bob", Limit: 10})
	level := map[im.ConversationID]im.Seq{conv: 1}
	q := store.SyncQuery{User: "bob", Limit: 10, Entries: 20, Token: first.Token, Cursors: level, Digest: true}
	if p, list := ran(q); len(p.States) != 0 || p.Digest == 0 || !slices.Equal(list, []string{sqlSummedAsked}) {
		t.Errorf("%d states and the digest %d after %q", len(p.States), p.Digest, list)
	}
	send(2)
	want := []string{sqlSummedAsked, sqlUp}
	slices.Sort(want)
	p, list := ran(q)
	if len(p.States) != 1 || !slices.Equal(list, want) {
		t.Fatalf("%d states after %q", len(p.States), list)
	}
	if st := p.States[0]; st.Unread != 2 || st.Last.Seq != 2 || len(st.Page.Entries) != 1 || st.PeerMember.User != "ann" {
		t.Errorf("state %+v", st)
	}
}

// A group in which nobody has written has no newest message: the entries that are read
// anyway say so.
func TestAGroupWithoutMessages(t *testing.T) {
	s := openAt(t, filepath.Join(t.TempDir(), "imd.db"))
	defer s.Close()
	change := store.Change{Conversation: "g_1", Actor: "ann", MessageID: 1, RequestID: "1", Create: &store.CreateGroup{Name: "team", Owner: "ann", Members: []im.UserID{"bob"}}}
	if _, err := s.Change(t.Context(), change); err != nil {
		t.Fatal(err)
	}
	p, err := s.Sync(t.Context(), store.SyncQuery{User: "bob", Limit: 10, Entries: 20})
	if err != nil || len(p.States) != 1 || p.States[0].Last != nil || len(p.States[0].Page.Entries) != 1 {
		t.Fatalf("%+v, %v", p, err)
	}
	for _, c := range s.all {
		if c.stmts[sqlLast] != nil {
			t.Error("the newest message was looked for")
		}
	}
}

// What many are told in one call is what each would be told alone, however much room
// their statement has.
func TestStandingOfMany(t *testing.T) {
	s := openAt(t, filepath.Join(t.TempDir(), "imd.db"))
	defer s.Close()
	n := 0
	talk := func(a im.UserID, others ...im.UserID) (last im.ConversationID) {
		t.Helper()
		var rows []store.AppendRow
		for _, b := range others {
			n++
			last = im.ConversationID(protocol.DirectID(string(a), string(b)))
			rows = append(rows, store.AppendRow{Conversation: last, Peer: b, Sender: a, MessageID: im.MessageID(n), ClientMessageID: im.ClientMessageID(fmt.Sprint(n)),
				Content: []byte("x"), Kind: clientv1.EntryKind_ENTRY_KIND_MESSAGE, Countable: true})
		}
		for part := range slices.Chunk(rows, 128) {
			if res, err := s.Append(t.Context(), part); err != nil || res[0].Err != nil {
				t.Fatal(res, err)
			}
		}
		return last
	}
	ask := func(qs ...store.SyncQuery) (together []store.SyncPage) {
		t.Helper()
		together, err := s.SyncMany(t.Context(), qs)
		if err != nil {
			t.Fatal(err)
		}
		for i := range qs {
			alone, err := s.Sync(t.Context(), qs[i])
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(together[i], alone) {
				t.Errorf("query %d of %d: %+v, and alone %+v", i, len(qs), together[i], alone)
			}
		}
		return together
	}
	ab, ac := talk("ann", "bob"), talk("ann", "cid")
	first := ask(store.SyncQuery{User: "ann", Limit: 10})[0].Token
	bc := talk("bob", "cid")
	const odd = `<o"d\d é`
	talk(odd, "bob")
	level := map[im.ConversationID]im.Seq{ab: 1, ac: 1, bc: 1}
	pages := ask(
		store.SyncQuery{User: "ann", Limit: 10, Token: first, Digest: true},                                 // nothing is new
		store.SyncQuery{User: "bob", Limit: 10, Token: first, Cursors: level, Entries: 5},                   // one that others ask about too
		store.SyncQuery{User: "cid", Limit: 1, Entries: 5, Digest: true},                                    // two, on two pages
		store.SyncQuery{User: "ann", Limit: 10, Token: "rubbish", Cursors: level, Digest: true},             // the second of a user
		store.SyncQuery{User: odd, Limit: 10, Digest: true},                                                 // a name that JSON writes otherwise
		store.SyncQuery{User: "dot", Limit: 10, Digest: true, Cursors: map[im.ConversationID]im.Seq{ab: 0}}, // in none
	)
	if got := pages[2]; len(got.States) != 1 || !got.More {
		t.Fatalf("a first page %+v", got)
	}
	if pages[0].Digest == 0 || pages[4].Digest == 0 || pages[1].Digest != 0 {
		t.Errorf("digests %d, %d and %d", pages[0].Digest, pages[4].Digest, pages[1].Digest)
	}
	if got := pages[4]; len(got.States) != 1 {
		t.Fatalf("of an odd name %+v", got)
	}
	ask(store.SyncQuery{User: "cid", Limit: 1, Token: pages[2].Token, Digest: true}, store.SyncQuery{User: "bob", Limit: 10})

	var friends []im.UserID
	for i := range standMost {
		friends = append(friends, im.UserID(fmt.Sprintf("of-eve-%03d", i)))
	}
	talk("eve", friends...)
	many := store.SyncQuery{User: "eve", Limit: store.MaxSyncPage, Digest: true}
	ask(many, store.SyncQuery{User: "ann", Limit: 10}, store.SyncQuery{User: "bob", Limit: 10})
	ask(store.SyncQuery{User: "ann", Limit: 10}, many, store.SyncQuery{User: "bob", Limit: 10}, store.SyncQuery{User: "of-eve-001", Limit: 10, Digest: true})
}

// The sum over all heads is read only for those who are told it: not where the list goes
// on behind the page.
func TestSumsAreReadWhereListsEnd(t *testing.T) {
	s := openAt(t, filepath.Join(t.TempDir(), "imd.db"))
	defer s.Close()
	for i, other := range []im.UserID{"bob", "cid"} {
		row := store.AppendRow{Conversation: im.ConversationID(protocol.DirectID("ann", string(other))), Peer: other, Sender: "ann", MessageID: im.MessageID(i + 1),
			ClientMessageID: im.ClientMessageID(other), Content: []byte("x"), Kind: clientv1.EntryKind_ENTRY_KIND_MESSAGE, Countable: true}
		if res, err := s.Append(t.Context(), []store.AppendRow{row}); err != nil || res[0].Err != nil {
			t.Fatal(res, err)
		}
	}
	for limit, ends := range map[int]bool{1: false, 2: true} {
		for _, c := range s.all {
			if err := c.drop(); err != nil {
				t.Fatal(err)
			}
		}
		pages, err := s.SyncMany(t.Context(), []store.SyncQuery{{User: "ann", Limit: limit, Digest: true}, {User: "bob", Limit: 10}})
		if err != nil {
			t.Fatal(err)
		}
		if p := pages[0]; p.More == ends || p.Digest != 0 != ends {
			t.Errorf("a page of %d: there is more: %v, the digest is %d", limit, p.More, p.Digest)
		}
		if summed := slices.ContainsFunc(s.all, func(c *conn) bool { return c.stmts[sqlSums] != nil }); summed != ends {
			t.Errorf("a page of %d: the sums were read: %v", limit, summed)
		}
	}
}
