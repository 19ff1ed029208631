package outbox

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/imdhq/imd/pkg/webhook"
)

// key is what all receivers of these tests share with the server.
var key = webhook.Key(strings.Repeat("k", 32))

// keyFile is a file with it.
func keyFile(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "webhook.key")
	if err := os.WriteFile(path, append(key[:len(key):len(key)], '\n'), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// told is what a receiver was told in one request.
type told struct {
	Type           string          `json:"type"`
	ID             string          `json:"id"`
	Cursor         string          `json:"cursor"`
	Time           time.Time       `json:"time"`
	ConversationID string          `json:"conversation_id"`
	UserID         string          `json:"user_id"`
	Badge          int             `json:"badge"`
	Seq            string          `json:"seq"`
	Content        json.RawMessage `json:"content"`
	Entry          struct {
		Seq     string `json:"seq"`
		Sender  string `json:"sender"`
		Content struct {
			Text string `json:"text"`
		} `json:"content"`
	} `json:"entry"`

	replay bool
	at     time.Time
}

// receiver is a backend that believes what is signed.
type receiver struct {
	t   testing.TB
	srv *httptest.Server
	// answer is the status of an answer; 0 = it hangs until the request ends.
	answer func(told) int

	mu    sync.Mutex
	all   []told
	first map[string]told // by id
}

func newReceiver(t testing.TB, answer func(told) int) *receiver {
	r := &receiver{t: t, answer: answer, first: map[string]told{}}
	r.srv = httptest.NewServer(r)
	t.Cleanup(r.srv.Close)
	return r
}

// yes takes everything.
func yes(told) int { return http.StatusNoContent }

// ServeHTTP is http.Handler's.
func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return // the sender is gone
	}
	h := req.Header
	if err := webhook.Verify([]webhook.Key{key}, h.Get(webhook.HeaderID), h.Get(webhook.HeaderTimestamp), h.Get(webhook.HeaderSignature), body, time.Now()); err != nil {
		r.t.Errorf("%v: %s", err, body)
	}
	one := told{replay: h.Get("Imd-Replay") != "", at: time.Now()}
	if err := json.Unmarshal(body, &one); err != nil || one.ID != h.Get(webhook.HeaderID) {
		r.t.Errorf("body %s: %v", body, err)
	}
	code := r.answer(one)
	if code == 0 {
		<-req.Context().Done()
		return
	}
	if code < 300 {
		r.mu.Lock()
		r.all = append(r.all, one)
		if _, again := r.first[one.ID]; !again {
			r.first[one.ID] = one
		}
		r.mu.Unlock()
	}
	w.WriteHeader(code)
}

// distinct are the first requests of each id, in the order in which they came.
func (r *receiver) distinct() (out []told) {
	r.mu.Lock()
	defer r.mu.Unlock()
	seen := map[string]bool{}
	for _, one := range r.all {
		if !seen[one.ID] {
			seen[one.ID] = true
			out = append(out, one)
		}
	}
	return out
}

// requests is how many were taken, repeats among them.
func (r *receiver) requests() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.all)
}

// wait waits until n distinct ids were taken and returns them.
func (r *receiver) wait(n int) []told {
	r.t.Helper()
	for end := time.Now().Add(15 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		got := r.distinct()
		if len(got) >= n {
			return got
		}
		if time.Now().After(end) {
			r.t.Fatalf("%d events were told, want %d", len(got), n)
		}
	}
}

// ordered fails unless what was told first of each conversation rises.
func (r *receiver) ordered() {
	r.t.Helper()
	last := map[string]int{}
	for _, one := range r.distinct() {
		var seq int
		if err := json.Unmarshal([]byte(one.Entry.Seq), &seq); err != nil {
			r.t.Fatal(err)
		}
		if seq <= last[one.ConversationID] {
			r.t.Errorf("%s: seq %d was told after %d", one.ConversationID, seq, last[one.ConversationID])
		}
		last[one.ConversationID] = seq
	}
}

// texts are what was written, in the order in which it was told first.
func texts(list []told) (out []string) {
	for _, one := range list {
		if one.Entry.Content.Text != "" {
			out = append(out, one.Entry.Content.Text)
		}
	}
	return out
}

func types(list []told) (out []string) {
	for _, one := range list {
		out = append(out, one.Type)
	}
	slices.Sort(out)
	return slices.Compact(out)
}
