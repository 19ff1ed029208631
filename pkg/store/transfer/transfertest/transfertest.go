// Package transfertest is the suite for stores that can be the target of a
// copy.
package transfertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/pkg/store/sqlite"
	"github.com/imdhq/imd/pkg/store/transfer"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// Driver says how a test gets at one store, which is empty at first.
type Driver struct {
	Target func(t testing.TB) (store.Target, error)       // opens it to be filled
	Serve  func(t testing.TB) (store.MessageStore, error) // opens it as a node does
	// VoidTokens says that sync tokens of an SQLite store mean nothing in it.
	VoidTokens bool
}

// Run runs the suite; fresh makes an empty store.
func Run(t *testing.T, fresh func(t testing.TB) Driver) {
	t.Run("everything arrives and goes on where it was", func(t *testing.T) { everything(t, fresh(t)) })
	t.Run("a copy that ends anywhere goes on", func(t *testing.T) { resumed(t, fresh(t)) })
	t.Run("a copy that is run once more has nothing to do", func(t *testing.T) { again(t, fresh(t)) })
	t.Run("a target with data is refused", func(t *testing.T) { occupied(t, fresh(t)) })
	t.Run("a source that has changed is refused", func(t *testing.T) { changed(t, fresh(t)) })
	t.Run("half a copy is not served", func(t *testing.T) { half(t, fresh(t)) })
	t.Run("a difference is noticed", func(t *testing.T) { differs(t, fresh(t)) })
}

// world is a source with some of everything.
type world struct {
	path   string
	sends  []store.AppendRow
	acks   []store.AppendResult
	group  im.ConversationID
	direct im.ConversationID
	epoch  string
	token  string // of a sync of ann
}

func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{path: filepath.Join(t.TempDir(), "imd.db")}
	w.with(t, w.fill)
	return w
}

// with opens the source as a node does.
func (w *world) with(t testing.TB, f func(testing.TB, store.MessageStore)) {
	t.Helper()
	s, err := sqlite.Open(t.Context(), sqlite.Options{Path: w.path})
	if err != nil {
		t.Fatal(err)
	}
	f(t, s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// source holds it to be copied.
func (w *world) source(t testing.TB) store.Source {
	t.Helper()
	s, err := sqlite.OpenSource(t.Context(), &url.URL{Scheme: "sqlite", Path: w.path}, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

var base = im.MessageID(1 << 40)

// row is a send of n; every fifth has a key that is no UUID.
func (w *world) row(conv im.ConversationID, sender, peer im.UserID, n int) store.AppendRow {
	cmid := uuid.NewSHA1(uuid.Nil, fmt.Append(nil, conv, sender, n)).String()
	if n%5 == 0 {
		cmid = fmt.Sprintf("%016d", n) // as long as a UUID in bytes
	}
	r := store.AppendRow{
		Conversation: conv, Peer: peer, Sender: sender, ClientMessageID: im.ClientMessageID(cmid), MessageID: base + im.MessageID(len(w.sends)),
		Kind: clientv1.EntryKind_ENTRY_KIND_MESSAGE, Content: fmt.Appendf(nil, "\x00\xff %d", n), Countable: n%3 != 0,
	}
	r.BodyHash[0], r.BodyHash[31] = byte(n), 7
	return r
}

func (w *world) send(t testing.TB, s store.MessageStore, r store.AppendRow) {
	t.Helper()
	out, err := s.Append(t.Context(), []store.AppendRow{r})
	if err != nil || out[0].Err != nil {
		t.Fatal(out, err)
	}
	w.sends, w.acks = append(w.sends, r), append(w.acks, out[0])
}

// fill writes some of everything.
func (w *world) fill(t testing.TB, s store.MessageStore) {
	t.Helper()
	ctx := t.Context()
	w.epoch = s.DataEpoch()
	change := func(actor im.UserID, c store.Change) store.ChangeResult {
		t.Helper()
		c.Actor, c.RequestID = actor, im.ClientMessageID(uuid.NewString())
		base++
		c.MessageID = base + 1<<30
		r, err := s.Change(ctx, c)
		must(t, err)
		return r
	}
	w.direct = im.ConversationID(protocol.DirectID("ann", "bob"))
	w.group = change("ann", store.Change{Conversation: "g_77", Create: &store.CreateGroup{Name: "all of us", Owner: "ann", Members: []im.UserID{"bob", "cyd"}}}).Conversation
	for n := range 40 {
		w.send(t, s, w.row(w.direct, "ann", "bob", n))
		w.send(t, s, w.row(w.group, "cyd", "", n))
		switch n {
		case 10, 25:
			change("ann", store.Change{Conversation: w.group, RemoveMembers: []im.UserID{"bob"}})
		case 20, 30:
			change("ann", store.Change{Conversation: w.group, AddMembers: []im.UserID{"bob"}})
		case 35:
			change("bob", store.Change{Conversation: w.group, Leave: true})
		}
	}
	_, err := s.SavePositions(ctx, []store.Position{{Conversation: w.direct, User: "bob", Delivered: 30, Read: 20}, {Conversation: w.group, User: "cyd", Read: 9}})
	must(t, err)
	must(t, s.SetBlock(ctx, "eve", "bob", true))
	must(t, s.SetDisabled(ctx, "eve", true))
	until := time.Now().Add(time.Hour).Truncate(time.Millisecond)
	must(t, s.RevokeLogin(ctx, store.Revocation{User: "bob", Login: "l1", Reason: clientv1.Reason_REASON_REVOKED, Until: until}))
	must(t, s.RevokeLogin(ctx, store.Revocation{User: "cyd", IssuedBefore: until.Add(-2 * time.Hour), Reason: clientv1.Reason_REASON_REVOKED, Until: until}))
	must(t, s.PutKey(ctx, store.Key{ID: "k1", Name: "backend", Scopes: []string{"users", "messages"}, SecretHash: [32]byte{1, 31: 9}, Created: until}))
	must(t, s.PutKey(ctx, store.Key{ID: "k2", Name: "old", Created: until, Revoked: until}))
	_, err = s.MoveWorkerMark(ctx, 70, time.Time{}, time.UnixMicro(1_700_000_000_000_001))
	must(t, err)
	fence, err := s.ClaimFence(ctx, store.FenceClaim{Name: "scheduler", Holder: "h", Cluster: "c", Revision: 5})
	must(t, err)
	must(t, s.SetMute(ctx, w.direct, "bob", until))
	must(t, s.SaveSeen(ctx, fence.Proof(), []store.Seen{{User: "ann", At: until}, {User: "gone", At: until.Add(time.Second)}}))
	w.later(t, s, fence.Proof())
	p, err := s.Sync(ctx, store.SyncQuery{User: "ann", Limit: 100})
	must(t, err)
	w.token = p.Token
}

// later writes what is still to be told or sent.
func (w *world) later(t testing.TB, s store.MessageStore, p store.Proof) {
	t.Helper()
	ctx, now := t.Context(), time.Now().Truncate(time.Millisecond)
	must(t, s.PutEvents(ctx, p, []store.Event{{Kind: store.UserOnline, At: now, User: "ann"}, {Kind: store.UserOnline, At: now, User: "cyd"}}))
	told := store.Push{User: "cyd", Conversation: w.group, Seq: 40, MessageID: 70, Sender: "ann"}
	due := store.Push{User: "ann", Conversation: w.group, Seq: 41, MessageID: 71, Sender: "cyd"}
	state, err := s.OutboxState(ctx)
	must(t, err)
	_, err = s.SaveReceiver(ctx, p, store.Receiver{Name: "shop", Cursor: state.Last}, store.Settled{Pushes: []store.Push{told, due}})
	must(t, err)
	told.State = store.PushDue
	must(t, s.SettlePushes(ctx, p, []store.PushResult{{Push: told, Next: store.PushSent, Again: now}}))
	for i := range 5 {
		_, _, err := s.PutScheduled(ctx, store.Scheduled{
			ID: int64(500 + i), RequestID: im.ClientMessageID(fmt.Sprint("r", i)), ClientMessageID: im.ClientMessageID(uuid.NewString()), Conversation: w.group, Sender: "ann",
			Content: fmt.Appendf(nil, "\x00\xff %d", i), BodyHash: [32]byte{31: byte(i)}, Due: now.Add(time.Duration(i) * time.Minute), Created: now,
		}, 10)
		must(t, err)
	}
	_, err = s.CancelScheduled(ctx, 504, "ann")
	must(t, err)
	_, err = s.ClaimScheduled(ctx, p, store.ScheduledClaim{Now: now.Add(2 * time.Minute), Until: now.Add(time.Hour), Limit: 10})
	must(t, err)
	must(t, s.SettleScheduled(ctx, p, []store.ScheduledResult{
		{ID: 500, State: store.ScheduledSent, MessageID: 9, Seq: 8, At: now}, {ID: 501, State: store.ScheduledDropped, Reason: clientv1.Reason_REASON_NOT_MEMBER, At: now},
	}))
	for i := range 3 {
		_, _, err := s.PutAnnouncement(ctx, store.Announcement{RequestID: im.ClientMessageID(fmt.Sprint("r", i)), Text: fmt.Sprint("text ", i), Created: now, Expires: now.Add(time.Hour)})
		must(t, err)
	}
	_, err = s.WithdrawAnnouncement(ctx, 2, now)
	must(t, err)
}

// open opens the target to be filled.
func (d Driver) open(t testing.TB) store.Target {
	t.Helper()
	g, err := d.Target(t)
	must(t, err)
	return g
}

// serve opens the target as a node does.
func (d Driver) serve(t testing.TB) store.MessageStore {
	t.Helper()
	s, err := d.Serve(t)
	must(t, err)
	return s
}

// copy runs one copy to its end.
func (w *world) copy(t testing.TB, d Driver, wrap func(store.Target) store.Target) (*transfer.Report, error) {
	t.Helper()
	from, to := w.source(t), d.open(t)
	used := to
	if wrap != nil {
		used = wrap(to)
	}
	r, err := transfer.Copy(t.Context(), from, used, transfer.Options{})
	must(t, errors.Join(from.Close(), to.Close()))
	return r, err
}

func everything(t *testing.T, d Driver) {
	w := newWorld(t)
	r, err := w.copy(t, d, nil)
	must(t, err)
	if r.DataEpoch != w.epoch || r.Retired == w.epoch || r.Resumed {
		t.Errorf("report %+v", r)
	}
	s := d.serve(t)
	defer s.Close()
	w.compare(t, s)
	w.goesOn(t, s, d.VoidTokens)
	if state, err := s.OutboxState(context.Background()); err != nil || !state.On || !state.Marks {
		t.Errorf("the copy leaves no marks: %+v, %v", state, err)
	}
}

// mirror is a finished copy as the source of another one.
type mirror struct {
	store.Target
	origin store.Origin
}

// Origin is store.Source's.
func (m mirror) Origin() store.Origin { return m.origin }

// Retire is store.Source's.
func (m mirror) Retire(context.Context) (string, error) { return "", nil }

// Back copies an SQLite store through one store into another, and compares what
// arrives with what there was at first.
func Back(t *testing.T, through, into Driver) {
	w := newWorld(t)
	src := w.source(t)
	origin := src.Origin()
	must(t, src.Close())
	_, err := w.copy(t, through, nil)
	must(t, err)
	from, to := through.open(t), into.open(t)
	_, err = transfer.Copy(t.Context(), mirror{from, origin}, to, transfer.Options{})
	must(t, errors.Join(err, from.Close(), to.Close()))
	s := into.serve(t)
	defer s.Close()
	w.compare(t, s)
	w.goesOn(t, s, into.VoidTokens)
}

// compare asks the copy what a node would ask.
func (w *world) compare(t testing.TB, s store.MessageStore) {
	t.Helper()
	ctx := context.Background()
	if s.DataEpoch() != w.epoch {
		t.Errorf("data_epoch %s, it was %s", s.DataEpoch(), w.epoch)
	}
	w.with(t, func(t testing.TB, old store.MessageStore) {
		same := func(what string, ask func(store.MessageStore) (any, error)) {
			t.Helper()
			a, aerr := ask(old)
			b, berr := ask(s)
			must(t, errors.Join(aerr, berr))
			if x, y := fmt.Sprintf("%+v", a), fmt.Sprintf("%+v", b); x != y {
				t.Errorf("%s:\n%s in the source\n%s in the copy", what, x, y)
			}
		}
		same("badges", func(s store.MessageStore) (any, error) { return s.Badges(ctx, []im.UserID{"ann", "bob", "cyd"}) })
		same("receivers", func(s store.MessageStore) (any, error) {
			all, err := s.Receivers(ctx)
			for i := range all { // in the copy it begins with the first event
				all[i].Saved, all[i].Cursor, all[i].Reached = time.Time{}, 0, 0
			}
			return all, err
		})
		w.sameLater(ctx, same)
		for _, u := range []im.UserID{"ann", "bob", "cyd", "eve"} {
			same("user", func(s store.MessageStore) (any, error) { return s.User(ctx, u) })
			same("revocations", func(s store.MessageStore) (any, error) { return s.Revocations(ctx, u) })
			same("sync of "+string(u), func(s store.MessageStore) (any, error) {
				p, err := s.Sync(ctx, store.SyncQuery{User: u, Limit: 100})
				for i := range p.States {
					p.States[i].Last, p.States[i].PeerMember = nil, nil // pointers
				}
				return p.States, err
			})
			for _, c := range []im.ConversationID{w.direct, w.group} {
				same("history of "+string(u), func(s store.MessageStore) (any, error) {
					p, err := s.History(ctx, store.HistoryQuery{Reader: u, Conversation: c, Limit: 500})
					if im.ReasonOf(err) == clientv1.Reason_REASON_NOT_MEMBER {
						err = nil
					}
					return p, err
				})
			}
		}
		same("keys", func(s store.MessageStore) (any, error) { return s.Keys(ctx) })
		same("worker", func(s store.MessageStore) (any, error) { return s.WorkerMark(ctx, 70) })
		same("last seen", func(s store.MessageStore) (any, error) {
			all, err := s.Seen(ctx, []im.UserID{"ann", "gone"})
			if len(all) != 2 {
				t.Errorf("seen were %v", all)
			}
			slices.SortFunc(all, func(a, b store.Seen) int { return a.At.Compare(b.At) })
			return all, err
		})
		same("fence", func(s store.MessageStore) (any, error) { return s.Fence(ctx, "scheduler") })
		same("newest", func(s store.MessageStore) (any, error) { return s.Newest(ctx) })
		same("members", func(s store.MessageStore) (any, error) { return s.Members(ctx, w.group, "", "", 100) })
	})
}

// sameLater asks for what is still to be told or sent.
func (w *world) sameLater(ctx context.Context, same func(what string, ask func(store.MessageStore) (any, error))) {
	horizon := time.Now().Add(24 * time.Hour)
	same("online", func(s store.MessageStore) (any, error) { return s.OnlineUsers(ctx, "", 10) })
	same("pushes", func(s store.MessageStore) (any, error) { return s.DuePushes(ctx, horizon, 10) })
	same("push counts", func(s store.MessageStore) (any, error) { return s.PushCounts(ctx) })
	same("scheduled", func(s store.MessageStore) (any, error) {
		return s.Scheduled(ctx, store.ScheduledQuery{Ended: true, Limit: 100})
	})
	same("scheduled counts", func(s store.MessageStore) (any, error) { return s.ScheduledCounts(ctx) })
	same("announcements", func(s store.MessageStore) (any, error) {
		return s.Announcements(ctx, store.AnnouncementQuery{})
	})
	same("version of announcements", func(s store.MessageStore) (any, error) { return s.AnnouncementVersion(ctx) })
}

// goesOn sends old messages again and a new one.
func (w *world) goesOn(t testing.TB, s store.MessageStore, void bool) {
	t.Helper()
	ctx := context.Background()
	out, err := s.Append(ctx, w.sends)
	must(t, err)
	for i, got := range out {
		want := w.acks[i]
		if got.Err != nil || !got.Duplicate || got.MessageID != want.MessageID || got.Seq != want.Seq || got.PrevSeq != want.PrevSeq || !got.ServerTime.Equal(want.ServerTime) {
			t.Fatalf("resend %d: %+v, at first %+v", i, got, want)
		}
	}
	reused := w.sends[3]
	reused.BodyHash[0] ^= 1
	last := w.acks[len(w.acks)-2] // of the direct conversation
	fresh := w.row(w.direct, "ann", "bob", 1001)
	out, err = s.Append(ctx, []store.AppendRow{reused, fresh})
	must(t, err)
	if out[0].Err == nil || out[0].Err.Reason != clientv1.Reason_REASON_ID_REUSED {
		t.Errorf("another body under an old id: %+v", out[0])
	}
	if out[1].Err != nil || out[1].Duplicate || out[1].Seq != last.Seq+1 || out[1].PrevSeq != last.Seq {
		t.Errorf("the next message: %+v; the last was %+v", out[1], last)
	}
	g, err := s.Change(ctx, store.Change{Conversation: "g_78", Actor: "ann", RequestID: "new", MessageID: base + 1<<31, Create: &store.CreateGroup{Name: "new", Owner: "ann"}})
	if err != nil || g.Entry.Seq != 1 {
		t.Errorf("a new group: %+v, %v", g, err)
	}
	w.laterGoesOn(ctx, t, s)
	p, err := s.Sync(ctx, store.SyncQuery{User: "ann", Token: w.token, Limit: 100})
	must(t, err)
	if p.Full != void {
		t.Errorf("with a token of the source the sync is full: %v", p.Full)
	}
	if !slices.ContainsFunc(p.States, func(c store.ConversationState) bool { return c.Conversation == w.direct }) {
		t.Error("a token of the source hides what is new in the copy")
	}
}

// laterGoesOn takes up what is still to be told or sent.
func (w *world) laterGoesOn(ctx context.Context, t testing.TB, s store.MessageStore) {
	t.Helper()
	fence, err := s.ClaimFence(ctx, store.FenceClaim{Name: "scheduler", Holder: "h2", Cluster: "c", Revision: 6})
	must(t, err)
	now := time.Now().Truncate(time.Millisecond)
	list, err := s.ClaimScheduled(ctx, fence.Proof(), store.ScheduledClaim{Now: now.Add(time.Minute), Until: now.Add(time.Hour), Limit: 10, First: true})
	if must(t, err); len(list) != 1 || list[0].ID != 502 {
		t.Errorf("what was claimed and not settled: %+v", list)
	}
	a, _, err := s.PutAnnouncement(ctx, store.Announcement{RequestID: "next", Text: "next", Created: now, Expires: now.Add(time.Hour)})
	if must(t, err); a.Seq != 5 {
		t.Errorf("the next announcement: %+v", a)
	}
	must(t, s.SetMute(ctx, w.direct, "bob", time.Time{}))
	_, err = s.SavePositions(ctx, []store.Position{{Conversation: w.group, User: "cyd", Read: 44}})
	must(t, err)
	due, err := s.DuePushes(ctx, now.Add(time.Minute), 10)
	if must(t, err); len(due) != 2 {
		t.Errorf("pushes: %+v", due)
	}
}

var errKilled = errors.New("killed")

// mortal is a target whose copier dies at the n-th change, before or after it
// was made.
type mortal struct {
	store.Target
	left  int
	after bool
}

func (m *mortal) die(f func() error) error {
	m.left--
	if m.left > 0 {
		return f()
	}
	if m.after {
		return errors.Join(f(), errKilled)
	}
	return errKilled
}

// Import is store.Target's.
func (m *mortal) Import(ctx context.Context, t store.Table, b *store.Batch, p store.Progress) error {
	return m.die(func() error { return m.Target.Import(ctx, t, b, p) })
}

// Finish is store.Target's.
func (m *mortal) Finish(ctx context.Context) error {
	return m.die(func() error { return m.Target.Finish(ctx) })
}

func resumed(t *testing.T, d Driver) {
	w := newWorld(t)
	for n := 0; ; n++ {
		r, err := w.copy(t, d, func(g store.Target) store.Target { return &mortal{g, 1 + n%3, n%2 == 0} })
		if err == nil {
			if !r.Resumed || n < 4 {
				t.Errorf("after %d ends: %+v", n, r)
			}
			break
		}
		if !errors.Is(err, errKilled) || n > 100 {
			t.Fatal(err)
		}
	}
	s := d.serve(t)
	defer s.Close()
	w.compare(t, s)
	w.goesOn(t, s, d.VoidTokens)
}

func occupied(t *testing.T, d Driver) {
	s := d.serve(t)
	_, err := s.PutUser(t.Context(), "zoe")
	must(t, errors.Join(err, s.Close()))
	w := newWorld(t)
	if _, err := w.copy(t, d, nil); !errors.Is(err, store.ErrOccupied) {
		t.Errorf("into a store with a user: %v", err)
	}
	s = d.serve(t)
	if _, err := s.User(t.Context(), "zoe"); err != nil {
		t.Error(err)
	}
	must(t, s.Close())
}

// again runs a copy once more, as after a kill just behind its last step.
func again(t *testing.T, d Driver) {
	w := newWorld(t)
	first, err := w.copy(t, d, nil)
	must(t, err)
	second, err := w.copy(t, d, nil)
	must(t, err)
	first.Resumed = true
	if !reflect.DeepEqual(first, second) {
		t.Errorf("reports %+v, %+v", first, second)
	}
	must(t, d.serve(t).Close())
	w.with(t, func(t testing.TB, s store.MessageStore) { w.send(t, s, w.row(w.direct, "ann", "bob", 500)) })
	if _, err := w.copy(t, d, nil); !errors.Is(err, store.ErrOccupied) || !strings.Contains(err.Error(), "used since") {
		t.Errorf("a source that goes on for itself: %v", err)
	}
}

func changed(t *testing.T, d Driver) {
	w, other := newWorld(t), newWorld(t)
	kill := func(g store.Target) store.Target { return &mortal{g, 5, true} }
	if _, err := w.copy(t, d, kill); !errors.Is(err, errKilled) {
		t.Fatal(err)
	}
	if _, err := other.copy(t, d, nil); !errors.Is(err, store.ErrOccupied) {
		t.Errorf("another source: %v", err)
	}
	w.with(t, func(t testing.TB, s store.MessageStore) { w.send(t, s, w.row(w.direct, "ann", "bob", 500)) })
	if _, err := w.copy(t, d, nil); !errors.Is(err, store.ErrChanged) {
		t.Errorf("after another message: %v", err)
	}
}

func half(t *testing.T, d Driver) {
	w := newWorld(t)
	if _, err := w.copy(t, d, func(g store.Target) store.Target { return &mortal{g, 6, true} }); !errors.Is(err, errKilled) {
		t.Fatal(err)
	}
	if s, err := d.Serve(t); !errors.Is(err, store.ErrUnfinished) {
		t.Errorf("half a copy is served: %v", err)
		if err == nil {
			must(t, s.Close())
		}
	}
	_, err := w.copy(t, d, nil)
	must(t, err)
	must(t, d.serve(t).Close())
}

// liar is a target that keeps something else than it is given.
type liar struct{ store.Target }

// Import is store.Target's.
func (l liar) Import(ctx context.Context, t store.Table, b *store.Batch, p store.Progress) error {
	if len(b.Entries) > 0 {
		c := *b
		c.Entries = slices.Clone(b.Entries)
		last := &c.Entries[len(c.Entries)-1] // a message
		last.Content = append(bytes.Clone(last.Content), '!')
		b = &c
	}
	return l.Target.Import(ctx, t, b, p)
}

func differs(t *testing.T, d Driver) {
	w := newWorld(t)
	if _, err := w.copy(t, d, func(g store.Target) store.Target { return liar{g} }); !errors.Is(err, transfer.ErrDiffers) {
		t.Errorf("a changed entry: %v", err)
	}
	if _, err := d.Serve(t); !errors.Is(err, store.ErrUnfinished) {
		t.Errorf("a wrong copy is served: %v", err)
	}
}
