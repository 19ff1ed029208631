package testenv

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// postgresBin is where Debian keeps the server's programs.
const postgresBin = "/usr/lib/postgresql/15/bin"

// PostgresOptions say how a server for tests runs.
type PostgresOptions struct {
	// Settings are server settings, "name=value". They come after the defaults:
	// 100 connections, fsync off, autovacuum off.
	Settings []string
	// TLS makes the server speak TLS with a certificate for localhost, whose
	// authority is in the file TLSRoot names.
	TLS bool
}

// Postgres is one real server, started for a test.
type Postgres struct {
	Port int    // on 127.0.0.1
	Dir  string // its data is in the folder data below it

	args []string
	cmd  *exec.Cmd
	done chan struct{} // closed when the process has ended
	log  *syncBuffer
	id   *syscall.Credential // nil = as this process
}

var (
	postgresMu     sync.Mutex
	postgresImage  string    // a cluster fresh from initdb, copied for each server
	postgresShared *Postgres // of SharedPostgres
	postgresCount  int       // servers that are there
	postgresKeep   bool      // the image stays when the last server goes, as Tests removes it
	databases      atomic.Int64
)

// SharedPostgres is a server that all tests of the program use, each with a
// database of its own. It runs with fsync off until the end of Tests.
func SharedPostgres(t testing.TB) *Postgres {
	t.Helper()
	postgresMu.Lock()
	defer postgresMu.Unlock()
	if postgresShared == nil {
		postgresShared = newPostgres(t, PostgresOptions{Settings: []string{"max_connections=600"}})
	}
	return postgresShared
}

// StartPostgres starts a server for one test, which may break it. It is stopped
// at the end of the test.
func StartPostgres(t testing.TB, o PostgresOptions) *Postgres {
	t.Helper()
	postgresMu.Lock()
	defer postgresMu.Unlock()
	p := newPostgres(t, o)
	t.Cleanup(func() {
		postgresMu.Lock()
		defer postgresMu.Unlock()
		p.remove()
		dropImage()
	})
	return p
}

// Tests runs the tests of a program and then stops what they shared. A TestMain
// hands it to goleak in the place of its testing.M.
type Tests struct{ M *testing.M }

// Run runs the tests and returns the exit status.
func (t Tests) Run() int {
	postgresKeep = true
	code := t.M.Run()
	postgresMu.Lock()
	defer postgresMu.Unlock()
	postgresKeep = false
	if postgresShared != nil {
		postgresShared.remove()
		postgresShared = nil
	}
	dropImage()
	return code
}

// dropImage removes the image if no server is there that it could serve.
func dropImage() {
	if postgresImage != "" && postgresCount == 0 && !postgresKeep {
		_ = os.RemoveAll(postgresImage)
		postgresImage = ""
	}
}

// newPostgres starts a server in a folder of its own.
func newPostgres(t testing.TB, o PostgresOptions) *Postgres {
	t.Helper()
	if _, err := os.Stat(filepath.Join(postgresBin, "postgres")); err != nil {
		Omit(t, "Postgres 15", "apt-get install postgresql-15")
	}
	p := &Postgres{log: &syncBuffer{}}
	if os.Getuid() == 0 { // the server refuses to run as root
		p.id = nobody(t)
	}
	var err error
	if p.Dir, err = os.MkdirTemp("", "imdpg"); err != nil { // not t.TempDir: it is closed to other users
		t.Fatal(err)
	}
	postgresCount++
	if err := p.prepare(o); err != nil {
		p.remove()
		dropImage()
		t.Fatal(err)
	}
	if p.Port, err = freePort("127.0.0.1"); err == nil {
		if err = p.Start(); err == nil {
			return p
		}
	}
	p.remove()
	dropImage()
	t.Fatalf("postgres does not start: %v\n%s", err, p.log)
	return nil
}

// nobody is a user without rights.
func nobody(t testing.TB) *syscall.Credential {
	t.Helper()
	for _, name := range []string{"postgres", "nobody"} {
		if u, err := user.Lookup(name); err == nil {
			uid, _ := strconv.ParseUint(u.Uid, 10, 32)
			gid, _ := strconv.ParseUint(u.Gid, 10, 32)
			return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
		}
	}
	t.Fatal("postgres does not run as root, and there is no other user")
	return nil
}

// own gives the folder to the user that the server runs as.
func (p *Postgres) own(dir string) error {
	if p.id == nil {
		return nil
	}
	return os.Chown(dir, int(p.id.Uid), int(p.id.Gid))
}

// run runs a program as the server's user.
func (p *Postgres) run(name string, args ...string) error {
	cmd := exec.Command(name, args...)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: p.id}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", name, err, out)
	}
	return nil
}

// prepare makes the cluster and what o asks for.
func (p *Postgres) prepare(o PostgresOptions) error {
	if err := p.own(p.Dir); err != nil {
		return err
	}
	if postgresImage == "" {
		image, err := os.MkdirTemp("", "imdpg")
		if err != nil {
			return err
		}
		postgresImage = image
		if err := p.own(image); err != nil {
			return err
		}
		if err := p.run(filepath.Join(postgresBin, "initdb"), "-D", filepath.Join(image, "data"), "-U", "imd", "-A", "trust",
			"-E", "UTF8", "--locale=C.UTF-8", "--no-sync", "--no-instructions"); err != nil {
			return err
		}
	}
	if err := p.run("cp", "-a", filepath.Join(postgresImage, "data"), filepath.Join(p.Dir, "data")); err != nil {
		return err
	}
	settings := append([]string{"max_connections=100", "fsync=off", "autovacuum=off", "shared_buffers=64MB"}, o.Settings...)
	if o.TLS {
		if err := p.certify(); err != nil {
			return err
		}
		settings = append(settings, "ssl=on", "ssl_cert_file="+filepath.Join(p.Dir, "server.crt"), "ssl_key_file="+filepath.Join(p.Dir, "server.key"))
	}
	for _, s := range settings {
		p.args = append(p.args, "-c", s)
	}
	return nil
}

// Start starts the server, again after Stop or Kill, and waits until it takes
// connections.
func (p *Postgres) Start() error {
	args := append([]string{"-D", filepath.Join(p.Dir, "data"), "-k", p.Dir, "-h", "127.0.0.1", "-p", strconv.Itoa(p.Port)}, p.args...)
	p.cmd = exec.Command(filepath.Join(postgresBin, "postgres"), args...)
	p.cmd.Dir = p.Dir
	p.cmd.Stdout, p.cmd.Stderr = p.log, p.log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: p.id, Pdeathsig: syscall.SIGQUIT}
	if err := p.cmd.Start(); err != nil {
		return err
	}
	done := make(chan struct{})
	p.done = done
	cmd := p.cmd
	go func() {
		_ = cmd.Wait() // how it ended shows in its log
		close(done)
	}()
	for l := NewLimit(ReadyIn); ; {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		c, err := pgx.Connect(ctx, p.DSN("postgres"))
		if err == nil {
			err = c.Close(ctx)
			cancel()
			return err
		}
		cancel()
		select {
		case <-done:
			return errors.New("the server ended")
		case <-time.After(20 * time.Millisecond):
		}
		if l.Over() {
			return err
		}
	}
}

// Log is what the server has written so far.
func (p *Postgres) Log() string { return p.log.String() }

// DSN names a database of the server, as user imd without TLS.
func (p *Postgres) DSN(database string) string {
	return fmt.Sprintf("postgres://imd@127.0.0.1:%d/%s?sslmode=disable", p.Port, database)
}

// TLSDSN names a database of the server, verifying its certificate.
func (p *Postgres) TLSDSN(database string) string {
	q := url.Values{"sslmode": {"verify-full"}, "sslrootcert": {p.TLSRoot()}}
	return fmt.Sprintf("postgres://imd@localhost:%d/%s?%s", p.Port, database, q.Encode())
}

// Database makes an empty database and returns its data source name. It lives
// as long as the server.
func (p *Postgres) Database(t testing.TB) string {
	t.Helper()
	name := fmt.Sprintf("t%d", databases.Add(1))
	p.Exec(t, "postgres", "CREATE DATABASE "+name)
	return p.DSN(name)
}

// Exec runs statements in a database.
func (p *Postgres) Exec(t testing.TB, database string, statements ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	c, err := pgx.Connect(ctx, p.DSN(database))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(ctx) // nothing is open
	for _, s := range statements {
		if _, err := c.Exec(ctx, s); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
}

// Stop ends the server in order, with its clients.
func (p *Postgres) Stop() {
	_ = p.cmd.Process.Signal(syscall.SIGINT) // it may have ended
	<-p.done
}

// Kill ends the server and all its processes as a crash of the machine would,
// but for what the kernel holds.
func (p *Postgres) Kill() {
	all := p.processes()
	for _, pid := range all {
		_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended
	}
	<-p.done
	for _, pid := range all { // a new server refuses to start beside a process of the old one
		for range 500 {
			if _, err := os.Stat(fmt.Sprintf("/proc/%d/cwd", pid)); err != nil || zombie(pid) {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
}

// Pause stops the server and all its processes where they are, until Resume. The
// server itself comes first, so that no process is begun while the others are listed.
func (p *Postgres) Pause() {
	_ = p.cmd.Process.Signal(syscall.SIGSTOP) // it may have ended
	for _, pid := range p.processes() {
		_ = syscall.Kill(pid, syscall.SIGSTOP) // it may have ended
	}
}

// Resume lets a paused server go on.
func (p *Postgres) Resume() {
	for _, pid := range p.processes() {
		_ = syscall.Kill(pid, syscall.SIGCONT) // it may have ended
	}
}

// Backends is how many processes the server has besides itself.
func (p *Postgres) Backends() int { return len(p.processes()) - 1 }

// CPU is the processor time that the server and its processes have used,
// without that of processes that have ended.
func (p *Postgres) CPU() time.Duration {
	var ticks int64
	for _, pid := range p.processes() {
		f := stat(pid)
		if len(f) > 14 {
			u, _ := strconv.ParseInt(f[11], 10, 64)
			s, _ := strconv.ParseInt(f[12], 10, 64)
			ticks += u + s
		}
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}

// processes are the server and its children.
func (p *Postgres) processes() []int {
	server := p.cmd.Process.Pid
	all := []int{server}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return all
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if f := stat(pid); len(f) > 1 && f[1] == strconv.Itoa(server) {
			all = append(all, pid)
		}
	}
	return all
}

// stat is what /proc tells of a process from its state on; nil if it has ended.
func stat(pid int) []string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil
	}
	return strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
}

func zombie(pid int) bool {
	f := stat(pid)
	return len(f) == 0 || f[0] == "Z"
}

// remove ends the server at once and removes its files.
func (p *Postgres) remove() {
	if p.cmd != nil && p.cmd.Process != nil {
		p.Resume()
		_ = p.cmd.Process.Signal(syscall.SIGQUIT) // it may have ended
		<-p.done
	}
	_ = os.RemoveAll(p.Dir)
	postgresCount--
}

// Serve makes a database with the schema of the binary under test, and returns
// the flags that let a node keep its messages there.
func (p *Postgres) Serve(t testing.TB) []string {
	t.Helper()
	return p.migrated(t, p.Database(t))
}

// serve is Serve over the server's socket in the file system, which processes in
// other networks reach too.
func (p *Postgres) serve(t testing.TB) []string {
	t.Helper()
	u, err := url.Parse(p.Database(t))
	if err != nil {
		t.Fatal(err)
	}
	q := url.Values{"host": {p.Dir}, "port": {u.Port()}, "sslmode": {"disable"}}
	u.Host, u.RawQuery = "", q.Encode()
	return p.migrated(t, u.String())
}

// migrated makes the schema in a database and gives the flags that name it.
func (p *Postgres) migrated(t testing.TB, dsn string) []string {
	t.Helper()
	flags := []string{"--postgres", dsn + "&imd_unsafe=yes"} // tests do without fsync
	ctx, cancel := context.WithTimeout(context.Background(), ReadyIn)
	defer cancel()
	if out, err := exec.CommandContext(ctx, Binary(t), append([]string{"migrate", "up"}, flags...)...).CombinedOutput(); err != nil {
		t.Fatalf("imd migrate up: %v\n%s", err, out)
	}
	return flags
}
