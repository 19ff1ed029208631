package sqlite

import (
	"bufio"
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// childTask and childPath are the environment of this test program when it
// runs as a child that a test kills or locks out.
const (
	childTask = "IMD_TEST_SQLITE_CHILD"
	childPath = "IMD_TEST_SQLITE_PATH"
)

// asChild does the child's task; false in the test program itself.
func asChild() bool {
	path := os.Getenv(childPath)
	switch os.Getenv(childTask) {
	case "append":
		s, err := Open(background, Options{Path: path})
		if err != nil {
			fmt.Println("error", err)
			return true
		}
		appendForever(s)
	case "open":
		s, err := Open(background, Options{Path: path})
		if err != nil {
			fmt.Println("error", strings.ReplaceAll(err.Error(), "\n", " / "))
			return true
		}
		fmt.Println("opened", s.Close())
	default:
		return false
	}
	return true
}

// appendForever prints "id seq" for each row that was acknowledged.
func appendForever(s *Store) {
	for n := 0; ; n += 20 {
		rows := make([]store.AppendRow, 20)
		for i := range rows {
			rows[i] = sendTo(fmt.Sprintf("p%d", i%5), n+i)
		}
		res, err := s.Append(background, rows)
		if err != nil {
			fmt.Println("error", err)
			return
		}
		var b strings.Builder
		for i, r := range res {
			fmt.Fprintln(&b, n+i, int64(r.Seq))
		}
		os.Stdout.WriteString(b.String())
	}
}

// sendTo is the n-th send of a to peer.
func sendTo(peer string, n int) store.AppendRow {
	text := fmt.Sprint("text ", n)
	return store.AppendRow{
		Conversation: im.ConversationID(protocol.DirectID("a", peer)), Sender: "a", Peer: im.UserID(peer),
		ClientMessageID: im.ClientMessageID(fmt.Sprintf("%08x-0000-4000-8000-000000000000", n)),
		BodyHash:        sha256.Sum256([]byte(text)), MessageID: im.MessageID(n + 1), Kind: clientv1.EntryKind_ENTRY_KIND_MESSAGE,
		Content: []byte(text), Countable: true,
	}
}

// child makes the command that runs this program for a task.
func child(t *testing.T, task, path string) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command(exe)
	c.Env = append(os.Environ(), childTask+"="+task, childPath+"="+path)
	c.Stderr = os.Stderr
	return c
}

// A killed process loses nothing that it has acknowledged; a resend of
// everything gets the same numbers.
func TestKill(t *testing.T) {
	path := filepath.Join(t.TempDir(), "imd.db")
	acked := map[int]int64{}
	for round := range 4 {
		cmd := child(t, "append", path)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		for got := 0; lines.Scan(); got++ {
			var n int
			var seq int64
			if _, err := fmt.Sscan(lines.Text(), &n, &seq); err != nil {
				t.Fatalf("child: %s", lines.Text())
			}
			if was, ok := acked[n]; ok && was != seq {
				t.Errorf("send %d had seq %d, after the crash it has %d", n, was, seq)
			}
			acked[n] = seq
			if got == 400*(round+1) {
				if err := cmd.Process.Kill(); err != nil {
					t.Fatal(err)
				}
			}
		}
		_ = cmd.Wait() // was killed
	}
	if len(acked) < 1000 {
		t.Fatalf("only %d sends were acknowledged", len(acked))
	}
	s := openAt(t, path)
	defer s.Close()
	for n, seq := range acked {
		r, err := s.Append(t.Context(), []store.AppendRow{sendTo(fmt.Sprintf("p%d", n%5), n)})
		if err != nil || r[0].Err != nil || !r[0].Duplicate || int64(r[0].Seq) != seq || int64(r[0].MessageID) != int64(n+1) {
			t.Fatalf("send %d: %+v, %v; acknowledged with seq %d", n, r, err, seq)
		}
	}
	for i := range 5 {
		p, err := s.History(t.Context(), store.HistoryQuery{Conversation: im.ConversationID(protocol.DirectID("a", fmt.Sprintf("p%d", i))), Limit: 500})
		if err != nil || len(p.Entries) == 0 {
			t.Fatal(err)
		}
		for j, e := range p.Entries {
			if e.Seq != im.Seq(j+1) {
				t.Fatalf("entry %d has seq %d", j, e.Seq)
			}
		}
	}
}

// A process that may not write is told so, in one sentence.
func TestReadOnly(t *testing.T) {
	for _, tt := range []struct {
		name  string
		setUp func(t *testing.T, dir string)
	}{
		{"an empty folder that cannot be written", func(*testing.T, string) {}},
		{"a database that cannot be written", func(t *testing.T, dir string) {
			if err := openAt(t, filepath.Join(dir, "imd.db")).Close(); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir, err := os.MkdirTemp("", "imd-readonly-") // not below t.TempDir: that is closed to other users
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { os.RemoveAll(dir) })
			tt.setUp(t, dir)
			if err := os.Chmod(dir, 0o555); err != nil {
				t.Fatal(err)
			}
			for _, f := range []string{"imd.db", "imd.db.mark"} {
				_ = os.Chmod(filepath.Join(dir, f), 0o444) // may not be there
			}
			t.Cleanup(func() { os.Chmod(dir, 0o755) })
			cmd := child(t, "open", filepath.Join(dir, "imd.db"))
			if os.Getuid() == 0 { // root may write everywhere
				copied := filepath.Join(os.TempDir(), filepath.Base(dir)+".test")
				copyFile(t, cmd.Path, copied)
				t.Cleanup(func() { os.Remove(copied) })
				if err := os.Chmod(copied, 0o755); err != nil {
					t.Fatal(err)
				}
				cmd.Path = copied
				cmd.Dir = "/"
				cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
			}
			out, err := cmd.Output()
			if err != nil {
				t.Fatal(err)
			}
			if got := string(out); !strings.Contains(got, "cannot be written") || strings.Contains(got, " / ") {
				t.Errorf("child says %q", got)
			}
		})
	}
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	b, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, b, 0o600); err != nil {
		t.Fatal(err)
	}
}
