package testenv

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/google/uuid"
)

// Post calls a Connect method with plain JSON, as curl would, and returns the
// status and the decoded answer.
func Post(t testing.TB, base, method, bearer string, body any) (int, map[string]any) {
	t.Helper()
	raw, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, base+"/"+method, bytes.NewReader(raw))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	if bearer != "" {
		req.Header.Set("Authorization", "Bearer "+bearer)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]any{}
	if err := json.Unmarshal(text, &out); err != nil {
		t.Fatalf("%s answered %d with %q", method, res.StatusCode, text)
	}
	return res.StatusCode, out
}

// PostAgain is Post, again while the server says that something is out of reach for
// now, as one does that a slow machine has held up. The body must be one that may come
// twice.
func PostAgain(t testing.TB, base, method, bearer string, body any) (int, map[string]any) {
	t.Helper()
	for l := NewLimit(Patience); ; {
		status, out := Post(t, base, method, bearer, body)
		if status != http.StatusServiceUnavailable || l.Over() {
			return status, out
		}
		t.Logf("%s is called again: %v", method, out)
		time.Sleep(500 * time.Millisecond)
	}
}

// MustPost is PostAgain; the test fails unless the answer is 200.
func MustPost(t testing.TB, base, method, bearer string, body any) map[string]any {
	t.Helper()
	status, out := PostAgain(t, base, method, bearer, body)
	if status != http.StatusOK {
		t.Fatalf("%s answered %d: %v", method, status, out)
	}
	return out
}

// Group makes a group as the user of the token and returns its id.
func Group(t testing.TB, base, token, name string, users ...string) string {
	t.Helper()
	out := MustPost(t, base, "imd.v1.ConversationService/Create", token,
		map[string]any{"requestId": uuid.NewString(), "name": name, "userIds": users})
	return out["conversationId"].(string)
}

// ReasonOf is the stable reason in a Connect error's detail; "" if there is none.
func ReasonOf(answer map[string]any) string {
	details, _ := answer["details"].([]any)
	for _, d := range details {
		m, _ := d.(map[string]any)
		if debug, ok := m["debug"].(map[string]any); ok {
			if r, ok := debug["reason"].(string); ok {
				return r
			}
		}
	}
	return ""
}
