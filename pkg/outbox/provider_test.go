package outbox_test

import (
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/imdhq/imd/pkg/outbox"
	"github.com/imdhq/imd/pkg/outbox/outboxtest"
	"github.com/imdhq/imd/pkg/webhook"
)

// backend is a customer's backend that knows devices, as the documentation asks
// for one.
type backend struct {
	t    *testing.T
	gone chan struct{} // closed at the end of the test

	mu      sync.Mutex
	devices map[string]*device
	hangs   bool
	pause   time.Duration
}

type device struct {
	known map[string]bool   // ids of notices
	shown map[string]string // message by collapse key
	badge int
}

func (b *backend) Enroll(user string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.devices[user] = &device{known: map[string]bool{}, shown: map[string]string{}}
}

func (b *backend) Shown(user string) []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Collect(maps.Values(b.devices[user].shown))
}

func (b *backend) Badge(user string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.devices[user].badge
}

func (b *backend) Hang(on bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.hangs = on
}

func (b *backend) Busy(pause time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.pause = pause
}

// key is what the backend and the server share.
var key = webhook.Key(strings.Repeat("k", 32))

// ServeHTTP is http.Handler's.
func (b *backend) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the sender is gone
	}
	h := r.Header
	if err := webhook.Verify([]webhook.Key{key}, h.Get(webhook.HeaderID), h.Get(webhook.HeaderTimestamp), h.Get(webhook.HeaderSignature), body, time.Now()); err != nil {
		b.t.Error(err)
	}
	var n outbox.Notice
	if err := json.Unmarshal(body, &n); err != nil {
		b.t.Error(err)
	}
	code, pause := b.take(n)
	if code == 0 {
		select {
		case <-r.Context().Done():
		case <-b.gone:
		}
		return
	}
	if pause > 0 {
		h := w.Header()
		h.Set("Retry-After", strconv.Itoa(int(pause.Seconds())))
	}
	w.WriteHeader(code)
}

// take takes a notice and gives the status of the answer; 0 = there is none.
func (b *backend) take(n outbox.Notice) (code int, pause time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	d := b.devices[n.UserID]
	switch {
	case b.hangs:
		return 0, 0
	case b.pause > 0:
		return http.StatusTooManyRequests, b.pause
	case d == nil:
		return http.StatusNotFound, 0
	case d.known[n.ID]:
		return http.StatusNoContent, 0
	}
	d.known[n.ID], d.badge = true, n.Badge
	if n.Type == "push" {
		d.shown[n.CollapseKey] = n.MessageID
	} else {
		delete(d.shown, n.CollapseKey)
	}
	return http.StatusNoContent, 0
}

// The provider that ships.
func TestWebhookProvider(t *testing.T) {
	outboxtest.TestProvider(t, func(t *testing.T) (outbox.Provider, outboxtest.Service) {
		b := &backend{t: t, gone: make(chan struct{}), devices: map[string]*device{}}
		srv := httptest.NewServer(b)
		t.Cleanup(srv.Close)
		t.Cleanup(func() { close(b.gone) })
		s := webhook.New(webhook.Target{URL: srv.URL, Timeout: 500 * time.Millisecond, Connections: 4, Keys: func() []webhook.Key { return []webhook.Key{key} }, Agent: "imd/test"})
		t.Cleanup(s.Close)
		return outbox.WebhookProvider{Sender: s}, b
	})
}
