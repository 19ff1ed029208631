package api

import (
	"testing"

	"github.com/imdhq/imd/pkg/auth"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// What is scheduled goes to the state role as a send would; pages and the answer
// to a cancel come back.
func TestScheduledMessages(t *testing.T) {
	f := start(t, nil)
	member := f.token("member")
	if a := f.post(member, "MessageService/Schedule", `{"toUser":"owner",`+id1+`,"content":{"text":"hi"},"sendAtMs":"1234"}`); a.status != 200 {
		t.Fatalf("schedule: %+v", a)
	}
	if r := f.w.last(t).(*v1.ScheduleRequest); r.UserId != "member" || r.PeerId != "owner" || r.SendAtMs != 1234 || r.ConversationId != protocol.DirectID("member", "owner") || len(r.BodyHash) != 32 {
		t.Errorf("asked: %v", r)
	}
	for body, want := range map[string]string{
		`{` + id1 + `,"content":{"text":"hi"},"sendAtMs":"1234"}`:                      "bad_request", // to nobody
		`{"toUser":"member",` + id1 + `,"content":{"text":"hi"},"sendAtMs":"1234"}`:    "bad_request",
		`{"conversationId":"g_1","content":{"text":"hi"},"sendAtMs":"1234"}`:           "bad_request", // no request id
		`{"conversationId":"g_1",` + id1 + `,"sendAtMs":"1234"}`:                       "bad_request", // no content
		`{"conversationId":"g_1",` + id1 + `,"content":{"text":"hi"},"sendAtMs":"-1"}`: "bad_request",
	} {
		if got := f.post(member, "MessageService/Schedule", body).reason(); got != want {
			t.Errorf("%s: %s, want %s", body, got, want)
		}
	}
	next, _ := f.post(member, "MessageService/ListScheduled", `{}`).body["nextPageToken"].(string)
	f.post(member, "MessageService/ListScheduled", `{"pageToken":"`+next+`","ended":true}`)
	if r := f.w.last(t).(*v1.ListScheduledRequest); r.AfterMs != 1234 || r.AfterId != 7 || !r.Ended || r.UserId != "member" {
		t.Errorf("asked: %v", r)
	}
	if got := f.post(member, "MessageService/ListScheduled", `{"pageToken":"x"}`).reason(); got != "bad_request" {
		t.Errorf("a bad token: %s", got)
	}
	for id, want := range map[string]bool{"7": true, "8": false} {
		a := f.post(f.key(auth.ScopeMessages), "MessageService/CancelScheduled", `{"scheduledId":"`+id+`","asUser":"member"}`)
		if got, _ := a.body["cancelled"].(bool); got != want {
			t.Errorf("cancel %s: %s", id, a.body)
		}
		if r := f.w.last(t).(*v1.CancelScheduledRequest); r.UserId != "member" {
			t.Errorf("asked: %v", r)
		}
	}
}
