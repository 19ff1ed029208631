package postgres

import (
	"fmt"
	"testing"
	"time"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/pkg/testenv"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// A message that somebody is just about to cancel does not hold up the claim of the
// others, and is claimed the next time if it was not cancelled.
func TestAClaimWaitsForNoCancel(t *testing.T) {
	dsn := fresh(t, testenv.SharedPostgres(t))
	s := openAt(t, dsn)
	defer s.Close()
	now := time.Now().Truncate(time.Millisecond)
	for id := range int64(3) {
		_, _, err := s.PutScheduled(t.Context(), store.Scheduled{
			ID: id + 1, RequestID: im.ClientMessageID(fmt.Sprint("r", id)), ClientMessageID: im.ClientMessageID(fmt.Sprint("k", id)),
			Conversation: im.ConversationID(protocol.DirectID("ann", "bob")), Peer: "bob", Sender: "ann", Content: []byte("x"), Due: now, Created: now,
		}, 10)
		if err != nil {
			t.Fatal(err)
		}
	}
	fence, err := s.ClaimFence(t.Context(), store.FenceClaim{Name: "scheduler", Holder: "h", Cluster: "c", Revision: 1})
	if err != nil {
		t.Fatal(err)
	}
	claim := func(want string) {
		t.Helper()
		list, err := s.ClaimScheduled(t.Context(), fence.Proof(), store.ScheduledClaim{Now: now, Until: now.Add(time.Hour), Limit: 10})
		ids := []int64{}
		for _, m := range list {
			ids = append(ids, m.ID)
		}
		if err != nil || fmt.Sprint(ids) != want {
			t.Errorf("claimed %v, want %s: %v", ids, want, err)
		}
	}
	tx, err := connectTo(t, dsn).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), sqlCancelScheduled, 2, "ann"); err != nil {
		t.Fatal(err)
	}
	claim("[1 3]")
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	claim("[2]")
}
