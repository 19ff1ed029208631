package split

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/imdhq/imd/pkg/status"
	"github.com/imdhq/imd/pkg/testenv"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// The life of a message is told hop by hop, whichever process is asked, also of
// one that came in two copies.
func TestTrace(t *testing.T) {
	t.Parallel()
	n := start(t)
	ann, bob := testenv.Login(t, n.URL(), protocol.Proto, n.Token("ann"), "d"), testenv.Login(t, n.URL(), protocol.Proto, n.Token("bob"), "d")
	m := testenv.ToUser("bob", "hi")
	ack := ann.MustSend(m)
	bob.Take("a deliver", func(f *clientv1.ServerFrame) bool { return f.GetDeliver() != nil })
	bob.Write(&clientv1.ClientFrame{Kind: &clientv1.ClientFrame_Ack{Ack: &clientv1.DeliveryAck{Ranges: []*clientv1.AckRange{{ConversationId: ack.ConversationId, AfterSeq: 0, Seq: ack.Seq}}}}})
	m.Resend = true
	ann.MustSend(m)

	front, back := string(n.Endpoints().Node), string(n.Back().Endpoints().Node)
	want := []string{back + " committed", front + " answered", back + " handed on", front + " fanned out", front + " delivered", front + " arrived", front + " queued", front + " acknowledged", back + " repeated"}
	for _, asked := range []*testenv.Node{n, n.Back()} {
		var s status.TraceStatus
		for end := time.Now().Add(testenv.Patience); ; time.Sleep(50 * time.Millisecond) { // the ack has no answer, and nodes know each other after a moment
			out, errOut, code := asked.Command("trace", fmt.Sprint(ack.MessageId), "-o", "json")
			if err := json.Unmarshal([]byte(out), &s); err != nil || code != 0 {
				t.Fatalf("exit %d, %v: %s%s", code, err, out, errOut)
			}
			var got []string
			for _, x := range s.Stages {
				got = append(got, x.Node+" "+x.Stage)
			}
			missing := slices.DeleteFunc(slices.Clone(want), func(w string) bool { return slices.Contains(got, w) })
			if len(missing) == 0 {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("%v are missing in %s", missing, out)
			}
		}
		if s.Seq != ack.Seq || len(s.Nodes) != 2 || s.Stages[0].Stage != "committed" {
			t.Errorf("%+v", s)
		}
		for i, x := range s.Stages {
			if x.Failed || x.AfterMS < 0 || i > 0 && x.At.Before(s.Stages[i-1].At) {
				t.Errorf("stage %d: %+v", i, x)
			}
		}
	}
	out, _, code := n.Command("trace", fmt.Sprint(ack.MessageId))
	if code != 0 || !strings.Contains(out, "acknowledged") || !strings.Contains(out, "AFTER") {
		t.Errorf("exit %d: %s", code, out)
	}
	if out, errOut, code := n.Command("trace", "12345"); code != 3 || !strings.Contains(errOut, "nobody remembers") || !strings.Contains(errOut, "remembers since") {
		t.Errorf("exit %d: %s%s", code, out, errOut)
	}
	if _, _, code := n.Command("trace", "what"); code != 2 {
		t.Errorf("exit %d for no id", code)
	}
}
