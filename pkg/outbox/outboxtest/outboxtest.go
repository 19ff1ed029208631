// Package outboxtest is what every provider of notices has to pass, whatever
// service it hands them to.
package outboxtest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/imdhq/imd/pkg/outbox"
	"github.com/imdhq/imd/pkg/webhook"
)

// Deadline is how long a try may take, whatever the service does. Providers that
// are tested have a timeout well below it.
const Deadline = 5 * time.Second

// Service stands in for the push service that a provider talks to, and for the
// devices behind it. Safe for concurrent use.
type Service interface {
	// Enroll gives a user a device; those without one are not known to the service.
	Enroll(user string)
	// Shown lists the messages whose notices the user's device shows now, in any
	// order.
	Shown(user string) []string
	// Badge is what the user's device shows as its count.
	Badge(user string) int
	// Hang makes the service answer nothing, or lets it answer again.
	Hang(on bool)
	// Busy makes the service refuse all for now, and ask to be left alone for so
	// long; 0 = it takes them again.
	Busy(pause time.Duration)
}

// TestProvider runs the suite. begin makes a provider and the service behind it,
// both for one test.
func TestProvider(t *testing.T, begin func(t *testing.T) (outbox.Provider, Service)) {
	for name, test := range map[string]func(*world){
		"a notice is shown, and its repeat is not":    (*world).repeats,
		"a newer one takes the place of an older":     (*world).collapses,
		"what was read elsewhere is taken back":       (*world).withdraws,
		"who has no device is refused":                (*world).strangers,
		"a service that hangs costs the timeout":      (*world).hangs,
		"a try ends with its context":                 (*world).ends,
		"a service that is busy says until when":      (*world).busy,
		"many tries at once do not meet each other":   (*world).together,
		"a notice without content is shown as well":   (*world).bare,
		"what was taken back does not come once more": (*world).late,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, s := begin(t)
			s.Enroll("ann")
			test(&world{t, p, s})
		})
	}
}

type world struct {
	*testing.T
	p outbox.Provider
	s Service
}

// notice is one of a message in a conversation.
func notice(kind, user, conversation string, message, badge int) outbox.Notice {
	return outbox.Notice{
		Type: kind, ID: fmt.Sprintf("%s_%d_%s", kind, message, user), UserID: user, ConversationID: conversation, CollapseKey: conversation, Badge: badge,
		MessageID: fmt.Sprint(message), Seq: fmt.Sprint(message), Sender: "bob", Time: time.Unix(1_700_000_000, 0).UTC(), Content: []byte(`{"text":"hello"}`),
	}
}

// push makes one try and fails unless its outcome is as wanted.
func (w *world) push(n outbox.Notice, want webhook.Outcome) webhook.Result {
	w.Helper()
	began := time.Now()
	r := w.p.Push(w.Context(), n)
	if r.Outcome != want {
		w.Errorf("%s: outcome %v (%s), want %v", n.ID, r.Outcome, r.Reason, want)
	}
	if took := time.Since(began); took > Deadline {
		w.Errorf("%s: a try took %v", n.ID, took)
	}
	if want != webhook.Taken && r.Reason == "" {
		w.Errorf("%s: nothing says why it was not taken", n.ID)
	}
	return r
}

// shows fails unless the user's device comes to show these messages and the badge.
func (w *world) shows(user string, badge int, messages ...string) {
	w.Helper()
	for end := time.Now().Add(Deadline); ; time.Sleep(5 * time.Millisecond) {
		got := slices.Sorted(slices.Values(w.s.Shown(user)))
		if slices.Equal(got, messages) && w.s.Badge(user) == badge {
			return
		}
		if time.Now().After(end) {
			w.Errorf("%s sees %v and the badge %d, want %v and %d", user, got, w.s.Badge(user), messages, badge)
			return
		}
	}
}

func (w *world) repeats() {
	for range 3 {
		w.push(notice("push", "ann", "g_1", 1, 4), webhook.Taken)
	}
	w.shows("ann", 4, "1")
}

func (w *world) collapses() {
	w.push(notice("push", "ann", "g_1", 1, 1), webhook.Taken)
	w.push(notice("push", "ann", "g_2", 2, 2), webhook.Taken)
	w.push(notice("push", "ann", "g_1", 3, 3), webhook.Taken)
	w.shows("ann", 3, "2", "3")
}

func (w *world) withdraws() {
	w.push(notice("push", "ann", "g_1", 1, 1), webhook.Taken)
	w.push(notice("push", "ann", "g_2", 2, 2), webhook.Taken)
	w.push(notice("withdraw", "ann", "g_1", 1, 1), webhook.Taken)
	w.shows("ann", 1, "2")
	w.push(notice("withdraw", "ann", "g_9", 9, 0), webhook.Taken) // never told
	w.shows("ann", 0, "2")
}

func (w *world) strangers() {
	w.push(notice("push", "stranger", "g_1", 1, 1), webhook.Refused)
	w.push(notice("push", "ann", "g_1", 1, 1), webhook.Taken)
}

func (w *world) hangs() {
	w.s.Hang(true)
	w.push(notice("push", "ann", "g_1", 1, 1), webhook.Failed)
	w.s.Hang(false)
	w.push(notice("push", "ann", "g_1", 1, 1), webhook.Taken)
	w.shows("ann", 1, "1")
}

func (w *world) ends() {
	w.s.Hang(true)
	defer w.s.Hang(false)
	ctx, cancel := context.WithCancel(w.Context())
	ended := make(chan webhook.Result, 1)
	began := time.Now()
	go func() { ended <- w.p.Push(ctx, notice("push", "ann", "g_1", 1, 1)) }()
	cancel()
	if r := <-ended; r.Outcome != webhook.Failed || time.Since(began) > Deadline/2 {
		w.Errorf("a try that was ended: %+v after %v", r, time.Since(began))
	}
}

func (w *world) busy() {
	w.s.Busy(7 * time.Second)
	if r := w.push(notice("push", "ann", "g_1", 1, 1), webhook.Failed); r.After < 6*time.Second || r.After > 8*time.Second {
		w.Errorf("the service asks for 7 s, the provider for %v", r.After)
	}
	w.s.Busy(0)
	w.push(notice("push", "ann", "g_1", 1, 1), webhook.Taken)
}

func (w *world) together() {
	var wg sync.WaitGroup
	for i := range 20 {
		user := fmt.Sprint("user", i)
		w.s.Enroll(user)
		wg.Go(func() { w.push(notice("push", user, "g_1", i, i), webhook.Taken) })
	}
	wg.Wait()
	for i := range 20 {
		w.shows(fmt.Sprint("user", i), i, fmt.Sprint(i))
	}
}

func (w *world) bare() {
	n := notice("push", "ann", "g_1", 1, 1)
	n.Content = nil
	w.push(n, webhook.Taken)
	w.shows("ann", 1, "1")
}

func (w *world) late() {
	w.push(notice("push", "ann", "g_1", 1, 1), webhook.Taken)
	w.push(notice("withdraw", "ann", "g_1", 1, 0), webhook.Taken)
	w.push(notice("push", "ann", "g_1", 1, 1), webhook.Taken) // the answer to the first try was lost
	w.push(notice("push", "ann", "g_2", 2, 1), webhook.Taken) // comes behind it
	w.shows("ann", 1, "2")
}
