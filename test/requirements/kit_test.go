package requirements

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/imdhq/imd/pkg/faultproxy"
	"github.com/imdhq/imd/pkg/testenv"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

func TestMain(m *testing.M) { os.Exit(testenv.Tests{M: m}.Run()) }

// servers says that the nodes of node keep their messages in Postgres and what
// they remember of sends in Redis, in place of files and memory.
var servers = os.Getenv("IMD_TEST_STORE") == "postgres"

// stores has the Postgres of each node that has one.
var stores sync.Map // *testenv.Node -> *testenv.Postgres

// node starts a node with keys set, each key=value.
func node(t *testing.T, pairs ...string) *testenv.Node {
	t.Helper()
	if servers {
		return onServers(t, pairs...)
	}
	return testenv.Start(t, set(pairs...)...)
}

// onServers starts a node on a Postgres and a Redis of its own.
func onServers(t *testing.T, pairs ...string) *testenv.Node {
	t.Helper()
	p := testenv.StartPostgres(t, testenv.PostgresOptions{})
	n := &testenv.Node{
		Dir: filepath.Join(t.TempDir(), "data"), Args: set(append(pairs, "storage.dedup=redis")...),
		Env: []string{"IMD_STORAGE_POSTGRES=" + p.Database(t) + "&imd_unsafe=yes", "IMD_REDIS_URL=" + testenv.StartRedis(t).URL()},
	}
	migrate := exec.Command(testenv.Binary(t), "migrate", "up")
	migrate.Env = append(os.Environ(), n.Env...)
	if out, err := migrate.CombinedOutput(); err != nil {
		t.Fatalf("imd migrate up: %v\n%s", err, out)
	}
	stores.Store(n, p)
	n.Begin(t)
	return n
}

// stall makes every commit of a node wait until release is called, which may be
// called more than once.
func stall(t *testing.T, n *testenv.Node) (release func()) {
	t.Helper()
	p, ok := stores.Load(n)
	if !ok {
		return n.Stall()
	}
	p.(*testenv.Postgres).Pause()
	release = sync.OnceFunc(p.(*testenv.Postgres).Resume)
	t.Cleanup(release)
	return release
}

func set(pairs ...string) []string {
	var args []string
	for _, p := range pairs {
		args = append(args, "--set", p)
	}
	return args
}

// unhurried lifts the rates, for tests that ask for more than a person would.
var unhurried = []string{
	"gateway.limits.user_rate=1e6", "gateway.limits.user_burst=1000000",
	"gateway.limits.connection_rate=1e6", "gateway.limits.connection_burst=1000000",
	"gateway.limits.conversation_rate=1e6", "gateway.limits.conversation_burst=1000000",
}

// once is for tests in which nothing may come twice: what nobody has acknowledged is
// delivered again, so not while they last.
const once = "gateway.redeliver_after=1m"

// login begins a session of a fresh login of the user.
func login(t *testing.T, n *testenv.Node, user, device string) *testenv.Client {
	t.Helper()
	return testenv.Login(t, n.URL(), encodingOf(user), n.Token(user), device)
}

// encodingOf lets tests use both encodings side by side.
func encodingOf(user string) protocol.Encoding {
	return protocol.Encoding(len(user) % 2)
}

// proxy starts a proxy in front of the node's public listener.
func proxy(t *testing.T, n *testenv.Node) (p *faultproxy.Proxy, base string) {
	t.Helper()
	p, err := faultproxy.Listen("127.0.0.1:0", n.Endpoints().Public)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p, "http://" + p.Address()
}

// change calls a method of the conversation service and wants it done.
func change(t *testing.T, n *testenv.Node, user, method, conv string, fields map[string]any) {
	t.Helper()
	if status, answer := tryChange(t, n, user, method, conv, fields); status != 200 {
		t.Fatalf("%s answered %d: %v", method, status, answer)
	}
}

func tryChange(t *testing.T, n *testenv.Node, user, method, conv string, fields map[string]any) (int, map[string]any) {
	t.Helper()
	body := map[string]any{"requestId": uuid.NewString()}
	if conv != "" {
		body["conversationId"] = conv
	}
	for k, v := range fields {
		body[k] = v
	}
	return testenv.PostAgain(t, n.URL(), "imd.v1.ConversationService/"+method, n.Token(user), body)
}

// numbered makes n sends with the texts 1 to n.
func numbered(n int, to func(text string) *clientv1.Send) []*clientv1.Send {
	var out []*clientv1.Send
	for i := range n {
		m := to(fmt.Sprint(i + 1))
		m.ClientMessageId = uuid.NewString()
		out = append(out, m)
	}
	return out
}

func toUser(user string) func(string) *clientv1.Send {
	return func(text string) *clientv1.Send { return testenv.ToUser(user, text) }
}

func toGroup(conv string) func(string) *clientv1.Send {
	return func(text string) *clientv1.Send { return testenv.To(conv, text) }
}

func sendFrame(id uint32, s *clientv1.Send) *clientv1.ClientFrame {
	return &clientv1.ClientFrame{Id: id, Kind: &clientv1.ClientFrame_Send{Send: s}}
}

func syncFrame(s *clientv1.Sync) *clientv1.ClientFrame {
	return &clientv1.ClientFrame{Kind: &clientv1.ClientFrame_Sync{Sync: s}}
}

func historyFrame(h *clientv1.History) *clientv1.ClientFrame {
	return &clientv1.ClientFrame{Kind: &clientv1.ClientFrame_History{History: h}}
}

func readFrame(conv string, seq int64) *clientv1.ClientFrame {
	return &clientv1.ClientFrame{Kind: &clientv1.ClientFrame_Read{Read: &clientv1.Read{ConversationId: conv, Seq: seq}}}
}

func ackFrame(conv string, after, seq int64) *clientv1.ClientFrame {
	return &clientv1.ClientFrame{Kind: &clientv1.ClientFrame_Ack{Ack: &clientv1.DeliveryAck{
		Ranges: []*clientv1.AckRange{{ConversationId: conv, AfterSeq: after, Seq: seq}}}}}
}

func helloFrame(id uint32, token, device string) *clientv1.ClientFrame {
	return &clientv1.ClientFrame{Id: id, Kind: &clientv1.ClientFrame_Hello{Hello: &clientv1.Hello{
		Version: 1, Token: token, DeviceId: device, Class: "bot"}}}
}

func isDeliver(f *clientv1.ServerFrame) bool { return f.GetDeliver() != nil }

// messages are the texts of the messages among entries.
func messages(entries []*clientv1.Entry) []string {
	var out []string
	for _, e := range entries {
		if e.Kind == clientv1.EntryKind_ENTRY_KIND_MESSAGE {
			out = append(out, e.Content.GetText())
		}
	}
	return out
}

// upTo are the texts 1 to n.
func upTo(n int) []string {
	var out []string
	for i := range n {
		out = append(out, fmt.Sprint(i+1))
	}
	return out
}

func wantTexts(t *testing.T, what string, got, want []string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: %d messages %s, want %d %s", what, len(got), short(got), len(want), short(want))
	}
}

func short(texts []string) string {
	s := strings.Join(texts, " ")
	if len(s) > 200 {
		s = s[:200] + "..."
	}
	return s
}

// state is what a sync tells the client of a conversation; nil = not listed.
func state(t *testing.T, c *testenv.Client, conv string) *clientv1.ConversationState {
	t.Helper()
	r := c.Sync(&clientv1.Sync{})
	for _, st := range r.GetConversations() {
		if st.ConversationId == conv {
			return st
		}
	}
	return nil
}

// wantFail wants a send to be refused for good.
func wantFail(t *testing.T, c *testenv.Client, m *clientv1.Send, reason string) {
	t.Helper()
	if a := c.Decide(m); a.Status != clientv1.Ack_ACK_FAIL || a.Error.GetReason() != reason {
		t.Errorf("the send was answered with %v, want ACK_FAIL %s", a, reason)
	}
}

// wantClosed wants the server to end the connection with the code.
func wantClosed(t *testing.T, c *testenv.Client, code int, within time.Duration) {
	t.Helper()
	if got, text := c.WaitClosed(within); got != code {
		t.Errorf("closed with %d %s, want %d", got, text, code)
	}
}

// eventually wants cond to hold within limit.
func eventually(t *testing.T, what string, limit time.Duration, cond func() bool) {
	t.Helper()
	for l := testenv.NewLimit(limit); !cond(); time.Sleep(20 * time.Millisecond) {
		if l.Over() {
			t.Fatalf("%s: not within %v", what, limit)
		}
	}
}

// reader is a device that follows the rules for what comes: it shows entries in
// order, fetches what is missing, and acknowledges.
type reader struct {
	c    *testenv.Client
	conv string
	have int64

	mu    sync.Mutex
	shown []*clientv1.Entry
	jumps int // delivers that left a gap
}

func (r *reader) show(e *clientv1.Entry) {
	if e.Seq > r.have {
		r.have = e.Seq
		r.mu.Lock()
		r.shown = append(r.shown, e)
		r.mu.Unlock()
	}
}

// count is how many messages were shown.
func (r *reader) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(messages(r.shown))
}

// until reads until n messages were shown.
func (r *reader) until(n int) {
	for r.count() < n {
		f := r.c.Take(fmt.Sprintf("message %d of %d", r.count()+1, n), func(f *clientv1.ServerFrame) bool {
			return f.GetDeliver().GetConversationId() == r.conv || f.GetHead().GetConversationId() == r.conv
		})
		r.take(f)
		r.c.Write(ackFrame(r.conv, 0, r.have))
	}
}

func (r *reader) take(f *clientv1.ServerFrame) {
	missing := f.GetHead().GetSeq() > r.have
	for _, e := range f.GetDeliver().GetEntries() {
		if e.PrevSeq > r.have {
			missing = true
			r.jumps++
			break
		}
		r.show(e)
	}
	for missing {
		p := r.c.History(&clientv1.History{ConversationId: r.conv, AfterSeq: r.have, Limit: 500})
		for _, e := range p.Entries {
			r.show(e)
		}
		r.have = max(r.have, p.CompleteTo)
		missing = !p.End
	}
}
