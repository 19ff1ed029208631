package election

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/control"
	"github.com/imdhq/imd/pkg/control/etcd"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/pkg/store/sqlite"
	"github.com/imdhq/imd/pkg/testenv"
)

// rounds is how many leaders are killed or stopped, of each kind.
const rounds = 2

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
	t         testing.TB
	etcd      []string // URLs of its members
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

func newSite(t testing.TB, members int, leaseOnly bool) *site {
	s := &site{t: t, leaseOnly: leaseOnly, etcd: testenv.StartEtcd(t, members).URLs()}
	var err error
	if s.messages, err = sqlite.Open(t.Context(), sqlite.Options{Path: filepath.Join(t.TempDir(), "imd.db")}); err != nil {
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
	client, err := etcd.Dial(etcd.Endpoints{URLs: s.etcd}, zap.NewNop())
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
	p.cmd.Env = append(os.Environ(), nameVar+"="+string(p.id), etcdVar+"="+strings.Join(s.etcd, ","), storeVar+"="+s.http.URL, leaseVar+"="+lease)
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

// succession is a site with a leader, which can be followed again and again.
type succession struct {
	*site
	leader *process
	token  int64
}

func newSuccession(t testing.TB, members int, leaseOnly bool) *succession {
	s := &succession{site: newSite(t, members, leaseOnly)}
	s.leader = s.start()
	s.token = s.leads(s.leader, 0)
	return s
}

// next ends the leader and returns how long it took until every observer saw
// the next one.
func (s *succession) next(sig syscall.Signal) time.Duration {
	s.t.Helper()
	next := s.start()
	s.stands(next)
	began := time.Now()
	s.signal(s.leader, sig)
	s.token = s.leads(next, s.token)
	took := time.Since(began)
	<-s.leader.done
	s.leader = next
	return took
}

// follows checks that a leader is followed within the limit.
func follows(t *testing.T, leaseOnly bool, sig syscall.Signal, limit time.Duration) {
	s := newSuccession(t, 1, leaseOnly)
	for range rounds {
		took := s.next(sig)
		t.Logf("a change took %v", took.Round(time.Millisecond))
		if took > limit {
			t.Errorf("a change took %v, want %v at most", took, limit)
		}
	}
	s.judge()
}

func TestKilledLeaderIsFollowed(t *testing.T) { follows(t, false, syscall.SIGKILL, 4*time.Second) }

func TestKilledLeaderIsFollowedByLeaseAlone(t *testing.T) {
	follows(t, true, syscall.SIGKILL, 4*time.Second)
}

func TestStoppedLeaderIsFollowed(t *testing.T) { follows(t, false, syscall.SIGTERM, time.Second) }

// A leader is paused in the middle of an effect. Another leads and has effects;
// then the paused one's effect arrives, and later the process goes on.
func TestPausedLeadersEffectIsRefused(t *testing.T) {
	for _, members := range []int{1, 3} {
		t.Run(fmt.Sprintf("%d members", members), func(t *testing.T) { pausedInAnEffect(t, newSite(t, members, false)) })
	}
}

func pausedInAnEffect(t *testing.T, s *site) {
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
