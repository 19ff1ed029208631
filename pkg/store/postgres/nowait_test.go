package postgres

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/pkg/testenv"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// A row that asks not to wait for its conversation is answered at once, and so
// are those beside it.
func TestNoWait(t *testing.T) {
	dsn := fresh(t, testenv.SharedPostgres(t))
	s := openAt(t, dsn)
	defer s.Close()
	direct := func(peer im.UserID, n int) store.AppendRow {
		return store.AppendRow{
			Conversation: im.ConversationID(protocol.DirectID("a", string(peer))), Peer: peer, Sender: "a", MessageID: im.MessageID(n), Run: n,
			ClientMessageID: im.ClientMessageID("00000000-0000-4000-8000-00000000000" + string(rune('0'+n))),
			Kind:            clientv1.EntryKind_ENTRY_KIND_MESSAGE, Countable: true,
		}
	}
	if _, err := s.Append(t.Context(), []store.AppendRow{direct("b", 1), direct("c", 2)}); err != nil {
		t.Fatal(err)
	}
	src, err := parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	stranger, err := pgx.ConnectConfig(t.Context(), src.config.ConnConfig)
	if err != nil {
		t.Fatal(err)
	}
	defer stranger.Close(t.Context())
	tx, err := stranger.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `SELECT 1 FROM conversation WHERE id = $1 FOR UPDATE`, protocol.DirectID("a", "b")); err != nil {
		t.Fatal(err)
	}
	rows := []store.AppendRow{direct("b", 3), direct("c", 4)}
	rows[0].NoWait = true
	began := time.Now()
	res, err := s.Append(t.Context(), rows)
	if err != nil || res[0].Err == nil || res[0].Err.Reason != clientv1.Reason_REASON_BUSY || res[1].Err != nil {
		t.Fatalf("answers %+v, %v", res, err)
	}
	if took := time.Since(began); took > s.appends.lock/2 {
		t.Errorf("it took %v", took)
	}
}
