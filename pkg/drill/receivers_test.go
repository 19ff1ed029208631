package drill

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/imdhq/imd/pkg/auth"
	"github.com/imdhq/imd/pkg/history"
	"github.com/imdhq/imd/pkg/webhook"
)

const toldOfEvent = `{"type":"message.committed","id":"m_7","cursor":"3","conversation_id":"g_1","entry":{"seq":"2","kind":"ENTRY_KIND_MESSAGE","message_id":"7","content":{"text":"hello"}}}`

// A receiver records what it is told, with what it said, in each of its manners.
func TestReceivers(t *testing.T) {
	d := &drill{Options: Options{Dir: t.TempDir(), Seed: 1}, ctx: t.Context()}
	d.world = newWorld([]*node{{}}, auth.Key{})
	var err error
	if d.rec, err = history.NewRecorder(filepath.Join(d.Dir, "history")); err != nil {
		t.Fatal(err)
	}
	x, err := newEffects(d)
	if err != nil {
		t.Fatal(err)
	}
	defer x.close()
	client := &http.Client{Timeout: 300 * ms, CheckRedirect: func(*http.Request, []*http.Request) error { return errors.New("no") }}
	tell := func(r *receiver, id, body string, keys []webhook.Key) int {
		now := time.Now()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, r.url(), strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set(webhook.HeaderID, id)
		req.Header.Set(webhook.HeaderTimestamp, strconv.FormatInt(now.Unix(), 10))
		req.Header.Set(webhook.HeaderSignature, webhook.Sign(keys, id, now, []byte(body)))
		res, err := client.Do(req)
		if err != nil && res == nil {
			return 0
		}
		defer res.Body.Close()
		_, _ = io.CopyN(io.Discard, res.Body, 1<<16)
		return res.StatusCode
	}
	if got := tell(x.events, "m_7", toldOfEvent, x.keys); got != http.StatusNoContent {
		t.Errorf("an honest receiver answers %d", got)
	}
	if got := tell(x.pushes, "p", `{"type":"push","id":"p","user_id":"bob","conversation_id":"g_1","message_id":"7","seq":"2"}`, x.keys); got != http.StatusNoContent {
		t.Errorf("an honest receiver of notices answers %d", got)
	}
	x.events.behave(hanging)
	if got := tell(x.events, "m_7", toldOfEvent, x.keys); got != 0 {
		t.Errorf("one that hangs answers %d", got)
	}
	x.events.behave(lying)
	seen := map[int]bool{}
	for range 40 {
		seen[tell(x.events, "m_7", toldOfEvent, x.keys)] = true
	}
	for _, status := range []int{200, 307, 401, 500} {
		if !seen[status] {
			t.Errorf("one that lies never answers %d", status)
		}
	}
	x.events.behave(forgetful)
	seen = map[int]bool{}
	for range 20 {
		seen[tell(x.events, "m_7", toldOfEvent, x.keys)] = true
	}
	if !seen[0] || !seen[http.StatusNoContent] {
		t.Errorf("one that cuts the connection now and then answers %v", seen)
	}
	if len(d.out.Crashes) != 0 {
		t.Errorf("%v", d.out.Crashes)
	}
	x.events.behave(honest)
	tell(x.events, "m_7", toldOfEvent, []webhook.Key{bytes.Repeat([]byte("x"), 32)})
	if len(d.out.Crashes) != 1 {
		t.Errorf("what is not signed passes: %v", d.out.Crashes)
	}
	if err := d.rec.Close(history.Run{}); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(d.Dir, "history", "effects.log"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"seq":2,"entry":"m_7","name":"events"`, `"mid":"7"`, `"ack":"unknown"`, `"ack":"fail"`, `"u":"bob"`, `"n":3`} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the history lacks %s", want)
		}
	}
}
