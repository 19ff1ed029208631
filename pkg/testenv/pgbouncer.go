package testenv

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// bouncerBin is where Debian keeps the pooler.
const bouncerBin = "/usr/sbin/pgbouncer"

// Pooled starts a pooler before the server, in "session" or "transaction" mode,
// and returns the data source name of the database behind it. The pooler ends
// with the test.
func (p *Postgres) Pooled(t testing.TB, database, mode string) string {
	t.Helper()
	if _, err := os.Stat(bouncerBin); err != nil {
		Omit(t, "PgBouncer", "apt-get install pgbouncer")
	}
	port, err := freePort("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(p.Dir, fmt.Sprintf("pgbouncer-%d.ini", port))
	text := fmt.Sprintf("[databases]\n* = host=127.0.0.1 port=%d user=imd\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = %d\nunix_socket_dir =\nauth_type = any\npool_mode = %s\n",
		p.Port, port, mode)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	out := &syncBuffer{}
	cmd := exec.Command(bouncerBin, path)
	cmd.Dir = p.Dir
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: p.id, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // was killed
	})
	dsn := fmt.Sprintf("postgres://imd@127.0.0.1:%d/%s?sslmode=disable", port, database)
	for deadline := time.Now().Add(Patience); ; {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		c, err := pgx.Connect(ctx, dsn)
		if err == nil {
			err = c.Close(ctx)
		}
		cancel()
		if err == nil {
			return dsn
		}
		if time.Now().After(deadline) {
			t.Fatalf("pgbouncer: %v\n%s", err, out)
		}
		time.Sleep(20 * time.Millisecond)
	}
}
