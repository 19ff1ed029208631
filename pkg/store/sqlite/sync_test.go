package sqlite

import (
	"path/filepath"
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
