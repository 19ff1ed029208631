package settings

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/imdhq/imd/pkg/testenv"
)

// schedule has a message of a user sent later, and returns why it is refused; "" =
// it is not. A busy server is asked again.
func (l live) schedule(n int, in time.Duration) (code string) {
	l.t.Helper()
	for limit := testenv.NewLimit(testenv.Patience); ; time.Sleep(50 * time.Millisecond) {
		if code = l.scheduleOnce(n, in); code != "unavailable" || limit.Over() {
			return code
		}
	}
}

func (l live) scheduleOnce(n int, in time.Duration) string {
	l.t.Helper()
	body := fmt.Sprintf(`{"toUser":"later-peer","requestId":"%08x-0000-4000-8000-000000000000","sendAtMs":"%d","content":{"text":"x"}}`,
		n, time.Now().Add(in).UnixMilli())
	req, err := http.NewRequestWithContext(l.t.Context(), http.MethodPost, l.URL()+"/imd.v1.MessageService/Schedule", bytes.NewReader([]byte(body)))
	if err != nil {
		l.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+l.Token("later"))
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		l.t.Fatal(err)
	}
	defer res.Body.Close()
	var answer struct{ Code string }
	if err := json.NewDecoder(res.Body).Decode(&answer); err != nil {
		l.t.Fatal(err)
	}
	return answer.Code
}

// scheduling shows the bounds of what is to be sent later.
func scheduling(t *testing.T, l live) {
	n := 0
	want := func(what string, in time.Duration, code string) {
		t.Helper()
		n++
		if got := l.schedule(n, in); got != code {
			t.Errorf("%s: %q, want %q", what, got, code)
		}
	}
	want("in two hours", 2*time.Hour, "")
	l.set("schedule.horizon", "1h")
	want("too far", 2*time.Hour, "invalid_argument")
	l.set("schedule.max_per_user", "2")
	want("the second", time.Minute, "")
	want("the third", time.Minute, "resource_exhausted")
	l.set("schedule.max_per_user", "9", "schedule.max_total", "0")
	want("more than in all", time.Minute, "resource_exhausted")
	l.set("schedule.max_total", "")
	want("as before", time.Minute, "")
}
