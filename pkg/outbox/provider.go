package outbox

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/imdhq/imd/pkg/webhook"
)

// Notice is what a user without a connected device is told, or what is taken back.
type Notice struct {
	// Type is "push", or "withdraw": the user has read it elsewhere.
	Type string `json:"type"`
	// ID is the same at every try; by it a repeat is known.
	ID             string `json:"id"`
	UserID         string `json:"user_id"`
	ConversationID string `json:"conversation_id"`
	// CollapseKey is what a later notice of the same conversation has too: it
	// takes the place of the earlier one on a device.
	CollapseKey string    `json:"collapse_key"`
	Badge       int       `json:"badge"` // unread entries in all conversations that the user has not muted, up to 1000
	MessageID   string    `json:"message_id"`
	Seq         string    `json:"seq"`
	Sender      string    `json:"sender"`
	Time        time.Time `json:"time"`
	// Content is the message as JSON of the client protocol; nil = it is not told.
	Content json.RawMessage `json:"content,omitempty"`
}

// Provider brings notices to devices. An implementation for a push service of a
// vendor keeps the tokens of devices, maps ID and CollapseKey to what the service
// has for that, and answers Refused if the user has no device there. It has to pass
// outboxtest.TestProvider.
type Provider interface {
	// Push makes one try, within a deadline of its own. Taken = the device will show
	// it, or has it already; Failed = it is tried again, not before Result.After;
	// Refused = it is given up soon. Safe for concurrent use.
	Push(ctx context.Context, n Notice) webhook.Result
}

// WebhookProvider hands notices to the customer's backend, which knows the devices.
type WebhookProvider struct{ Sender Sender }

// Push is Provider's.
func (p WebhookProvider) Push(ctx context.Context, n Notice) webhook.Result {
	b, err := json.Marshal(n)
	if err != nil {
		return webhook.Result{Outcome: webhook.Refused, Reason: fmt.Sprint("the notice cannot be written as JSON: ", err)}
	}
	return p.Sender.Send(ctx, webhook.Message{ID: n.ID, Body: b})
}
