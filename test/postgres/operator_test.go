package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/imdhq/imd/pkg/testenv"
	"github.com/imdhq/imd/sdk/go/protocol"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testenv.Tests{M: m}) }

// run runs the binary and returns what it printed and its exit status.
func run(t *testing.T, args ...string) (stdout, stderr string, status int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute) // only ends what would hang
	defer cancel()
	cmd := exec.CommandContext(ctx, testenv.Binary(t), args...)
	var out, errOut strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Run(); err != nil && !errors.As(err, new(*exec.ExitError)) {
		t.Fatal(err)
	}
	return out.String(), errOut.String(), cmd.ProcessState.ExitCode()
}

// file writes the name of a database where only its owner can read it.
func file(t *testing.T, dsn string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "postgres")
	if err := os.WriteFile(path, []byte(dsn+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// refusal starts a node that must end with the status, saying words.
func refusal(t *testing.T, status int, words string, flags ...string) {
	t.Helper()
	n := &testenv.Node{Dir: filepath.Join(t.TempDir(), "data"), Args: flags}
	if err := n.Try(t); err != nil {
		t.Fatal(err)
	}
	if got := n.Wait(testenv.ReadyIn); got != status || !strings.Contains(n.Log(), words) || strings.Contains(n.Log(), "hunter2") {
		t.Errorf("status %d, want %d and %q:\n%s", got, status, words, n.Log())
	}
}

// From an empty database to a node that stores and one that is refused.
func TestMigrate(t *testing.T) {
	server := testenv.SharedPostgres(t)
	dsn := server.Database(t) + "&imd_unsafe=yes"
	name := dsn[strings.LastIndex(dsn, "/")+1 : strings.Index(dsn, "?")]
	flags := []string{"--postgres-file", file(t, dsn)}
	with := func(args ...string) []string { return append(args, flags...) }
	if out, errs, status := run(t, with("migrate", "status")...); status != 78 || !strings.Contains(out, "not applied") || !strings.Contains(errs, "run imd migrate up") {
		t.Errorf("status of an empty database: %d\n%s%s", status, out, errs)
	}
	refusal(t, 78, "run imd migrate up", flags...)
	if out, _, status := run(t, with("migrate", "plan")...); status != 0 || !strings.Contains(out, "CREATE TABLE entry") {
		t.Errorf("plan: %d\n%s", status, out)
	}
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			if out, errs, status := run(t, with("migrate", "up")...); status != 0 || !strings.Contains(out, "the schema is at") {
				t.Errorf("up: %d\n%s%s", status, out, errs)
			}
		})
	}
	wg.Wait()
	out, _, status := run(t, with("migrate", "status", "-o", "json")...)
	var state struct{ Have, Need int64 }
	if err := json.Unmarshal([]byte(out), &state); err != nil || status != 0 || state.Have == 0 || state.Have != state.Need {
		t.Errorf("status: %d, %v\n%s", status, err, out)
	}
	n := testenv.Start(t, flags...)
	a := testenv.Login(t, n.URL(), protocol.Proto, n.Token("alice"), "d")
	if ack := a.MustSend(testenv.ToUser("bob", "hello")); ack.Seq != 1 {
		t.Errorf("ack: %v", ack)
	}
	if status := n.Stop(); status != 0 {
		t.Errorf("stop: %d", status)
	}
	server.Exec(t, name, `INSERT INTO goose_db_version (version_id, is_applied) VALUES (999, true)`)
	refusal(t, 78, "install a newer imd", flags...)
	if _, errs, status := run(t, with("migrate", "up")...); status != 78 || !strings.Contains(errs, "install a newer imd") {
		t.Errorf("up of a newer schema: %d\n%s", status, errs)
	}
}

// What is wrong with the name ends the start in one sentence that tells no
// password.
func TestRefusedNames(t *testing.T) {
	server := testenv.SharedPostgres(t)
	refusal(t, 78, "does not exist", "--postgres", server.DSN("nowhere"))
	away := &testenv.Node{Dir: filepath.Join(t.TempDir(), "data"), Args: []string{"--postgres-file", file(t, "postgres://imd:hunter2@127.0.0.1:1/imd?sslmode=disable")}}
	if err := away.Try(t); err != nil {
		t.Fatal(err)
	}
	away.AwaitLog("cannot be reached")
	if status := away.Stop(); status != 0 || strings.Contains(away.Log(), "hunter2") {
		t.Errorf("one that waits ends with %d:\n%s", status, away.Log())
	}
	refusal(t, 78, "fsync is off", "--postgres", server.DSN("postgres"))
	refusal(t, 78, "on the command line", "--postgres", "postgres://imd:hunter2@127.0.0.1/imd")
	refusal(t, 78, "storage.postgres", "--postgres-file", file(t, "mysql://imd:hunter2@127.0.0.1/imd"))
	refusal(t, 78, "storage.postgres", "--set", "storage.dsn=postgres://127.0.0.1/imd")
}

// Doctor says what it thinks of the database.
func TestDoctor(t *testing.T) {
	server := testenv.SharedPostgres(t)
	out, _, status := run(t, "doctor", "--postgres", server.DSN("postgres"))
	for _, want := range []string{"fsync is off", "postgres version", "run imd migrate up", "sessions are our own"} {
		if status != 1 || !strings.Contains(out, want) {
			t.Errorf("doctor: %d, want %q:\n%s", status, want, out)
		}
	}
	out, _, status = run(t, "doctor", "--postgres-file", file(t, "postgres://imd:hunter2@127.0.0.1:1/imd"))
	if status != 1 || !strings.Contains(out, "cannot be reached") || strings.Contains(out, "hunter2") {
		t.Errorf("doctor: %d\n%s", status, out)
	}
	out, _, _ = run(t, "config", "show", "--postgres-file", file(t, "postgres://imd:hunter2@127.0.0.1:1/imd"))
	if strings.Contains(out, "hunter2") || !strings.Contains(out, "storage.postgres") {
		t.Errorf("config show:\n%s", out)
	}
}
