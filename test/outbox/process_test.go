package outbox

import (
	"bufio"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"
	"google.golang.org/protobuf/proto"

	"github.com/imdhq/imd/modules/scheduler"
	"github.com/imdhq/imd/pkg/faultproxy"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/redis"
	"github.com/imdhq/imd/pkg/status"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/pkg/store/postgres"
	routesredis "github.com/imdhq/imd/pkg/store/redis"
	"github.com/imdhq/imd/pkg/testenv"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// goesOnWithin is how long after the end of a leader the next one may take until
// the work that was cut off is done.
const goesOnWithin = 4 * time.Second

// candidate is one process with the role scheduler. It reaches etcd and Postgres
// through proxies of its own, so that it can be cut off.
type candidate struct {
	*testenv.Node
	name string
	ways []*faultproxy.Proxy
}

func (c *candidate) cut(m faultproxy.Mode) {
	for _, p := range c.ways {
		p.Set(m)
	}
}

// office is three of them over one Postgres, and a node with the other roles.
type office struct {
	t             testing.TB
	db            *pgx.Conn
	messages      store.MessageStore
	routes        *routesredis.Routes
	redis         *testenv.Redis
	people        []*candidate
	front         *testenv.Node
	listener      *testenv.Client // at the front; is told announcements
	heard         map[int64]int   // announcements, and how often
	hooks, pushes *receiver
	door          *receiver    // of who comes and goes
	gate          sync.RWMutex // held by a test: the provider does not answer
	asked         chan string  // users of whom the provider is told
	sent          int
	later         int // scheduled messages
	came          int // users
	days          int // of retention
}

func newOffice(t testing.TB) *office {
	testenv.Binary(t) // what follows has its own time
	pg := testenv.StartPostgres(t, testenv.PostgresOptions{})
	flags := pg.Serve(t)
	dsn, err := url.Parse(flags[1])
	if err != nil {
		t.Fatal(err)
	}
	o := &office{t: t, asked: make(chan string, 64), heard: map[int64]int{}}
	plain := *dsn
	q := plain.Query()
	q.Del("imd_unsafe")
	plain.RawQuery = q.Encode()
	if o.db, err = pgx.Connect(t.Context(), plain.String()); err != nil {
		t.Fatal(err)
	}
	st, err := postgres.Open(t.Context(), postgres.Options{DSN: dsn.String()})
	if err != nil {
		t.Fatal(err)
	}
	o.messages = st
	t.Cleanup(func() {
		_ = o.db.Close(t.Context()) // its server ends too
		if err := st.Close(); err != nil {
			t.Error(err)
		}
	})
	o.hooks, o.door = newReceiver(t, yes), newReceiver(t, yes)
	o.pushes = newReceiver(t, func(one told) int {
		select {
		case o.asked <- one.UserID:
		default:
		}
		o.gate.RLock()
		defer o.gate.RUnlock()
		return http.StatusNoContent
	})
	etcd := testenv.StartEtcd(t, 1)
	o.redis = testenv.StartRedis(t)
	if o.routes, err = routesredis.Open(redis.Config{URL: o.redis.URL()}, zap.NewNop()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = o.routes.Close() }) // of a server that ends too
	key := keyFile(t)
	for i := range 3 {
		o.people = append(o.people, o.candidate(fmt.Sprint("c", i), dsn, etcd.URLs()[0], key))
	}
	o.front = &testenv.Node{Dir: filepath.Join(t.TempDir(), "front"), Env: append(os.Environ(), "IMD_REDIS_URL="+o.redis.URL()), Args: []string{
		"--roles=gateway,state,push", "--set", "node.name=front", "--postgres", dsn.String(), "--set", "storage.routes=redis",
		"--set", "controlplane.endpoints=" + etcd.URLs()[0], "--set", "peers.listen=127.0.0.1:0",
	}}
	o.front.Begin(t)
	o.listener = testenv.Dial(t, o.front.URL(), protocol.Proto)
	none := int64(0)
	hello := &clientv1.Hello{Version: protocol.Version, Token: o.front.Token("listener"), DeviceId: "d", AnnouncementSeq: &none}
	if f := o.listener.Request(&clientv1.ClientFrame{Kind: &clientv1.ClientFrame_Hello{Hello: hello}}); f.GetWelcome() == nil {
		t.Fatalf("hello: %v", f)
	}
	o.listener.MustSend(testenv.ToUser("zoe", "counted, and no event, as nobody has led yet"))
	return o
}

// tellings is how often the listener was told an announcement.
func (o *office) tellings(seq int64) int {
	for {
		f := o.listener.TakeWithin(time.Millisecond, func(f *clientv1.ServerFrame) bool { return f.GetAnnouncement() != nil })
		if f == nil {
			return o.heard[seq]
		}
		o.heard[f.GetAnnouncement().Seq]++
	}
}

func (o *office) candidate(name string, dsn *url.URL, etcd, key string) *candidate {
	way := func(target string) *faultproxy.Proxy {
		p, err := faultproxy.Listen("127.0.0.1:0", target)
		if err != nil {
			o.t.Fatal(err)
		}
		o.t.Cleanup(p.Close)
		return p
	}
	plane, base := way(strings.TrimPrefix(etcd, "http://")), way(dsn.Host)
	own := *dsn
	own.Host = base.Address()
	c := &candidate{name: name, ways: []*faultproxy.Proxy{plane, base}, Node: &testenv.Node{Dir: filepath.Join(o.t.TempDir(), name), Args: []string{
		"--roles=scheduler", "--set", "node.name=" + name, "--postgres", own.String(), "--set", "storage.routes=redis",
		"--set", "controlplane.endpoints=http://" + plane.Address(), "--set", "peers.listen=127.0.0.1:0",
	}}}
	o.redis.MustDo("ACL", "SETUSER", name, "on", "nopass", "~*", "&*", "+@all") // by which its connections are known
	c.Env = append(os.Environ(),
		fmt.Sprintf(`IMD_WEBHOOKS_RECEIVERS=[{"name":"shop","url":"%s","key_file":"%s"},{"name":"door","url":"%s","key_file":"%s","events":["user.online","user.offline"]}]`,
			o.hooks.srv.URL, key, o.door.srv.URL, key),
		"IMD_REDIS_URL=redis://"+name+":any@"+o.redis.Addr, "IMD_OFFLINE_PUSH_URL="+o.pushes.srv.URL, "IMD_OFFLINE_PUSH_KEY_FILE="+key)
	return c
}

// exec runs a statement.
func (o *office) exec(query string, args ...any) {
	o.t.Helper()
	if _, err := o.db.Exec(o.t.Context(), query, args...); err != nil {
		o.t.Fatalf("%s: %v", query, err)
	}
}

// number reads one; -1 if there is no row.
func (o *office) number(query string, args ...any) (n int64) {
	o.t.Helper()
	if err := o.db.QueryRow(o.t.Context(), query, args...).Scan(&n); err == pgx.ErrNoRows {
		return -1
	} else if err != nil {
		o.t.Fatalf("%s: %v", query, err)
	}
	return n
}

// send commits a message of ann to a user of its own.
func (o *office) send() (user string) {
	o.t.Helper()
	o.sent++
	user = fmt.Sprint("bob", o.sent)
	content, err := proto.Marshal(&clientv1.Content{Value: &clientv1.Content_Text{Text: "to " + user}})
	if err != nil {
		o.t.Fatal(err)
	}
	out, err := o.messages.Append(o.t.Context(), []store.AppendRow{{
		Conversation: im.ConversationID(protocol.DirectID("ann", user)), Peer: im.UserID(user), Sender: "ann",
		ClientMessageID: im.ClientMessageID(fmt.Sprintf("%08x-0000-4000-8000-000000000000", o.sent)), BodyHash: sha256.Sum256(content),
		MessageID: im.MessageID(o.sent), Kind: clientv1.EntryKind_ENTRY_KIND_MESSAGE, Content: content, Countable: true,
	}})
	if err != nil || out[0].Err != nil {
		o.t.Fatalf("append: %v, %+v", err, out)
	}
	return user
}

// num is the number of the conversation with a user.
func (o *office) num(user string) int64 {
	return o.number(`SELECT num FROM conversation WHERE id = $1`, protocol.DirectID("ann", user))
}

// leader is who holds the newest token.
func (o *office) leader() (*candidate, int64) {
	o.t.Helper()
	var holder string
	var token int64
	if err := o.db.QueryRow(o.t.Context(), `SELECT holder, token FROM fence WHERE name = $1`, scheduler.Election).Scan(&holder, &token); err != nil {
		return nil, 0
	}
	for _, c := range o.people {
		if strings.HasPrefix(holder, c.name+"/") {
			return c, token
		}
	}
	return nil, token
}

// within waits until something is so.
func (o *office) within(limit time.Duration, what string, so func() bool) {
	o.t.Helper()
	for end := time.Now().Add(limit); !so(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			o.t.Fatalf("not within %v: %s", limit, what)
		}
	}
}

// held keeps leaders in the middle of what they do: they wait for what a
// transaction holds.
func (o *office) held(statements ...string) (release func()) {
	o.t.Helper()
	other, err := pgx.ConnectConfig(o.t.Context(), o.db.Config())
	if err != nil {
		o.t.Fatal(err)
	}
	tx, err := other.Begin(o.t.Context())
	for _, s := range statements {
		if err == nil {
			_, err = tx.Exec(o.t.Context(), s)
		}
	}
	if err != nil {
		o.t.Fatal(err)
	}
	return func() {
		o.t.Helper()
		if err := tx.Rollback(o.t.Context()); err != nil {
			o.t.Fatal(err)
		}
		_ = other.Close(o.t.Context()) // it has nothing open
	}
}

// presenceStream is what the leader does beside its jobs.
const presenceStream = "presence"

// middle is work of some jobs, in whose middle a leader ends.
type middle struct {
	jobs  []string
	after []string      // jobs in whose middle it does not end; they only have to go on under the next leader
	calls []string      // what the server is asked meanwhile, and what waits
	waits time.Duration // that the work takes anew under each leader
	// begin brings the leader there. release lets it, or the next one, go on; done
	// tells whether all of the work is done, once.
	begin func(o *office) (release func(), done func() bool)
}

// busy waits until the leader has been seen in the middle of all of the calls, and
// is in that of the n-th. Calls that wait for long fail, and are made again.
func (o *office) busy(m middle, n int) {
	o.t.Helper()
	seen := map[string]bool{}
	o.within(15*time.Second, fmt.Sprintf("the leader is in the middle of %v", m.jobs), func() bool {
		now := map[string]bool{}
		for _, call := range m.calls {
			if call == redisPaused {
				now[call] = o.paused()
			} else {
				now[call] = o.number(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%' || $1 || '%'`, call) > 0
			}
			seen[call] = seen[call] || now[call]
		}
		for _, call := range m.calls {
			if !seen[call] {
				return false
			}
		}
		return now[m.calls[n%len(m.calls)]]
	})
}

// paused reports whether the leader waits for an answer of the route store, whoever else does.
func (o *office) paused() bool {
	o.t.Helper()
	c, _ := o.leader()
	if c == nil {
		return false
	}
	conn, err := net.DialTimeout("tcp", o.redis.Addr, time.Second)
	if err != nil {
		o.t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(testenv.Patience)) // what fails then is the reading
	if _, err := io.WriteString(conn, "CLIENT LIST\r\n"); err != nil {
		o.t.Fatal(err)
	}
	var size int
	in := bufio.NewReader(conn)
	if _, err := fmt.Fscanf(in, "$%d\r\n", &size); err != nil {
		o.t.Fatalf("the clients of Redis: %v", err)
	}
	list := make([]byte, size)
	if _, err := io.ReadFull(in, list); err != nil {
		o.t.Fatalf("the clients of Redis: %v", err)
	}
	for line := range strings.Lines(string(list)) {
		is := strings.Fields(line)
		if slices.Contains(is, "user="+c.name) && slices.ContainsFunc(is, func(s string) bool { return strings.HasPrefix(s, "flags=") && strings.Contains(s, "b") }) {
			return true
		}
	}
	return false
}

// ends lets the leader end in one way in the middle of work, in that of its n-th
// call, and waits until the next one has done it. It returns how long that took.
func (o *office) ends(m middle, n int, how string) (took time.Duration) {
	o.t.Helper()
	release, done := m.begin(o)
	o.busy(m, n)
	first, token := o.leader()
	if first == nil {
		o.t.Fatal("nobody leads")
	}
	began := time.Now()
	switch how {
	case "kill":
		first.Kill()
	case "pause":
		first.Signal(syscall.SIGSTOP)
	case "cut":
		first.cut(faultproxy.Mode{Blackhole: true})
	}
	release()
	o.within(goesOnWithin+m.waits, fmt.Sprintf("after %s of its leader another one does %v", how, m.jobs), func() bool {
		next, now := o.leader()
		return now > token && next != first && done()
	})
	took = time.Since(began)
	o.t.Logf("%s in the middle of %s: done %d ms later", how, strings.Join(m.jobs, ", "), took.Milliseconds())
	switch how {
	case "kill":
		first.Start()
	case "pause":
		first.Signal(syscall.SIGCONT)
	case "cut":
		first.cut(faultproxy.Mode{})
	}
	return took
}

// events is how many there are of a message to a user.
func (o *office) events(user string) int64 {
	return o.number(`SELECT count(*) FROM event WHERE conv = $1 AND seq = 1`, o.num(user))
}

// what is over goes: the work of the first leader there is.
var ending = middle{jobs: []string{"expire", "trim", "forget"}, calls: []string{"imd_expire(", "imd_trim_events(", "imd_trim_scheduled("}, begin: func(o *office) (func(), func() bool) {
	o.exec(`INSERT INTO scheduled (id, due_ms, next_ms, created_ms, ended_ms, state, sender, conversation_id, peer, request_id, client_id, body_hash, body)
	  SELECT n, 1, 1, 1, 1, 3, 'ann', 'c', '', 'r' || n, 'k', '', '' FROM generate_series(1, 1200) n`)
	o.exec(`INSERT INTO announcement (seq, created_ms, expires_ms, request_id, body) VALUES (1, 1, 2, 'r', 'long ago')`)
	o.exec(`UPDATE announcing SET last_seq = 1`)
	o.exec(`INSERT INTO revocation SELECT 'bob', 'l' || n, 0, 1, 1 FROM generate_series(1, 700) n`)
	o.exec(`INSERT INTO event (pos, conv, seq, at_ms, kind, user_id) VALUES (1, 0, 0, 1, 3, 'bob')`)
	o.exec(`UPDATE outbox SET last_pos = 1`)
	release := o.held(`LOCK TABLE revocation, event, scheduled IN SHARE MODE`)
	for _, c := range o.people {
		c.Begin(o.t)
	}
	return release, func() bool {
		return o.number(`SELECT count(*) FROM revocation`) == 0 && o.number(`SELECT count(*) FROM event WHERE pos = 1`) == 0 &&
			o.number(`SELECT (SELECT count(*) FROM scheduled) + (SELECT count(*) FROM announcement)`) == 0
	}
}}

// A message is due and handed to the state role, and an announcement is new.
var sending = middle{jobs: []string{"scheduled", "announce"}, calls: []string{"imd_append_transaction(", "FROM announcing"}, begin: func(o *office) (func(), func() bool) {
	o.later++
	user := fmt.Sprint("eve", o.later)
	content, err := proto.Marshal(&clientv1.Content{Value: &clientv1.Content_Text{Text: "to " + user}})
	if err != nil {
		o.t.Fatal(err)
	}
	now := time.Now().Truncate(time.Millisecond)
	a, _, err := o.messages.PutAnnouncement(o.t.Context(), store.Announcement{RequestID: im.ClientMessageID(user), Text: user, Created: now, Expires: now.Add(time.Hour)})
	if err != nil {
		o.t.Fatal(err)
	}
	release := o.held(`LOCK TABLE entry IN SHARE MODE`, `LOCK TABLE announcing IN ACCESS EXCLUSIVE MODE`)
	conv := protocol.DirectID("ann", user)
	_, _, err = o.messages.PutScheduled(o.t.Context(), store.Scheduled{
		ID: int64(o.later), RequestID: im.ClientMessageID(user), ClientMessageID: im.ClientMessageID(fmt.Sprintf("%08x-0000-4000-9000-000000000000", o.later)),
		Conversation: im.ConversationID(conv), Peer: im.UserID(user), Sender: "ann", Content: content, BodyHash: sha256.Sum256(content), Due: now, Created: now,
	}, 1000)
	if err != nil {
		o.t.Fatal(err)
	}
	return release, func() bool {
		return o.number(`SELECT state FROM scheduled WHERE id = $1`, o.later) == int64(store.ScheduledSent) && o.number(`SELECT head FROM conversation WHERE id = $1`, conv) == 1 &&
			o.tellings(a.Seq) == 1
	}
}}

// counted is how many messages the cluster counted, as the front shows it, and who
// added them up.
func (o *office) counted() (messages int64, leader string) {
	o.t.Helper()
	req, err := http.NewRequestWithContext(o.t.Context(), http.MethodGet, o.front.OpsURL()+"/statusz/stats", nil)
	if err != nil {
		o.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+o.front.AdminKey())
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		o.t.Fatal(err)
	}
	defer res.Body.Close()
	var s status.StatsStatus
	if err := json.NewDecoder(res.Body).Decode(&s); err != nil {
		o.t.Fatal(err)
	}
	for _, m := range s.Minutes {
		messages += m.Messages
	}
	return messages, s.Leader
}

// redisPaused is in the place of a call: that the leader asks the route store to change
// something, and is not answered.
const redisPaused = "a change of routes"

// Somebody comes, of which receivers are told; a gateway is gone, whose routes are
// removed after 3 s; and every 5 s is added up what the nodes counted. That waits in no store:
// the next leader is to go on with it, and to count what was counted before.
var watching = middle{jobs: []string{presenceStream, "sweep"}, after: []string{"tally"}, calls: []string{"imd_put_events(", redisPaused}, waits: 5 * time.Second, begin: func(o *office) (func(), func() bool) {
	var before int64
	o.within(15*time.Second, "what was sent is counted", func() bool { before, _ = o.counted(); return before > 0 })
	o.came++
	user := fmt.Sprint("fay", o.came)
	release := o.held(`LOCK TABLE user_online IN SHARE MODE`)
	testenv.Login(o.t, o.front.URL(), protocol.Proto, o.front.Token(user), "d")
	if _, err := o.routes.Claim(o.t.Context(), store.Route{User: "gus", Session: im.SessionID(user), Login: "l", Device: "d", Node: "gone", Boot: user}, store.Policy{}); err != nil {
		o.t.Fatal(err)
	}
	o.redis.MustDo("CLIENT", "PAUSE", "60000", "WRITE")
	return func() { release(); o.redis.MustDo("CLIENT", "UNPAUSE") }, func() bool {
		homes, err := o.routes.Homes(o.t.Context())
		sum, by := o.counted()
		c, _ := o.leader()
		most := int64(1 + o.later) // through the front; what is stored for a caller that is gone is not counted
		return err == nil && len(homes) == 1 && c != nil && by == c.name && sum >= before && sum <= most && o.number(`SELECT count(*) FROM event WHERE kind = 101 AND user_id = $1`, user) == 1
	}
}}

// middles are all of them.
var middles = []middle{ending, keeping, telling, sending, watching}

// Every job of the table is in the middle of some work in these tests, or has to go on after
// it.
func TestEveryJobHasAMiddle(t *testing.T) {
	want := []string{presenceStream}
	for _, j := range scheduler.Jobs() {
		want = append(want, j.Name)
	}
	var have []string
	for _, m := range middles {
		have = append(append(have, m.jobs...), m.after...)
	}
	slices.Sort(want)
	slices.Sort(have)
	if !slices.Equal(have, want) {
		t.Errorf("leaders end in the middle of %v, the jobs are %v", have, want)
	}
}

// A message becomes an event, an older one goes, and of a third its user was
// just notified.
var keeping = middle{jobs: []string{"gather", "retain", "push"}, calls: []string{"imd_gather(", "imd_retain(", "imd_settle_pushes("}, begin: func(o *office) (func(), func() bool) {
	old := o.send()
	o.within(5*time.Second, "the old message is an event", func() bool { return o.events(old) == 1 })
	o.exec(`UPDATE entry SET server_ms = server_ms - 864000000 WHERE conv = $1`, o.num(old))
	o.gate.Lock()
	pushed := o.send()
	o.within(10*time.Second, "the provider is asked", func() bool {
		select {
		case user := <-o.asked:
			return user == pushed
		default:
			return false
		}
	})
	release := o.held(`LOCK TABLE event, push IN SHARE MODE`, fmt.Sprintf(`SELECT 1 FROM entry WHERE conv = %d FOR UPDATE`, o.num(old)))
	o.gate.Unlock()
	fresh := o.send()
	if o.days++; o.days%2 == 0 {
		o.exec(`UPDATE conversation SET kind = 2 WHERE num = $1`, o.num(old)) // as if it were a group
		o.set(fmt.Sprint("retention.group_days=", o.days))
	} else {
		o.set(fmt.Sprint("retention.direct_days=", o.days))
	}
	return release, func() bool {
		return o.events(fresh) == 1 &&
			o.number(`SELECT kept FROM conversation WHERE num = $1`, o.num(old)) == 1 && o.number(`SELECT count(*) FROM entry WHERE conv = $1 AND body IS NOT NULL`, o.num(old)) == 0 &&
			o.number(`SELECT kept FROM conversation WHERE num = $1`, o.num(fresh)) == 0 &&
			o.number(`SELECT state FROM push WHERE user_id = $1`, pushed) == 2
	}
}}

// An event is told, and its user is to be notified.
var telling = middle{jobs: []string{"webhooks", "handover"}, calls: []string{"imd_save_receiver("}, begin: func(o *office) (func(), func() bool) {
	o.within(5*time.Second, "everything is told", func() bool {
		return o.number(`SELECT count(*) FROM receiver WHERE cursor < (SELECT last_pos FROM outbox) AND name <> 'offline/late'`) == 0
	})
	release := o.held(`LOCK TABLE receiver IN SHARE MODE`)
	user := o.send()
	return release, func() bool {
		return o.number(`SELECT count(*) FROM push WHERE user_id = $1`, user) == 1 &&
			o.number(`SELECT count(*) FROM receiver WHERE name = 'shop' AND cursor >= (SELECT pos FROM event WHERE conv = $1)`, o.num(user)) == 1
	}
}}

// set changes a setting.
func (o *office) set(what string) {
	o.t.Helper()
	c, _ := o.leader()
	if c == nil {
		o.t.Fatal("nobody leads")
	}
	if out, err := exec.Command(testenv.Binary(o.t), "settings", "set", what, "--data-dir", c.Dir).CombinedOutput(); err != nil {
		o.t.Fatalf("%v\n%s", err, out)
	}
}

// Processes that lead are killed, paused and cut off in the middle of jobs. The
// next one goes on within 4 s, nothing is lost, and nothing happens twice.
func TestLeadingProcessesEndInEachJob(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	o.ends(ending, 0, "kill")
	o.ends(keeping, 0, "kill")
	o.ends(telling, 0, "kill")
	o.ends(sending, 0, "kill")
	o.ends(watching, 0, "kill")
	o.ends(keeping, 1, "pause")
	o.ends(telling, 0, "cut")
	o.once()
}

// BenchmarkLeadingProcessesEnd ends leaders in every way in the middle of the jobs
// that go on at once; the worst time until the next one has done the work is
// reported. Only with -benchtime 1x.
func BenchmarkLeadingProcessesEnd(b *testing.B) { endInEveryWay(b, 3, keeping, telling, sending) }

// BenchmarkLeadingProcessesEndWatching does so in the middle of what has pauses of
// its own: routes of a gateway go after 3 s, and sums come every 5 s.
func BenchmarkLeadingProcessesEndWatching(b *testing.B) { endInEveryWay(b, 3, watching) }

func endInEveryWay(b *testing.B, rounds int, work ...middle) {
	o := newOffice(b)
	worst := map[string]time.Duration{"kill": o.ends(ending, 0, "kill")}
	for n := range rounds {
		for _, how := range []string{"kill", "pause", "cut"} {
			for _, m := range work {
				worst[how] = max(worst[how], o.ends(m, n, how))
			}
		}
	}
	o.once()
	for how, took := range worst {
		b.ReportMetric(took.Seconds(), how+"-s")
	}
}

// once looks at everything that happened: each effect once.
func (o *office) once() {
	o.t.Helper()
	if n := o.number(`SELECT count(*) FROM (SELECT conv, seq FROM event WHERE conv > 0 GROUP BY conv, seq HAVING count(*) > 1) x`); n != 0 {
		o.t.Errorf("%d messages are events twice", n)
	}
	sent := o.sent + o.later
	if n, have := sent, len(o.hooks.wait(sent)); n != have {
		o.t.Errorf("%d messages were told as %d", n, have)
	}
	o.hooks.ordered()
	for seq, n := range o.heard {
		if n != 1 {
			o.t.Errorf("announcement %d was told %d times", seq, n)
		}
	}
	if n := len(o.door.wait(o.came + 1)); n != o.came+1 { // the listener too
		o.t.Errorf("of %d users who came was told %d times", o.came+1, n)
	}
	notices := map[string]int{}
	for _, one := range o.pushes.wait(sent) {
		notices[one.UserID]++
	}
	for user, n := range notices {
		if n != 1 {
			o.t.Errorf("%s has %d notices that are not known as repeats", user, n)
		}
	}
}
