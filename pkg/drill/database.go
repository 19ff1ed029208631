package drill

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/imdhq/imd/pkg/faultproxy"
	"github.com/imdhq/imd/pkg/history"
	"github.com/imdhq/imd/pkg/store/postgres/tamper"
)

const (
	// postgresBin is where Debian keeps the programs of the server.
	postgresBin                 = "/usr/lib/postgresql/15/bin"
	postgresPort                = 5432
	databaseName, databaseOwner = "imd", "imd"
	// schedulerElection is the election whose leaders have effects in the database.
	schedulerElection = "scheduler"
	// databaseProcess is how the drill calls it.
	databaseProcess = "postgres"
	prepareLimit    = time.Minute // for a new cluster, and for the schema
)

// database is the Postgres server of a drill. Nodes reach it through proxies of
// their own.
type database struct {
	server
	dir string // its files: not below the drill's folder, which is closed to the user it runs as
	id  *syscall.Credential
	sql *tamper.Server
	// users are the nodes: each has a user of its own, by which the database knows whose
	// an effect is.
	users []string
}

// server is a process of the drill that is no part of imd, and the ways to it.
type server struct {
	*node
	address string
	front   string                       // where the ways begin
	ways    map[string]*faultproxy.Proxy // by node
}

// way opens a node's way to the server.
func (s *server) way(node string) (string, error) {
	p, err := faultproxy.Listen(s.front+":0", s.address)
	if err != nil {
		return "", err
	}
	s.ways[node] = p
	return p.Address(), nil
}

// front is where the ways of nodes to servers begin.
func (d *drill) front() string {
	if d.Layout.Hosts {
		return storesHost
	}
	return "127.0.0.1"
}

// cut swallows what a node and the server say to each other, or heals that.
func (s *server) cut(node string, cut bool) {
	s.ways[node].Set(faultproxy.Mode{Blackhole: cut})
	if !cut {
		s.ways[node].Reset() // the streams have holes
	}
}

// closeWays ends the ways.
func (s *server) closeWays() {
	for _, p := range s.ways {
		p.Close()
	}
}

// postgresMissing says why there is no Postgres here; "" = there is.
func postgresMissing() string {
	if _, err := os.Stat(filepath.Join(postgresBin, "postgres")); err != nil {
		return "wants Postgres 15: apt-get install postgresql-15"
	}
	if _, err := unprivileged(); err != nil {
		return err.Error()
	}
	return ""
}

// unprivileged is the user that Postgres runs as; nil = as this process.
func unprivileged() (*syscall.Credential, error) {
	if os.Getuid() != 0 { // the server refuses to run as root
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
		gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
		if err := errors.Join(err1, err2); err != nil {
			return nil, err
		}
		return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
	}
	return nil, errors.New("wants a user postgres or nobody, as Postgres does not run as root")
}

// newDatabase makes a cluster; it does not start the server.
func newDatabase(d *drill) (_ *database, err error) {
	db := &database{server: server{node: d.child(databaseProcess), front: d.front(), address: net.JoinHostPort(loopback(), strconv.Itoa(postgresPort)), ways: map[string]*faultproxy.Proxy{}}}
	if db.id, err = unprivileged(); err != nil {
		return nil, err
	}
	if db.dir, err = os.MkdirTemp("", "imd-drill-pg-"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(db.dir))
		}
	}()
	if db.id != nil {
		if err := os.Chown(db.dir, int(db.id.Uid), int(db.id.Gid)); err != nil {
			return nil, err
		}
	}
	data := filepath.Join(db.dir, "data")
	ctx, cancel := context.WithTimeout(d.ctx, prepareLimit)
	defer cancel()
	made := exec.CommandContext(ctx, filepath.Join(postgresBin, "initdb"), "-D", data, "-U", databaseOwner, "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8", "--no-sync", "--no-instructions")
	made.Dir, made.SysProcAttr = db.dir, &syscall.SysProcAttr{Credential: db.id, Pdeathsig: syscall.SIGKILL}
	if out, err := made.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("make a Postgres cluster: %w\n%s", err, out)
	}
	db.sql = tamper.New(db.dsn(databaseOwner, db.address, "postgres"), db.dsn(databaseOwner, db.address, databaseName))
	for _, n := range d.Layout.Nodes {
		db.users = append(db.users, n.Name)
	}
	db.exe, db.credential, db.deathSignal, db.died = filepath.Join(postgresBin, "postgres"), db.id, syscall.SIGQUIT, d.serverDied
	db.work = db.dir
	db.check = func() bool { return db.sql.Ready(d.ctx) }
	db.args = []string{"-D", data, "-k", db.dir, "-h", loopback(), "-p", strconv.Itoa(postgresPort),
		"-c", "max_connections=100", "-c", "superuser_reserved_connections=0", "-c", "shared_buffers=64MB"}
	return db, nil
}

// dsn names a database at an address, for a user.
func (db *database) dsn(user, address, name string) string {
	return fmt.Sprintf("postgres://%s@%s/%s?sslmode=disable", user, address, name)
}

// create starts the server for the first time and gives it the schema.
func (db *database) create(ctx context.Context, exe string) error {
	if err := db.begin(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, prepareLimit)
	defer cancel()
	if err := db.sql.Create(ctx, databaseName); err != nil {
		return fmt.Errorf("make a database: %w", err)
	}
	out, err := exec.CommandContext(ctx, exe, "migrate", "up", "--postgres", db.dsn(databaseOwner, db.address, databaseName)).CombinedOutput()
	if err != nil {
		return fmt.Errorf("make the schema: %w\n%s", err, out)
	}
	return db.sql.WatchLeaders(ctx, schedulerElection, db.users)
}

// crash ends all processes of the server at once.
func (db *database) crash() {
	all := db.processes()
	db.kill()
	for _, pid := range all {
		_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended
	}
	for end := time.Now().Add(stopLimit); time.Now().Before(end); time.Sleep(10 * ms) { // a new server does not start beside processes of the old one
		left := false
		for _, pid := range all {
			f := processState(pid)
			left = left || len(f) > 0 && f[0] != "Z"
		}
		if !left {
			return
		}
	}
}

// freeze stops all processes of the server where they are, or lets them go on.
func (db *database) freeze(stop bool) error {
	s := syscall.SIGCONT
	if stop {
		s = syscall.SIGSTOP
	}
	if err := db.signal(s); err != nil { // first: it makes no further ones meanwhile
		return err
	}
	for _, pid := range db.processes() {
		_ = syscall.Kill(pid, s) // it may have ended
	}
	return nil
}

// processes are the children of the server.
func (db *database) processes() (all []int) {
	server := db.pid()
	entries, err := os.ReadDir("/proc")
	if err != nil || server == 0 {
		return nil
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if f := processState(pid); len(f) > 1 && f[1] == strconv.Itoa(server) {
			all = append(all, pid)
		}
	}
	return all
}

// processState is what /proc tells of a process: its state, its parent and more;
// nil if there is none.
func processState(pid int) []string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil
	}
	return strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
}

// collect takes the tokens that the database gave to nodes, and what they did with them,
// into the history.
func (db *database) collect(ctx context.Context, rec *history.Recorder) error {
	all, err := db.sql.Acts(ctx)
	if err != nil {
		return fmt.Errorf("read who was elected: %w", err)
	}
	for _, a := range all {
		r := history.Record{T: max(rec.At(a.At), 1), Kind: history.Claim, Name: a.Name, User: a.Holder, N: a.Token, Ack: history.AckOK}
		if a.Effect != "" {
			r.Kind, r.Reason = history.Effect, a.Effect
		}
		rec.Add("leader.log", r)
	}
	return nil
}

// close ends the server and removes its files.
func (db *database) close() error {
	db.crash()
	db.revive.Wait()
	db.closeWays()
	return os.RemoveAll(db.dir)
}

// serverDied takes note of a server of the drill that ended by itself, which is no
// fault of the nodes.
func (d *drill) serverDied(n *node, why string, _ bool) {
	d.trouble("%s ended by itself: %s%s", n.spec.Name, why, n.lastWords())
}
