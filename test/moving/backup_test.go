package moving

import (
	"cmp"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.uber.org/goleak"

	"github.com/imdhq/imd/pkg/history"
	"github.com/imdhq/imd/pkg/testenv"
	"github.com/imdhq/imd/pkg/verify"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testenv.Tests{M: m}) }

// imd runs a command of the binary, which must succeed, and decodes what it
// prints.
func imd(t *testing.T, into any, args ...string) {
	t.Helper()
	cmd := exec.Command(testenv.Binary(t), append(args, "-o", "json")...)
	var text []byte
	cmd.Stderr = os.Stderr
	text, err := cmd.Output()
	if err != nil {
		t.Fatalf("imd %v: %v\n%s", args, err, text)
	}
	if into == nil {
		return
	}
	if err := json.Unmarshal(text, into); err != nil {
		t.Fatalf("imd %v printed %q: %v", args, text, err)
	}
}

// witness keeps what devices did and saw until it is known what a restore took
// away.
type witness struct {
	dir    string
	rec    *history.Recorder
	mu     sync.Mutex
	list   []filed
	stored int // sends that were acknowledged
}

type filed struct {
	file string
	history.Record
}

func (w *witness) add(file string, r history.Record) {
	w.mu.Lock()
	defer w.mu.Unlock()
	r.T = max(w.rec.Now(), 1)
	w.list = append(w.list, filed{file, r})
	if r.Kind == history.Return && r.Ack == history.AckOK {
		w.stored++
	}
}

func (w *witness) acked() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.stored
}

// load lets the pairs write for a moment, and until this many more sends are
// acknowledged.
func (w *witness) load(t *testing.T, more int) {
	t.Helper()
	had := w.acked()
	time.Sleep(300 * time.Millisecond)
	for l := testenv.NewLimit(testenv.ReadyIn); w.acked() < had+more; time.Sleep(10 * time.Millisecond) {
		if l.Over() {
			t.Fatalf("%d sends are acknowledged, and there were %d before", w.acked(), had)
		}
	}
}

// pair is a sender, its recipient, and what each knows.
type pair struct {
	from, to, conv string
	n              int64              // of the newest send
	waiting        map[uint32]*outbox // by request id
	refused        []*outbox          // for now
	have           int64              // of the recipient
}

// outbox is a send without an answer.
type outbox struct {
	send *clientv1.Send
	n    int64
	hash string
}

func newPair(n int) *pair {
	p := &pair{from: fmt.Sprint("a", n), to: fmt.Sprint("b", n), waiting: map[uint32]*outbox{}}
	p.conv = protocol.DirectID(p.from, p.to)
	return p
}

func hashOf(c *clientv1.Content) string {
	h := protocol.BodyHash(clientv1.EntryKind_ENTRY_KIND_MESSAGE, 0, c)
	return hex.EncodeToString(h[:8])
}

// write sends until the node is gone, 8 unanswered at a time.
func (p *pair) write(t *testing.T, w *witness, c *testenv.Client) {
	for {
		if len(p.waiting) == 0 { // what follows a refused one is refused too
			there := true
			for _, o := range p.unanswered() {
				there = p.put(w, c, o) && there // one that did not leave waits too
			}
			if !there {
				return
			}
		}
		for len(p.waiting) < 8 && len(p.refused) == 0 {
			if !p.put(w, c, p.next()) {
				return
			}
		}
		if !p.answer(t, w, c) {
			return
		}
	}
}

// next is a new message.
func (p *pair) next() *outbox {
	p.n++
	m := testenv.ToUser(p.to, fmt.Sprintf("%s-%d", p.from, p.n))
	m.ClientMessageId = uuid.NewString()
	return &outbox{m, p.n, hashOf(m.Content)}
}

// unanswered takes what has no answer, or was refused for now, to be sent again in
// its order.
func (p *pair) unanswered() []*outbox {
	all := append(p.refused, slices.Collect(maps.Values(p.waiting))...)
	slices.SortFunc(all, func(a, b *outbox) int { return cmp.Compare(a.n, b.n) })
	for _, o := range all {
		o.send.Resend = true
	}
	p.refused = nil
	clear(p.waiting)
	return all
}

// put sends one message; false if the connection is gone.
func (p *pair) put(w *witness, c *testenv.Client, o *outbox) bool {
	id := c.ID()
	p.waiting[id] = o
	w.add("client-0.ops", history.Record{Kind: history.Invoke, User: p.from, Device: "d", Conv: p.conv, CMID: o.send.ClientMessageId, N: o.n, Hash: o.hash})
	return c.TryWrite(&clientv1.ClientFrame{Id: id, Kind: &clientv1.ClientFrame_Send{Send: o.send}}) == nil
}

// answer takes one answer; false if the connection is gone.
func (p *pair) answer(t *testing.T, w *witness, c *testenv.Client) bool {
	var f *clientv1.ServerFrame
	for l := testenv.NewLimit(testenv.ReadyIn); f == nil; {
		if c.Closed() || l.Over() {
			return false
		}
		f = c.TakeWithin(20*time.Millisecond, func(f *clientv1.ServerFrame) bool { return f.GetSendAck() != nil })
	}
	o, a := p.waiting[f.Id], f.GetSendAck()
	delete(p.waiting, f.Id)
	r := history.Record{Kind: history.Return, User: p.from, Device: "d", Conv: p.conv, CMID: o.send.ClientMessageId}
	switch a.Status {
	case clientv1.Ack_ACK_OK:
		r.Ack, r.MID, r.Seq, r.Prev, r.Dup = history.AckOK, a.MessageId, a.Seq, a.PrevSeq, a.Duplicate
	case clientv1.Ack_ACK_RETRY: // a busy machine
		r.Ack, r.Reason = history.AckRetry, a.Error.GetReason()
		p.refused = append(p.refused, o)
		time.Sleep(time.Duration(a.Error.GetRetryAfterMs()) * time.Millisecond)
	default:
		t.Errorf("a send was answered with %v", a)
		return false
	}
	w.add("client-0.ops", r)
	return true
}

// watch shows what arrives until the node is gone.
func (p *pair) watch(w *witness, c *testenv.Client) {
	for {
		f := c.TakeWithin(testenv.Patience, func(f *clientv1.ServerFrame) bool { return f.GetDeliver() != nil })
		if f == nil {
			return
		}
		d := f.GetDeliver()
		for _, e := range d.Entries {
			if d.ConversationId == p.conv && e.Seq > p.have && e.PrevSeq == p.have { // a gap waits for its redelivery
				p.show(w, e)
			}
		}
		_ = c.TryWrite(&clientv1.ClientFrame{Kind: &clientv1.ClientFrame_Ack{Ack: &clientv1.DeliveryAck{
			Ranges: []*clientv1.AckRange{{ConversationId: p.conv, Seq: p.have}}}}})
	}
}

func (p *pair) show(w *witness, e *clientv1.Entry) {
	p.have = e.Seq
	w.add("client-0.view", history.Record{Kind: history.Show, User: p.to, Device: "d", Conv: p.conv, Seq: e.Seq, MID: e.MessageId, Hash: hashOf(e.Content)})
}

// view notes something about the recipient's sessions.
func (p *pair) view(w *witness, k history.Kind, conv, name string) {
	w.add("client-0.view", history.Record{Kind: k, User: p.to, Device: "d", Conv: conv, Name: name})
}

// Backups of a node under load hold whatever was acknowledged before they
// began. After a restore the clients are told to begin anew, and the judge of
// histories finds nothing wrong but that what came after the backup is gone.
func TestBackupUnderLoad(t *testing.T) {
	const pairs = 5
	n := testenv.Start(t, testenv.NoLimits()...)
	dir := filepath.Join(t.TempDir(), "history")
	rec, err := history.NewRecorder(dir)
	if err != nil {
		t.Fatal(err)
	}
	w := &witness{dir: dir, rec: rec}
	var all []*pair
	var wg sync.WaitGroup
	var former string
	for i := range pairs {
		p := newPair(i)
		all = append(all, p)
		b := testenv.Login(t, n.URL(), protocol.JSON, n.Token(p.to), "d")
		a := testenv.Login(t, n.URL(), protocol.Proto, n.Token(p.from), "d")
		former = a.Welcome.DataEpoch
		p.view(w, history.Connect, "", former)
		p.view(w, history.Open, p.conv, "")
		wg.Go(func() { p.watch(w, b) })
		wg.Go(func() { p.write(t, w, a) })
	}
	var file string
	var began int64
	for i := range 4 {
		w.load(t, 60)
		file = filepath.Join(t.TempDir(), fmt.Sprintf("%d.tar", i))
		began = rec.Now()
		imd(t, nil, "backup", "--data-dir", n.Dir, "--to", file)
	}
	w.load(t, 20)
	tokens := map[string]string{}
	for _, p := range all { // made before, good after
		tokens[p.from], tokens[p.to] = n.Token(p.from), n.Token(p.to)
	}
	w.add("faults.log", history.Record{Kind: history.Fault, Name: "kill and restore"})
	n.Kill()
	wg.Wait()
	killed := rec.Now()

	m := &testenv.Node{Dir: filepath.Join(t.TempDir(), "restored"), Args: testenv.NoLimits()}
	imd(t, nil, "restore", "--from", file, "--data-dir", m.Dir)
	m.Begin(t)
	healed := rec.Now()
	w.add("faults.log", history.Record{Kind: history.Fault, Name: "kill and restore", Stop: true})
	for _, p := range all {
		p.comeBack(t, w, m, tokens, former)
	}
	w.judge(t, all, began, killed, healed)
}

// comeBack begins anew on the restored node: the sender sends again what was
// not answered, and something new; the recipient drops what it had and reads.
func (p *pair) comeBack(t *testing.T, w *witness, m *testenv.Node, tokens map[string]string, former string) {
	t.Helper()
	a := testenv.Login(t, m.URL(), protocol.Proto, tokens[p.from], "d")
	epoch := a.Welcome.DataEpoch
	if epoch == former {
		t.Fatal("the restored node has the data_epoch of the lost one")
	}
	again := p.unanswered()
	for range 20 {
		again = append(again, p.next())
	}
	for _, o := range again {
		for l := testenv.NewLimit(testenv.Patience); ; {
			if !p.put(w, a, o) || !p.answer(t, w, a) || l.Over() {
				t.Fatal("the restored node does not answer")
			}
			if len(p.refused) == 0 {
				break
			}
			p.unanswered()
		}
	}
	b := testenv.Login(t, m.URL(), protocol.JSON, tokens[p.to], "d")
	p.view(w, history.Disconnect, "", "")
	p.view(w, history.Connect, "", epoch)
	p.view(w, history.Resync, "", epoch)
	p.view(w, history.Open, p.conv, "")
	p.have = 0
	entries, _ := b.Walk(p.conv, 500, false)
	for _, e := range entries {
		p.show(w, e)
		w.add("db.final", history.Record{Kind: history.Row, Conv: p.conv, CMID: e.ClientMessageId, Hash: hashOf(e.Content), MID: e.MessageId,
			Seq: e.Seq, Prev: e.PrevSeq, Sender: e.Sender, Entry: "message"})
	}
	p.view(w, history.Settled, "", "")
	for _, u := range []string{p.from, p.to} {
		w.add("members.final", history.Record{Kind: history.Span, User: u, Conv: p.conv})
	}
}

// judge writes the history down without what the restore took away by right:
// sends that were answered after the backup began, and what was shown of them.
// Whatever was acknowledged before must be there.
func (w *witness) judge(t *testing.T, all []*pair, began, killed, healed int64) {
	t.Helper()
	kept, rows, answered, returned := map[string]bool{}, map[int64]bool{}, map[string]int64{}, map[int64]string{}
	for _, r := range w.list {
		switch r.Kind {
		case history.Row:
			kept[r.CMID], rows[r.MID] = true, true
		case history.Return:
			if r.Ack != history.AckOK {
				continue
			}
			answered[r.CMID] = r.T
			if other := returned[r.MID]; other != "" && other != r.CMID {
				t.Errorf("message id %d was given to %s and to %s", r.MID, other, r.CMID)
			}
			returned[r.MID] = r.CMID
		}
	}
	before, taken := 0, 0
	for _, r := range w.list {
		switch r.Kind {
		case history.Invoke, history.Return:
			at, ok := answered[r.CMID]
			if gone := !kept[r.CMID] && (!ok || at >= began); gone && r.T <= killed {
				taken++
				continue
			}
			if r.Kind == history.Return && r.Ack == history.AckOK && r.T < began {
				before++
			}
		case history.Show:
			known := r.T // of what was shown, but not yet answered
			if cmid := returned[r.MID]; cmid != "" {
				known = answered[cmid]
			}
			if r.T <= killed && !rows[r.MID] && known >= began {
				continue
			}
		}
		w.rec.Add(r.file, r.Record)
	}
	if err := w.rec.Close(history.Run{Server: "test", Allocator: "transaction", Healed: healed}); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d pairs, %d acknowledged before the backup, %d records taken away by the restore", len(all), before, taken)
	if before < 200 || taken == 0 {
		t.Errorf("%d sends before the backup and %d records after: the load was none", before, taken)
	}
	h, err := verify.Load(w.dir)
	if err != nil {
		t.Fatal(err)
	}
	if r := verify.Judge(h, verify.Options{}); !r.Good {
		var text strings.Builder
		r.Text(&text)
		t.Error(text.String())
	}
}

// A restore that is killed at any moment leaves the former database or the
// restored one, whole, and can be run again.
func TestKilledRestore(t *testing.T) {
	n := testenv.Start(t, testenv.NoLimits()...)
	a := testenv.Login(t, n.URL(), protocol.Proto, n.Token("ann"), "d")
	files, counts := make([]string, 2), make([]int64, 2)
	for i := range files {
		var sends []*clientv1.Send
		for k := range 400 {
			sends = append(sends, testenv.ToUser("bob", fmt.Sprint(i, k)))
		}
		a.SendAll(sends)
		files[i], counts[i] = filepath.Join(t.TempDir(), fmt.Sprintf("%d.tar", i)), int64(400*(i+1))
		imd(t, nil, "backup", "--data-dir", n.Dir, "--to", files[i])
	}
	a.Close()
	n.Kill()
	entries := func() int64 {
		t.Helper()
		var got struct{ Counts map[string]int64 }
		imd(t, &got, "backup", "--data-dir", n.Dir, "--to", filepath.Join(t.TempDir(), "look.tar"))
		return got.Counts["entry"]
	}
	whole, kills := time.Hour, 0
	for range 3 { // one of them is not held up
		began := time.Now()
		imd(t, nil, "restore", "--from", files[0], "--data-dir", n.Dir, "--force")
		whole = min(whole, time.Since(began))
	}
	for i := range 60 {
		if i >= 30 && kills >= 5 {
			break
		}
		from := files[i%2]
		cmd := exec.Command(testenv.Binary(t), "restore", "--from", from, "--data-dir", n.Dir, "--force")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(rand.N(whole * 5 / 4)) // at any moment, also in the last one
		_ = cmd.Process.Kill()
		if cmd.Wait() != nil {
			kills++
		}
		if got := entries(); got != counts[0] && got != counts[1] {
			t.Fatalf("%d entries; there were %v in the backups", got, counts)
		}
	}
	t.Logf("%d restores were killed, of %v each", kills, whole)
	if kills < 5 {
		t.Errorf("%d restores were killed", kills)
	}
	imd(t, nil, "restore", "--from", files[1], "--data-dir", n.Dir, "--force")
	if got := entries(); got != counts[1] {
		t.Errorf("%d entries after a whole restore, want %d", got, counts[1])
	}
	n.Start()
	b := testenv.Login(t, n.URL(), protocol.Proto, n.Token("ann"), "d")
	if all, _ := b.Walk(protocol.DirectID("ann", "bob"), 500, false); int64(len(all)) != counts[1] {
		t.Errorf("the node has %d entries", len(all))
	}
}
