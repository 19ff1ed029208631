package election

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/control"
	"github.com/imdhq/imd/pkg/control/embedded"
	"github.com/imdhq/imd/pkg/control/etcd"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/pkg/store/sqlite"
)

var rounds = flag.Int("election.rounds", 2, "leaders that are killed or stopped, of each kind")

func TestMain(m *testing.M) {
	if os.Getenv(nameVar) != "" {
		if err := candidate(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// patience bounds every wait.
const patience = 20 * time.Second

// effect is one effect that the store was asked for.
type effect struct {
	store.Proof
	accepted bool
}

// site is an etcd server, a message store, and processes.
type site struct {
	t         *testing.T
	etcd      string
	messages  *sqlite.Store
	http      *httptest.Server
	observers []*control.Handle
	leaseOnly bool
	started   int

	mu      sync.Mutex
	effects []effect
	hold    string        // holder whose next effect is held back; "" = none
	held    chan struct{} // closed when it is
	release chan struct{} // closed to let it go on
}

func newSite(t *testing.T, leaseOnly bool) *site {
	s := &site{t: t, leaseOnly: leaseOnly}
	dir := t.TempDir()
	address := fmt.Sprintf("127.10.%d.%d:2379", os.Getpid()>>8&255, os.Getpid()&255)
	srv, err := embedded.Start(t.Context(), filepath.Join(dir, "etcd"), zap.NewNop(), embedded.Listen(address))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { srv.Close() })
	s.etcd = "http://" + address
	if s.messages, err = sqlite.Open(t.Context(), sqlite.Options{Path: filepath.Join(dir, "imd.db")}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.messages.Close() })
	s.http = httptest.NewServer(http.HandlerFunc(s.serve))
	t.Cleanup(s.http.Close)
	for i := range 3 {
		s.observe(fmt.Sprint("gateway", i))
	}
	return s
}

// observe runs a process's control plane that takes no part in the election, as
// a gateway's.
func (s *site) observe(id string) {
	client, err := etcd.Dial(etcd.Endpoints{URLs: []string{s.etcd}}, zap.NewNop())
	if err != nil {
		s.t.Fatal(err)
	}
	h := &control.Handle{}
	d := etcd.New(client, etcd.Options{Cluster: "c", Node: im.NodeID(id), Publish: h.SetView, PublishLeaders: h.SetLeaders, Log: zap.NewNop()})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- d.Run(ctx) }()
	s.t.Cleanup(func() {
		cancel()
		if err := errors.Join(<-done, d.Close()); err != nil {
			s.t.Error(err)
		}
	})
	s.observers = append(s.observers, h)
}

// serve is the message store for the candidates.
func (s *site) serve(w http.ResponseWriter, r *http.Request) {
	ctx := context.WithoutCancel(r.Context())
	switch r.URL.Path {
	case "/claim":
		var c store.FenceClaim
		if json.NewDecoder(r.Body).Decode(&c) != nil {
			http.Error(w, "", http.StatusBadRequest)
			return
		}
		f, err := s.messages.ClaimFence(ctx, c)
		if err != nil && !errors.Is(err, store.ErrFenced) {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		_ = json.NewEncoder(w).Encode(claimed{f, err != nil})
	case "/effect":
		var p store.Proof
		if json.NewDecoder(r.Body).Decode(&p) != nil {
			http.Error(w, "", http.StatusBadRequest)
			return
		}
		s.pause(p.Holder)
		_, err := s.messages.Expire(ctx, p, time.Now())
		s.mu.Lock()
		s.effects = append(s.effects, effect{p, err == nil})
		s.mu.Unlock()
		if errors.Is(err, store.ErrFenced) {
			http.Error(w, "", http.StatusConflict)
			return
		}
		_ = json.NewEncoder(w).Encode(true)
	}
}

// pause holds back the effect that the test waits for.
func (s *site) pause(holder string) {
	s.mu.Lock()
	if s.hold == "" || s.hold != holder {
		s.mu.Unlock()
		return
	}
	s.hold = ""
	held, release := s.held, s.release
	s.mu.Unlock()
	close(held)
	<-release
}

// process is one candidate.
type process struct {
	id   im.NodeID
	cmd  *exec.Cmd
	done chan struct{}
}

// start starts a candidate.
func (s *site) start() *process {
	s.started++
	p := &process{id: im.NodeID(fmt.Sprint("n", s.started)), done: make(chan struct{})}
	p.cmd = exec.Command(os.Args[0])
	p.cmd.Stderr = os.Stderr
	lease := "0"
	if s.leaseOnly {
		lease = "1"
	}
	p.cmd.Env = append(os.Environ(), nameVar+"="+string(p.id), etcdVar+"="+s.etcd, storeVar+"="+s.http.URL, leaseVar+"="+lease)
	if err := p.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	go func() {
		_ = p.cmd.Wait() // killed ones end with an error
		close(p.done)
	}()
	s.t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.done
	})
	return p
}

func (s *site) signal(p *process, sig syscall.Signal) {
	s.t.Helper()
	if err := p.cmd.Process.Signal(sig); err != nil {
		s.t.Fatal(err)
	}
}

// leads waits until every observer sees p lead with a token above the given
// one, and returns it.
func (s *site) leads(p *process, above int64) int64 {
	s.t.Helper()
	end := time.Now().Add(patience)
	var token int64
	for _, h := range s.observers {
		for {
			if l, ok := h.Leaders().Of(job); ok && l.Node == p.id && l.Token > above && !l.Gone {
				token = l.Token
				break
			}
			if time.Now().After(end) {
				s.t.Fatalf("%s does not lead after %v: %+v", p.id, patience, h.Leaders())
			}
			time.Sleep(time.Millisecond)
		}
	}
	return token
}

// stands waits until p is registered and had time to stand by.
func (s *site) stands(p *process) {
	s.t.Helper()
	end := time.Now().Add(patience)
	for {
		for _, n := range s.observers[0].View().Nodes {
			if n.ID == p.id {
				time.Sleep(300 * time.Millisecond) // its long poll at the leader begins; nothing shows that from outside
				return
			}
		}
		if time.Now().After(end) {
			s.t.Fatalf("%s is not registered", p.id)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// judge checks what must hold of all effects, in the order in which the store
// decided on them.
func (s *site) judge() {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	var highest int64
	holders, accepted := map[int64]string{}, 0
	for _, e := range s.effects {
		if !e.accepted {
			continue
		}
		accepted++
		if e.Token < highest {
			s.t.Errorf("an effect with token %d took place after one with %d", e.Token, highest)
		}
		highest = max(highest, e.Token)
		if h, ok := holders[e.Token]; ok && h != e.Holder {
			s.t.Errorf("token %d has two holders: %s and %s", e.Token, h, e.Holder)
		}
		holders[e.Token] = e.Holder
	}
	s.t.Logf("%d effects took place in %d terms, %d were refused", accepted, len(holders), len(s.effects)-accepted)
}

// succession ends one leader after the other and measures until every observer
// sees the next.
func succession(t *testing.T, leaseOnly bool, sig syscall.Signal) []time.Duration {
	s := newSite(t, leaseOnly)
	leader := s.start()
	token := s.leads(leader, 0)
	var took []time.Duration
	for range *rounds {
		next := s.start()
		s.stands(next)
		began := time.Now()
		s.signal(leader, sig)
		token = s.leads(next, token)
		took = append(took, time.Since(began))
		<-leader.done
		leader = next
	}
	s.judge()
	slices.Sort(took)
	at := func(p float64) time.Duration {
		return took[min(len(took)-1, int(p*float64(len(took))))].Round(time.Millisecond)
	}
	t.Logf("%d changes: p50 %v, p99 %v, max %v", len(took), at(0.5), at(0.99), at(1))
	return took
}

func within(t *testing.T, took []time.Duration, limit time.Duration) {
	t.Helper()
	if worst := slices.Max(took); worst > limit {
		t.Errorf("a change took %v, want %v at most", worst, limit)
	}
}

func TestKilledLeaderIsFollowed(t *testing.T) {
	within(t, succession(t, false, syscall.SIGKILL), 4*time.Second)
}

func TestKilledLeaderIsFollowedByLeaseAlone(t *testing.T) {
	within(t, succession(t, true, syscall.SIGKILL), 4*time.Second)
}

func TestStoppedLeaderIsFollowed(t *testing.T) {
	within(t, succession(t, false, syscall.SIGTERM), time.Second)
}

// A leader is paused in the middle of an effect. Another leads and has effects;
// then the paused one's effect arrives, and later the process goes on.
func TestPausedLeadersEffectIsRefused(t *testing.T) {
	s := newSite(t, false)
	old := s.start()
	token := s.leads(old, 0)
	next := s.start()
	s.stands(next)
	holder := fmt.Sprintf("%s/%d", old.id, old.cmd.Process.Pid)
	s.mu.Lock()
	s.hold, s.held, s.release = holder, make(chan struct{}), make(chan struct{})
	held, release := s.held, s.release
	s.mu.Unlock()
	<-held
	s.signal(old, syscall.SIGSTOP)
	began := time.Now()
	s.leads(next, token)
	if took := time.Since(began); took > 4*time.Second {
		t.Errorf("a paused leader was followed after %v", took)
	}
	count := func(holder string, accepted bool) (n int) {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, e := range s.effects {
			if strings.HasPrefix(e.Holder, holder) && e.accepted == accepted {
				n++
			}
		}
		return n
	}
	until := time.Now().Add(patience)
	for count(string(next.id)+"/", true) == 0 && time.Now().Before(until) {
		time.Sleep(time.Millisecond)
	}
	decided := func() int { return count(holder, true) + count(holder, false) }
	before := decided()
	close(release)
	for decided() == before && time.Now().Before(until) {
		time.Sleep(time.Millisecond)
	}
	s.signal(old, syscall.SIGCONT)
	// It stands by from now on, and leads again when the other stops.
	s.signal(next, syscall.SIGTERM)
	s.leads(old, token+1)
	if count(holder, false) == 0 {
		t.Error("the paused leader's effect was not refused")
	}
	s.judge()
}
