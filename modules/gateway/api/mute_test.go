package api

import (
	"strings"
	"testing"

	v1 "github.com/imdhq/imd/proto/gen/internalv1"
)

// A mute without a time lasts until it is lifted; the pages of mutes go through
// all of them.
func TestMutes(t *testing.T) {
	f := start(t, nil)
	user := f.token("member")
	for _, tt := range []struct {
		method, body string
		until        int64
	}{
		{"Mute", `{"conversationId":"g_1"}`, forGood},
		{"Mute", `{"conversationId":"g_1","untilMs":"32503680000000"}`, 32503680000000},
		{"Unmute", `{"conversationId":"g_1"}`, 0},
	} {
		if got := f.post(user, "ConversationService/"+tt.method, tt.body).reason(); got != "ok" {
			t.Errorf("%s %s: %s", tt.method, tt.body, got)
		}
		r, ok := f.w.last(t).(*v1.SetMuteRequest)
		if !ok || r.UserId != "member" || r.ConversationId != "g_1" || r.UntilMs != tt.until {
			t.Errorf("%s %s asked %v", tt.method, tt.body, r)
		}
	}
	first := f.post(user, "ConversationService/ListMutes", `{"limit":2}`)
	token, _ := first.body["nextPageToken"].(string)
	if text := first.raw; token == "" || !strings.Contains(text, `"g_2"`) || strings.Contains(text, `253402300799000`) {
		t.Fatalf("the first page: %s", text)
	}
	if text := f.post(user, "ConversationService/ListMutes", `{"limit":2,"pageToken":"`+token+`"}`).raw; !strings.Contains(text, `"g_3"`) || strings.Contains(text, "g_1") {
		t.Errorf("the second page: %s", text)
	}
}
