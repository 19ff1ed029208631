package outbox

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// Submit commits what the leader sends, as the state role does.
func (l *leader) Submit(_ context.Context, r *v1.SubmitRequest) (res *v1.SubmitResponse, err error) {
	err = l.effect("send", func() (err error) {
		res, err = l.commit(r)
		return err
	})
	return res, err
}

func (l *leader) commit(r *v1.SubmitRequest) (*v1.SubmitResponse, error) {
	var rows []store.AppendRow
	for i, run := range r.Runs {
		content, err := proto.Marshal(run.Sends[0].Content)
		if err != nil {
			return nil, err
		}
		rows = append(rows, store.AppendRow{
			Conversation: im.ConversationID(run.ConversationId), Peer: im.UserID(run.PeerId), Sender: im.UserID(run.UserId),
			ClientMessageID: im.ClientMessageID(run.Sends[0].ClientMessageId), BodyHash: [32]byte(run.Sends[0].BodyHash),
			MessageID: im.MessageID(l.proof.Token*10000 + int64(i)), Kind: run.Sends[0].Kind, Content: content, Countable: true,
		})
	}
	out, err := l.Append(context.Background(), rows)
	if err != nil {
		return nil, err
	}
	res := &v1.SubmitResponse{}
	for _, o := range out {
		a := &clientv1.SendAck{Status: clientv1.Ack_ACK_OK, MessageId: int64(o.MessageID), Seq: int64(o.Seq), Duplicate: o.Duplicate}
		if o.Err != nil {
			a = &clientv1.SendAck{Status: clientv1.Ack_ACK_FAIL, Error: im.Wire(o.Err)}
		}
		res.Runs = append(res.Runs, &v1.RunResult{Acks: []*clientv1.SendAck{a}})
	}
	return res, nil
}

func (l *leader) ClaimScheduled(_ context.Context, p store.Proof, c store.ScheduledClaim) (list []store.Scheduled, err error) {
	op := "claim"
	if waiting, _ := l.ScheduledCounts(context.Background()); waiting.Open == 0 {
		op = "look" // a fault is for the claim that finds something
	}
	err = l.effect(op, func() error {
		list, err = l.MessageStore.ClaimScheduled(context.Background(), p, c)
		return err
	})
	return list, err
}

func (l *leader) SettleScheduled(_ context.Context, p store.Proof, done []store.ScheduledResult) error {
	return l.effect("settle", func() error { return l.MessageStore.SettleScheduled(context.Background(), p, done) })
}

// schedule keeps a message of ann for later.
func (s *site) schedule(id int64, to im.UserID, due time.Time) {
	s.t.Helper()
	c := &clientv1.Content{Value: &clientv1.Content_Text{Text: fmt.Sprint("later ", id)}}
	content, err := proto.Marshal(c)
	if err != nil {
		s.t.Fatal(err)
	}
	_, _, err = s.messages.PutScheduled(s.t.Context(), store.Scheduled{
		ID: id, RequestID: im.ClientMessageID(fmt.Sprint("request ", id)), ClientMessageID: im.ClientMessageID(fmt.Sprintf("%08x-0000-4000-9000-000000000000", id)),
		Conversation: im.ConversationID(protocol.DirectID("ann", string(to))), Peer: to, Sender: "ann", Content: content, BodyHash: sha256.Sum256(content),
		Due: due.Truncate(time.Millisecond), Created: time.Now().Truncate(time.Millisecond),
	}, 1000)
	if err != nil {
		s.t.Fatal(err)
	}
}

// A leader is killed, or paused and followed, in the middle of sending scheduled
// messages: before, in and after each of its steps. All are sent, none twice, and
// the list says where each is.
func TestScheduledOutliveTheirLeader(t *testing.T) {
	for _, op := range []string{"claim", "send", "settle"} {
		for _, kind := range []string{"before", "after", "pause"} {
			t.Run(op+" "+kind, func(t *testing.T) {
				t.Parallel()
				endsWhileSending(t, fault{op: op, nth: 1, kind: kind})
			})
		}
	}
}

func endsWhileSending(t *testing.T, f fault) {
	const n = 250 // more than one call takes
	s := newSite(t, yes)
	now := time.Now()
	for i := range int64(n) {
		s.schedule(i+1, []im.UserID{"bob", "cid", "dan"}[i%3], now.Add(-time.Second+time.Duration(i)*time.Millisecond))
	}
	s.schedule(999, "eve", now.Add(-time.Hour))
	if err := s.messages.SetBlock(t.Context(), "eve", "ann", true); err != nil {
		t.Fatal(err)
	}
	first := s.lead(f)
	select {
	case <-first.hit:
	case <-time.After(15 * time.Second):
		t.Fatalf("%+v never took place", f)
	}
	if f.kind != "pause" {
		first.close()
	}
	second := s.lead(fault{})
	s.await("all are sent or dropped", func() bool {
		c, err := s.messages.ScheduledCounts(t.Context())
		return err == nil && c.Open == 0
	})
	if f.kind == "pause" {
		close(first.resume)
		if err := <-first.outcome; f.op != "send" && !errors.Is(err, store.ErrFenced) {
			t.Errorf("%s of the leader with token %d took place after one with token %d had begun: %v", f.op, first.proof.Token, second.proof.Token, err)
		}
		first.close()
	}
	sent := 0
	for _, to := range []im.UserID{"bob", "cid", "dan"} {
		sent += s.judge(to)
	}
	if sent != n {
		t.Errorf("%d of %d messages were sent", sent, n)
	}
	one, err := s.messages.Scheduled(t.Context(), store.ScheduledQuery{User: "ann", Request: "request 999", Limit: 1})
	if err != nil || len(one) != 1 || one[0].State != store.ScheduledDropped || one[0].Reason != clientv1.Reason_REASON_FORBIDDEN {
		t.Errorf("to who blocks: %+v, %v", one, err)
	}
}

// While 200 messages fall due leaders follow each other five times, and before that
// nobody led: each is sent once, none before its time, and what was cancelled
// between two leaders is not.
func TestScheduledAcrossManyLeaders(t *testing.T) {
	const n = 200
	s := newSite(t, yes)
	now := time.Now()
	for i := range int64(n) {
		s.schedule(i+1, []im.UserID{"bob", "cid", "dan"}[i%3], now.Add(-time.Second+time.Duration(i)*10*time.Millisecond))
	}
	for turn := range 5 {
		l := s.lead(fault{})
		s.await("something more is sent", func() bool {
			c, err := s.messages.ScheduledCounts(t.Context())
			return err == nil && c.Open <= n-(turn+1)*n/8
		})
		l.close()
		if turn == 2 {
			s.schedule(999, "eve", time.Now())
			if m, err := s.messages.CancelScheduled(t.Context(), 999, "ann"); err != nil || m.State != store.ScheduledCancelled {
				t.Errorf("cancel: %+v, %v", m, err)
			}
		}
	}
	s.lead(fault{})
	s.await("all are sent", func() bool {
		c, err := s.messages.ScheduledCounts(t.Context())
		return err == nil && c.Open == 0
	})
	sent := 0
	for _, to := range []im.UserID{"bob", "cid", "dan"} {
		sent += s.judge(to)
	}
	if sent != n {
		t.Errorf("%d of %d messages were sent", sent, n)
	}
	list, err := s.messages.Scheduled(t.Context(), store.ScheduledQuery{User: "ann", Ended: true, Limit: store.MaxScheduledPage})
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range list {
		if late := m.Ended.Sub(m.Due); m.ID != 999 && (late < 0 || late > 10*time.Second) {
			t.Errorf("message %d was sent %v after its time", m.ID, late)
		}
	}
	if m, err := s.messages.CancelScheduled(t.Context(), 999, "ann"); err != nil || m.State != store.ScheduledCancelled || m.Seq != 0 {
		t.Errorf("what was cancelled: %+v, %v", m, err)
	}
}

// judge compares the log of a conversation with the list of scheduled messages,
// and returns how many entries there are.
func (s *site) judge(to im.UserID) int {
	s.t.Helper()
	conv := im.ConversationID(protocol.DirectID("ann", string(to)))
	page, err := s.messages.History(s.t.Context(), store.HistoryQuery{Conversation: conv, Limit: store.MaxPage})
	if err != nil {
		s.t.Fatal(err)
	}
	seqs := map[im.ClientMessageID]im.Seq{}
	for _, e := range page.Entries {
		if seqs[e.ClientMessageID] != 0 {
			s.t.Errorf("%s was sent twice", e.ClientMessageID)
		}
		seqs[e.ClientMessageID] = e.Seq
	}
	var after store.Scheduled
	listed := 0
	for {
		list, err := s.messages.Scheduled(s.t.Context(), store.ScheduledQuery{User: "ann", Ended: true, After: after.Due, ID: after.ID, Limit: store.MaxScheduledPage})
		if err != nil {
			s.t.Fatal(err)
		}
		for _, m := range list {
			if m.Conversation == conv {
				listed++
			}
			if m.Conversation == conv && (m.State != store.ScheduledSent || m.Seq != seqs[m.ClientMessageID]) {
				s.t.Errorf("the list says %+v, the log %d", m, seqs[m.ClientMessageID])
			}
		}
		if len(list) < store.MaxScheduledPage {
			if listed < len(page.Entries) {
				s.t.Errorf("%d are in the list, %d in the log", listed, len(page.Entries))
			}
			return len(page.Entries)
		}
		after = list[len(list)-1]
	}
}
