package requirements

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	"github.com/imdhq/imd/pkg/testenv"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/gen/imdv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// refusedStart starts a node that must end by itself, and returns its exit
// status and what it said.
func refusedStart(t *testing.T, n *testenv.Node, args ...string) (status int, text string) {
	t.Helper()
	n.Args = args
	if err := n.Try(t); err != nil {
		t.Fatal(err)
	}
	return n.Wait(5 * time.Second), n.Log()
}

// A configuration that is not understood ends the start before anything is
// opened, and says where the mistake is.
func TestR49WrongConfiguration(t *testing.T) {
	t.Parallel()
	clock := testenv.NewClock(t)
	dir := t.TempDir()
	file := func(text string) []string {
		path := filepath.Join(dir, uuid.NewString()+".yaml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return []string{"--config", path}
	}
	for name, tt := range map[string]struct {
		args, env []string
		want      []string
	}{
		"a misspelt key":           {args: file("gateway:\n  lisen: x\n"), want: []string{".yaml:2", "gateway.lisen", "gateway.listen"}},
		"a key of another section": {args: file("state:\n  listen: x\n"), want: []string{".yaml:2", "state.listen"}},
		"a wrong type":             {args: file("gateway:\n  max_connections: many\n"), want: []string{".yaml:2", "gateway.max_connections"}},
		"no unit":                  {args: file("node:\n  grace: 30\n"), want: []string{".yaml:2", "node.grace", "30s"}},
		"a key twice":              {args: file("gateway:\n  listen: a:1\n  listen: a:2\n"), want: []string{".yaml:3", "listen"}},
		"a section twice":          {args: file("gateway: {}\nstate: {}\ngateway: {}\n"), want: []string{".yaml:3", "gateway"}},
		"an unknown section":       {args: file("gatway: {}\n"), want: []string{".yaml:1", "gatway", "gateway"}},
		"wrong indentation":        {args: file("gateway:\n listen: a:1\n   grace: 1s\n"), want: []string{".yaml:"}},
		"a list for a value":       {args: file("gateway:\n  listen: [a]\n"), want: []string{".yaml:2", "gateway.listen"}},
		"an unknown role":          {args: []string{"--roles", "gatway"}, want: []string{"gatway", "gateway"}},
		"an unknown variable":      {env: []string{"IMD_GATEWAY_LISTN=x"}, want: []string{"IMD_GATEWAY_LISTN", "IMD_GATEWAY_LISTEN"}},
		"a missing file":           {args: []string{"--config", filepath.Join(dir, "none.yaml")}, want: []string{"none.yaml"}},
		"a value out of range":     {args: set("gateway.ping_interval=1h"), want: []string{"gateway.ping_interval"}},
	} {
		n := &testenv.Node{Dir: filepath.Join(t.TempDir(), "data"), Env: tt.env}
		began := clock.Now()
		status, text := refusedStart(t, n, tt.args...)
		if took := clock.Since(began); status != 78 || took > 2*time.Second {
			t.Errorf("%s: status %d after %v: %s", name, status, took, text)
		}
		for _, part := range tt.want {
			if !strings.Contains(text, part) {
				t.Errorf("%s: %q does not name %q", name, text, part)
			}
		}
		if _, err := os.Stat(n.Dir); !os.IsNotExist(err) {
			t.Errorf("%s: the data folder was made", name)
		}
	}
}

// With a port taken the node does not start at all, and starts once it is free.
func TestR50PortsInUse(t *testing.T) {
	t.Parallel()
	for _, key := range []string{"gateway.listen", "ops.listen"} {
		t.Run(key, func(t *testing.T) {
			taken := testenv.FreeAddress(t, "127.0.0.1") // free again later, whatever others ask for
			ln, err := net.Listen("tcp", taken)
			if err != nil {
				t.Fatal(err)
			}
			defer ln.Close()
			n := node(t)
			n.Stop()
			before := worker(n.Log())
			n.Args = []string{map[string]string{"gateway.listen": "--listen", "ops.listen": "--ops-listen"}[key], taken}
			if err := n.Launch(); err != nil {
				t.Fatal(err)
			}
			if status := n.Wait(5 * time.Second); status == 0 || !strings.Contains(n.Log(), taken) || !strings.Contains(n.Log(), key) {
				t.Errorf("status %d: %s", status, n.Log())
			}
			if strings.Contains(n.Log(), `"msg":"ready"`) || worker(n.Log()) != "" {
				t.Errorf("something was started: %s", n.Log())
			}
			ln.Close()
			n.Start()
			t.Logf("worker numbers: %s, then %s", before, worker(n.Log()))
			if out, _, _ := n.Command("nodes", "-o", "json"); strings.Count(out, `"boot_id"`) > 1 {
				t.Errorf("another node is registered: %s", out)
			}
		})
	}
}

// worker is the number for ids that a log says was claimed.
func worker(log string) string {
	for line := range strings.Lines(log) {
		var f struct {
			Msg    string
			Worker json.Number
		}
		if json.Unmarshal([]byte(line), &f) == nil && strings.Contains(f.Msg, "worker number") {
			return f.Worker.String()
		}
	}
	return ""
}

// A store that does not take writes makes the node unready, never dead; it is
// ready again soon after.
func TestR51LivenessAndReadiness(t *testing.T) {
	t.Parallel()
	n := node(t)
	probe := func(path string) (int, string) {
		res, err := http.Get(n.OpsURL() + path)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		text, _ := io.ReadAll(res.Body)
		return res.StatusCode, string(text)
	}
	if status, text := probe("/readyz"); status != 200 {
		t.Fatalf("at first: %d %s", status, text)
	}
	release := n.Stall()
	eventually(t, "not ready with a stalled store", 5*time.Second, func() bool {
		status, text := probe("/readyz")
		return status == 503 && strings.Contains(text, "storage")
	})
	for range 10 {
		if status, _ := probe("/livez"); status != 200 {
			t.Errorf("livez says %d", status)
		}
		if _, text := probe("/readyz?verbose"); strings.Contains(text, n.Dir) || strings.Contains(text, "sqlite:") {
			t.Errorf("the answer tells more than it should: %s", text)
		}
		time.Sleep(100 * time.Millisecond)
	}
	if _, _, status := n.Command("check", "ready"); status != 2 {
		t.Errorf("check ready ends with %d", status)
	}
	release()
	eventually(t, "ready again", 5*time.Second, func() bool { status, _ := probe("/readyz"); return status == 200 })
	eventually(t, "check ready ends well", 5*time.Second, func() bool { _, _, status := n.Command("check", "ready"); return status == 0 })
}

// A Postgres that is away at the start is awaited: the node lives, is not ready and
// says why, and is ready soon after it came. Later the same. What it can never use ends
// the start, and a Redis that is away is not awaited.
func TestR51PostgresComesAndGoes(t *testing.T) {
	t.Parallel()
	server := testenv.StartPostgres(t, testenv.PostgresOptions{})
	flags := server.Serve(t)
	for what, dsn := range map[string]string{"database": server.DSN("nowhere"), "user": strings.Replace(flags[1], "imd@", "nobody@", 1)} {
		n := &testenv.Node{Dir: t.TempDir() + "/data"}
		if status, text := refusedStart(t, n, "--postgres", dsn); status != 78 {
			t.Errorf("a wrong %s ends the start with %d: %s", what, status, text)
		}
	}
	probe := func(n *testenv.Node, path string) (int, string) {
		res, err := http.Get(n.OpsURL() + path)
		if err != nil {
			return 0, err.Error()
		}
		defer res.Body.Close()
		text, _ := io.ReadAll(res.Body)
		return res.StatusCode, string(text)
	}
	unready := func(n *testenv.Node) func() bool {
		return func() bool {
			status, text := probe(n, "/readyz")
			return status == 503 && strings.Contains(text, "message store") && !strings.Contains(text, "127.0.0.1")
		}
	}
	server.Stop()
	n := &testenv.Node{
		Dir: t.TempDir() + "/data", Layout: testenv.Split, Args: append(flags, set("storage.routes=redis", "storage.dedup=redis")...),
		Env: []string{"IMD_REDIS_URL=redis://127.0.0.1:1"},
	}
	if err := n.Try(t); err != nil {
		t.Fatal(err)
	}
	back := n.Back()
	eventually(t, "it waits", testenv.ReadyIn, func() bool { return strings.Contains(n.Log(), "the message store is away") })
	eventually(t, "it says so", testenv.Patience, unready(back))
	if status, text := probe(back, "/livez"); status != 200 {
		t.Errorf("livez says %d %s", status, text)
	}
	out, _, _ := n.Command("nodes", "-o", "json")
	if strings.Contains(out, string(back.Endpoints().Node)) {
		t.Errorf("a node that waits is offered to others: %s", out)
	}
	if err := server.Start(); err != nil {
		t.Fatal(err, server.Log())
	}
	ready := func(when string) {
		t.Helper()
		began := time.Now()
		if err := n.WaitReady(5 * time.Second); err != nil {
			t.Fatal(when, err)
		}
		t.Logf("%s: ready %v after the return", when, time.Since(began).Round(time.Millisecond))
	}
	ready("at the start")
	a := login(t, n, "ann", "d")
	a.MustSend(testenv.ToUser("bob", "1"))
	server.Kill()
	eventually(t, "not ready", testenv.Patience, unready(back))
	if status, _ := probe(back, "/livez"); status != 200 {
		t.Errorf("livez says %d", status)
	}
	if err := server.Start(); err != nil {
		t.Fatal(err, server.Log())
	}
	ready("later")
	a.MustSend(testenv.ToUser("bob", "2"))
}

// A stop under load, with clients that do not read, ends in order and in time;
// nothing acknowledged is lost, nothing is there twice.
func TestR52StoppingInOrder(t *testing.T) {
	t.Parallel()
	const clients, stalled = 40, 20
	n := node(t, "gateway.drain.delay=500ms", "gateway.drain.min_spread=1s", "gateway.drain.grace=1s")
	for i := range stalled { // logged in, but they never read
		c := rawUpgrade(t, n, n.Token(fmt.Sprint("s", i)))
		_, _ = c.Write(wsFrame(true, 1, []byte(`{"id":2,"sync":{}}`)))
	}
	type sender struct {
		c     *testenv.Client
		name  string
		acked map[string]*clientv1.SendAck
		open  []*clientv1.Send
		n     int
	}
	var all []*sender
	for i := range clients {
		s := &sender{name: fmt.Sprint("c", i), acked: map[string]*clientv1.SendAck{}}
		s.c = login(t, n, s.name, "d")
		all = append(all, s)
	}
	var wg sync.WaitGroup
	for _, s := range all {
		wg.Go(func() {
			for !s.c.Closed() { // about five a second, until the server has closed
				m := testenv.ToUser(fmt.Sprint("s", s.n%stalled), fmt.Sprint(s.n))
				m.ClientMessageId = uuid.NewString()
				s.n++
				s.open = append(s.open, m)
				id := s.c.ID()
				if s.c.TryWrite(sendFrame(id, m)) != nil {
					return
				}
				f := s.c.Await(testenv.Patience, func(f *clientv1.ServerFrame) bool { return f.Id == id })
				if a := f.GetSendAck(); a.GetStatus() == clientv1.Ack_ACK_OK {
					s.acked[m.ClientMessageId] = a
					s.open = s.open[:len(s.open)-1]
				}
				time.Sleep(200 * time.Millisecond)
			}
		})
	}
	time.Sleep(time.Second)
	url, ops, late := n.URL(), n.OpsURL(), n.Token("late")
	began, clock := time.Now(), testenv.NewClock(t)
	n.Signal(syscall.SIGTERM)
	eventually(t, "not ready", time.Second, func() bool {
		res, err := http.Get(ops + "/readyz")
		if err != nil {
			return true
		}
		res.Body.Close()
		return res.StatusCode == 503
	})
	eventually(t, "no newcomers", 2*time.Second, func() bool {
		c, res, err := testenv.TryDial(t, url, protocol.JSON, testenv.DialOptions{Header: http.Header{"Authorization": {"Bearer " + late}}})
		if err == nil {
			c.Close()
			return false
		}
		if res != nil {
			return res.StatusCode == 503 && res.Header.Get("Retry-After") != ""
		}
		// Later the drain is over, and nobody is there to answer: none comes so late whom
		// the machine has not held up.
		wall := time.Since(began)
		return wall > 2*time.Second && (clock.Stood() > 300*time.Millisecond || wall > clock.Now()*3/2)
	})
	for _, s := range all {
		f := s.c.Take("drain", func(f *clientv1.ServerFrame) bool { return f.GetDrain() != nil })
		if d := f.GetDrain(); d.CloseAfterMs == 0 || d.ReconnectAfterMs > d.CloseAfterMs {
			t.Errorf("drain says %v", d)
		}
	}
	wg.Wait()
	for _, s := range all {
		if code, _ := s.c.WaitClosed(testenv.Patience); code != 4000 {
			t.Errorf("closed with %d", code)
		}
	}
	if status := n.Wait(30 * time.Second); status != 0 {
		t.Errorf("the node ended with %d", status)
	}
	t.Logf("stopped within %v", time.Since(began).Round(time.Millisecond))
	n.Start()
	acked := 0
	for _, s := range all {
		acked += len(s.acked)
		c := login(t, n, s.name, "d")
		for _, m := range s.open {
			m.Resend = true
			s.acked[m.ClientMessageId] = c.MustSend(m)
		}
		count := 0
		for i := range stalled {
			f := c.Request(historyFrame(&clientv1.History{ConversationId: protocol.DirectID(s.name, fmt.Sprint("s", i)), Limit: 500}))
			for _, e := range f.GetHistoryResult().GetPage().GetEntries() {
				count++
				if a := s.acked[e.ClientMessageId]; a == nil || a.Seq != e.Seq || a.MessageId != e.MessageId {
					t.Errorf("%s: the log has %v, the ack said %v", s.name, e, a)
				}
			}
		}
		if count != len(s.acked) {
			t.Errorf("%s: %d entries for %d messages", s.name, count, len(s.acked))
		}
		c.Close()
	}
	if acked < clients {
		t.Errorf("only %d messages were acknowledged: the load was none", acked)
	}
	n.Signal(syscall.SIGTERM) // the drain takes a moment, the second signal none
	stubborn := testenv.NewClock(t)
	eventually(t, "it stops", 2*time.Second, func() bool { return strings.Contains(n.Log(), `"stopping"`) })
	n.Signal(syscall.SIGTERM)
	if status := n.Wait(5 * time.Second); status != 130 && status != 0 {
		t.Errorf("a second signal ends with %d", status)
	}
	if took := stubborn.Now(); took > 2*time.Second {
		t.Errorf("a second signal ended it after %v", took)
	}
}

// What another release may write is ignored or refused by one frame, and the
// connection stays.
func TestR54UnknownPartsOfTheProtocol(t *testing.T) {
	t.Parallel()
	n := node(t)
	c := testenv.Login(t, n.URL(), protocol.JSON, n.Token("ann"), "d")
	_ = c.TryWriteRaw(true, []byte(`{"id":70,"tomorrow":[{"x":{"y":1.5}}],"send":{"toUser":"bob","clientMessageId":"`+uuid.NewString()+
		`","later":"z","content":{"text":"x","mentions":["carl"]}}}`+"\n"+`{"id":71,"teleport":{"to":"mars"}}`+"\n"+`{"id":72}`))
	if a := c.Answer(70).GetSendAck(); a.GetStatus() != clientv1.Ack_ACK_OK {
		t.Errorf("unknown fields: %v", a)
	}
	for _, id := range []uint32{71, 72} {
		if f := c.Answer(id); f.GetError().GetReason() != "unknown_kind" {
			t.Errorf("an unknown kind: %v", f)
		}
	}
	c.MustSend(testenv.ToUser("bob", "it goes on"))
	for _, hello := range []string{`"version":99`, `"version":0`, `"version":99,"minVersion":7`} {
		c := testenv.Dial(t, n.URL(), protocol.JSON)
		_ = c.TryWriteRaw(true, []byte(`{"id":1,"hello":{`+hello+`,"token":"`+n.Token("ann")+`","deviceId":"d"}}`))
		bye := c.Take("bye", func(f *clientv1.ServerFrame) bool { return f.GetBye() != nil }).GetBye()
		if bye.CloseCode != 4506 || !strings.Contains(bye.Message, "1 to 1") {
			t.Errorf("hello with %s: %v", hello, bye)
		}
		wantClosed(t, c, 4506, testenv.Patience)
	}
	// Over HTTP a field of JSON that is not known is refused by name, because a
	// misspelt as_user must not make the system act; protobuf is ignored as ever.
	body := `{"toUser":"bob","clientMessageId":"` + uuid.NewString() + `","later":1,"content":{"text":"x"}}`
	if status, text := rawPost(t, n, "imd.v1.MessageService/Send", n.Token("ann"), "application/json", []byte(body)); status != 400 || !strings.Contains(text, "later") {
		t.Errorf("an unknown field of JSON over HTTP: %d %s", status, text)
	}
	req := &imdv1.SendRequest{To: &imdv1.SendRequest_ToUser{ToUser: "bob"}, ClientMessageId: uuid.NewString(), Content: testenv.Text("x")}
	req.ProtoReflect().SetUnknown([]byte{0xfa, 0x7f, 1, 'x'})
	data, err := proto.Marshal(req)
	if err != nil {
		t.Fatal(err)
	}
	if status, text := rawPost(t, n, "imd.v1.MessageService/Send", n.Token("ann"), "application/proto", data); status != 200 {
		t.Errorf("an unknown field of protobuf over HTTP: %d %s", status, text)
	}
}
