package sim

import (
	"cmp"
	"slices"
	"time"

	"github.com/imdhq/imd/pkg/delivery"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/run"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// maxEarly is how many deliveries wait for the welcome.
const maxEarly = 16

// messageFrames is how many frames leave at a time.
const messageFrames = 32

type phase uint8

const (
	waiting phase = iota // for hello
	joining
	online
	gone
)

// session is one connection at its gateway. Its runs and its books are real.
type session struct {
	w      *world
	g      *gateway
	link   *link
	user   im.UserID
	device string
	id     string
	phase  phase
	epoch  string

	queue   run.Queue
	unacked delivery.Pending
	seen    delivery.Seen
	pull    bool
	inbox   []*clientv1.ClientFrame // came before the welcome
	early   []*shipment             // likewise

	out     []*clientv1.ServerFrame // waits to be written
	heads   map[string]int64
	order   []string // of heads
	writing bool
	heard   time.Duration
	pinged  time.Duration               // -1 = no ping waits for a sign of life
	wakeAt  time.Duration               // of the next timer; 0 = none
	lastOut map[string]uint32           // frame of the last send answered, by conversation
	sent    map[sentKey]*clientv1.Entry // what was delivered
}

// received takes what the device wrote.
func (s *session) received(frames []*clientv1.ClientFrame) {
	s.heard, s.pinged = s.w.now, -1
	for i, f := range frames {
		switch {
		case s.phase == gone:
			return
		case s.phase == joining:
			s.inbox = append(s.inbox, f)
		case f.GetHello() != nil:
			s.hello(f.Id, frames[i+1:])
			return
		default:
			s.take(f)
		}
	}
}

// hello claims the session's place, registers it and only then welcomes it.
func (s *session) hello(id uint32, behind []*clientv1.ClientFrame) {
	s.phase, s.heads, s.lastOut = joining, map[string]int64{}, map[string]uint32{}
	s.inbox = append(s.inbox, behind...)
	if s.w.bad == ReadBeforeSubscribe && len(behind) > 0 && behind[0].GetSync() != nil {
		s.inbox = s.inbox[1:]
		s.sync(behind[0].Id, behind[0].GetSync(), func(f *clientv1.ServerFrame) {
			s.join(id, func() { s.write(f) })
		})
		return
	}
	s.join(id, func() {})
}

func (s *session) join(id uint32, welcomed func()) {
	s.w.call(call{
		from: &s.g.process, to: &s.w.routes.process, timeout: time.Second,
		serve: func(reply func(any)) {
			wait := time.Duration(0)
			if s.w.chance(s.w.plan.slowClaims) {
				wait = s.w.between(0, 600*time.Millisecond)
			}
			s.w.after(wait, func() { reply(s.w.routes.claim(route{s.user, s.device, s.id, s.g})) })
		},
		done: func(res any, ok bool) {
			if !ok {
				s.end("busy")
				return
			}
			for _, o := range res.([]route) {
				g := o.gate
				s.w.after(s.w.delay(), func() { g.exec(g.life, func() { g.kick(o.session, "superseded") }) })
			}
			if s.phase != joining { // too late, and all the same the others have lost their place
				s.release()
				return
			}
			s.g.sessions = append(s.g.sessions, s)
			s.admit(id, welcomed)
		},
	})
}

// admit learns the data_epoch, which is fixed for the session.
func (s *session) admit(id uint32, welcomed func()) {
	s.g.read(func(reply func(any)) { reply(s.w.store.epochName()) }, func(res any, ok bool) {
		switch {
		case s.phase != joining:
			return
		case !ok:
			s.end("busy")
			return
		}
		s.phase, s.epoch = online, res.(string)
		s.write(&clientv1.ServerFrame{Id: id, Kind: &clientv1.ServerFrame_Welcome{Welcome: &clientv1.Welcome{
			SessionId: s.id, UserId: string(s.user), DataEpoch: s.epoch,
		}}})
		welcomed()
		early, inbox := s.early, s.inbox
		s.early, s.inbox = nil, nil
		for _, d := range early {
			s.deliver(d)
		}
		for _, f := range inbox {
			s.take(f)
		}
		s.arm()
	})
}

// take handles a frame of a session.
func (s *session) take(f *clientv1.ClientFrame) {
	if s.phase != online {
		return
	}
	switch k := f.Kind.(type) {
	case *clientv1.ClientFrame_Send:
		s.send(f.Id, k.Send)
	case *clientv1.ClientFrame_Ack:
		for _, r := range k.Ack.Ranges {
			s.unacked.Ack(s.w.time(), r.ConversationId, r.AfterSeq, r.Seq)
		}
	case *clientv1.ClientFrame_Sync:
		s.sync(f.Id, k.Sync, s.write)
	case *clientv1.ClientFrame_History:
		s.history(f.Id, k.History)
	}
	s.arm()
}

func (s *session) send(id uint32, m *clientv1.Send) {
	it := run.Send{
		ID: id, Start: m.RunStart || s.w.bad == RunAfterRetry, Arrived: s.w.time(), Size: s.w.judge.byID[m.ClientMessageId].size,
		Send: &v1.RunSend{ClientMessageId: m.ClientMessageId, Resend: m.Resend},
	}
	var e run.Effects
	s.queue.Add(s.w.time(), m.GetConversationId(), "", it, &e)
	s.effects(&e)
}

// effects carries out what the runs ask for.
func (s *session) effects(e *run.Effects) {
	slices.SortStableFunc(e.Answers, func(a, b run.Answer) int { return cmp.Compare(a.Send.ID, b.Send.ID) })
	for _, a := range e.Answers {
		conv := s.w.judge.byID[a.Ack.ClientMessageId].conv
		if late := s.w.time().Sub(a.Send.Arrived); late > protocol.SendTimeout && s.w.plan.gatewayHangs == 0 {
			s.w.fail("a send was answered after %v", late)
		}
		if a.Send.ID <= s.lastOut[conv] {
			s.w.fail("answers of %s are out of order at %s", conv, s.id)
		}
		s.lastOut[conv] = a.Send.ID
		if a.Ack.Status == clientv1.Ack_ACK_OK {
			s.seen.Knows(a.Ack.ConversationId, a.Ack.Seq)
		}
		s.write(&clientv1.ServerFrame{Id: a.Send.ID, Kind: &clientv1.ServerFrame_SendAck{SendAck: a.Ack}})
	}
	s.g.submit(s, e.Submit)
}

// submitted takes the result of a run.
func (s *session) submitted(o run.Out, acks []*clientv1.SendAck, failed *clientv1.Error) {
	if s.phase == gone {
		return
	}
	var e run.Effects
	s.queue.Done(s.w.time(), o.Run.ConversationId, o.Token, acks, failed, &e)
	s.effects(&e)
	s.arm()
}

// sync answers a sync: the states first, then their pages one by one, as the
// state role reads them.
func (s *session) sync(id uint32, q *clientv1.Sync, answer func(*clientv1.ServerFrame)) {
	cursors := make(map[string]int64, len(q.Cursors))
	for _, c := range q.Cursors {
		cursors[c.ConversationId] = c.Have
	}
	m := s.w.store
	s.g.read(func(reply func(any)) {
		p := m.sync(s.user, q.SyncToken, cursors, s.w.plan.syncStates)
		res := &clientv1.SyncResult{DataEpoch: m.epochName(), SyncToken: p.token, More: p.more, Full: p.full, Conversations: p.states, Digest: p.digest}
		s.w.after(s.w.between(0, time.Millisecond), func() {
			if !p.same {
				cursors = nil // of another history
			}
			for _, st := range p.states {
				have, known := cursors[st.ConversationId]
				if q.PageLimit > 0 {
					st.Page, _ = m.page(s.user, im.ConversationID(st.ConversationId), &clientv1.History{
						AfterSeq: have, Backward: !known, Limit: q.PageLimit,
					})
				}
			}
			reply(res)
		})
	}, func(res any, ok bool) {
		f := &clientv1.ServerFrame{Id: id}
		if ok {
			f.Kind = &clientv1.ServerFrame_SyncResult{SyncResult: res.(*clientv1.SyncResult)}
		} else {
			f.Kind = &clientv1.ServerFrame_Error{Error: protocol.NewError("unavailable", "", 0)}
		}
		answer(f)
	})
}

func (s *session) history(id uint32, q *clientv1.History) {
	q.Limit = min(q.Limit, int32(s.w.plan.historyMost))
	s.g.read(func(reply func(any)) {
		p, ok := s.w.store.page(s.user, im.ConversationID(q.ConversationId), q)
		if !ok {
			reply(protocol.NewError("not_member", "", 0))
			return
		}
		reply(p)
	}, func(res any, ok bool) {
		f := &clientv1.ServerFrame{Id: id, Kind: &clientv1.ServerFrame_Error{Error: protocol.NewError("unavailable", "", 0)}}
		switch r := res.(type) {
		case *clientv1.Error:
			f.Kind = &clientv1.ServerFrame_Error{Error: r}
		case *clientv1.Page:
			f.Kind = &clientv1.ServerFrame_HistoryResult{HistoryResult: &clientv1.HistoryResult{ConversationId: q.ConversationId, Page: r}}
		}
		s.write(f)
	})
}
