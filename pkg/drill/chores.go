package drill

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/imdhq/imd/pkg/bench"
	"github.com/imdhq/imd/pkg/history"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/proto/gen/public/imd/v1/imdv1connect"
	imd "github.com/imdhq/imd/sdk/go"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/gen/imdv1"
)

// What goes on for the leaders of a drill.
const (
	secretary       = "drill-secretary" // schedules messages, and writes nothing else
	diaries         = 3                 // groups into which they go, without users of the load, whose logs are read before all is sent
	sleepers        = 6                 // users without devices
	listenersAll    = 4                 // devices that want announcements
	mostLasting     = 30                // announcements that last, of the 100 that may be in force
	listeningDevice = "listener"
	briefly         = 6 * time.Second  // how long the others are in force
	readLimit       = 10 * time.Second // of a user without devices who reads
)

func listenerName(i int) string { return fmt.Sprint("listener-", i+1) }

func textOf(text string) *clientv1.Content {
	return &clientv1.Content{Value: &clientv1.Content_Text{Text: text}}
}

// hashOfText is how the history knows a text.
func hashOfText(text string) string {
	return bench.EntryHash(&clientv1.Entry{Kind: clientv1.EntryKind_ENTRY_KIND_MESSAGE, Content: textOf(text)})
}

// schedule schedules messages until ctx is done, and cancels some of them at about the
// time at which they are sent.
func (x *effects) schedule(ctx context.Context, rng *rand.Rand) error {
	var convs []string
	for range diaries {
		conv, err := x.d.world.makeGroup(ctx, secretary, []string{listenerName(0), listenerName(1)})
		if err != nil {
			return err
		}
		x.d.world.heardOf(conv)
		convs = append(convs, conv)
	}
	var all sync.WaitGroup
	defer all.Wait()
	open := make(chan struct{}, 16) // calls under way
	for n := 1; hold(ctx, time.Duration(60+rng.IntN(120))*ms); n++ {
		conv, wait := convs[rng.IntN(len(convs))], time.Duration(800+rng.IntN(1500))*ms
		cancelled, near := rng.IntN(4) == 0, time.Duration(rng.IntN(500)-200)*ms
		select {
		case open <- struct{}{}:
		case <-ctx.Done():
			return nil
		}
		all.Go(func() {
			defer func() { <-open }()
			at := time.Now().Add(wait)
			id := x.appoint(conv, fmt.Sprint("appointment ", n), at)
			if id != 0 && cancelled && hold(x.d.ctx, time.Until(at.Add(near))) {
				x.cancel(id)
			}
		})
	}
	return nil
}

// appoint schedules one message; 0 = nobody knows whether it is.
func (x *effects) appoint(conv, text string, at time.Time) (id int64) {
	r := history.Record{T: x.now(), Kind: history.Schedule, User: secretary, Conv: conv, Hash: hashOfText(text), N: x.d.rec.At(time.UnixMilli(at.UnixMilli())), Ack: history.AckUnknown}
	req := &imdv1.ScheduleRequest{To: &imdv1.ScheduleRequest_ConversationId{ConversationId: conv}, RequestId: uuid.NewString(), Content: textOf(text), SendAtMs: at.UnixMilli(), AsUser: secretary}
	err := x.d.world.call(x.d.ctx, func(ctx context.Context) error {
		res, err := x.d.world.messages().Schedule(ctx, req)
		if err == nil {
			id, r.CMID = res.GetScheduled().GetScheduledId(), res.GetScheduled().GetClientMessageId()
		}
		return err
	})
	if err == nil {
		r.Ack, r.To, r.Name = history.AckOK, x.now(), fmt.Sprint(id)
	}
	x.record(r)
	return id
}

// cancel cancels a scheduled message.
func (x *effects) cancel(id int64) {
	r := history.Record{T: x.now(), Kind: history.Cancel, Name: fmt.Sprint(id), Ack: history.AckUnknown}
	err := x.d.world.call(x.d.ctx, func(ctx context.Context) error {
		res, err := x.d.world.messages().CancelScheduled(ctx, &imdv1.CancelScheduledRequest{ScheduledId: id, AsUser: secretary})
		if err == nil && res.GetCancelled() {
			r.Ack = history.AckOK
		} else if err == nil {
			r.Ack = history.AckFail
		}
		return err
	})
	if err == nil {
		r.To = x.now()
	}
	x.record(r)
}

// nothingScheduled reports whether no scheduled message waits any more.
func (x *effects) nothingScheduled(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	res, err := x.d.world.messages().ListScheduled(ctx, &imdv1.ListScheduledRequest{AsUser: secretary})
	return err == nil && len(res.GetScheduled()) == 0
}

func (w *world) announcements() imdv1connect.AnnouncementServiceClient {
	return imdv1connect.NewAnnouncementServiceClient(w.client(alive(w.doors).endpoints().Public, w.key))
}

// announce makes announcements until ctx is done: some last, some end soon, some are taken back.
func (x *effects) announce(ctx context.Context, rng *rand.Rand) error {
	for n := 0; hold(ctx, time.Duration(1500+rng.IntN(2000))*ms); n++ {
		life := briefly
		lasts := n%3 == 0 && n/3 < mostLasting
		if lasts {
			life = time.Hour
		}
		seq := x.proclaim(fmt.Sprint("announcement ", n+1), life)
		if seq == 0 {
			continue
		}
		if lasts {
			x.mu.Lock()
			x.lasting = append(x.lasting, seq)
			x.mu.Unlock()
		} else if n%3 == 1 {
			hold(ctx, time.Duration(rng.IntN(1500))*ms)
			x.takeBack(seq)
		}
	}
	return nil
}

// proclaim makes an announcement and returns its number; 0 = nobody knows it.
func (x *effects) proclaim(text string, life time.Duration) (seq int64) {
	ends := time.Now().Add(life)
	r := history.Record{T: x.now(), Kind: history.Announce, Hash: hashOfText(text), Seq: x.d.rec.At(ends), Ack: history.AckUnknown}
	req := &imdv1.AnnounceRequest{RequestId: uuid.NewString(), Text: text, ExpiresMs: ends.UnixMilli()}
	err := x.d.world.call(x.d.ctx, func(ctx context.Context) error {
		res, err := x.d.world.announcements().Announce(ctx, req)
		seq = res.GetAnnouncement().GetSeq()
		return err
	})
	if err != nil {
		seq = 0
	} else {
		r.N, r.To, r.Ack = seq, x.now(), history.AckOK
	}
	x.record(r)
	return seq
}

// takeBack withdraws an announcement.
func (x *effects) takeBack(seq int64) {
	r := history.Record{T: x.now(), Kind: history.Withdraw, N: seq, Ack: history.AckUnknown}
	err := x.d.world.call(x.d.ctx, func(ctx context.Context) error {
		_, err := x.d.world.announcements().Withdraw(ctx, &imdv1.WithdrawRequest{Seq: seq})
		return err
	})
	if err == nil {
		r.To, r.Ack = x.now(), history.AckOK
	}
	x.record(r)
}

// sleep writes to a user without devices until ctx is done. The user reads now and then,
// with a device that shows nothing, and not while anything is written.
func (x *effects) sleep(ctx context.Context, rng *rand.Rand, user string) error {
	conv, err := x.d.world.makeGroup(ctx, host, []string{user})
	if err != nil {
		return err
	}
	x.d.world.heardOf(conv)
	x.record(history.Record{T: x.now(), Kind: history.Sleeper, User: user, Conv: conv})
	gates := gatesOf(x.d.nodes)
	for hold(ctx, time.Duration(500+rng.IntN(3500))*ms) {
		for range 1 + rng.IntN(3) {
			_ = x.d.world.write(ctx, conv) // what is refused under faults is no message
		}
		if rng.IntN(2) == 0 && hold(ctx, time.Duration(500+rng.IntN(5000))*ms) {
			x.readUp(ctx, user, conv, gates[rng.IntN(len(gates))])
		}
	}
	return nil
}

// readUp lets a user read a conversation to its end.
func (x *effects) readUp(ctx context.Context, user, conv string, gate *node) {
	ctx, cancel := context.WithTimeout(ctx, readLimit)
	defer cancel()
	res, err := x.d.world.messages().History(ctx, &imdv1.HistoryRequest{ConversationId: conv, Backward: true, Limit: 1})
	entries := res.GetPage().GetEntries()
	if err != nil || len(entries) == 0 {
		return // the user reads another time
	}
	seq := entries[len(entries)-1].GetSeq()
	token, err := x.d.world.token(ctx, user)
	if err != nil {
		x.d.trouble("a token for %s: %v", user, err)
		return
	}
	c, err := imd.Connect(ctx, gate.proxy.Address(), imd.Options{Token: token, Device: "reader", Class: "phone", SendOnly: true})
	if err != nil {
		return
	}
	defer c.Close()
	r := history.Record{T: x.now(), Kind: history.ReadUp, User: user, Conv: conv, Seq: seq, Ack: history.AckUnknown}
	if c.Conversation(conv).MarkRead(ctx, seq) == nil {
		r.To, r.Ack = x.now(), history.AckOK
	}
	x.record(r)
}

// listener is a device that wants announcements, with the SDK as it ships.
type listener struct {
	x    *effects
	user string
	gate *node
	end  chan struct{} // closed when it is to say whether it is online

	mu     sync.Mutex
	client *imd.Client // nil = it has none
	cursor imd.AnnouncementCursor
	shown  map[int64]bool
}

func (x *effects) listener(user string, gate *node) *listener {
	return &listener{x: x, user: user, gate: gate, end: make(chan struct{}), shown: map[int64]bool{}}
}

// finish lets it say whether it is online, and end.
func (l *listener) finish() { close(l.end) }

// ready reports whether it is online and has shown all of these.
func (l *listener) ready(all []int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.client == nil || l.client.State() != imd.Online {
		return false
	}
	for _, n := range all {
		if !l.shown[n] {
			return false
		}
	}
	return true
}

// listen stays until it is to finish. A program that ended is started again.
func (l *listener) listen(ctx context.Context) {
	for {
		online := false
		c, err := imd.Connect(ctx, l.gate.proxy.Address(), l.options())
		if err == nil {
			l.use(c)
			select {
			case <-c.Done():
			case <-ctx.Done():
			case <-l.end:
				if online = c.State() == imd.Online; online {
					l.x.record(history.Record{T: l.x.now(), Kind: history.Listener, User: l.user, Device: listeningDevice})
				}
			}
			l.use(nil)
			c.Close()
		}
		select {
		case <-l.end:
			if !online && ctx.Err() == nil {
				l.x.d.trouble("%s was not online in the end, so nothing is known of what it was to show: %v", l.user, err)
			}
			return
		default:
		}
		if !hold(ctx, callPause) {
			return
		}
	}
}

// use takes note of the client that it has.
func (l *listener) use(c *imd.Client) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.client = c
}

func (l *listener) options() imd.Options {
	l.mu.Lock()
	defer l.mu.Unlock()
	return imd.Options{Device: listeningDevice, Class: "phone", OnAnnouncement: l.notice, AnnouncedBefore: l.cursor,
		TokenFunc: func(ctx context.Context) (string, error) {
			return l.x.d.world.tokenOf(im.UserID(l.user), im.LoginID("listener-"+l.user))
		}}
}

// notice shows an announcement.
func (l *listener) notice(a imd.Announcement) {
	if a.Withdrawn {
		return
	}
	l.x.record(history.Record{T: l.x.now(), Kind: history.Notice, User: l.user, Device: listeningDevice, Name: a.Cursor.Epoch, N: a.Seq, Hash: hashOfText(a.Text)})
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cursor, l.shown[a.Seq] = a.Cursor, true
}
