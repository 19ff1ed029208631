package split

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/imdhq/imd/pkg/testenv"
	imd "github.com/imdhq/imd/sdk/go"
)

// listener is a client that notes what it is told of announcements.
type listener struct {
	mu     sync.Mutex
	texts  []string
	cursor imd.AnnouncementCursor
}

// listen connects a client that was told up to a cursor before.
func listen(t *testing.T, n *testenv.Node, user string, after imd.AnnouncementCursor) *listener {
	t.Helper()
	l := &listener{cursor: after}
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
	defer cancel()
	c, err := imd.Connect(ctx, n.URL(), imd.Options{Token: n.Token(user), AnnouncedBefore: after, OnAnnouncement: func(a imd.Announcement) {
		l.mu.Lock()
		defer l.mu.Unlock()
		text := a.Text
		if a.Withdrawn {
			text = fmt.Sprint("withdrawn ", a.Seq)
		}
		l.texts, l.cursor = append(l.texts, text), a.Cursor
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return l
}

func (l *listener) told() (string, imd.AnnouncementCursor) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return fmt.Sprint(l.texts), l.cursor
}

// wants waits until the listener was told these, each once and in order.
func (l *listener) wants(t *testing.T, texts ...string) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		got, _ := l.told()
		if got == fmt.Sprint(texts) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("told %s, want %v", got, texts)
		}
	}
}

// announce runs imd announce, again while no state node can be reached.
func announce(t *testing.T, n *testenv.Node, args ...string) {
	t.Helper()
	for end := time.Now().Add(15 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		out, err := exec.Command(testenv.Binary(t), append(append([]string{"announce"}, args...), "-o", "json", "--data-dir", n.Dir)...).CombinedOutput()
		if err == nil && json.Valid(out) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%v: %v: %s", args, err, out)
		}
	}
}

// An announcement reaches the clients of two gateways, of which one came later, and
// clients that come later still, also across a change of the leader; no client
// shows one twice.
func TestAnnouncementsReachEverybodyOnce(t *testing.T) {
	r := testenv.StartRedis(t)
	n := &testenv.Node{Dir: t.TempDir() + "/data", Layout: testenv.Split, Args: []string{"--set", "storage.routes=redis"}, Env: []string{"IMD_REDIS_URL=" + r.URL()}}
	n.Begin(t)
	ann := listen(t, n, "ann", imd.AnnouncementCursor{})
	announce(t, n, "send", "--for", "1h", "--id", "5f0c6f0e-8a5b-4c1e-9d27-3b1f6a2e7c00", "first")
	ann.wants(t, "first")
	late := n.Beside("gateway,push")
	late.Begin(t)
	bob := listen(t, late, "bob", imd.AnnouncementCursor{})
	bob.wants(t, "first")

	n.Back().Kill() // and with it the leader
	n.Back().Start()
	announce(t, n, "send", "--for", "1h", "--id", "5f0c6f0e-8a5b-4c1e-9d27-3b1f6a2e7c01", "second")
	ann.wants(t, "first", "second")
	bob.wants(t, "first", "second")
	_, at := ann.told()
	again := listen(t, late, "ann", at)
	announce(t, n, "withdraw", "2")
	ann.wants(t, "first", "second", "withdrawn 2")
	bob.wants(t, "first", "second", "withdrawn 2")
	again.wants(t, "withdrawn 2")
	// Who knows of no number is told all above it, and so what was taken back before.
	listen(t, n, "cid", imd.AnnouncementCursor{}).wants(t, "first", "withdrawn 2")
	announce(t, n, "list")
}
