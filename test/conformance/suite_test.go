package conformance

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/imdhq/imd/pkg/testenv"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// statement is one row of the protocol's checklist.
type statement struct {
	number int
	text   string
	only   []protocol.Encoding // nil = both
	waits  bool                // mostly waits: others run meanwhile
	test   func(t *testing.T, s *suite)
}

// suite is what a statement works with: one node that all share, an encoding,
// and user names of its own.
type suite struct {
	*testenv.Node
	enc    protocol.Encoding
	prefix string
}

var names atomic.Int64

// user is a user id that no other statement has.
func (s *suite) user(name string) string { return s.prefix + name }

// login begins a session of a fresh login of the user, on any gateway.
func (s *suite) login(t *testing.T, name, device string) *testenv.Client {
	t.Helper()
	u := s.user(name)
	return testenv.Login(t, s.Door(), s.enc, s.Token(u), device)
}

// both runs f for each encoding on the node, one after the other.
func both(t *testing.T, n *testenv.Node, encs []protocol.Encoding, f func(t *testing.T, s *suite)) {
	each(t, encs, func(t *testing.T, enc protocol.Encoding) { f(t, newSuite(n, enc)) })
}

// atOnce runs f for each encoding on the node, both at a time, beside other
// tests: for what mostly waits.
func atOnce(t *testing.T, n *testenv.Node, encs []protocol.Encoding, f func(t *testing.T, s *suite)) {
	each(t, encs, func(t *testing.T, enc protocol.Encoding) {
		t.Parallel()
		f(t, newSuite(n, enc))
	})
}

func each(t *testing.T, encs []protocol.Encoding, f func(t *testing.T, enc protocol.Encoding)) {
	if encs == nil {
		encs = []protocol.Encoding{protocol.Proto, protocol.JSON}
	}
	for _, enc := range encs {
		t.Run(enc.String(), func(t *testing.T) { f(t, enc) })
	}
}

func newSuite(n *testenv.Node, enc protocol.Encoding) *suite {
	return &suite{Node: n, enc: enc, prefix: fmt.Sprintf("u%d-", names.Add(1))}
}

// run tests the statement on the node.
func (st statement) run(t *testing.T, n *testenv.Node, encs []protocol.Encoding) {
	t.Run(fmt.Sprintf("%02d %s", st.number, st.text), func(t *testing.T) {
		if !st.waits {
			both(t, n, encs, st.test)
			return
		}
		t.Parallel()
		atOnce(t, n, encs, st.test)
	})
}

// statements are those that share one node.
var statements []statement

// once is the one setting of that node which is not the default: several statements
// want nothing to come twice, and what nobody has acknowledged is delivered again, so
// not while they last.
const once = "gateway.redeliver_after=1m"

func TestStatements(t *testing.T) {
	n := testenv.Start(t, set(once)...)
	seen := map[int]bool{}
	for _, st := range statements {
		seen[st.number] = true
		st.run(t, n, st.only)
	}
	for _, own := range ownNode {
		seen[own] = true
	}
	for i := 1; i <= 41; i++ {
		if !seen[i] && i != later {
			t.Errorf("statement %d has no test", i)
		}
	}
}

// The same with the messages in Postgres, each statement in one encoding.
func TestStatementsOnPostgres(t *testing.T) {
	n := testenv.Start(t, append(testenv.StartPostgres(t, testenv.PostgresOptions{}).Serve(t), set(once)...)...)
	for i, st := range statements {
		encs := st.only
		if encs == nil {
			encs = []protocol.Encoding{protocol.Encoding(i % 2)}
		}
		st.run(t, n, encs)
	}
}

// ownNode are the statements tested on nodes of their own, in files of their own.
var ownNode = []int{8, 13, 18, 20, 23, 34, 35, 36, 37, 38, 39, 40}

// later is the statement about recalls, which join with their feature; until
// then a recall is refused, which TestStatements checks under 5.
const later = 32

func hello(token string) *clientv1.Hello {
	return &clientv1.Hello{Version: 1, Token: token, DeviceId: "d", Class: "web"}
}

func helloFrame(id uint32, h *clientv1.Hello) *clientv1.ClientFrame {
	return &clientv1.ClientFrame{Id: id, Kind: &clientv1.ClientFrame_Hello{Hello: h}}
}

func sendFrame(id uint32, s *clientv1.Send) *clientv1.ClientFrame {
	if s.ClientMessageId == "" {
		s.ClientMessageId = uuid.NewString()
	}
	return &clientv1.ClientFrame{Id: id, Kind: &clientv1.ClientFrame_Send{Send: s}}
}

func historyFrame(h *clientv1.History) *clientv1.ClientFrame {
	return &clientv1.ClientFrame{Kind: &clientv1.ClientFrame_History{History: h}}
}

func syncFrame(s *clientv1.Sync) *clientv1.ClientFrame {
	return &clientv1.ClientFrame{Kind: &clientv1.ClientFrame_Sync{Sync: s}}
}

func readFrame(conv string, seq int64) *clientv1.ClientFrame {
	return &clientv1.ClientFrame{Kind: &clientv1.ClientFrame_Read{Read: &clientv1.Read{ConversationId: conv, Seq: seq}}}
}

func ackFrame(conv string, after, seq int64) *clientv1.ClientFrame {
	return &clientv1.ClientFrame{Kind: &clientv1.ClientFrame_Ack{Ack: &clientv1.DeliveryAck{
		Ranges: []*clientv1.AckRange{{ConversationId: conv, AfterSeq: after, Seq: seq}}}}}
}

// wantClosed waits for the close code and, from 4000 on, for the bye before it. The
// limit goes by as a testenv.Limit does.
func wantClosed(t *testing.T, c *testenv.Client, code int, reason string, within time.Duration) {
	t.Helper()
	if code >= 4000 {
		f := c.Await(within, func(f *clientv1.ServerFrame) bool { return f.GetBye() != nil })
		if f == nil {
			t.Errorf("no bye came within %v", within)
		} else if b := f.GetBye(); b.Reason != reason || int(b.CloseCode) != code || b.Reconnect != (code < 4500) {
			t.Errorf("bye says %v, want %d %s", b, code, reason)
		}
	}
	if got, _ := c.WaitClosed(within); got != code {
		t.Errorf("closed with %d, want %d", got, code)
	}
}

// alive checks that the connection still answers.
func alive(t *testing.T, c *testenv.Client) {
	t.Helper()
	if f := c.Ask(syncFrame(&clientv1.Sync{})); f.GetSyncResult() == nil {
		t.Errorf("the connection answers a sync with %v", f)
	}
}

func reasonOf(f *clientv1.ServerFrame) string {
	if a := f.GetSendAck(); a != nil {
		return a.GetError().GetReason()
	}
	return f.GetError().GetReason()
}

func wantReason(t *testing.T, f *clientv1.ServerFrame, want string) {
	t.Helper()
	if got := reasonOf(f); got != want {
		t.Errorf("answered with reason %q, want %q (%v)", got, want, f)
	}
}

func texts(entries []*clientv1.Entry) string {
	var out []string
	for _, e := range entries {
		if e.Content != nil {
			out = append(out, e.Content.GetText())
		}
	}
	return strings.Join(out, " ")
}
