package sim

import (
	"errors"
	"hash/fnv"
	"slices"
	"strings"
	"time"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/lane"
	"github.com/imdhq/imd/pkg/store"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// Times of a state node.
const (
	patience      = 1170 * time.Millisecond // until a caller is answered
	storeTimeout  = 3 * time.Second         // of a call to the store
	fanoutTimeout = time.Second
	hintEvery     = 5 * time.Second
)

// errFault is a fault of the store that tells nothing.
var errFault = errors.New("fault")

// stateNode is one node with the state role. Its lanes are real.
type stateNode struct {
	process
	lanes []*laneDriver

	fan    []*fanItem // waits for push, in order
	fanOut bool
	hints  map[im.MessageID]time.Duration
}

// fanItem is something that push is to spread.
type fanItem struct {
	conv    im.ConversationID
	entry   *clientv1.Entry // nil = a head
	seq     int64
	session string // gets nothing
	also    []im.UserID
}

// laneDriver carries out what one lane asks for.
type laneDriver struct {
	n    *stateNode
	core *lane.Lane
}

// start begins a life.
func (n *stateNode) start() {
	n.lanes, n.fan, n.fanOut, n.hints = nil, nil, false, map[im.MessageID]time.Duration{}
	for range n.w.plan.lanes {
		n.lanes = append(n.lanes, &laneDriver{n, lane.New()})
	}
}

// hashOf spreads conversations over lanes, nodes and calls.
func hashOf(s string) int {
	h := fnv.New32a()
	_, _ = h.Write([]byte(s))
	return int(h.Sum32() >> 1)
}

func (n *stateNode) laneOf(conv im.ConversationID) *laneDriver {
	return n.lanes[hashOf(string(conv))%len(n.lanes)]
}

// submit answers runs when all their sends have an answer.
func (n *stateNode) submit(runs []*v1.Run, reply func(any)) {
	acks := make([][]*clientv1.SendAck, len(runs))
	left := 0
	for i, r := range runs {
		acks[i] = make([]*clientv1.SendAck, len(r.Sends))
		left += len(r.Sends)
	}
	if n.w.bad == AckBeforeCommit {
		n.ackEarly(runs, acks)
		reply(acks)
	}
	lanes := make([]*lane.Run, len(runs))
	for i, r := range runs {
		lr := n.runOf(r)
		lr.Reply = func(at int, v lane.Verdict) {
			if acks[i][at] != nil {
				n.w.fail("%s answers a send twice", n.name)
			}
			acks[i][at] = ackOf(r, at, v)
			if left--; left == 0 {
				reply(acks)
			}
		}
		if n.w.bad == AckBeforeCommit {
			lr.Reply = func(int, lane.Verdict) {}
		}
		lanes[i] = lr
	}
	for _, lr := range lanes {
		n.laneOf(lr.Conv).do(lane.Submit{Run: lr})
	}
	n.later(patience, func() {
		for _, lr := range lanes {
			n.laneOf(lr.Conv).do(lane.Expire{Run: lr})
		}
	})
}

// ackEarly is what a state node must not do.
func (n *stateNode) ackEarly(runs []*v1.Run, acks [][]*clientv1.SendAck) {
	for i, r := range runs {
		head := n.w.store.byID[im.ConversationID(r.ConversationId)].head()
		for j, s := range r.Sends {
			n.w.ids++
			acks[i][j] = &clientv1.SendAck{
				ClientMessageId: s.ClientMessageId, Status: clientv1.Ack_ACK_OK, ConversationId: r.ConversationId,
				MessageId: n.w.ids, Seq: head + int64(j) + 1, PrevSeq: head + int64(j),
			}
		}
	}
}

func (n *stateNode) runOf(r *v1.Run) *lane.Run {
	lr := &lane.Run{Conv: im.ConversationID(r.ConversationId), Sends: make([]lane.Send, len(r.Sends))}
	for i, s := range r.Sends {
		n.w.ids++
		row := store.AppendRow{
			Conversation: lr.Conv, Sender: im.UserID(r.UserId), ClientMessageID: im.ClientMessageID(s.ClientMessageId),
			MessageID: im.MessageID(n.w.ids), Kind: clientv1.EntryKind_ENTRY_KIND_MESSAGE, Countable: true,
		}
		copy(row.BodyHash[:], s.ClientMessageId)
		lr.Sends[i] = lane.Send{Row: row, Session: im.SessionID(r.SessionId), Size: n.w.judge.byID[s.ClientMessageId].size}
	}
	return lr
}

func ackOf(r *v1.Run, at int, v lane.Verdict) *clientv1.SendAck {
	a := &clientv1.SendAck{ClientMessageId: r.Sends[at].ClientMessageId, Status: clientv1.Ack_ACK_FAIL}
	switch {
	case v.Err == nil:
		a.Status, a.ConversationId = clientv1.Ack_ACK_OK, r.ConversationId
		a.MessageId, a.Seq, a.PrevSeq = int64(v.Result.MessageID), int64(v.Result.Seq), int64(v.Result.PrevSeq)
		a.Duplicate = v.Duplicate
		return a
	case im.Retryable(v.Err):
		a.Status = clientv1.Ack_ACK_RETRY
	}
	a.Error = im.Wire(v.Err)
	return a
}

// do hands an event to the lane and carries out what follows.
func (l *laneDriver) do(ev lane.Event) {
	fx := l.core.Step(l.n.w.time(), ev)
	for _, a := range fx.Answers {
		a.Run.Reply(a.At, a.Verdict)
	}
	for _, s := range fx.Settled {
		s.Run.Settled(s.Result, s.Err)
	}
	l.n.committed(fx.Committed)
	if work := fx.Work; work != nil {
		l.n.later(work.After, func() { l.call(work) })
	}
	if fx.Wake > 0 { // one too many does no harm
		l.n.later(fx.Wake, func() { l.do(lane.Tick{}) })
	}
}

// call makes one call to the store.
func (l *laneDriver) call(work *lane.Work) {
	began := l.n.w.now
	end := func(r lane.Result) {
		r.Took = l.n.w.now - began
		l.do(r)
	}
	switch {
	case work.Change != nil:
		l.n.store([]im.ConversationID{work.Change.Conv}, func() (r lane.Result) {
			r.Change, r.Err = l.n.w.store.change(work.Change.Change, began)
			return r
		}, end)
	case l.n.w.bad == RetryOutOfPlace && len(work.Append) > 1:
		l.halves(work.Append, end)
	default:
		l.append(work.Append, end)
	}
}

func (l *laneDriver) append(rows []store.AppendRow, end func(lane.Result)) {
	w := l.n.w
	began := w.now
	if w.trace != nil {
		var ids []string
		for _, r := range rows {
			ids = append(ids, string(r.ClientMessageID))
		}
		w.tracef("%s calls the store with %v", l.n.name, ids)
		told := end
		end = func(r lane.Result) {
			w.tracef("%s hears of %v: %v %v", l.n.name, ids, r.Err, errorsOf(r.Results))
			told(r)
		}
	}
	convs := make([]im.ConversationID, len(rows))
	for i := range rows {
		convs[i] = rows[i].Conversation
	}
	l.n.store(convs, func() lane.Result {
		if slices.ContainsFunc(rows, func(r store.AppendRow) bool { return strings.HasSuffix(string(r.ClientMessageID), "!") }) {
			return lane.Result{Err: im.Errorf(clientv1.Reason_REASON_BAD_REQUEST, "model", "poison")}
		}
		return lane.Result{Results: w.store.append(rows, began)}
	}, end)
}

// errorsOf are the errors of rows, for the trace.
func errorsOf(rs []store.AppendResult) []error {
	var errs []error
	for _, r := range rs {
		if r.Err != nil {
			errs = append(errs, r.Err)
		}
	}
	return errs
}

// halves is what a driver must not do: the second half of a batch does not wait
// for the outcome of the first.
func (l *laneDriver) halves(rows []store.AppendRow, end func(lane.Result)) {
	cut := len(rows) / 2
	var first, second func(then func(lane.Result))
	until := func(part []store.AppendRow, again *func(func(lane.Result))) func(func(lane.Result)) {
		return func(then func(lane.Result)) {
			l.append(part, func(r lane.Result) {
				if errors.Is(r.Err, store.ErrUnknownOutcome) {
					(*again)(then)
					return
				}
				then(r)
			})
		}
	}
	first, second = until(rows[:cut], &first), until(rows[cut:], &second)
	join := func(a, b lane.Result) {
		if a.Err != nil {
			b = a
		}
		b.Results = append(slices.Clone(a.Results), b.Results...)
		end(b)
	}
	l.append(rows[:cut], func(a lane.Result) {
		second(func(b lane.Result) {
			if errors.Is(a.Err, store.ErrUnknownOutcome) {
				first(func(a lane.Result) { join(a, b) })
				return
			}
			join(a, b)
		})
	})
}

// store makes a call whose outcome the dice decide. apply happens in the store,
// whatever becomes of this node; end hears the outcome if there is one. convs are
// the conversations of its rows.
func (n *stateNode) store(convs []im.ConversationID, apply func() lane.Result, end func(lane.Result)) {
	w, p := n.w, &n.w.plan
	took := w.between(time.Millisecond, 4*time.Millisecond) + time.Duration(len(convs))*20*time.Microsecond
	if w.chance(p.slow) {
		took = w.between(50*time.Millisecond, 2500*time.Millisecond)
	}
	life, epoch := n.life, w.store.epoch
	tell := func(after time.Duration, r lane.Result) {
		w.after(after, func() { n.exec(life, func() { end(r) }) })
	}
	happens := func(after time.Duration, then func(lane.Result)) {
		w.after(after, func() {
			if epoch == w.store.epoch {
				then(apply())
			}
		})
	}
	unknown := lane.Result{Err: store.ErrUnknownOutcome}
	switch {
	case w.chance(p.away):
		r := lane.Result{Err: errFault}
		switch w.rng.IntN(3) {
		case 0:
			r.Err = im.Errorf(clientv1.Reason_REASON_UNAVAILABLE, "model", "away")
		case 1:
			r.Err = &store.BusyConversationError{Conversations: convs[w.rng.IntN(len(convs)):][:1]}
		}
		tell(took, r)
	case w.chance(p.unknown) && w.rng.IntN(2) == 0:
		tell(took, unknown)
	case w.chance(p.unknown):
		happens(took, func(lane.Result) { tell(0, unknown) })
	case w.chance(p.late): // the call is given up, and its transaction ends later
		tell(storeTimeout, unknown)
		happens(storeTimeout+w.between(-time.Second, 1500*time.Millisecond), func(lane.Result) {})
	default:
		happens(took, func(r lane.Result) { tell(0, r) })
	}
}

// committed hands to push what was stored, and lets others look where a send
// was repeated.
func (n *stateNode) committed(done []lane.Committed) {
	for _, d := range done {
		switch {
		case d.Change != nil && d.Own:
			c := n.w.store.byID[d.Change.Conversation]
			if e := c.at(int64(d.Change.Entry.Seq)); e != nil {
				n.fan = append(n.fan, &fanItem{conv: c.id, entry: e, seq: e.Seq, also: d.Change.Removed})
			}
		case d.Change != nil:
		case d.Own:
			n.fan = append(n.fan, entryItem(d.Send, d.Result))
		case n.w.now-n.hints[d.Result.MessageID] >= hintEvery || n.hints[d.Result.MessageID] == 0:
			n.hints[d.Result.MessageID] = n.w.now
			n.fan = append(n.fan, &fanItem{conv: d.Send.Row.Conversation, seq: int64(d.Result.Seq), session: string(d.Send.Session)})
		}
	}
	n.spread()
}

func entryItem(s *lane.Send, r store.AppendResult) *fanItem {
	return &fanItem{
		conv: s.Row.Conversation, seq: int64(r.Seq), session: string(s.Session),
		entry: &clientv1.Entry{
			Seq: int64(r.Seq), PrevSeq: int64(r.PrevSeq), Kind: s.Row.Kind, MessageId: int64(r.MessageID),
			ClientMessageId: string(s.Row.ClientMessageID), Sender: string(s.Row.Sender),
			ServerTimeMs: r.ServerTime.UnixMilli(), Countable: s.Row.Countable,
		},
	}
}

// spread makes the next call to push: one is out at a time.
func (n *stateNode) spread() {
	if n.fanOut || len(n.fan) == 0 {
		return
	}
	items := n.fan
	n.fan, n.fanOut = nil, true
	n.try(items, 0)
}

// try makes one call to push, with two more tries.
func (n *stateNode) try(items []*fanItem, attempt int) {
	p := n.w.push
	n.w.call(call{
		from: &n.process, to: &p.process, loss: n.w.plan.fanLoss, timeout: fanoutTimeout,
		serve: func(reply func(any)) {
			p.take(items)
			reply(nil)
		},
		done: func(_ any, ok bool) {
			if pauses := []time.Duration{200 * time.Millisecond, 800 * time.Millisecond}; !ok && attempt < len(pauses) {
				n.later(pauses[attempt], func() { n.try(items, attempt+1) })
				return
			}
			n.fanOut = false
			n.spread()
		},
	})
}
