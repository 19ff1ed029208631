package sim

import (
	"slices"
	"time"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/outbox"
	"github.com/imdhq/imd/sdk/go/protocol"
	"github.com/imdhq/imd/sdk/go/timeline"
)

// Times of a device, as the SDK's.
const (
	backoffMin  = 500 * time.Millisecond
	backoffMax  = 30 * time.Second
	backoffCalm = 10 * time.Second // online that long, the next wait is short again
	syncPause   = 200 * time.Millisecond
	refused     = time.Minute // before a refused request is made again
	historyJobs = protocol.ServerRequestWindow / 4
	forever     = time.Duration(1<<63 - 1)
	// claimsEnd is how long a claim may be on its way. One that arrives behind a
	// later one of its device takes the place of that without its knowing; heads
	// make up for it.
	claimsEnd = 1500 * time.Millisecond
)

// device is one installed client. Its outbox and its timelines are real; the
// rest is what the SDK's client does around them.
type device struct {
	w    *world
	user im.UserID
	id   string

	box     *outbox.Outbox[*message]
	views   []*view
	epoch   string
	token   string
	full    map[string]bool // named by the full listing under way
	listing bool            // more pages of the listing are to come
	repair  bool            // the listing is made because of a digest
	doubt   bool            // no digest has agreed since
	tries   int             // of connecting, in a row

	link     *link // nil = none
	online   bool
	since    time.Duration // online
	heard    time.Duration
	nextID   uint32
	requests map[uint32]*request
	answered map[uint32]bool // sends, by frame
	cursors  map[string]int64
	syncing  bool
	rest     bool          // the sync goes on with a listing that another connection began
	again    bool          // a conversation is not known: sync
	syncAt   time.Duration // not before
	history  []job
	reading  int
	out      []*clientv1.ClientFrame // of the message that is being put together
	wakeAt   time.Duration           // 0 = no timer
}

// view is one conversation on a device.
type view struct {
	id     string
	tl     *timeline.Timeline
	ackAt  time.Duration // 0 = nothing to acknowledge
	unack  int
	term   uint64 // of the digest, by what syncs told
	newest int64  // shown last
	have   int64
}

// request waits for its answer.
type request struct {
	deadline time.Duration
	done     func(f *clientv1.ServerFrame)
}

// job is a history request of a timeline.
type job struct {
	v   *view
	req timeline.Request
}

func newDevice(w *world, user im.UserID, id string) *device {
	return &device{w: w, user: user, id: id, box: outbox.New[*message](10_000)}
}

func (d *device) view(conv string) *view {
	for _, v := range d.views {
		if v.id == conv {
			return v
		}
	}
	v := &view{id: conv, tl: timeline.New(string(d.user), 0)}
	if d.link == nil || !d.online || d.syncing {
		v.tl.Connected()
	}
	d.views = append(d.views, v)
	return v
}

// write puts n messages into the outbox.
func (d *device) write(conv im.ConversationID, n int) {
	for range n {
		m := d.w.judge.wrote(d, string(conv))
		d.box.Add(&outbox.Message[*message]{ID: m.id, Conversation: m.conv, Value: m, Send: &clientv1.Send{
			ClientMessageId: m.id, To: &clientv1.Send_ConversationId{ConversationId: m.conv},
		}})
		d.view(m.conv).tl.Send(&clientv1.Entry{ClientMessageId: m.id})
		if d.w.chance(d.w.plan.withdraw) {
			d.w.after(d.w.between(0, 3*time.Second), func() { d.withdraw(m) })
		}
	}
	d.tick()
}

// withdraw takes a message back if it is not known to be stored.
func (d *device) withdraw(m *message) {
	if d.box.Withdraw(m.id) != nil {
		d.w.tracef("%s withdraws %s", d.id, m.id)
		m.withdrawn = true
		d.view(m.conv).tl.Withdraw(m.id)
		d.tick()
	}
}

// connect opens a connection to any gateway.
func (d *device) connect() {
	g := d.w.gates[d.w.rng.IntN(len(d.w.gates))]
	l := &link{w: d.w, dev: d, gate: g}
	d.link, d.online, d.nextID, d.heard = l, false, 0, d.w.now
	d.requests, d.answered, d.cursors = map[uint32]*request{}, map[uint32]bool{}, map[string]int64{}
	d.w.tracef("%s connects to %s", d.id, g.name)
	d.w.after(protocol.ClientTimeout, func() {
		if d.link == l && !d.online {
			d.drop("no welcome in time")
		}
	})
	d.w.after(d.w.delay(), func() {
		if g.down {
			d.lost(l, "refused")
			return
		}
		g.exec(g.life, func() {
			g.accept(l)
			d.w.after(d.w.delay(), func() { d.hello(l) })
		})
	})
}

// hello writes hello and sync in one message.
func (d *device) hello(l *link) {
	if d.link != l {
		l.cut()
		return
	}
	d.ask(&clientv1.ClientFrame{Kind: &clientv1.ClientFrame_Hello{Hello: &clientv1.Hello{DeviceId: d.id}}}, nil)
	d.rest, d.again = d.listing, false
	d.sync()
	d.flush()
}

// drop gives the connection up.
func (d *device) drop(why string) {
	l := d.link
	l.cut()
	d.lost(l, why)
}

// lost takes note that a connection is gone, and plans the next.
func (d *device) lost(l *link, why string) {
	if d.link != l {
		return
	}
	d.w.tracef("%s lost its connection: %s", d.id, why)
	if d.online && d.w.now-d.since >= backoffCalm {
		d.tries = 0
	}
	d.link, d.online, d.syncing, d.again, d.history, d.reading, d.out = nil, false, false, false, nil, 0, nil
	for _, v := range d.views {
		v.tl.Disconnected()
	}
	d.box.Reconnected()
	wait := d.w.between(0, min(backoffMin<<min(d.tries, 10), backoffMax))
	d.tries++
	if d.w.plan.sealed {
		wait += claimsEnd
	}
	d.w.after(wait, d.connect)
}

// ask queues a request.
func (d *device) ask(f *clientv1.ClientFrame, done func(*clientv1.ServerFrame)) uint32 {
	d.nextID++
	f.Id = d.nextID
	if done != nil {
		d.requests[f.Id] = &request{d.w.now + protocol.ClientTimeout, done}
	}
	d.out = append(d.out, f)
	return f.Id
}

// flush writes what waits, in one message.
func (d *device) flush() {
	if d.link != nil && len(d.out) > 0 {
		d.link.toGateway(d.out)
		d.out = nil
	}
}

// sync asks what changed.
func (d *device) sync() {
	d.syncing, d.syncAt = true, d.w.now+syncPause
	q := &clientv1.Sync{SyncToken: d.token}
	if !d.repair {
		q.PageLimit = int32(d.w.plan.pageLimit)
	}
	clear(d.cursors)
	for _, v := range d.views {
		if v.tl.Known() && d.token != "" {
			d.cursors[v.id] = v.tl.Have()
			q.Cursors = append(q.Cursors, &clientv1.Cursor{ConversationId: v.id, Have: v.tl.Have()})
		}
	}
	d.ask(&clientv1.ClientFrame{Kind: &clientv1.ClientFrame_Sync{Sync: q}}, func(f *clientv1.ServerFrame) {
		if f.GetError() != nil { // the session stays, and asks again
			l := d.link
			d.w.after(d.w.between(0, backoffMin), func() {
				if d.link == l {
					d.sync()
					d.flush()
				}
			})
			return
		}
		d.synced(f.GetSyncResult())
	})
}

// synced takes one page of a sync.
func (d *device) synced(r *clientv1.SyncResult) {
	if r.DataEpoch != d.epoch {
		d.drop("the store has another history now")
		return
	}
	states, lossy := d.taken(r)
	for _, st := range states {
		v := d.view(st.ConversationId)
		v.term = 0
		if st.Role != clientv1.Role_ROLE_UNSPECIFIED {
			v.term = protocol.DigestTerm(v.id, st.HeadSeq)
		}
		d.takeStored(v, st.Page.GetEntries())
		cursor, ok := d.cursors[st.ConversationId]
		if !ok {
			cursor = timeline.NoCursor
		}
		d.effects(v, v.tl.State(d.w.ms(), cursor, st))
	}
	if r.Full {
		if d.full == nil {
			d.full = map[string]bool{}
		}
		for _, st := range r.Conversations {
			d.full[st.ConversationId] = true
		}
	}
	d.token, d.listing = r.SyncToken, r.More
	if r.More {
		d.sync()
		return
	}
	if r.Full {
		for _, v := range d.views {
			if !d.full[v.id] {
				v.term = 0
			}
		}
		d.views = slices.DeleteFunc(d.views, func(v *view) bool {
			return !d.full[v.id] && !d.box.Busy(v.id) && v.tl.Known()
		})
	}
	if d.repair && r.Full { // not before: the answer may be lost with its session
		d.doubt = true
	}
	d.full, d.repair = nil, false
	if d.w.bad != NoDigest && d.digest(r, lossy) {
		d.token, d.repair, d.rest = "", true, false
		d.sync()
		return
	}
	if d.rest {
		d.rest, d.again = false, false
		d.sync()
		return
	}
	d.syncing = false
	for _, v := range d.views {
		d.effects(v, v.tl.Synced(d.w.ms()))
	}
}

// taken are the states of an answer, without one now and then that is lost; then the
// digest may be another. A conversation that the user is no member of, and that the
// device does not think it is, is in no digest: that one is not lost.
func (d *device) taken(r *clientv1.SyncResult) (states []*clientv1.ConversationState, lossy bool) {
	if n := len(r.Conversations); n > 0 && r.Digest != 0 && !r.Full && !d.doubt && d.w.chance(d.w.plan.headLoss) {
		i := d.w.rng.IntN(n)
		st := r.Conversations[i]
		if st.Role == clientv1.Role_ROLE_UNSPECIFIED && !slices.ContainsFunc(d.views, func(v *view) bool { return v.id == st.ConversationId && v.term != 0 }) {
			return r.Conversations, false
		}
		d.w.tracef("%s loses the head of %s", d.id, st.ConversationId)
		d.w.faults++
		return slices.Delete(slices.Clone(r.Conversations), i, i+1), true
	}
	return r.Conversations, false
}

// digest compares the digest of an answer with what syncs told, and reports whether
// all heads are to be asked for. lossy = not all of the answer was taken.
func (d *device) digest(r *clientv1.SyncResult, lossy bool) bool {
	if r.Digest == 0 {
		return false
	}
	sum := uint64(0)
	for _, v := range d.views {
		sum += v.term
	}
	if sum == r.Digest {
		d.doubt = false
		return false
	}
	if !lossy {
		d.w.fail("%s got a digest that is not that of what syncs told", d)
	}
	again := !d.doubt && !r.Full
	d.doubt = d.doubt || r.Full
	return again
}

// effects does what a timeline asks for.
func (d *device) effects(v *view, fx timeline.Effects) {
	if fx.Reset {
		v.newest, v.have = 0, 0
	}
	for _, e := range fx.Show {
		d.w.judge.shown(d, v, e)
	}
	d.w.judge.moved(d, v)
	v.unack += len(fx.Show)
	if fx.Sync {
		d.again = true
	}
	if fx.History != nil {
		d.history = append(d.history, job{v, *fx.History})
		d.readOn()
	}
	if v.tl.AckDue() && v.ackAt == 0 {
		v.ackAt = d.w.now + protocol.AckDelay
	}
}

// readOn sends the history requests of timelines, a few at a time.
func (d *device) readOn() {
	for d.link != nil && d.online && d.reading < historyJobs && len(d.history) > 0 {
		j := d.history[0]
		d.history = d.history[1:]
		d.reading++
		limit := int32(protocol.MaxHistoryLimit)
		if j.req.Jump {
			limit = int32(max(d.w.plan.pageLimit, 1))
		}
		d.ask(&clientv1.ClientFrame{Kind: &clientv1.ClientFrame_History{History: &clientv1.History{
			ConversationId: j.v.id, AfterSeq: j.req.After, BeforeSeq: j.req.Before, Backward: j.req.Backward, Limit: limit,
		}}}, func(f *clientv1.ServerFrame) {
			d.reading--
			if e := f.GetError(); e != nil {
				wait := refused
				if e.Retryable {
					wait = 0
				}
				j.v.tl.HistoryFailed(d.w.ms(), wait.Milliseconds())
			} else {
				page := f.GetHistoryResult().Page
				d.takeStored(j.v, page.Entries)
				d.effects(j.v, j.v.tl.Page(d.w.ms(), j.req, page))
			}
			d.readOn()
		})
	}
}

// String names the device for messages.
func (d *device) String() string { return d.id }
