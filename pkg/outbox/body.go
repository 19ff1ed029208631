package outbox

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// types names the kinds of events for receivers. A name stays for good.
var types = []struct {
	kind store.EventKind
	name string
}{
	{store.EventKind(clientv1.EntryKind_ENTRY_KIND_MESSAGE), "message.committed"},
	{store.EventKind(clientv1.EntryKind_ENTRY_KIND_MEMBER_CHANGE), "member.changed"},
	{store.EventKind(clientv1.EntryKind_ENTRY_KIND_CONVERSATION_CHANGE), "conversation.changed"},
	{store.EventKind(clientv1.EntryKind_ENTRY_KIND_EDIT), "message.edited"},
	{store.EventKind(clientv1.EntryKind_ENTRY_KIND_RECALL), "message.recalled"},
	{store.EventKind(clientv1.EntryKind_ENTRY_KIND_REACTION), "message.reacted"},
	{store.EventKind(clientv1.EntryKind_ENTRY_KIND_ANNOUNCEMENT), "announcement.committed"},
	{store.UserOnline, "user.online"},
	{store.UserOffline, "user.offline"},
}

// Types lists the types of events.
func Types() []string {
	out := make([]string, len(types))
	for i, t := range types {
		out[i] = t.name
	}
	return out
}

// Type is what receivers call a kind of event.
func Type(k store.EventKind) string {
	for _, t := range types {
		if t.kind == k {
			return t.name
		}
	}
	return "entry.committed"
}

// Wanted makes a filter of types; none = everything about conversations. Events of
// users have to be named: there may be many more of them.
func Wanted(names []string) func(store.EventKind) bool {
	return func(k store.EventKind) bool {
		if len(names) == 0 {
			return k < store.UserOnline
		}
		return slices.Contains(names, Type(k))
	}
}

// ID is by what a receiver knows an event that it has got before.
func ID(e store.Event) string {
	if e.Entry != nil {
		return "m_" + strconv.FormatInt(int64(e.Entry.MessageID), 10)
	}
	return "e_" + strconv.FormatInt(e.Position, 10)
}

// body is an event as receivers get it.
type body struct {
	Type           string          `json:"type"`
	ID             string          `json:"id"`
	Cursor         string          `json:"cursor"`
	Time           time.Time       `json:"time"`
	ConversationID string          `json:"conversation_id,omitempty"`
	UserID         string          `json:"user_id,omitempty"`
	Entry          json.RawMessage `json:"entry,omitempty"`
}

var entryJSON = protojson.MarshalOptions{UseProtoNames: true}

// Body is an event as JSON. Numbers that do not fit into 53 bits are texts.
func Body(e store.Event) ([]byte, error) {
	b := body{
		Type: Type(e.Kind), ID: ID(e), Cursor: strconv.FormatInt(e.Position, 10), Time: e.At.UTC(),
		ConversationID: string(e.Conversation), UserID: string(e.User),
	}
	if e.Entry != nil {
		raw, err := entryJSON.Marshal(im.WireEntry(e.Entry))
		if err != nil {
			return nil, fmt.Errorf("event %d: %w", e.Position, err)
		}
		b.Entry = raw
	}
	return json.Marshal(b)
}
