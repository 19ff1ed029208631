package outbox

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"google.golang.org/protobuf/proto"

	"github.com/imdhq/imd/modules/scheduler"
	"github.com/imdhq/imd/pkg/control"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/pkg/store/sqlite"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// site is one message store, receivers, and leaders one after the other.
type site struct {
	t        testing.TB
	messages store.MessageStore
	hooks    *receiver // of events
	pushes   *receiver // of notices
	keys     string
	terms    int64
	sent     atomic.Int64
	live     map[im.UserID]bool // have a route
	// receivers are those of the configuration, and after the pause of the second
	// look at users whose devices say nothing.
	receivers []scheduler.ReceiverConfig
	after     time.Duration
}

func newSite(t testing.TB, answer func(told) int) *site {
	st, err := sqlite.Open(t.Context(), sqlite.Options{Path: filepath.Join(t.TempDir(), "imd.db")})
	if err != nil {
		t.Fatal(err)
	}
	return newSiteOn(t, st, answer)
}

// newSiteOn makes a site of an open store, which it closes.
func newSiteOn(t testing.TB, st store.MessageStore, answer func(told) int) *site {
	t.Cleanup(func() {
		if err := st.Close(); err != nil {
			t.Error(err)
		}
	})
	s := &site{t: t, messages: st, hooks: newReceiver(t, answer), pushes: newReceiver(t, yes), keys: keyFile(t), live: map[im.UserID]bool{}, after: 10 * time.Second}
	s.add("shop", s.hooks)
	return s
}

// add puts a receiver into the configuration.
func (s *site) add(name string, r *receiver, types ...string) {
	s.receivers = append(s.receivers, scheduler.ReceiverConfig{Name: name, URL: r.srv.URL, KeyFile: s.keys, Timeout: time.Second, Events: types})
}

// warm makes the rows of receivers, so that what is committed from now on is told.
func (s *site) warm() {
	s.t.Helper()
	l := s.lead(fault{})
	s.await("the receivers are known", func() bool {
		rows, err := s.messages.Receivers(s.t.Context())
		state, serr := s.messages.OutboxState(s.t.Context())
		return err == nil && serr == nil && len(rows) == len(s.receivers)+2 && state.On
	})
	l.close()
}

// send commits a message of ann to a user and returns its text.
func (s *site) send(to im.UserID) string {
	s.t.Helper()
	row, text := s.message(to)
	s.commit(row)
	return text
}

// message is the next message of ann.
func (s *site) message(to im.UserID) (row store.AppendRow, text string) {
	s.t.Helper()
	n := s.sent.Add(1)
	text = fmt.Sprint("text ", n)
	content, err := proto.Marshal(&clientv1.Content{Value: &clientv1.Content_Text{Text: text}})
	if err != nil {
		s.t.Fatal(err)
	}
	return store.AppendRow{
		Conversation: im.ConversationID(protocol.DirectID("ann", string(to))), Peer: to, Sender: "ann", ClientMessageID: im.ClientMessageID(fmt.Sprintf("%08x-0000-4000-8000-000000000000", n)),
		BodyHash: sha256.Sum256(content), MessageID: im.MessageID(1000 + n), Kind: clientv1.EntryKind_ENTRY_KIND_MESSAGE, Content: content, Countable: true,
	}, text
}

// commit commits messages at once.
func (s *site) commit(rows ...store.AppendRow) {
	s.t.Helper()
	out, err := s.messages.Append(s.t.Context(), rows)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, r := range out {
		if r.Err != nil {
			s.t.Fatal(r.Err)
		}
	}
}

// fault is what happens to a leader at its n-th call of an operation.
type fault struct {
	op   string
	nth  int64
	kind string // before, after, pause or cut
}

// leader is a scheduler in its one term.
type leader struct {
	store.MessageStore // the real one
	s                  *scheduler.Scheduler
	proof              store.Proof
	fault              fault

	calls   atomic.Int64
	dead    atomic.Bool   // nothing that it does reaches the store
	over    atomic.Bool   // its term has ended
	hit     chan struct{} // closed when the fault takes place
	resume  chan struct{} // closed to let a paused one go on
	outcome chan error    // of the call that was paused; capacity 1
	stop    context.CancelFunc
	ended   chan error
}

var errKilled = errors.New("killed")

// lead begins a term on the site.
func (s *site) lead(f fault) *leader {
	s.t.Helper()
	s.terms++
	fence, err := s.messages.ClaimFence(s.t.Context(), store.FenceClaim{Name: scheduler.Election, Holder: fmt.Sprint("n", s.terms), Cluster: "c", Revision: s.terms})
	if err != nil {
		s.t.Fatal(err)
	}
	l := &leader{
		MessageStore: s.messages, proof: fence.Proof(), fault: f,
		hit: make(chan struct{}), resume: make(chan struct{}), outcome: make(chan error, 1), ended: make(chan error, 1),
	}
	hooks, push := scheduler.DefaultWebhookConfig(), scheduler.DefaultPushConfig()
	hooks.Receivers = s.receivers
	push.URL, push.KeyFile, push.Content, push.After = s.pushes.srv.URL, s.keys, true, s.after
	l.s = scheduler.New(scheduler.Deps{
		Log: zap.NewNop(), Reg: prometheus.NewRegistry(), Elector: func() scheduler.Elector { return l },
		Store:  func() (scheduler.Messages, error) { return l, nil },
		Routes: func() (store.Sweeper, error) { return nil, errors.New("none here") },
		View:   func() *control.View { return &control.View{} },
		Live: func(_ context.Context, users []im.UserID) (out []store.Route, _ error) {
			for _, u := range users {
				if s.live[u] {
					out = append(out, store.Route{User: u})
				}
			}
			return out, nil
		},
		Webhooks: hooks, Push: push, Version: "test", Submitter: l,
	})
	if err := l.s.Start(s.t.Context()); err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	l.stop = cancel
	go func() { l.ended <- l.s.Run(ctx) }()
	s.t.Cleanup(func() {
		l.close()
		if err := l.s.Close(); err != nil {
			s.t.Error(err)
		}
	})
	return l
}

// Campaign is scheduler.Elector's: it is elected once.
func (l *leader) Campaign(ctx context.Context, c control.Candidacy) error {
	_ = c.Lead(ctx, l) // how a term ended is nothing that a candidate tells
	l.over.Store(true)
	<-ctx.Done()
	return nil
}

// Proof is control.Term's.
func (l *leader) Proof() store.Proof { return l.proof }

// Valid is control.Term's.
func (l *leader) Valid() bool { return true }

// close ends the process of the leader.
func (l *leader) close() {
	l.stop()
	select {
	case err := <-l.ended:
		l.ended <- err
	case <-time.After(20 * time.Second):
		panic("a leader does not end")
	}
}

// effect does one call that changes something, with the fault.
func (l *leader) effect(op string, call func() error) error {
	if l.dead.Load() {
		return errKilled
	}
	if op != l.fault.op || l.calls.Add(1) != l.fault.nth {
		return call()
	}
	switch l.fault.kind {
	case "before", "cut":
		l.dead.Store(true)
		close(l.hit)
		return errKilled
	case "after":
		err := call()
		l.dead.Store(true)
		close(l.hit)
		if err == nil {
			err = errKilled
		}
		return err
	}
	close(l.hit)
	<-l.resume
	err := call()
	l.outcome <- err
	return err
}

func (l *leader) Gather(_ context.Context, p store.Proof, limit int) (n int, err error) {
	err = l.effect("gather", func() error { n, err = l.MessageStore.Gather(context.Background(), p, limit); return err })
	return n, err
}

func (l *leader) SaveReceiver(_ context.Context, p store.Proof, r store.Receiver, s store.Settled) (ok bool, err error) {
	op := "tell"
	if r.Name != "shop" {
		op = "hand over"
	}
	err = l.effect(op, func() error {
		ok, err = l.MessageStore.SaveReceiver(context.Background(), p, r, s)
		return err
	})
	return ok, err
}

func (l *leader) SettlePushes(_ context.Context, p store.Proof, done []store.PushResult) error {
	return l.effect("push", func() error { return l.MessageStore.SettlePushes(context.Background(), p, done) })
}

func (l *leader) SaveJob(_ context.Context, p store.Proof, j store.JobRow) error {
	return l.effect("row", func() error { return l.MessageStore.SaveJob(context.Background(), p, j) })
}

func (l *leader) TrimEvents(_ context.Context, p store.Proof, before time.Time, limit int) (n int, err error) {
	err = l.effect("trim", func() error {
		n, err = l.MessageStore.TrimEvents(context.Background(), p, before, limit)
		return err
	})
	return n, err
}

// A leader is killed, or paused and followed, or cut off from the store and
// followed, in the middle of each job: the next one goes on within 4 s, nothing is lost, nothing happens twice that a receiver
// could not know as a repeat, and what a paused one does when it wakes up is
// refused.
func TestLeaderEndsInEachJob(t *testing.T) {
	for _, op := range []string{"gather", "tell", "hand over", "push", "trim"} {
		for _, kind := range []string{"before", "after", "pause", "cut"} {
			t.Run(op+" "+kind, func(t *testing.T) {
				t.Parallel()
				ends(t, fault{op: op, nth: 1, kind: kind})
			})
		}
	}
}

func ends(t *testing.T, f fault) {
	s := newSite(t, yes)
	s.warm()
	first := s.lead(f)
	var want []string
	for _, to := range []im.UserID{"bob", "cid", "dan"} {
		for range 10 {
			want = append(want, s.send(to))
		}
	}
	select {
	case <-first.hit:
	case <-time.After(15 * time.Second):
		t.Fatalf("%+v never took place", f)
	}
	began := time.Now()
	if f.kind == "before" || f.kind == "after" {
		first.close()
	}
	second := s.lead(fault{})
	got := s.hooks.wait(len(want))
	notices := s.pushes.wait(3)
	if took := time.Since(began); took > 4*time.Second {
		t.Errorf("the next leader was done after %v", took)
	}
	if f.kind == "pause" {
		close(first.resume)
		if err := <-first.outcome; !errors.Is(err, store.ErrFenced) {
			t.Errorf("%s of the leader with token %d took place after one with token %d had begun: %v", f.op, first.proof.Token, second.proof.Token, err)
		}
		first.close()
	}
	if f.kind == "cut" {
		first.dead.Store(false)
		s.await("the leader that is back finds that another leads", func() bool { return first.over.Load() })
		first.close()
	}
	s.hooks.ordered()
	if have := texts(got); len(have) != len(want) {
		t.Errorf("%d of %d messages were told", len(have), len(want))
	}
	for _, one := range notices {
		if one.Type != "push" || one.Badge != 10 || len(one.Content) == 0 {
			t.Errorf("notice: %+v", one)
		}
	}
	state, err := s.messages.OutboxState(t.Context())
	if err != nil || state.Last != int64(len(want)) {
		t.Errorf("%d commits became %d events, %v", len(want), state.Last, err)
	}
}

// await waits until f is true.
func (s *site) await(what string, f func() bool) {
	s.t.Helper()
	for end := time.Now().Add(10 * time.Second); !f(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			s.t.Fatalf("in vain: %s", what)
		}
	}
}
