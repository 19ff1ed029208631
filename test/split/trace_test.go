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
	spans := testenv.StartCollector(t)
	n := start(t, "--set", "tracing.endpoint="+spans.URL, "--set", "tracing.share=1")
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
	aged := "--conversation=" + ack.ConversationId
	if out, _, code := n.Command("trace", fmt.Sprint(ack.MessageId), aged); code != 0 || !strings.Contains(out, "acknowledged") || !strings.Contains(out, "stored") || !strings.Contains(out, ": message of ann") {
		t.Errorf("exit %d: %s", code, out)
	}
	if _, errOut, code := n.Command("trace", fmt.Sprint(ack.MessageId+1), aged); code != 3 || !strings.Contains(errOut, "has no message") {
		t.Errorf("exit %d: %s", code, errOut)
	}
	oneTree(t, spans, ack, front, back)
	ann.Walk(ack.ConversationId, 10, false)
	oneCall(t, spans, front, back)
	if out, errOut, code := n.Command("trace", "12345"); code != 3 || !strings.Contains(errOut, "nobody remembers") || !strings.Contains(errOut, "remembers since") {
		t.Errorf("exit %d: %s%s", code, out, errOut)
	}
	if _, _, code := n.Command("trace", "what"); code != 2 {
		t.Errorf("exit %d for no id", code)
	}
}

// oneTree checks that the spans of a message, from both processes, hang together.
func oneTree(t *testing.T, from *testenv.Collector, ack *clientv1.SendAck, front, back string) {
	t.Helper()
	id := fmt.Sprint(ack.MessageId)
	until(t, "all spans of a message are one tree", func() bool {
		all := from.Spans()
		send := slices.IndexFunc(all, func(s testenv.CollectedSpan) bool {
			return s.Name == "send" && s.Node == front && s.Above == "" && s.Attrs["messaging.message.id"] == id
		})
		if send < 0 {
			return false
		}
		below := func(s testenv.CollectedSpan, name, node string) (testenv.CollectedSpan, bool) {
			i := slices.IndexFunc(all, func(x testenv.CollectedSpan) bool {
				return x.Trace == s.Trace && x.Above == s.ID && x.Name == name && x.Node == node
			})
			if i < 0 {
				return s, false
			}
			return all[i], true
		}
		persist, stored := below(all[send], "persist", back)
		_, pushed := below(persist, "push", back)
		_, routed := below(persist, "route", front)
		_, delivered := below(persist, "deliver", front)
		_, received := below(persist, "receive", front)
		return stored && pushed && routed && delivered && received
	})
}

// oneCall checks that the spans of a request hang together across the processes.
func oneCall(t *testing.T, from *testenv.Collector, front, back string) {
	t.Helper()
	until(t, "a call and its answer are one trace", func() bool {
		for _, s := range from.Spans() {
			if s.Node != front || s.Name != "history" || s.Above != "" {
				continue
			}
			made := false
			for _, x := range from.Spans() {
				if x.Trace == s.Trace && x.Above == s.ID && x.Name == "state.History" && x.Node == front {
					made = slices.ContainsFunc(from.Spans(), func(y testenv.CollectedSpan) bool {
						return y.Trace == s.Trace && y.Above == x.ID && y.Name == "imd.internal.v1.StateService/History" && y.Node == back
					})
				}
			}
			if made {
				return true
			}
		}
		return false
	})
}
