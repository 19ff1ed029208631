package split

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/imdhq/imd/pkg/testenv"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// messageCall makes one call of the HTTP API as a user.
func messageCall(b *testing.B, n *testenv.Node, token, method string, body, answer any) {
	text, err := json.Marshal(body)
	if err != nil {
		b.Fatal(err)
	}
	for try := 0; ; try++ {
		req, err := http.NewRequestWithContext(b.Context(), http.MethodPost, n.URL()+"/imd.v1.MessageService/"+method, bytes.NewReader(text))
		if err != nil {
			b.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Authorization", "Bearer "+token)
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			b.Fatal(err)
		}
		err = json.NewDecoder(res.Body).Decode(answer)
		_ = res.Body.Close()
		if err == nil && res.StatusCode == http.StatusOK {
			return
		}
		if try == 50 {
			b.Fatalf("%s: status %d, %v", method, res.StatusCode, err)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// BenchmarkScheduledAtOneInstant schedules 10,000 messages of 200 users for the
// same instant, on a cluster of two processes of each role with Postgres, and says
// how long after it the last one was sent.
func BenchmarkScheduledAtOneInstant(b *testing.B) {
	const users, each = 200, 50
	n := &testenv.Node{Dir: filepath.Join(b.TempDir(), "data"), Layout: testenv.Wide}
	n.Begin(b)
	due := time.Now().Add(50 * time.Second)
	var wg sync.WaitGroup
	tokens := make([]string, users)
	for u := range users {
		tokens[u] = n.Token(fmt.Sprint("u", u))
	}
	for w := range 8 {
		wg.Go(func() {
			for u := w; u < users; u += 8 {
				for i := range each {
					messageCall(b, n, tokens[u], "Schedule", map[string]any{
						"toUser": fmt.Sprint("v", u), "requestId": fmt.Sprintf("%08x-0000-4000-8000-%012x", u, i),
						"sendAtMs": due.UnixMilli(), "content": map[string]any{"text": fmt.Sprint("text ", i)},
					}, &struct{}{})
				}
			}
		})
	}
	wg.Wait()
	if late := time.Since(due); late > 0 {
		b.Fatalf("they were scheduled %v after their time", late)
	}
	b.Logf("all are scheduled %v before their time", time.Until(due))
	time.Sleep(time.Until(due) + 3*time.Second)
	last := int64(0)
	for u := range users {
		for open := true; open; {
			var list struct {
				Scheduled []struct {
					State   string
					EndedMs int64 `json:",string"`
				}
			}
			messageCall(b, n, tokens[u], "ListScheduled", map[string]any{"ended": true, "limit": 200}, &list)
			if len(list.Scheduled) != each {
				b.Fatalf("%d are in the list", len(list.Scheduled))
			}
			open = false
			for _, m := range list.Scheduled {
				open = open || m.State != "SCHEDULED_STATE_SENT"
				last = max(last, m.EndedMs)
			}
			if time.Since(due) > 30*time.Second {
				b.Fatal("they are not sent")
			}
			if open {
				time.Sleep(50 * time.Millisecond)
			}
		}
		var page struct {
			Page struct{ Entries []struct{ Seq string } }
		}
		messageCall(b, n, tokens[u], "History", map[string]any{"conversationId": protocol.DirectID(fmt.Sprint("u", u), fmt.Sprint("v", u)), "limit": 500}, &page)
		if got := len(page.Page.Entries); got != each {
			b.Errorf("%d entries of %d", got, each)
		}
	}
	b.ReportMetric(float64(last-due.UnixMilli())/1000, "s-to-the-last")
	b.ReportMetric(0, "ns/op")
}
