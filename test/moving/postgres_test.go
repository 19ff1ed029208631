package moving

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	"github.com/imdhq/imd/pkg/testenv"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// A laptop moves up: its messages go into Postgres, by a copy that is killed
// again and again, and its clients go on where they were.
func TestMovingUp(t *testing.T) {
	server := testenv.SharedPostgres(t)
	n := testenv.Start(t, testenv.NoLimits()...)
	group := testenv.Group(t, n.URL(), n.Token("ann"), "all of us", "bob", "cyd")
	a := testenv.Login(t, n.URL(), protocol.Proto, n.Token("ann"), "d")
	var sends []*clientv1.Send
	for i := range 1500 {
		to := testenv.To(group, fmt.Sprint(i))
		if i%3 == 0 {
			to = testenv.ToUser("bob", fmt.Sprint(i))
		}
		to.ClientMessageId = uuid.NewString()
		sends = append(sends, to)
	}
	seqs := a.SendAll(sends)
	before, _ := a.Walk(group, 500, false)
	token := a.Request(syncFrame("")).GetSyncResult().SyncToken
	a.Close()
	if n.Stop() != 0 {
		t.Fatal("no clean stop")
	}

	dsn := filepath.Join(t.TempDir(), "postgres")
	if err := os.WriteFile(dsn, []byte(server.Database(t)+"&imd_unsafe=yes\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	imd(t, nil, "migrate", "up", "--postgres-file", dsn)
	copyKilled(t, "store", "copy", "--data-dir", n.Dir, "--postgres-file", dsn)
	imd(t, nil, "store", "copy", "--data-dir", n.Dir, "--postgres-file", dsn) // as if the last kill had come behind the last step

	old := n.Args
	n.Args = append(old[:len(old):len(old)], "--postgres-file", dsn)
	n.Start()
	b := testenv.Login(t, n.URL(), protocol.JSON, n.Token("ann"), "d")
	if b.Welcome.DataEpoch != a.Welcome.DataEpoch {
		t.Errorf("data_epoch %s, it was %s", b.Welcome.DataEpoch, a.Welcome.DataEpoch)
	}
	after, _ := b.Walk(group, 500, false)
	if len(after) != len(before) {
		t.Fatalf("%d entries, there were %d", len(after), len(before))
	}
	for i := range after {
		if !proto.Equal(before[i], after[i]) {
			t.Fatalf("entry %v was %v", after[i], before[i])
		}
	}
	for _, i := range []int{0, 1, 700, 1499} {
		sends[i].Resend = true
		if r := b.MustSend(sends[i]); r.Seq != seqs[i] || !r.Duplicate {
			t.Errorf("resend %d got %v, it had seq %d", i, r, seqs[i])
		}
	}
	next := b.MustSend(testenv.To(group, "in Postgres"))
	if last := before[len(before)-1]; next.Seq != last.Seq+1 || next.PrevSeq != last.Seq || next.MessageId <= last.MessageId {
		t.Errorf("the next message is %v, the last was %v", next, last)
	}
	r := b.Request(syncFrame(token)).GetSyncResult()
	if r.DataEpoch != a.Welcome.DataEpoch || !r.Full || len(r.Conversations) != 2 {
		t.Errorf("sync with a token of the laptop: %v", r)
	}
	b.Close()
	if n.Stop() != 0 {
		t.Fatal("no clean stop")
	}

	n.Args = old // by mistake
	n.Start()
	if c := testenv.Login(t, n.URL(), protocol.Proto, n.Token("ann"), "d"); c.Welcome.DataEpoch == a.Welcome.DataEpoch {
		t.Error("a node on the store that moved away passes for the one that moved")
	}
}

func syncFrame(token string) *clientv1.ClientFrame {
	return &clientv1.ClientFrame{Kind: &clientv1.ClientFrame_Sync{Sync: &clientv1.Sync{SyncToken: token, PageLimit: 20}}}
}

// copyKilled runs a command again and again, killing it later and later, until
// it comes to its end.
func copyKilled(t *testing.T, args ...string) {
	t.Helper()
	kills := 0
	for limit := 20 * time.Millisecond; ; limit += time.Duration(rand.IntN(150)) * time.Millisecond {
		cmd := exec.Command(testenv.Binary(t), args...)
		cmd.Stderr = os.Stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		timer := time.AfterFunc(limit, func() { _ = cmd.Process.Kill() })
		err := cmd.Wait()
		if timer.Stop() || err == nil {
			if err != nil {
				t.Fatalf("the copy ended with %v after %d kills", err, kills)
			}
			break
		}
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != -1 { // it ended by itself just before the kill
			t.Fatalf("the copy ended with %v after %d kills", err, kills)
		}
		if kills++; kills > 200 {
			t.Fatal("the copy never ends")
		}
	}
	t.Logf("the copy was killed %d times", kills)
}
