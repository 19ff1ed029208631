package webhook

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/imdhq/imd/pkg/testenv"
	"github.com/imdhq/imd/pkg/webhook"
)

// sample is a signed request, as imd makes it while a key is being changed.
func sample(now time.Time, body string) http.Header {
	keys := []webhook.Key{webhook.Key(strings.Repeat("n", 32)), webhook.Key(strings.Repeat("o", 32))}
	h := http.Header{}
	h.Set("Webhook-Id", "m_1")
	h.Set("Webhook-Timestamp", strconv.FormatInt(now.Unix(), 10))
	h.Set("Webhook-Signature", webhook.Sign(keys, "m_1", now, []byte(body)))
	return h
}

// cases are what both examples must say of a request.
var cases = []struct {
	name, key, body string
	late            time.Duration
	good            bool
}{
	{"the new key", strings.Repeat("n", 32), `{"type":"test"}`, 0, true},
	{"the former key", strings.Repeat("o", 32), `{"type":"test"}`, 0, true},
	{"another key", strings.Repeat("x", 32), `{"type":"test"}`, 0, false},
	{"another body", strings.Repeat("n", 32), `{"type":"text"}`, 0, false},
	{"an old request", strings.Repeat("n", 32), `{"type":"test"}`, time.Hour, false},
}

func TestGoExample(t *testing.T) {
	now := time.Now()
	for _, tt := range cases {
		r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(tt.body))
		r.Header = sample(now, `{"type":"test"}`)
		if body, err := Verify(r, []byte(tt.key), now.Add(tt.late)); (err == nil) != tt.good || err == nil && string(body) != tt.body {
			t.Errorf("%s: %q, %v", tt.name, body, err)
		}
	}
}

func TestNodeExample(t *testing.T) {
	node, err := exec.LookPath("node")
	if err != nil {
		testenv.Omit(t, "the example for Node", "apt-get install nodejs")
		return
	}
	now := time.Now()
	script := `import { verify } from "./verify.mjs";
const c = JSON.parse(process.env.CASE);
process.stdout.write(String(verify(c.headers, Buffer.from(c.body), c.key, c.now)));`
	for _, tt := range cases {
		h := map[string]string{}
		for k, v := range sample(now, `{"type":"test"}`) {
			h[strings.ToLower(k)] = v[0]
		}
		in, err := json.Marshal(map[string]any{"headers": h, "body": tt.body, "key": tt.key, "now": now.Add(tt.late).UnixMilli()})
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), node, "--input-type=module", "-e", script)
		cmd.Env = append(os.Environ(), "CASE="+string(in))
		var errOut bytes.Buffer
		cmd.Stderr = &errOut
		out, err := cmd.Output()
		if err != nil || string(out) != strconv.FormatBool(tt.good) {
			t.Errorf("%s: %s, %v: %s", tt.name, out, err, errOut.String())
		}
	}
}
