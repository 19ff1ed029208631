package controltest

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/imdhq/imd/pkg/control"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/pkg/testenv/machine"
)

// fences is the fences of a message store.
type fences struct {
	mu   sync.Mutex
	rows map[string]store.Fence
	away bool
}

// NewFences gives the fences of a message store that lives in memory.
func NewFences() store.Fences { return newFences() }

func newFences() *fences { return &fences{rows: map[string]store.Fence{}} }

var errAway = errors.New("the store is away")

func (f *fences) ClaimFence(_ context.Context, c store.FenceClaim) (store.Fence, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	had := f.rows[c.Name]
	switch {
	case f.away:
		return store.Fence{}, errAway
	case had.Token != 0 && had.Cluster == c.Cluster && had.Revision == c.Revision && had.Holder == c.Holder:
		return had, nil
	case had.Token != 0 && had.Token != c.Over && had.Cluster == c.Cluster && had.Revision >= c.Revision:
		return had, store.ErrFenced
	}
	next := store.Fence{Name: c.Name, Token: had.Token + 1, Holder: c.Holder, Cluster: c.Cluster, Revision: c.Revision}
	f.rows[c.Name] = next
	return next, nil
}

func (f *fences) Fence(_ context.Context, name string) (store.Fence, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.rows[name], nil
}

// effect is one effect of a leader: it proves its token.
func (f *fences) effect(p store.Proof) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.rows[p.Name].Proof() != p {
		return store.ErrFenced
	}
	return nil
}

func (f *fences) set(to func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	to()
}

// campaign takes part until the test or the returned function ends it, which
// waits for the end. Each term goes into led, and lasts as long as it may.
func campaign(t testing.TB, p *process, name string, f *fences, led chan<- control.Term) (stop func()) {
	return campaignOf(t, p, control.Candidacy{Name: name, Fences: func() (store.Fences, error) { return f, nil },
		Lead: func(ctx context.Context, term control.Term) error {
			led <- term
			<-ctx.Done()
			return nil
		}})
}

func campaignOf(t testing.TB, p *process, c control.Candidacy) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- p.Campaign(ctx, c) }()
	stop = sync.OnceFunc(func() {
		cancel()
		began := time.Now()
		if err := <-done; err != nil {
			t.Errorf("Campaign: %v", err)
		}
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("a campaign took %v to end, want 2s at most", took)
		}
	})
	t.Cleanup(stop)
	return stop
}

// next waits for a term.
func next(t testing.TB, led <-chan control.Term) control.Term {
	t.Helper()
	select {
	case term := <-led:
		return term
	case <-time.After(limit):
		t.Fatalf("nobody leads after %v", limit)
		return nil
	}
}

// electionKey is where the leader of an election stands.
func electionKey(p *process, name string) string {
	return strings.Replace(p.key, "/nodes/"+string(p.node.ID), "/leader/"+name, 1)
}

// serving opens a process and announces it.
func serving(t *testing.T, f Fixture, n control.Node) *process {
	t.Helper()
	p := open(t, f, n)
	if err := p.announce(control.Serving); err != nil {
		t.Fatal(err)
	}
	return p
}

// leads waits until everybody in ps sees the node lead with the token.
func leads(t testing.TB, name string, id im.NodeID, token int64, ps ...*process) {
	t.Helper()
	for _, p := range ps {
		eventually(t, string(id)+" is seen to lead", func() bool {
			l, ok := p.handle.Leaders().Of(name)
			return ok && l.Node == id && l.Token == token && !l.Gone
		})
	}
}

func electOne(t *testing.T, f Fixture) {
	a, b := serving(t, f, node("a", "a1", "")), serving(t, f, node("b", "b1", ""))
	watcher := open(t, f, node("w", "w1", "")) // takes no part
	store, ledA, ledB := newFences(), make(chan control.Term, 8), make(chan control.Term, 8)
	stop := campaign(t, a, "job", store, ledA)
	first := next(t, ledA)
	campaign(t, b, "job", store, ledB)
	leads(t, "job", "a", 1, a, b, watcher)
	if p := first.Proof(); p.Token != 1 || p.Name != "job" || p.Holder != "a/a1" || store.effect(p) != nil || !first.Valid() {
		t.Errorf("the first term: %+v", p)
	}
	if a.TermEnded("job") == nil || b.TermEnded("job") != nil {
		t.Error("who leads is not who it says")
	}
	// A term outlasts its lease.
	eventually(t, "many renewals", func() bool { return time.Since(a.began) > 6*time.Second })
	if len(ledB) != 0 || !first.Valid() {
		t.Error("the term did not last")
	}
	began := time.Now()
	stop()
	second := next(t, ledB)
	t.Logf("a resignation was followed after %v", time.Since(began)) // that it was one is counted below
	leads(t, "job", "b", 2, b, watcher)
	if first.Valid() || second.Proof().Token != 2 {
		t.Errorf("after the change: %v, %+v", first.Valid(), second.Proof())
	}
	s := a.Stats().Elections["job"]
	if s.Leading || s.Terms != 1 || s.Ends[control.EndResigned] != 1 {
		t.Errorf("counted %+v", s)
	}
}

func electMany(t *testing.T, f Fixture) {
	a := serving(t, f, node("a", "a1", ""))
	store, names := newFences(), []string{"job", "job-2", "jo", "job.x"}
	for _, n := range names {
		led := make(chan control.Term, 1)
		campaign(t, a, n, store, led)
		if term := next(t, led); term.Proof().Token != 1 {
			t.Errorf("%s: %+v", n, term.Proof())
		}
	}
	eventually(t, "all are announced", func() bool { return len(a.handle.Leaders().All) == len(names) })
	for _, bad := range []string{"", "a/b", "A", strings.Repeat("x", 65)} {
		if err := a.Campaign(t.Context(), control.Candidacy{Name: bad}); !errors.Is(err, control.ErrElectionName) {
			t.Errorf("election %q: %v", bad, err)
		}
	}
}

func electOnce(t *testing.T, f Fixture) {
	a := serving(t, f, node("a", "a1", ""))
	store, led := newFences(), make(chan control.Term, 8)
	stop := campaign(t, a, "job", store, led)
	next(t, led)
	if err := a.Campaign(t.Context(), control.Candidacy{Name: "job"}); err == nil {
		t.Error("a second candidacy is accepted")
	}
	stop()
	campaign(t, a, "job", store, led)
	if term := next(t, led); term.Proof().Token != 2 {
		t.Errorf("the second term: %+v", term.Proof())
	}
}

func electDeposed(t *testing.T, f Fixture) {
	a := serving(t, f, node("a", "a1", ""))
	store, led := newFences(), make(chan control.Term, 8)
	campaign(t, a, "job", store, led)
	old := next(t, led)
	for i, depose := range []func(){
		func() { f.Store.Revoke(t, electionKey(a, "job")) },
		func() { f.Store.Delete(t, electionKey(a, "job")) },
	} {
		depose()
		now := next(t, led)
		if old.Valid() || !errors.Is(store.effect(old.Proof()), errFenced) || store.effect(now.Proof()) != nil || now.Proof().Token != int64(i)+2 {
			t.Errorf("%d: old %+v, new %+v", i, old.Proof(), now.Proof())
		}
		old = now
	}
	if s := a.Stats().Elections["job"]; s.Ends[control.EndDeposed] != 2 || s.Token != 3 {
		t.Errorf("counted %+v", s)
	}
}

var errFenced = store.ErrFenced

func electReturned(t *testing.T, f Fixture) {
	a, b := serving(t, f, node("a", "a1", "")), serving(t, f, node("b", "b1", ""))
	fences, led := newFences(), make(chan control.Term, 8)
	leave := make(chan error)
	campaignOf(t, a, control.Candidacy{Name: "job", Fences: func() (store.Fences, error) { return fences, nil },
		Lead: func(ctx context.Context, _ control.Term) error {
			select {
			case err := <-leave:
				return err
			case <-ctx.Done():
				return nil
			}
		}})
	leads(t, "job", "a", 1, b)
	campaign(t, b, "job", fences, led)
	leave <- store.ErrFenced
	next(t, led)
	leads(t, "job", "b", 2, a, b)
	if s := a.Stats().Elections["job"]; s.Ends[control.EndFenced] != 1 {
		t.Errorf("counted %+v", s)
	}
}

func electTransfer(t *testing.T, f Fixture) {
	store, ledA := newFences(), make(chan control.Term, 8)
	a := serving(t, f, node("a", "a1", ""))
	if _, err := a.Transfer(t.Context(), "job", ""); !errors.Is(err, control.ErrNoLeader) {
		t.Errorf("a transfer without a leader: %v", err)
	}
	campaign(t, a, "job", store, ledA)
	next(t, ledA)
	b, c := serving(t, f, node("b", "b1", "")), serving(t, f, node("c", "c1", ""))
	ledB, ledC := make(chan control.Term, 8), make(chan control.Term, 8)
	campaign(t, b, "job", store, ledB)
	campaign(t, c, "job", store, ledC)
	leads(t, "job", "a", 1, a, b, c)
	took := machine.Took(func() {
		if _, err := b.Transfer(t.Context(), "job", "c"); err != nil {
			t.Fatal(err)
		}
		next(t, ledC)
	})
	if took > time.Second {
		t.Errorf("a transfer took %v", took)
	}
	leads(t, "job", "c", 2, a, b, c)
	if l, err := b.Transfer(t.Context(), "job", "c"); err != nil || l.Token != 2 {
		t.Errorf("a transfer to who leads: %v", err)
	}
	if _, ok := f.Store.Read(t, electionKey(a, "job")+"/wish"); ok || len(ledB) != 0 {
		t.Error("the wish was not cleared, or another led meanwhile")
	}
}

func electResign(t *testing.T, f Fixture) {
	a, b := serving(t, f, node("a", "a1", "")), serving(t, f, node("b", "b1", ""))
	store, ledA, ledB := newFences(), make(chan control.Term, 8), make(chan control.Term, 8)
	campaign(t, a, "job", store, ledA)
	next(t, ledA)
	campaign(t, b, "job", store, ledB)
	leads(t, "job", "a", 1, a, b)
	if _, err := a.Transfer(t.Context(), "job", ""); err != nil {
		t.Fatal(err)
	}
	next(t, ledB)
	leads(t, "job", "b", 2, a, b)
}

func electNobody(t *testing.T, f Fixture) {
	a := serving(t, f, node("a", "a1", ""))
	store, led := newFences(), make(chan control.Term, 8)
	campaign(t, a, "job", store, led)
	next(t, led)
	leads(t, "job", "a", 1, a)
	if _, err := a.Transfer(t.Context(), "job", "nobody"); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	took := machine.Took(func() { next(t, led) })
	if time.Since(began) < 2*time.Second || took > 8*time.Second {
		t.Errorf("the election was open again after %v, want about 3s", took)
	}
	eventually(t, "the leader that was gone is back", func() bool {
		l, ok := a.handle.Leaders().Of("job")
		return ok && l.Token == 2 && !l.Gone
	})
}

// mortal is an ops listener that can be killed.
func mortal(t *testing.T, boot string, ended func(string) <-chan struct{}) (address string, kill func()) {
	s := httptest.NewServer(control.Await(boot, ended))
	kill = sync.OnceFunc(func() { s.CloseClientConnections(); s.Close() })
	t.Cleanup(kill)
	return s.Listener.Addr().String(), kill
}

// electDead shows the fast takeover: the ops listener of the leader is gone,
// and so is its process as far as anybody can tell, while its lease goes on: it is
// longer than the test, so that nothing but the takeover ends it.
func electDead(t *testing.T, f Fixture) {
	const lease = 2 * limit
	var a *process
	address, kill := mortal(t, "a1", func(name string) <-chan struct{} { return a.TermEnded(name) })
	a = openWith(t, f, node("a", "a1", address), lease)
	b := openWith(t, f, node("b", "b1", ""), lease)
	for _, p := range []*process{a, b} {
		if err := p.announce(control.Serving); err != nil {
			t.Fatal(err)
		}
	}
	rows, ledA, ledB := newFences(), make(chan control.Term, 8), make(chan control.Term, 8)
	dying := make(chan struct{})
	campaignOf(t, a, control.Candidacy{Name: "job", Fences: func() (store.Fences, error) { return rows, nil },
		Lead: func(ctx context.Context, term control.Term) error {
			ledA <- term
			<-ctx.Done()
			<-dying // a process that is gone does not stand again
			return nil
		}})
	t.Cleanup(func() { close(dying) }) // before the campaign is ended
	old := next(t, ledA)
	campaign(t, b, "job", rows, ledB)
	leads(t, "job", "a", 1, b)
	began := time.Now()
	kill()
	term := next(t, ledB)
	t.Logf("followed after %v", time.Since(began))
	if s := b.Stats().Elections["job"]; s.Forced != 1 || rows.effect(term.Proof()) != nil || rows.effect(old.Proof()) == nil {
		t.Errorf("forced: %+v", s)
	}
}

// electAlive shows what is no death: an ops listener that takes connections and
// says nothing, and one that answers at once.
func electAlive(t *testing.T, f Fixture) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	quick := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Header().Set(control.BootHeader, "c1") }))
	t.Cleanup(quick.Close)
	b := serving(t, f, node("b", "b1", ""))
	for id, address := range map[string]string{"a": l.Addr().String(), "c": quick.Listener.Addr().String()} {
		store, led, ledB := newFences(), make(chan control.Term, 8), make(chan control.Term, 8)
		p := serving(t, f, node(id, id+"1", address))
		campaign(t, p, "job-"+id, store, led)
		next(t, led)
		campaign(t, b, "job-"+id, store, ledB)
	}
	eventually(t, "three seconds pass", func() bool { return time.Since(b.began) > 3*time.Second })
	for _, id := range []string{"a", "c"} {
		leads(t, "job-"+id, im.NodeID(id), 1, b)
	}
}

func electNoStore(t *testing.T, f Fixture) {
	a, b := serving(t, f, node("a", "a1", "")), serving(t, f, node("b", "b1", ""))
	away, good := newFences(), newFences()
	away.away = true
	ledA, ledB := make(chan control.Term, 8), make(chan control.Term, 8)
	campaign(t, a, "job", away, ledA)
	eventually(t, "a tries", func() bool { _, ok := f.Store.Read(t, electionKey(a, "job")); return ok })
	campaign(t, b, "job", good, ledB)
	next(t, ledB) // a, who cannot reach its store, leaves the place
	leads(t, "job", "b", 1, a)
	if len(ledA) != 0 {
		t.Error("a led without a fence")
	}
}

func electRewound(t *testing.T, f Fixture) {
	a := serving(t, f, node("a", "a1", ""))
	store, led := newFences(), make(chan control.Term, 8)
	stop := campaign(t, a, "job", store, led)
	next(t, led)
	stop()
	store.set(func() { // as if the last claim had been made before etcd was restored
		row := store.rows["job"]
		row.Revision, row.Token = row.Revision+1_000_000, 41
		store.rows["job"] = row
	})
	campaign(t, a, "job", store, led)
	if term := next(t, led); term.Proof().Token != 42 || store.effect(term.Proof()) != nil {
		t.Errorf("after a restore: %+v", term.Proof())
	}
	if s := a.Stats().Elections["job"]; s.Fenced != 1 {
		t.Errorf("counted %+v", s)
	}
}
