package crash

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/imdhq/imd/pkg/testenv"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// sent is one message and what its sender knows of it.
type sent struct {
	send *clientv1.Send
	ack  *clientv1.SendAck // nil = the node died before it answered

	answered bool // the repeat in flight
}

// load is users who write to their partners.
type load struct {
	sync.WaitGroup
	t     *testing.T
	acked atomic.Int64
}

// send has the users write to their partners, 8 unanswered at a time
// each, until the node dies. It returns when all are in.
func send(t *testing.T, n *testenv.Node, everything [][]*sent) *load {
	t.Helper()
	l := &load{t: t}
	for p := range everything {
		from := fmt.Sprint("a", p)
		c := testenv.Login(t, n.URL(), protocol.Encoding(p%2), n.Token(from), "d")
		l.Go(func() { l.sender(c, from, fmt.Sprint("b", p), &everything[p]) })
	}
	return l
}

// goOn lets the users write for a time, and until so many more messages are
// acknowledged.
func (l *load) goOn(d time.Duration, more int64) {
	l.t.Helper()
	had := l.acked.Load()
	time.Sleep(d)
	for limit := testenv.NewLimit(testenv.ReadyIn); l.acked.Load() < had+more; time.Sleep(5 * time.Millisecond) {
		if limit.Over() {
			l.t.Fatalf("%d messages are acknowledged, and there were %d before", l.acked.Load(), had)
		}
	}
}

func (l *load) sender(c *testenv.Client, from, to string, out *[]*sent) {
	waiting := map[uint32]*sent{}
	for i := 0; ; i++ {
		for len(waiting) < 8 {
			m := testenv.ToUser(to, fmt.Sprintf("%s-%d", from, i))
			m.ClientMessageId = uuid.NewString()
			s := &sent{send: m}
			*out = append(*out, s)
			id := c.ID()
			waiting[id] = s
			i++
			if c.TryWrite(&clientv1.ClientFrame{Id: id, Kind: &clientv1.ClientFrame_Send{Send: m}}) != nil {
				return
			}
		}
		f := answer(c)
		if f == nil {
			return
		}
		if a := f.GetSendAck(); a.Status == clientv1.Ack_ACK_OK {
			waiting[f.Id].ack = a
			l.acked.Add(1)
		} else {
			time.Sleep(10 * time.Millisecond) // what is refused are not to be most
		}
		delete(waiting, f.Id)
	}
}

// answer waits for the answer to a send; nil if the connection ends before.
func answer(c *testenv.Client) *clientv1.ServerFrame {
	for l := testenv.NewLimit(testenv.ReadyIn); !l.Over(); {
		closed := c.Closed()
		if f := c.TakeWithin(20*time.Millisecond, func(f *clientv1.ServerFrame) bool { return f.GetSendAck() != nil }); f != nil || closed {
			return f
		}
	}
	return nil
}

// A node killed at its work has stored everything it acknowledged, a repeat of
// any message gets the first answer, and every message is there once, in the
// order of its sender.
func TestKilledUnderLoad(t *testing.T) { killedUnderLoad(t) }

// The same with the messages in Postgres.
func TestKilledUnderLoadOnPostgres(t *testing.T) {
	killedUnderLoad(t, testenv.StartPostgres(t, testenv.PostgresOptions{}).Serve(t)...)
}

func killedUnderLoad(t *testing.T, flags ...string) {
	const pairs = 10
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	n := testenv.Start(t, append(testenv.NoLimits(), flags...)...)
	everything := make([][]*sent, pairs)
	acked := 0
	for round := range 6 {
		work := send(t, n, everything)
		work.goOn(300*time.Millisecond+time.Duration(rng.IntN(500))*time.Millisecond, 20)
		n.Kill()
		work.Wait()
		began := time.Now()
		n.Start()
		t.Logf("round %d: ready %v after the kill", round, time.Since(began).Round(time.Millisecond))
		for p := range pairs {
			acked += check(t, n, fmt.Sprint("a", p), fmt.Sprint("b", p), everything[p])
		}
		if t.Failed() {
			t.FailNow()
		}
	}
	t.Logf("%d acknowledged messages, none lost", acked)
	if acked < 100 {
		t.Errorf("only %d messages were acknowledged: the load was none", acked)
	}
}

// A Postgres that is killed with all its processes under load, and then the node
// too, have kept everything that was acknowledged; the node outlives the first.
func TestPostgresKilledUnderLoad(t *testing.T) {
	const pairs = 2
	server := testenv.StartPostgres(t, testenv.PostgresOptions{Settings: []string{"fsync=on"}})
	n := testenv.Start(t, append(testenv.NoLimits(), server.Serve(t)...)...)
	everything := make([][]*sent, pairs)
	acked := 0
	work := send(t, n, everything)
	work.goOn(300*time.Millisecond, 60)
	server.Kill()
	if err := server.Start(); err != nil {
		t.Fatal(err, server.Log())
	}
	if err := n.WaitReady(testenv.ReadyIn); err != nil {
		t.Fatal(err)
	}
	work.goOn(300*time.Millisecond, 60)
	n.Kill()
	work.Wait()
	n.Start()
	for p := range pairs {
		acked += check(t, n, fmt.Sprint("a", p), fmt.Sprint("b", p), everything[p])
	}
	if t.Failed() {
		t.FailNow()
	}
	t.Logf("%d acknowledged messages, none lost", acked)
	if acked < 100 {
		t.Errorf("only %d messages were acknowledged: the load was none", acked)
	}
}

// check repeats everything in its order, then reads the log. It returns how
// many had been acknowledged before.
func check(t *testing.T, n *testenv.Node, from, to string, all []*sent) (acked int) {
	t.Helper()
	a := testenv.Login(t, n.URL(), protocol.Proto, n.Token(from), "check")
	for chunk := range slices.Chunk(all, 32) {
		acked += repeat(t, a, chunk)
	}
	b := testenv.Login(t, n.URL(), protocol.JSON, n.Token(to), "check")
	bySeq := map[int64]*clientv1.Entry{}
	h := &clientv1.History{ConversationId: protocol.DirectID(from, to), Limit: 500}
	last := int64(0)
	for {
		p := b.History(h)
		for _, e := range p.Entries {
			if e.PrevSeq != last {
				t.Errorf("%d names %d before it, it is %d", e.Seq, e.PrevSeq, last)
			}
			last = e.Seq
			bySeq[e.Seq] = e
		}
		h.AfterSeq = p.CompleteTo
		if p.End {
			break
		}
	}
	if len(bySeq) != len(all) {
		t.Errorf("%s wrote %d messages, the log has %d", from, len(all), len(bySeq))
	}
	for _, s := range all {
		e := bySeq[s.ack.Seq]
		if e == nil || e.MessageId != s.ack.MessageId || e.ClientMessageId != s.send.ClientMessageId || e.Content.GetText() != s.send.Content.GetText() {
			t.Errorf("at %d the log has %v, the ack said %v", s.ack.Seq, e, s.ack)
		}
	}
	return acked
}

// repeat sends all again, in order and without waiting, and compares the
// answers with the first ones.
func repeat(t *testing.T, c *testenv.Client, all []*sent) (acked int) {
	t.Helper()
	for at := 0; at < len(all); {
		var frames []*clientv1.ClientFrame
		for _, s := range all[at:] {
			s.send.Resend = true
			frames = append(frames, &clientv1.ClientFrame{Id: c.ID(), Kind: &clientv1.ClientFrame_Send{Send: s.send}})
		}
		c.Write(frames...)
		refused := time.Duration(0)
		for i, f := range frames {
			got, s := c.Answer(f.Id).GetSendAck(), all[at+i]
			switch {
			case got.Status == clientv1.Ack_ACK_RETRY:
				refused = max(refused, time.Duration(max(got.Error.RetryAfterMs, 50))*time.Millisecond)
			case got.Status != clientv1.Ack_ACK_OK:
				t.Fatalf("a repeat got %v", got)
			case s.ack == nil:
				s.ack = got
			case !got.Duplicate || got.MessageId != s.ack.MessageId || got.Seq != s.ack.Seq || got.PrevSeq != s.ack.PrevSeq || got.ServerTimeMs != s.ack.ServerTimeMs:
				t.Errorf("a repeat got %v, at first it was %v", got, s.ack)
			default:
				acked++
			}
			if got.Status == clientv1.Ack_ACK_OK && refused == 0 {
				s.answered = true
			}
		}
		for at < len(all) && all[at].answered {
			all[at].answered = false
			at++
		}
		time.Sleep(refused)
	}
	return acked
}
