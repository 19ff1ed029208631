package requirements

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/imdhq/imd/pkg/testenv"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// Somebody else holds the row of one conversation in Postgres. Its sends are
// told when to come again; the others wait once at most. Afterwards all is
// stored once, in order.
func TestR10AConversationThatAStrangerHolds(t *testing.T) {
	t.Parallel()
	n := onServers(t, unhurried...)
	a := login(t, n, "ann", "d")
	held := a.MustSend(testenv.ToUser("bob", "0")).ConversationId
	others := []string{"c1", "c2", "c3", "c4"}
	for _, u := range others {
		a.MustSend(testenv.ToUser(u, "0"))
	}
	dsn, _ := strings.CutSuffix(strings.TrimPrefix(n.Env[0], "IMD_STORAGE_POSTGRES="), "&imd_unsafe=yes")
	stranger, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer stranger.Close(t.Context())
	tx, err := stranger.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `SELECT 1 FROM conversation WHERE id = $1 FOR UPDATE`, held); err != nil {
		t.Fatal(err)
	}
	sends := numbered(5, toUser("bob"))
	c := login(t, n, "ann", "other")
	refused := 0
	var took []time.Duration
	clock := testenv.NewClock(t)
	l := testenv.NewLimit(time.Minute)
	for until := time.Now().Add(6 * time.Second); (time.Now().Before(until) || len(took) < 100) && !l.Over(); {
		began := clock.Now()
		ack := c.Send(sends[0])
		if ack.Status != clientv1.Ack_ACK_RETRY || ack.Error.GetRetryAfterMs() == 0 || clock.Since(began) > 2*time.Second {
			t.Fatalf("the send to it got %v after %v", ack, clock.Since(began))
		}
		refused++
		for i, u := range others {
			began := clock.Now()
			ack := a.Send(testenv.ToUser(u, fmt.Sprint(i)))
			if ack.Status == clientv1.Ack_ACK_FAIL {
				t.Fatalf("a send to another got %v", ack)
			}
			if ack.Status == clientv1.Ack_ACK_OK {
				took = append(took, clock.Since(began))
			}
		}
		time.Sleep(50 * time.Millisecond)
	}
	slices.Sort(took)
	if len(took) < 100 {
		t.Errorf("only %d sends to others", len(took))
	} else if p := took[len(took)*95/100]; p > 300*time.Millisecond {
		t.Errorf("the slowest twentieth of the others took %v and more", p)
	}
	t.Logf("%d refused; %d others, the median %v, the slowest %v", refused, len(took), took[len(took)/2], took[len(took)-1])
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, m := range sends {
		for l := testenv.NewLimit(testenv.Patience); ; {
			ack := c.Send(resend(m))
			if ack.Status == clientv1.Ack_ACK_OK {
				break
			}
			if ack.Status == clientv1.Ack_ACK_FAIL || l.Over() {
				t.Fatalf("after the lock: %v", ack)
			}
			time.Sleep(time.Duration(ack.Error.GetRetryAfterMs()) * time.Millisecond)
		}
	}
	all, _ := a.Walk(held, 100, false)
	wantTexts(t, "history", messages(all)[1:], upTo(5))
}
