package storetest

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// Messages says how a test gets message stores of one driver.
type Messages struct {
	// Open makes an empty store.
	Open func(t testing.TB) store.MessageStore
	// Reopen closes s and opens what it kept.
	Reopen func(t testing.TB, s store.MessageStore) store.MessageStore
	// Holes says that a store that was opened anew may leave numbers out.
	Holes bool
}

// TestMessages runs the suite for message stores. Its tests run one after the
// other, each on an empty store.
func TestMessages(t *testing.T, d Messages) {
	tests := []struct {
		name string
		run  func(*kit)
	}{
		{"a direct conversation is made by the first send and found from both sides", directIsMade},
		{"a direct conversation that cannot be is refused", directRefused},
		{"numbers are dense and every entry names its predecessor", numbering},
		{"a resend in any order and number is answered as at first", resends},
		{"the first of equal keys in a batch wins", duplicatesInBatch},
		{"another body under the same id is id_reused", idReused},
		{"dedup is scoped by sender and by conversation", dedupScope},
		{"what is stored answers before permission", dedupBeforePermission},
		{"a row that is refused holds nothing back", refusalHoldsNothing},
		{"a batch has its bounds", batchBounds},
		{"everything that is sent comes back as it was", roundTrip},
		{"the system needs no membership", systemSends},
		{"concurrent appends race for nothing", concurrentAppends},
		{"sends are refused after removal, closing and blocking", permissionAtOnce},
		{"a block works in both id orders and in one direction", blocks},
		{"history pages give each entry once", historyPages},
		{"history stops at a size, but not before one entry", historyBytes},
		{"an empty interval is complete", historyEmpty},
		{"borders: join, leave, rejoin", borders},
		{"borders: open history", openHistory},
		{"borders: cleared history", clearedHistory},
		{"pages close over hidden stretches", hiddenStretches},
		{"an entry is found by its seq", entryBySeq},
		{"sync lists everything, page by page, once", syncPages},
		{"sync lists what has changed since the token", syncChanges},
		{"sync lists what cursors ask for", syncCursors},
		{"sync brings entries as history does", syncEntries},
		{"sync under changes misses nothing", syncWhileChanging},
		{"many syncs at once are as many single ones", syncMany},
		{"digests are the sums of what syncs tell", digests},
		{"a void token gives the full list", voidTokens},
		{"a direct state shows the other user", directState},
		{"a former member's state stays as it was left", formerMember},
		{"the last message is the newest visible one", lastMessage},
		{"heads tell what has moved", heads},
		{"unread counts what others sent beyond the read position", unreadRules},
		{"unread stops counting", unreadBound},
		{"positions never go back nor past the head", positionsOnlyRise},
		{"positions of strangers are ignored", positionsOfStrangers},
		{"creating a group is idempotent", createOnce},
		{"changes are idempotent by request id", changeOnce},
		{"a request id and a message id do not mix", requestIDOfMessage},
		{"roles decide who may change what", roles},
		{"the only owner stays", onlyOwner},
		{"lists of users are bounded, distinct and must change something", userLists},
		{"concurrent adds make one membership", concurrentAdds},
		{"entries of changes say what happened", changeEntries},
		{"members are listed in pages", memberPages},
		{"users become known", users},
		{"revocations hold until they expire", revocations},
		{"a displaced session stores nothing", displacedSession},
		{"ranks of sessions rise", sessionRanks},
		{"a claim waits for what has begun and nothing follows it", sessionRace},
		{"what is over goes in bounded steps", expiry},
		{"keys are kept", keys},
		{"when users were last seen only moves up", lastSeen},
		{"who shares a conversation is visible, unless there is a block", visible},
		{"worker marks are kept", workerMarks},
		{"a worker mark moves only from what it was", workerMarkMoved},
		{"worker numbers are leased to one at a time", workerLeases},
		{"racing for a worker number has one winner", workerRace},
		{"tokens of a fence rise", fenceTokens},
		{"a claim that is not newer is refused", fenceStale},
		{"a fence outlives an etcd that went back", fenceRewound},
		{"racing claims never share a token", fenceRace},
		{"an effect without the newest token is refused", fenceGuards},
		{"every commit is an event, once and in order", outboxEvents},
		{"events are whole while others write", outboxWhileWriting},
		{"a leader that was followed leaves the outbox alone", outboxFenced},
		{"old events go", outboxTrims},
		{"a user comes or goes once", userEvents},
		{"receivers keep their place", receiverRows},
		{"who has not received is known", pushesUnacked},
		{"pushes collapse, and are withdrawn when read", pushRows},
		{"reading is faster than telling", pushReadMeanwhile},
		{"a notice takes the place of one that was told", pushNewer},
		{"who was refused was told of nothing", pushRefused},
		{"muted conversations are not told of", pushMuted},
		{"badges count what is unread", badges},
		{"rows of jobs are kept, and a leader that was followed writes none", jobRows},
		{"what is old goes from everyone's sight", retention},
		{"what is old goes while others write", retentionWhileWriting},
		{"what is to be sent later is kept if it may be sent", scheduledPut},
		{"what is to be sent later is cancelled or claimed, never both", scheduledCancel},
		{"claims of what is to be sent later outlive their leader", scheduledClaims},
		{"announcements have one sequence, and end", announcements},
		{"the newest entry's time is known", newest},
		{"a done context is honoured", doneContext},
		{"reopening keeps everything", reopening},
		{"random operations agree with a model", property},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := d.Open(t)
			k := &kit{T: t, d: d, s: s}
			t.Cleanup(func() {
				if err := k.s.Close(); err != nil {
					t.Errorf("close: %v", err)
				}
			})
			tt.run(k)
		})
	}
}

// kit is one test with its store.
type kit struct {
	*testing.T
	d Messages
	s store.MessageStore
}

var counter atomic.Int64

// ctx bounds every call.
func (k *kit) ctx() context.Context {
	ctx, cancel := context.WithTimeout(k.Context(), 30*time.Second)
	k.Cleanup(cancel)
	return ctx
}

// uuid is a new client message id.
func uuid() im.ClientMessageID {
	return im.ClientMessageID(fmt.Sprintf("%08x-0000-4000-8000-%012x", counter.Add(1), 7))
}

// mid is a new message id.
func mid() im.MessageID { return im.MessageID(counter.Add(1)) }

// direct is the id of a direct conversation.
func direct(a, b im.UserID) im.ConversationID {
	return im.ConversationID(protocol.DirectID(string(a), string(b)))
}

// row is a send of text with a new client message id.
func row(conv im.ConversationID, from im.UserID, text string) store.AppendRow {
	return store.AppendRow{
		Conversation: conv, Sender: from, ClientMessageID: uuid(), BodyHash: sha256.Sum256([]byte(text)), MessageID: mid(),
		Kind: clientv1.EntryKind_ENTRY_KIND_MESSAGE, Content: []byte(text), Countable: true,
	}
}

// to is a send to a user.
func to(from, peer im.UserID, text string) store.AppendRow {
	r := row(direct(from, peer), from, text)
	r.Peer = peer
	return r
}

func (k *kit) append(rows ...store.AppendRow) []store.AppendResult {
	k.Helper()
	out, err := k.s.Append(k.ctx(), rows)
	if err != nil {
		k.Fatalf("append: %v", err)
	}
	if len(out) != len(rows) {
		k.Fatalf("%d answers to %d rows", len(out), len(rows))
	}
	return out
}

// sent appends rows that must be stored, and returns the last seq.
func (k *kit) sent(rows ...store.AppendRow) im.Seq {
	k.Helper()
	var last im.Seq
	for i, r := range k.append(rows...) {
		if r.Err != nil {
			k.Fatalf("row %d: %v", i, r.Err)
		}
		last = r.Seq
	}
	return last
}

// refusedRow appends a row that must be refused.
func (k *kit) refusedRow(want im.Reason, r store.AppendRow) {
	k.Helper()
	got := k.append(r)[0]
	if got.Err == nil || got.Err.Reason != want {
		k.Errorf("send by %q to %s: %+v, want %s", r.Sender, r.Conversation, got, im.ReasonName(want))
	}
}

// change applies a change that must work.
func (k *kit) change(c store.Change) store.ChangeResult {
	k.Helper()
	r, err := k.tryChange(c)
	if err != nil {
		k.Fatalf("change by %q: %v", c.Actor, err)
	}
	return r
}

// refused applies a change that must be refused.
func (k *kit) refused(want im.Reason, c store.Change) {
	k.Helper()
	if r, err := k.tryChange(c); im.ReasonOf(err) != want {
		k.Errorf("change by %q: %+v, %v; want %s", c.Actor, r, err, im.ReasonName(want))
	}
}

// tryChange fills in the ids that c leaves out.
func (k *kit) tryChange(c store.Change) (store.ChangeResult, error) {
	if c.RequestID == "" {
		c.RequestID = uuid()
	}
	if c.MessageID == 0 {
		c.MessageID = mid()
	}
	return k.s.Change(k.ctx(), c)
}

// group makes a group; its entry has seq 1.
func (k *kit) group(owner im.UserID, members ...im.UserID) im.ConversationID {
	k.Helper()
	return k.groupOf(store.CreateGroup{Name: "team", Owner: owner, Members: members})
}

func (k *kit) groupOf(g store.CreateGroup) im.ConversationID {
	k.Helper()
	id := im.ConversationID(fmt.Sprintf("g_%d", counter.Add(1)))
	return k.change(store.Change{Conversation: id, Actor: g.Owner, Create: &g}).Conversation
}

func (k *kit) add(conv im.ConversationID, actor im.UserID, users ...im.UserID) im.Seq {
	k.Helper()
	return k.change(store.Change{Conversation: conv, Actor: actor, AddMembers: users}).Entry.Seq
}

func (k *kit) remove(conv im.ConversationID, actor im.UserID, users ...im.UserID) im.Seq {
	k.Helper()
	return k.change(store.Change{Conversation: conv, Actor: actor, RemoveMembers: users}).Entry.Seq
}

// fill sends n messages.
func (k *kit) fill(conv im.ConversationID, from im.UserID, n int) im.Seq {
	k.Helper()
	var last im.Seq
	for n > 0 {
		batch := make([]store.AppendRow, min(n, store.MaxAppendRows))
		for i := range batch {
			batch[i] = row(conv, from, fmt.Sprintf("text %d", n-i))
		}
		last = k.sent(batch...)
		n -= len(batch)
	}
	return last
}

func (k *kit) history(q store.HistoryQuery) store.HistoryPage {
	k.Helper()
	if q.Limit == 0 {
		q.Limit = store.MaxPage
	}
	p, err := k.s.History(k.ctx(), q)
	if err != nil {
		k.Fatalf("history of %s for %q: %v", q.Conversation, q.Reader, err)
	}
	return p
}

// seen are the seqs that reader gets by reading everything forward.
func (k *kit) seen(conv im.ConversationID, reader im.UserID) []im.Seq {
	k.Helper()
	return k.walk(store.HistoryQuery{Reader: reader, Conversation: conv, Limit: 100})
}

// walk reads page after page as a client does, checks that the pages join, and
// returns the seqs in rising order.
func (k *kit) walk(q store.HistoryQuery) []im.Seq {
	k.Helper()
	var out []im.Seq
	for range 100_000 {
		p := k.history(q)
		page := make([]im.Seq, len(p.Entries))
		for i, e := range p.Entries {
			page[i] = e.Seq
			if e.Seq < p.CompleteFrom || e.Seq > p.CompleteTo {
				k.Fatalf("entry %d outside of complete %d..%d", e.Seq, p.CompleteFrom, p.CompleteTo)
			}
		}
		if len(page) > q.Limit || !slices.IsSorted(page) {
			k.Fatalf("bad page %v for limit %d", page, q.Limit)
		}
		if q.Backward {
			out = append(page, out...)
		} else {
			out = append(out, page...)
		}
		switch {
		case p.End:
			return out
		case len(page) == 0:
			k.Fatalf("an empty page without end: %+v", p)
		case q.Backward:
			q.Before = p.CompleteFrom
		default:
			q.After = p.CompleteTo
		}
	}
	k.Fatal("history has no end")
	return nil
}

func (k *kit) sync(q store.SyncQuery) store.SyncPage {
	k.Helper()
	if q.Limit == 0 {
		q.Limit = store.MaxSyncPage
	}
	p, err := k.s.Sync(k.ctx(), q)
	if err != nil {
		k.Fatalf("sync: %v", err)
	}
	if len(p.States) > q.Limit || len(p.TokenAfter) != len(p.States) {
		k.Fatalf("%d states and %d tokens for limit %d", len(p.States), len(p.TokenAfter), q.Limit)
	}
	return p
}

// syncAll reads all pages from a token; states come by conversation.
func (k *kit) syncAll(q store.SyncQuery) (states map[im.ConversationID]store.ConversationState, token string) {
	k.Helper()
	states = map[im.ConversationID]store.ConversationState{}
	for range 100_000 {
		p := k.sync(q)
		for _, s := range p.States {
			if _, twice := states[s.Conversation]; twice {
				k.Fatalf("%s is listed twice", s.Conversation)
			}
			states[s.Conversation] = s
		}
		q.Token = p.Token
		if !p.More {
			return states, p.Token
		}
		if len(p.States) == 0 {
			k.Fatal("an empty page that is not the last")
		}
	}
	k.Fatal("sync has no end")
	return nil, ""
}

// state is the state of one conversation in a full sync.
func (k *kit) state(conv im.ConversationID, user im.UserID) store.ConversationState {
	k.Helper()
	all, _ := k.syncAll(store.SyncQuery{User: user})
	s, ok := all[conv]
	if !ok {
		k.Fatalf("%s is not in the list of %s", conv, user)
	}
	return s
}

func (k *kit) save(ps ...store.Position) []store.Position {
	k.Helper()
	out, err := k.s.SavePositions(k.ctx(), ps)
	if err != nil {
		k.Fatalf("save positions: %v", err)
	}
	return out
}

// read moves a read position.
func (k *kit) read(conv im.ConversationID, user im.UserID, seq im.Seq) store.Position {
	k.Helper()
	out := k.save(store.Position{Conversation: conv, User: user, Read: seq})
	if len(out) != 1 {
		k.Fatalf("%d positions back, want 1", len(out))
	}
	return out[0]
}

func (k *kit) position(conv im.ConversationID, user im.UserID) store.Position {
	k.Helper()
	p, err := k.s.Position(k.ctx(), conv, user)
	if err != nil {
		k.Fatalf("position of %s in %s: %v", user, conv, err)
	}
	return p
}

// upTo is from..to.
func upTo(from, to im.Seq) []im.Seq {
	var out []im.Seq
	for s := from; s <= to; s++ {
		out = append(out, s)
	}
	return out
}

func same[T any](k *kit, what string, got, want T) {
	k.Helper()
	if g, w := fmt.Sprintf("%+v", got), fmt.Sprintf("%+v", want); g != w {
		k.Errorf("%s: %s, want %s", what, g, w)
	}
}

// memberChange decodes the text of a membership entry.
func memberChange(k *kit, e im.Entry) *clientv1.MemberChange {
	k.Helper()
	var m clientv1.MemberChange
	if err := proto.Unmarshal(e.Change, &m); err != nil || e.Kind != clientv1.EntryKind_ENTRY_KIND_MEMBER_CHANGE {
		k.Fatalf("entry %d is no membership change: %v, %v", e.Seq, e.Kind, err)
	}
	return &m
}
