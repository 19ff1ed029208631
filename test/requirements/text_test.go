package requirements

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	"github.com/imdhq/imd/pkg/testenv"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// rawPost posts bytes as they are.
func rawPost(t *testing.T, n *testenv.Node, method, bearer, contentType string, body []byte) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, n.URL()+"/"+method, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", contentType)
	req.Header.Set("Authorization", "Bearer "+bearer)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(text)
}

// Text that is no UTF-8 ends its own connection or request; nothing of it is
// stored or delivered.
func TestR45InvalidText(t *testing.T) {
	t.Parallel()
	n := node(t)
	b := login(t, n, "bob", "d")
	token := n.Token("ann")
	sends := func(where, bad string) string {
		fields := map[string]string{"text": "x", "id": uuid.NewString(), "to": "bob", "key": "k", "type": "text"}
		fields[where] += bad
		return fmt.Sprintf(`{"id":2,"send":{"toUser":"%s","clientMessageId":"%s","content":{"type":"%s","text":"%s","attributes":{"%s":"v"}}}}`,
			fields["to"], fields["id"], fields["type"], fields["text"], fields["key"])
	}
	bad := map[string]string{"overlong": "\xc0\xaf", "truncated": "\xe2\x82", "a surrogate": "\xed\xa0\x80", "above the last": "\xf4\x90\x80\x80", "a lone byte": "\xff"}
	for name, bytes := range bad {
		for _, where := range []string{"text", "id", "to", "key", "type"} {
			c := testenv.Login(t, n.URL(), protocol.JSON, n.Token("ann"), "d")
			_ = c.TryWriteRaw(true, []byte(sends(where, bytes)))
			if code, _ := c.WaitClosed(5 * time.Second); code != 1007 {
				t.Errorf("%s in the %s closes with %d", name, where, code)
			}
		}
		// Split over fragments, so that each of them is cut inside a character.
		text := sends("text", bytes)
		c := rawUpgrade(t, n, token)
		cut := len(text) / 2
		_, _ = c.Write(append(wsFrame(false, 1, []byte(text[:cut])), wsFrame(true, 0, []byte(text[cut:]))...))
		if code := c.closeCode(5 * time.Second); code != 1007 {
			t.Errorf("%s in fragments closes with %d", name, code)
		}
		// As a protobuf string.
		f := &clientv1.ClientFrame{Id: 2, Kind: &clientv1.ClientFrame_Send{Send: testenv.ToUser("bob", "TEXT")}}
		f.GetSend().ClientMessageId = uuid.NewString()
		data, err := protocol.EncodeClient(protocol.Proto, f)
		if err != nil {
			t.Fatal(err)
		}
		p := testenv.Login(t, n.URL(), protocol.Proto, n.Token("ann"), "d")
		_ = p.TryWriteRaw(false, replaceSameSize(data, "TEXT", bytes))
		wantClosed(t, p, 4500, 5*time.Second)
		// Over HTTP, in both encodings.
		body := sends("text", bytes)
		body = body[len(`{"id":2,"send":`) : len(body)-1]
		if status, answer := rawPost(t, n, "imd.v1.MessageService/Send", token, "application/json", []byte(body)); status != 400 {
			t.Errorf("%s over HTTP: %d %s", name, status, answer)
		}
		if status, answer := rawPost(t, n, "imd.v1.ConversationService/Create", token, "application/json",
			[]byte(`{"requestId":"`+uuid.NewString()+`","name":"x`+bytes+`"}`)); status != 400 {
			t.Errorf("%s in a name: %d %s", name, status, answer)
		}
		binary, err := proto.Marshal(f.GetSend())
		if err != nil {
			t.Fatal(err)
		}
		if status, answer := rawPost(t, n, "imd.v1.MessageService/Send", token, "application/proto", replaceSameSize(binary, "TEXT", bytes)); status != 400 {
			t.Errorf("%s as protobuf over HTTP: %d %s", name, status, answer)
		}
	}
	// A close frame whose reason is none.
	c := rawUpgrade(t, n, token)
	_, _ = c.Write(wsFrame(true, 8, []byte{3, 0xe8, 0xff, 0xfe}))
	if code := c.closeCode(5 * time.Second); code == -1 {
		t.Error("a bad close frame leaves the connection open")
	}
	if f := b.TakeWithin(300*time.Millisecond, isDeliver); f != nil {
		t.Errorf("bob got %v", f)
	}
	if len(login(t, n, "bob", "d2").Synced.Conversations) != 0 || len(login(t, n, "ann", "d2").Synced.Conversations) != 0 {
		t.Error("something was stored")
	}
	good := "ü € 🙂 \u2028 \u202e"
	a := testenv.Login(t, n.URL(), protocol.JSON, token, "good")
	a.MustSend(testenv.ToUser("bob", good))
	if e := b.Entry("the good one", func(string, *clientv1.Entry) bool { return true }); e.Content.GetText() != good {
		t.Errorf("good text became %q", e.Content.GetText())
	}
}

// replaceSameSize puts bad in the place of a text, filled up to its size.
func replaceSameSize(data []byte, text, bad string) []byte {
	fill := append([]byte(bad), "xxxxxxxx"...)[:len(text)]
	return bytes.Replace(data, []byte(text), fill, 1)
}
