package drill

import (
	"context"
	crand "crypto/rand"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/imdhq/imd/pkg/datadir"
	"github.com/imdhq/imd/pkg/history"
	"github.com/imdhq/imd/pkg/webhook"
	"github.com/imdhq/imd/proto/gen/adminv1"
	"github.com/imdhq/imd/proto/gen/adminv1/adminv1connect"
)

const (
	// outboxReady bounds the wait until commits become events.
	outboxReady = 30 * time.Second
	// outboxDone bounds the wait, in the end, until everybody has been told of everything.
	outboxDone = time.Minute
	// pushAfter is how long silent devices may take in a drill until their users are notified.
	pushAfter = 3 * time.Second
)

// effects is what leaders do for others in a drill with Postgres: it has a receiver
// of events and one of notices, users without devices, scheduled messages, and devices that
// listen to announcements, and records all that is told.
type effects struct {
	d       *drill
	keys    []webhook.Key
	keyPath string
	events  *receiver
	pushes  *receiver

	chores    sync.WaitGroup // what is asked of leaders, and the answers
	listening sync.WaitGroup
	listeners []*listener

	mu      sync.Mutex
	lasting []int64 // numbers of announcements that last
}

// newEffects makes the receivers. Close ends them.
func newEffects(d *drill) (*effects, error) {
	x := &effects{d: d, keys: []webhook.Key{webhook.Key(crand.Text() + crand.Text())}, keyPath: filepath.Join(d.Dir, "webhook.key")}
	if err := os.WriteFile(x.keyPath, x.keys[0], 0o600); err != nil {
		return nil, err
	}
	var err error
	if x.events, err = x.receiver(toldEvents); err != nil {
		return nil, err
	}
	if x.pushes, err = x.receiver(toldPushes); err != nil {
		x.close()
		return nil, err
	}
	return x, nil
}

// env tells a node of the receivers.
func (x *effects) env() []string {
	list, _ := json.Marshal([]map[string]any{{"name": x.events.name, "url": x.events.url(), "key_file": x.keyPath, "allow_plaintext": true, "timeout": tryLimit.String()}}) // of texts
	return []string{"IMD_WEBHOOKS_RECEIVERS=" + string(list), "IMD_OFFLINE_PUSH_URL=" + x.pushes.url(), "IMD_OFFLINE_PUSH_KEY_FILE=" + x.keyPath,
		"IMD_OFFLINE_PUSH_ALLOW_PLAINTEXT=true", "IMD_OFFLINE_PUSH_AFTER=" + pushAfter.String(), "IMD_OFFLINE_PUSH_TIMEOUT=" + tryLimit.String()}
}

// ready waits until commits become events and everybody who is told has a place among
// them, so that the first message of the drill is told too.
func (x *effects) ready() error {
	for end := time.Now().Add(outboxReady); ; {
		res, err := x.stand(x.d.ctx)
		if err == nil && res.GetOn() && known(res.GetReceivers()) {
			x.record(history.Record{T: x.now(), Kind: history.Receiver, Name: x.events.name})
			return nil
		}
		if !hold(x.d.ctx, callPause) {
			return x.d.ctx.Err()
		}
		if time.Now().After(end) {
			return fmt.Errorf("commits do not become events within %v: %v, %w", outboxReady, res, err)
		}
	}
}

// known reports whether the receiver of events and both walks over offline users have begun.
func known(all []*adminv1.WebhookReceiver) bool {
	begun := 0
	for _, r := range all {
		if r.GetCursor() >= 0 {
			begun++
		}
	}
	return begun == 3
}

// hooks are the calls about receivers, at a node that can lead.
func (x *effects) hooks() (adminv1connect.WebhookServiceClient, error) {
	n := alive(havingRole(x.d.nodes, "scheduler"))
	key, err := datadir.ReadAdminKey(n.dir)
	if err != nil {
		return nil, err
	}
	return adminv1connect.NewWebhookServiceClient(x.d.world.client(n.endpoints().Ops, key)), nil
}

// stand is where the receivers stand.
func (x *effects) stand(ctx context.Context) (*adminv1.ListReceiversResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	c, err := x.hooks()
	if err != nil {
		return nil, err
	}
	return c.ListReceivers(ctx, &adminv1.ListReceiversRequest{})
}

// begin lets everything go on until ctx is done or until a time; what was begun by then
// still comes to its end.
func (x *effects) begin(ctx context.Context, until time.Time) {
	ctx, cancel := context.WithDeadline(ctx, until)
	rng := rand.New(rand.NewPCG(x.d.Seed, 0x6566666563))
	var all sync.WaitGroup
	start := func(what string, do func(context.Context, *rand.Rand) error) {
		own := rand.New(rand.NewPCG(rng.Uint64(), 1))
		all.Go(func() {
			if err := do(ctx, own); err != nil && ctx.Err() == nil {
				x.d.trouble("%s: %v", what, err)
			}
		})
	}
	start("scheduled messages", x.schedule)
	start("announcements", x.announce)
	for i := range sleepers {
		start("a user without devices", func(ctx context.Context, rng *rand.Rand) error { return x.sleep(ctx, rng, fmt.Sprint("sleeper-", i+1)) })
	}
	gates := gatesOf(x.d.nodes)
	for i := range listenersAll {
		l := x.listener(listenerName(i), gates[i%len(gates)])
		x.listeners = append(x.listeners, l)
		x.listening.Go(func() { l.listen(x.d.ctx) })
	}
	x.chores.Go(func() { all.Wait(); cancel() })
}

// settle waits until everything asked for has its answer and everybody was told of everything, or
// should have been. Dead letters are told once more, as an operator would.
func (x *effects) settle(ctx context.Context) {
	x.chores.Wait()
	if !x.allDone(ctx) && ctx.Err() == nil {
		x.d.trouble("not everybody was told of everything within %v", outboxDone)
	}
	for _, l := range x.listeners {
		l.finish()
	}
	x.listening.Wait()
}

// allDone waits until it is so at two looks in a row: what was committed a moment before the
// first may be no event yet.
func (x *effects) allDone(ctx context.Context) bool {
	before := false
	for end := time.Now().Add(outboxDone); time.Now().Before(end); {
		now := x.done(ctx)
		if now && before {
			return true
		}
		before = now
		if !hold(ctx, callPause) {
			break
		}
	}
	return false
}

// done is one look. What becomes events is looked at before the events.
func (x *effects) done(ctx context.Context) bool {
	if !x.nothingScheduled(ctx) || !x.allNoticed() {
		return false
	}
	res, err := x.stand(ctx)
	if err != nil || res.GetPushesDue()+res.GetPushesWithdraw() > 0 {
		return false
	}
	for _, r := range res.GetReceivers() {
		if r.GetDead() > 0 {
			x.revive(ctx, r.GetName())
		}
		if r.GetBehind()+r.GetOpen()+r.GetDead() > 0 {
			return false
		}
	}
	return true
}

// revive has dead letters told once more.
func (x *effects) revive(ctx context.Context, name string) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	c, err := x.hooks()
	if err == nil {
		_, err = c.ReplayReceiver(ctx, &adminv1.ReplayReceiverRequest{Name: name, Dead: true})
	}
	if err != nil && ctx.Err() == nil {
		x.d.trouble("dead letters of %s cannot be told once more: %v", name, err)
	}
}

// allNoticed reports whether each device that listens is online and has shown all announcements
// that last.
func (x *effects) allNoticed() bool {
	x.mu.Lock()
	lasting := slices.Clone(x.lasting)
	x.mu.Unlock()
	for _, l := range x.listeners {
		if !l.ready(lasting) {
			return false
		}
	}
	return true
}

// record adds to the history of effects.
func (x *effects) record(r history.Record) { x.d.rec.Add("effects.log", r) }

// now is the time that records carry.
func (x *effects) now() int64 { return max(x.d.rec.Now(), 1) }

// close ends the receivers.
func (x *effects) close() {
	for _, r := range []*receiver{x.events, x.pushes} {
		if r != nil {
			r.close()
		}
	}
}
