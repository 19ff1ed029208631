package segment

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/imdhq/imd/pkg/history"
	"github.com/imdhq/imd/pkg/ring"
	"github.com/imdhq/imd/pkg/store/postgres"
	"github.com/imdhq/imd/pkg/testenv"
	"github.com/imdhq/imd/pkg/verify"
)

func hash(text string) [32]byte { return sha256.Sum256([]byte(text)) }

// shown is how the history writes what the store keeps of a hash.
func shown(text string) string {
	h := hash(text)
	return hex.EncodeToString(h[:16])
}

const (
	senders = 12
	enough  = 100 // sends that were acknowledged, for a judgement to say something
	hot     = "g_hot"
	reader  = "reader"
	late    = "late" // writes when the schedule says so
)

// cluster is several processes on one database, senders, and a reader that
// follows every conversation by its cursor.
type cluster struct {
	t         *testing.T
	server    *testenv.Postgres
	db        *pgxpool.Pool
	dsn       string
	dir       string
	allocator string
	rec       *history.Recorder
	convs     []string

	mu       sync.Mutex
	rev      int64
	members  []string
	procs    map[string]*process
	frozen   map[string]bool // who hears of no new ring
	anywhere atomic.Bool     // senders ask any process

	ids    atomic.Int64
	acked  atomic.Int64
	stale  atomic.Int64 // refusals because another process owns it
	faults atomic.Bool
	begun  time.Time

	shown atomic.Int64 // of the hot conversation, by the reader
	wrote int64        // messages of the late writer; of the schedule alone
}

// process is one of them.
type process struct {
	name string
	cmd  *exec.Cmd
	in   chan request // full = the process does not read: the request is lost
	gone chan struct{}

	mu      sync.Mutex
	waiting map[int64]chan response
}

// newCluster starts processes; all are members of the ring.
func newCluster(t *testing.T, allocator string, names ...string) *cluster {
	c := &cluster{
		t: t, server: testenv.SharedPostgres(t), dir: t.TempDir(), allocator: allocator, procs: map[string]*process{}, frozen: map[string]bool{}, begun: time.Now(),
	}
	base := c.server.Database(t) + "&imd_unsafe=yes"
	if _, err := postgres.Migrate(t.Context(), base); err != nil {
		t.Fatal(err)
	}
	c.dsn = base + "&imd_allocator=" + allocator
	if allocator == "segment" {
		c.dsn += "&imd_step=10"
	}
	var err error
	if c.db, err = pgxpool.New(t.Context(), strings.Replace(base, "&imd_unsafe=yes", "", 1)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.db.Close)
	if c.rec, err = history.NewRecorder(filepath.Join(c.dir, "history")); err != nil {
		t.Fatal(err)
	}
	c.exec(`CREATE TABLE hold (process bigint, seconds float)`,
		`CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
			PERFORM pg_sleep(h.seconds) FROM hold h WHERE h.process = NEW.message_id >> 40;
			RETURN NEW;
		END $$`,
		`CREATE TRIGGER hold BEFORE INSERT ON entry FOR EACH ROW EXECUTE FUNCTION hold()`,
		`CREATE TABLE hold_shard (shard int, fence bigint)`,
		`ALTER FUNCTION imd_prove RENAME TO imd_prove_only`,
		`CREATE FUNCTION imd_prove(shards integer[], fences bigint[]) RETURNS void LANGUAGE plpgsql AS $$
		BEGIN
			PERFORM imd_prove_only(shards, fences);
			WHILE EXISTS (SELECT FROM hold_shard h, unnest(shards, fences) AS p (s, f) WHERE h.shard = p.s AND h.fence = p.f) LOOP
				PERFORM pg_sleep(0.01);
			END LOOP;
		END $$`)
	c.turn(names...)
	for _, n := range names {
		c.start(n)
	}
	users := []string{reader, late}
	for i := range senders {
		users = append(users, fmt.Sprint("u", i))
	}
	for _, conv := range append([]string{hot}, "g_1", "g_2", "g_3", "g_4", "g_5", "g_6") {
		c.convs = append(c.convs, conv)
		ok := false
		for try := 0; !ok && try < 50; try++ {
			r, _ := c.ask(c.home(conv), request{Conv: conv, Sender: "owner", CMID: "create-" + conv, Members: users})
			ok = r.OK
		}
		if !ok {
			t.Fatalf("%s was not made", conv)
		}
	}
	return c
}

func (c *cluster) exec(statements ...string) {
	c.t.Helper()
	for _, s := range statements {
		if _, err := c.db.Exec(context.Background(), s); err != nil {
			c.t.Fatal(err)
		}
	}
}

// number is how message ids name a process.
func number(name string) int64 { return int64(name[0]) }

// turn makes a new ring and tells it to all who hear.
func (c *cluster) turn(members ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rev++
	c.members = members
	for n := range c.procs {
		if !c.frozen[n] {
			c.tell(n, ringFile{c.rev, members})
		}
	}
}

// tell writes the ring of one process.
func (c *cluster) tell(name string, f ringFile) {
	raw, _ := json.Marshal(f)
	path := filepath.Join(c.dir, name+".ring")
	if err := os.WriteFile(path+".new", raw, 0o600); err != nil {
		c.t.Error(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		c.t.Error(err)
	}
}

// home is the process that the newest ring names.
func (c *cluster) home(conv string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return ringOf(c.members).Get(ring.ShardKey(ring.Shard(conv)))
}

// start starts a process, again after kill.
func (c *cluster) start(name string) {
	c.t.Helper()
	c.mu.Lock()
	c.tell(name, ringFile{c.rev, c.members})
	c.mu.Unlock()
	text, _ := json.Marshal(setup{Node: name, DSN: c.dsn, Ring: filepath.Join(c.dir, name+".ring")})
	p := &process{name: name, in: make(chan request, 256), gone: make(chan struct{}), waiting: map[int64]chan response{}}
	p.cmd = exec.Command(os.Args[0], "-test.run=^$")
	p.cmd.Env = append(os.Environ(), processVar+"="+string(text))
	p.cmd.Stderr = os.Stderr
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	in, err1 := p.cmd.StdinPipe()
	out, err2 := p.cmd.StdoutPipe()
	if err1 != nil || err2 != nil {
		c.t.Fatal(err1, err2)
	}
	if err := p.cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	ready := make(chan struct{})
	go func() {
		enc := json.NewEncoder(in)
		for {
			select {
			case r := <-p.in:
				_ = enc.Encode(r) // a process that is gone answers nothing
			case <-p.gone:
				return
			}
		}
	}()
	go func() {
		defer close(p.gone)
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			var r response
			if json.Unmarshal(lines.Bytes(), &r) != nil {
				continue
			}
			if r.ID == 0 {
				close(ready)
				continue
			}
			p.mu.Lock()
			ch := p.waiting[r.ID]
			delete(p.waiting, r.ID)
			p.mu.Unlock()
			if ch != nil {
				ch <- r
			}
		}
		_ = p.cmd.Wait() // it was killed
	}()
	for l, waits := testenv.NewLimit(testenv.ReadyIn), true; waits; {
		select {
		case <-ready:
			waits = false
		case <-p.gone:
			c.t.Fatalf("process %s does not start", name)
		case <-time.After(20 * time.Millisecond):
			if l.Over() {
				c.t.Fatalf("process %s is not ready", name)
			}
		}
	}
	c.mu.Lock()
	c.procs[name] = p
	c.mu.Unlock()
	c.t.Cleanup(func() {
		_ = p.cmd.Process.Kill() // it may be gone
		<-p.gone
	})
}

func (c *cluster) signal(name string, s syscall.Signal) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.procs[name].cmd.Process.Signal(s); err != nil {
		c.t.Error(err)
	}
}

// ask sends a request and waits for its answer as a gateway would; false = none
// came.
func (c *cluster) ask(name string, r request) (response, bool) {
	c.mu.Lock()
	p := c.procs[name]
	c.mu.Unlock()
	if p == nil {
		return response{}, false
	}
	r.ID = c.ids.Add(1)
	r.MID = number(name)<<40 | r.ID
	ch := make(chan response, 1)
	p.mu.Lock()
	p.waiting[r.ID] = ch
	p.mu.Unlock()
	timeout := time.NewTimer(1300 * time.Millisecond)
	defer timeout.Stop()
	select {
	case p.in <- r:
	default:
		return response{}, false
	}
	select {
	case a := <-ch:
		if a.Stale {
			c.stale.Add(1)
		}
		return a, true
	case <-timeout.C:
	case <-p.gone:
	}
	p.mu.Lock()
	delete(p.waiting, r.ID)
	p.mu.Unlock()
	return response{}, false
}

// target is whom a sender asks.
func (c *cluster) target(conv string, rng *rand.Rand) string {
	if rng.IntN(10) > 0 && !c.anywhere.Load() {
		return c.home(conv)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	names := slices.Sorted(mapKeys(c.procs))
	return names[rng.IntN(len(names))]
}

func mapKeys(m map[string]*process) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// send is one device: message after message, each again until it has a definite
// answer.
func (c *cluster) send(ctx context.Context, i int) {
	rng := rand.New(rand.NewPCG(uint64(i), 7))
	user, file := fmt.Sprint("u", i), fmt.Sprintf("client-%d.ops", i)
	counts := map[string]int64{}
	for n := 0; ctx.Err() == nil; n++ {
		conv := hot
		if rng.IntN(3) == 0 {
			conv = c.convs[rng.IntN(len(c.convs))]
		}
		counts[conv]++
		rec := history.Record{User: user, Device: "d", Conv: conv, CMID: fmt.Sprintf("%s-%d", user, n), N: counts[conv]}
		text := fmt.Sprintf("%s says %d", user, n)
		for !c.try(rec, file, text, rng) {
			time.Sleep(time.Duration(5+rng.IntN(30)) * time.Millisecond)
		}
	}
}

// try sends once and reports whether the answer was the last word.
func (c *cluster) try(rec history.Record, file, text string, rng *rand.Rand) bool {
	rec = c.tryAt(rec, file, text, func() string { return c.target(rec.Conv, rng) })
	return rec.Ack == history.AckOK || rec.Ack == history.AckFail
}

// tryAt sends once to a process, and returns what came back.
func (c *cluster) tryAt(rec history.Record, file, text string, at func() string) history.Record {
	call := rec
	call.T, call.Kind, call.Hash = c.rec.Now(), history.Invoke, shown(text)
	c.rec.Add(file, call)
	a, answered := c.ask(at(), request{Conv: rec.Conv, Sender: rec.User, CMID: rec.CMID, Text: text})
	rec.T, rec.Kind = c.rec.Now(), history.Return
	switch {
	case !answered:
		rec.Ack = history.AckUnknown
	case a.OK:
		rec.Ack, rec.MID, rec.Seq, rec.Prev, rec.Dup = history.AckOK, a.MID, a.Seq, a.Prev, a.Dup
		c.acked.Add(1)
	case a.Why == "not_member" || a.Why == "id_reused" || a.Why == "bad_request":
		rec.Ack, rec.Reason = history.AckFail, a.Why
	default:
		rec.Ack, rec.Reason = history.AckRetry, a.Why
	}
	c.rec.Add(file, rec)
	return rec
}

// write lets the late writer write to the hot conversation through a process,
// again and again until it is stored or the time is over; 0 = it is not, as far as
// is known, and the writer goes on with it the next time.
func (c *cluster) write(name string, within time.Duration) int64 {
	rec := history.Record{User: late, Device: "d", Conv: hot, CMID: fmt.Sprintf("%s-%d", late, c.wrote), N: c.wrote + 1}
	var answer history.Record
	to := func() string { return name }
	if !c.until(within, func() bool {
		answer = c.tryAt(rec, "client-late.ops", fmt.Sprintf("late %d", c.wrote), to)
		return answer.Ack == history.AckOK
	}) {
		return 0
	}
	c.wrote++
	return answer.Seq
}

// until waits until something holds, and reports whether it came to hold in time.
func (c *cluster) until(within time.Duration, holds func() bool) bool {
	for end := time.Now().Add(within); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}

// held reports whether an append waits behind its check.
func (c *cluster) held() bool {
	n := 0
	if err := c.db.QueryRow(c.t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'`).Scan(&n); err != nil {
		c.t.Error(err)
	}
	return n > 0
}

const sqlFollow = `SELECT e.seq, e.seq - e.back, e.message_id, e.sender, e.client_key, encode(e.body_hash, 'hex'), e.kind
  FROM entry e JOIN conversation c ON c.num = e.conv WHERE c.id = $1 AND e.seq > $2 ORDER BY e.seq`

// entry is a row of the log as the history has it.
func entry(row pgx.CollectableRow) (r history.Record, err error) {
	var key []byte
	var h *string
	var kind int
	err = row.Scan(&r.Seq, &r.Prev, &r.MID, &r.Sender, &key, &h, &kind)
	r.CMID, r.Entry = strings.TrimRight(string(key), "\x00"), "message"
	if h != nil {
		r.Hash = *h
	} else {
		r.Entry = "member_change"
	}
	return r, err
}

func (c *cluster) entries(conv string, after int64) []history.Record {
	rows, err := c.db.Query(context.Background(), sqlFollow, conv, after)
	if err != nil {
		c.t.Error(err)
		return nil
	}
	out, err := pgx.CollectRows(rows, entry)
	if err != nil {
		c.t.Error(err)
	}
	return out
}

// follow shows every conversation by its cursor, until ctx is done and all is
// shown.
func (c *cluster) follow(ctx context.Context) {
	have := map[string]int64{}
	for _, conv := range c.convs {
		c.view(history.Record{Kind: history.Open, Conv: conv})
	}
	for done := false; ; {
		for _, conv := range c.convs {
			for _, e := range c.entries(conv, have[conv]) {
				c.view(history.Record{Kind: history.Show, Conv: conv, Seq: e.Seq, Prev: e.Prev, MID: e.MID, Sender: e.Sender, CMID: e.CMID, Hash: e.Hash, Entry: e.Entry})
				have[conv] = e.Seq
			}
			if conv == hot {
				c.shown.Store(have[conv])
			}
		}
		if done {
			break
		}
		done = ctx.Err() != nil
		time.Sleep(2 * time.Millisecond)
	}
	c.view(history.Record{Kind: history.Settled})
}

func (c *cluster) view(r history.Record) {
	r.T, r.User, r.Device = c.rec.Now(), reader, "d"
	c.rec.Add("reader.view", r)
}

// fault records that something is broken until the returned function is called.
func (c *cluster) fault(name string) (over func()) {
	c.faults.Store(true)
	c.rec.Add("faults.log", history.Record{T: c.rec.Now(), Kind: history.Fault, Name: name})
	return func() {
		c.rec.Add("faults.log", history.Record{T: c.rec.Now(), Kind: history.Fault, Name: name, Stop: true})
	}
}

// run lets the senders write while script breaks things, and judges.
func (c *cluster) run(script func()) *verify.Report {
	c.t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	var writing, reading sync.WaitGroup
	for i := range senders {
		writing.Go(func() { c.send(ctx, i) })
	}
	rctx, end := context.WithCancel(context.Background())
	reading.Go(func() { c.follow(rctx) })
	time.Sleep(300 * time.Millisecond)
	script()
	healed := c.rec.Now()
	time.Sleep(700 * time.Millisecond)
	// A slow machine needs longer for as many sends as a judgement wants.
	for l := testenv.NewLimit(10 * time.Second); c.acked.Load() < enough && !l.Over(); {
		time.Sleep(20 * time.Millisecond)
	}
	stop()
	writing.Wait()
	end()
	reading.Wait()
	for _, conv := range c.convs {
		for _, e := range c.entries(conv, 0) {
			e.Kind, e.Conv = history.Row, conv
			c.rec.Add("db.final", e)
		}
		c.rec.Add("members.final", history.Record{Kind: history.Span, User: reader, Conv: conv})
		c.rec.Add("members.final", history.Record{Kind: history.Span, User: late, Conv: conv})
		for i := range senders {
			c.rec.Add("members.final", history.Record{Kind: history.Span, User: fmt.Sprint("u", i), Conv: conv})
		}
	}
	if !c.faults.Load() {
		healed = 0
	}
	if err := c.rec.Close(history.Run{Server: "test", Allocator: c.allocator, Healed: healed}); err != nil {
		c.t.Fatal(err)
	}
	h, err := verify.Load(filepath.Join(c.dir, "history"))
	if err != nil {
		c.t.Fatal(err)
	}
	return verify.Judge(h, verify.Options{})
}

// found lists the broken promises of a report, but for availability, which is
// not what these tests ask for.
func found(r *verify.Report) (out []string) {
	for _, i := range r.Invariants {
		if i.Found == 0 || i.ID == "I18" {
			continue
		}
		text := ""
		if len(i.Violations) > 0 {
			text = i.Violations[0].Text
		}
		out = append(out, fmt.Sprintf("%s (%s): %d, the first: %s", i.ID, i.Title, i.Found, text))
	}
	return out
}
