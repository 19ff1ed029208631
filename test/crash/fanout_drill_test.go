//go:build drill

package crash

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/imdhq/imd/pkg/failpoint"
	"github.com/imdhq/imd/pkg/testenv"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// rig is a node whose fail points a test sets.
type rig struct {
	*testenv.Node
	t    *testing.T
	file string
}

func newRig(t *testing.T, pairs ...string) *rig {
	t.Helper()
	return newRigWith(t, nil, pairs...)
}

// newRigWith is newRig with more variables.
func newRigWith(t *testing.T, env []string, pairs ...string) *rig {
	t.Helper()
	r := &rig{Node: &testenv.Node{Dir: filepath.Join(t.TempDir(), "data")}, t: t, file: filepath.Join(t.TempDir(), "points")}
	for _, p := range pairs {
		r.Args = append(r.Args, "--set", p)
	}
	r.Env = append(env, failpoint.FileVar+"="+r.file)
	r.Begin(t)
	return r
}

// rule sets the rules and waits until they are in force.
func (r *rig) rule(text string) {
	r.t.Helper()
	told := func() int { return strings.Count(r.Log(), failpoint.InForce) }
	before := told()
	r.write(text)
	for l := testenv.NewLimit(testenv.Patience); told() == before; time.Sleep(10 * time.Millisecond) {
		if l.Over() {
			r.t.Fatalf("%q is not in force", text)
		}
	}
}

// write sets the rules for the next start.
func (r *rig) write(text string) {
	r.t.Helper()
	err := os.WriteFile(r.file+".new", []byte(text+"\n"), 0o600)
	if err == nil {
		err = os.Rename(r.file+".new", r.file)
	}
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) login(user string) *testenv.Client {
	r.t.Helper()
	return testenv.Login(r.t, r.URL(), protocol.Proto, r.Token(user), "d")
}

func head(seq int64) func(*clientv1.ServerFrame) bool {
	return func(f *clientv1.ServerFrame) bool { return f.GetHead().GetSeq() == seq }
}

func delivery(f *clientv1.ServerFrame) bool { return f.GetDeliver() != nil }

func message(text string) *clientv1.Send {
	m := testenv.ToUser("bob", text)
	m.ClientMessageId = uuid.NewString()
	return m
}

func again(m *clientv1.Send) *clientv1.Send {
	return &clientv1.Send{To: m.To, ClientMessageId: m.ClientMessageId, Content: m.Content, Resend: true}
}

// A message is committed and acknowledged, and what should tell the others of
// it is lost. The repeat of its sender makes them look, once in a while.
func TestARepeatHealsALostFanout(t *testing.T) {
	r := newRig(t, "gateway.antientropy.interval=10m")
	ann, bob := r.login("ann"), r.login("bob")
	ann.MustSend(message("first"))
	bob.Take("the first", delivery)

	r.rule("state.before_fanout error")
	m := message("lost")
	ack := ann.MustSend(m)
	if f := bob.TakeWithin(500*time.Millisecond, delivery); f != nil {
		t.Fatalf("the fan-out was not lost: %v", f)
	}
	r.rule("")
	began := time.Now()
	for range 3 {
		if got := ann.MustSend(again(m)); !got.Duplicate || got.MessageId != ack.MessageId || got.Seq != ack.Seq {
			t.Fatalf("the repeat got %v, first it was %v", got, ack)
		}
	}
	bob.Take("a hint", head(ack.Seq))
	if f := bob.TakeWithin(time.Second, head(ack.Seq)); f != nil && time.Since(began) < 5*time.Second {
		t.Errorf("a second hint within five seconds: %v", f)
	}
}

// Nobody repeats anything: the comparison of heads finds what was lost.
func TestComparingHeadsHealsALostFanout(t *testing.T) {
	r := newRig(t, "gateway.antientropy.interval=1s")
	ann, bob := r.login("ann"), r.login("bob")
	ann.MustSend(message("first"))
	bob.Take("the first", delivery)
	r.rule("state.before_fanout error")
	ack := ann.MustSend(message("lost"))
	bob.Take("a hint", head(ack.Seq))
}

// The process dies after the commit and before anybody was told. The repeat
// gets the first answer, from the store, and everybody finds the message.
func TestKilledBetweenCommitAndFanout(t *testing.T) {
	r := newRig(t, "gateway.antientropy.interval=10m")
	for round, point := range []failpoint.Point{failpoint.BeforeFanout, failpoint.AfterAppend} {
		ann := r.login("ann")
		ann.MustSend(message("before"))
		r.rule(string(point) + " exit")
		m := message("killed")
		if err := ann.TryWrite(&clientv1.ClientFrame{Id: ann.ID(), Kind: &clientv1.ClientFrame_Send{Send: m}}); err != nil {
			t.Fatal(err)
		}
		r.Wait(testenv.ReadyIn)
		r.write("")
		r.Start()
		ann, bob := r.login("ann"), r.login("bob")
		ack := ann.MustSend(again(m))
		if want := int64(2*round + 2); !ack.Duplicate || ack.Seq != want {
			t.Fatalf("%s: the repeat got %v, want a duplicate at %d", point, ack, want)
		}
		all, _ := bob.Walk(ack.ConversationId, 100, false)
		if last := all[len(all)-1]; len(all) != 2*round+2 || last.MessageId != ack.MessageId {
			t.Fatalf("%s: history has %d entries, the last is %v", point, len(all), last)
		}
		bob.Take("a hint", head(ack.Seq))
	}
}
