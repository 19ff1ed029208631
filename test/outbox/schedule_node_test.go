package outbox

import (
	"context"
	"encoding/json"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/imdhq/imd/pkg/testenv"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// messageCommand runs `imd message` on the node as ann; what it prints, or how it
// failed.
func messageCommand(t *testing.T, n *testenv.Node, args ...string) (data map[string]any, failure string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, testenv.Binary(t), append(append([]string{"message"}, args...), "--as", "ann", "--data-dir", n.Dir, "-o", "json")...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, stderr.String()
	}
	if err := json.Unmarshal(out, &data); err != nil {
		t.Fatalf("%v: %s", args, out)
	}
	return data, ""
}

// On a node the commands schedule, list and cancel, the message comes at its time
// as any other does, and a node that was killed before sends it after its start.
func TestScheduledOnAWholeNode(t *testing.T) {
	n := &testenv.Node{Dir: filepath.Join(t.TempDir(), "data"), Layout: testenv.AllInOne}
	n.Begin(t)
	bob := testenv.Login(t, n.URL(), protocol.JSON, n.Token("bob"), "d1")
	first, failed := messageCommand(t, n, "schedule", "--to", "bob", "--in", "300ms", "soon")
	if failed != "" {
		t.Fatal(failed)
	}
	got := bob.Entry("what was scheduled", func(_ string, e *clientv1.Entry) bool { return e.GetContent().GetText() == "soon" })
	if got.Sender != "ann" || got.ClientMessageId != first["client_message_id"] {
		t.Errorf("delivered %v, scheduled %v", got, first)
	}
	const id = "5f0c6f0e-8a5b-4c1e-9d27-3b1f6a2e7c01"
	for _, at := range []string{"2001-01-01T00:00:00Z", "2999-01-01T00:00:00Z"} {
		if _, failed := messageCommand(t, n, "schedule", "--to", "bob", "--at", at, "never"); !strings.Contains(failed, "bad_request") {
			t.Errorf("%s: %s", at, failed)
		}
	}
	if _, failed := messageCommand(t, n, "schedule", "--conversation", "g_none", "--in", "1h", "no"); !strings.Contains(failed, "not_member") {
		t.Errorf("as a stranger: %s", failed)
	}
	wait, failed := messageCommand(t, n, "schedule", "--to", "bob", "--at", time.Now().Add(time.Hour).UTC().Format(time.RFC3339), "never", "--id", id)
	if failed != "" {
		t.Fatal(failed)
	}
	if _, failed := messageCommand(t, n, "schedule", "--to", "bob", "--in", "1h", "never", "--id", id); !strings.Contains(failed, "--id needs --at") {
		t.Errorf("an id with a time that moves: %s", failed)
	}
	number := wait["scheduled_id"].(string)
	if out, failed := messageCommand(t, n, "cancel", number); failed != "" || out["state"] != "cancelled" {
		t.Errorf("cancel: %v %s", out, failed)
	}
	if _, failed := messageCommand(t, n, "cancel", first["scheduled_id"].(string)); !strings.Contains(failed, "too_late") {
		t.Errorf("cancel what was sent: %s", failed)
	}
	if _, failed := messageCommand(t, n, "schedule", "--to", "bob", "--in", "1500ms", "after"); failed != "" {
		t.Fatal(failed)
	}
	bob.Close()
	n.Kill()
	n.Start()
	for end := time.Now().Add(15 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		out, failed := messageCommand(t, n, "scheduled", "--ended")
		if failed != "" {
			t.Fatal(failed)
		}
		states := map[string]string{}
		for _, m := range out["scheduled"].([]any) {
			m := m.(map[string]any)
			states[m["text"].(string)] = m["state"].(string)
		}
		if len(states) == 3 && states["soon"] == "sent" && states["after"] == "sent" && states["never"] == "cancelled" {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("states: %v", states)
		}
	}
	if code := n.Stop(); code != 0 {
		t.Errorf("the node ended with %d", code)
	}
}
