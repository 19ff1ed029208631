package lane

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// sim is a lane, clients that keep the rules of sending, and a store that
// fails in every way it may. rapid makes all choices, so a failure shrinks.
type sim struct {
	t       *rapid.T
	l       *Lane
	now     time.Time
	out     *Work
	clients []*simClient
	log     map[im.ConversationID][]simRow // what is stored
	told    map[im.MessageID]int           // fan-outs of own commits
	ids     im.MessageID
}

type simRow struct {
	key rowKey
	id  im.MessageID
}

// simClient sends messages 0, 1, 2 ... in one conversation, in order.
type simClient struct {
	conv    im.ConversationID
	sender  im.UserID
	oldest  int // unacknowledged
	made    int
	run     *Run // in flight; nil = none
	left    int  // unanswered sends of run
	base    int  // message of run's first send
	refused int  // first retryable answer in run, -1 = none
	poison  map[int]bool
	failed  map[int]bool
}

func (c *simClient) key(n int) rowKey {
	return rowKey{c.conv, c.sender, im.ClientMessageID(fmt.Sprint(n))}
}

func (s *sim) find(k rowKey) (seq im.Seq, id im.MessageID) {
	for i, r := range s.log[k.conv] {
		if r.key == k {
			return im.Seq(i + 1), r.id
		}
	}
	return 0, 0
}

func (s *sim) step(ev Event) {
	fx := s.l.Step(s.now, ev)
	for _, a := range fx.Answers {
		a.Run.Reply(a.At, a.Verdict)
	}
	for _, d := range fx.Committed {
		if seq, id := s.find(keyOf(&d.Send.Row)); seq != d.Result.Seq || id != d.Result.MessageID {
			s.t.Fatalf("told of a commit that is not one: %+v", d.Result)
		}
		if d.Own {
			s.told[d.Result.MessageID]++
		}
	}
	if fx.Work != nil {
		if s.out != nil {
			s.t.Fatal("two calls out")
		}
		s.out = fx.Work
	}
	if s.l.rows > maxQueueRows || s.l.bytes > maxQueueBytes {
		s.t.Fatal("the queue is above its bound")
	}
}

// send submits the next run of a client: from its oldest message on. The answers
// to a run that is still in flight are then of no more use to it.
func (s *sim) send(c *simClient, n int) {
	c.base, c.refused = c.oldest, -1
	c.made = max(c.made, c.oldest+n)
	run := &Run{Conv: c.conv}
	for i := c.oldest; i < c.oldest+n; i++ {
		s.ids++
		run.Sends = append(run.Sends, Send{Size: 1 + 700*(i%9), Row: store.AppendRow{
			Conversation: c.conv, Sender: c.sender, ClientMessageID: c.key(i).id, MessageID: s.ids,
		}})
	}
	answered := make([]bool, n)
	base := c.base
	run.Reply = func(at int, v Verdict) {
		if answered[at] {
			s.t.Fatalf("%v answered twice", c.key(base+at))
		}
		answered[at] = true
		if c.run != run { // of a connection that broke
			s.judge(&simClient{conv: c.conv, sender: c.sender, refused: -1, poison: c.poison, failed: c.failed}, base+at, v)
			return
		}
		s.judge(c, base+at, v)
		if c.left--; c.left == 0 {
			c.run = nil
			c.oldest = base + n
			if c.refused >= 0 {
				c.oldest = c.refused
			}
		}
	}
	c.run, c.left = run, n
	s.step(Submit{run})
}

// judge checks one answer against the store.
func (s *sim) judge(c *simClient, msg int, v Verdict) {
	seq, id := s.find(c.key(msg))
	switch {
	case v.Err == nil:
		if seq == 0 || seq != v.Result.Seq || id != v.Result.MessageID {
			s.t.Fatalf("message %d: OK %+v, stored %d %d", msg, v.Result, seq, id)
		}
		if c.refused >= 0 && c.refused < msg {
			s.t.Fatalf("message %d is OK behind the refused %d", msg, c.refused)
		}
	case im.Retryable(v.Err):
		if c.refused < 0 || msg < c.refused {
			c.refused = msg
		}
	default:
		if seq != 0 || !c.poison[msg] {
			s.t.Fatalf("message %d: %v, but it is stored or sound", msg, v.Err)
		}
		c.failed[msg] = true
	}
}

// apply stores rows as a store does: all or nothing.
func (s *sim) apply(rows []store.AppendRow, locked im.ConversationID, why *im.Error) []store.AppendResult {
	res := make([]store.AppendResult, len(rows))
	behind := map[int]bool{}
	for i, r := range rows {
		if r.Conversation == locked || behind[r.Run] {
			res[i].Err = why
			if behind[r.Run] && r.Conversation != locked {
				res[i].Err = errBehind(errAway())
			}
			behind[r.Run] = true
			continue
		}
		if seq, id := s.find(keyOf(&r)); seq != 0 {
			res[i] = store.AppendResult{Seq: seq, MessageID: id, Duplicate: true}
			continue
		}
		s.log[r.Conversation] = append(s.log[r.Conversation], simRow{keyOf(&r), r.MessageID})
		res[i] = store.AppendResult{Seq: im.Seq(len(s.log[r.Conversation])), MessageID: r.MessageID}
	}
	return res
}

func (s *sim) poisoned(rows []store.AppendRow) bool {
	for _, r := range rows {
		for _, c := range s.clients {
			for n := range c.poison {
				if c.key(n) == keyOf(&r) {
					return true
				}
			}
		}
	}
	return false
}

// finish ends the call that is out in one of the ways it may end.
func (s *sim) finish(how string) {
	w := s.out
	s.out = nil
	ev := Result{Took: time.Millisecond}
	switch bad := s.poisoned(w.Append); {
	case how == "away":
		ev.Err = im.Errorf(clientv1.Reason_REASON_UNAVAILABLE, "store", "")
	case how == "lost before":
		ev.Err = store.ErrUnknownOutcome
	case bad:
		ev.Err = im.Errorf(clientv1.Reason_REASON_BAD_REQUEST, "store", "")
	case how == "lost after":
		s.apply(w.Append, "", nil)
		ev.Err = store.ErrUnknownOutcome
	case how == "fault":
		ev.Err = errors.New("fault")
	case how == "locked":
		ev.Results = s.apply(w.Append, w.Append[len(w.Append)/2].Conversation, errAway())
	case how == "held rows":
		ev.Results = s.apply(w.Append, w.Append[len(w.Append)/2].Conversation, retry(clientv1.Reason_REASON_BUSY, "", 0))
	case how == "held":
		ev.Err = &store.BusyConversationError{Conversations: []im.ConversationID{w.Append[len(w.Append)/2].Conversation}}
	default:
		ev.Results = s.apply(w.Append, "", nil)
	}
	s.step(ev)
}

func TestLaneKeepsItsPromises(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := &sim{t: t, l: New(), now: time.UnixMilli(1_800_000_000_000), log: map[im.ConversationID][]simRow{}, told: map[im.MessageID]int{}}
		for i := range rapid.IntRange(1, 6).Draw(t, "clients") {
			c := &simClient{
				conv: im.ConversationID(fmt.Sprint("g_", i%3)), sender: im.UserID(fmt.Sprint("u", i)),
				poison: map[int]bool{}, failed: map[int]bool{},
			}
			if rapid.IntRange(0, 4).Draw(t, "poison") == 0 {
				c.poison[rapid.IntRange(0, 30).Draw(t, "which")] = true
			}
			s.clients = append(s.clients, c)
		}
		outcomes := rapid.SampledFrom([]string{"ok", "ok", "ok", "lost before", "lost after", "away", "fault", "locked", "held", "held rows"})
		for range rapid.IntRange(1, 120).Draw(t, "steps") {
			c := s.clients[rapid.IntRange(0, len(s.clients)-1).Draw(t, "client")]
			switch rapid.IntRange(0, 9).Draw(t, "action") {
			case 0, 1, 2:
				if c.run == nil {
					s.send(c, rapid.IntRange(1, 64).Draw(t, "sends"))
				}
			case 3:
				if c.run != nil {
					s.step(Expire{c.run})
				}
			case 7: // another connection, which sends the whole outbox again
				if c.run != nil {
					s.send(c, max(1, c.made-c.oldest)+rapid.IntRange(0, 3).Draw(t, "more"))
				}
			case 4:
				s.now = s.now.Add(time.Duration(rapid.IntRange(1, 500).Draw(t, "ms")) * time.Millisecond)
				s.step(Tick{})
			default:
				if s.out != nil {
					s.finish(outcomes.Draw(t, "outcome"))
				}
			}
		}
		s.settle()
		s.check()
	})
}

// settle lets every client send all it has through a sound store.
func (s *sim) settle() {
	for range 10_000 {
		busy := false
		for _, c := range s.clients {
			if c.run == nil && c.oldest < c.made {
				s.send(c, min(64, c.made-c.oldest))
			}
			busy = busy || c.run != nil || c.oldest < c.made
		}
		if s.out != nil {
			s.finish("ok")
			busy = true
		}
		s.now = s.now.Add(maxHold)
		s.step(Tick{})
		if !busy {
			return
		}
	}
	s.t.Fatal("the clients do not come to an end")
}

// check compares the store with what the clients meant.
func (s *sim) check() {
	for s.out != nil { // of broken connections
		s.finish("ok")
		s.now = s.now.Add(maxHold)
		s.step(Tick{})
	}
	if !s.l.Idle() || len(s.l.pending) != 0 || s.l.rows != 0 || s.l.bytes != 0 {
		s.t.Fatalf("left over: pending %d, rows %d, bytes %d", len(s.l.pending), s.l.rows, s.l.bytes)
	}
	stored := 0
	for _, c := range s.clients {
		last := im.Seq(0)
		for n := range c.made {
			seq, id := s.find(c.key(n))
			switch {
			case c.failed[n]:
				continue
			case seq == 0:
				s.t.Fatalf("%v is lost", c.key(n))
			case seq <= last:
				s.t.Fatalf("%v is stored before the one sent before it", c.key(n))
			case s.told[id] != 1:
				s.t.Fatalf("%v was told of %d times", c.key(n), s.told[id])
			}
			last = seq
			stored++
		}
	}
	total := 0
	for _, l := range s.log {
		total += len(l)
	}
	if total != stored {
		s.t.Fatalf("%d rows stored, %d sent", total, stored)
	}
}
