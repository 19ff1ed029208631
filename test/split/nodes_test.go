package split

import (
	"fmt"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/imdhq/imd/pkg/testenv"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// cluster is two state nodes over one database, and a process that clients talk
// to.
type cluster struct {
	*testenv.Node
	second *testenv.Node
}

func startCluster(t *testing.T) *cluster {
	t.Helper()
	pg := testenv.StartPostgres(t, testenv.PostgresOptions{Settings: []string{"fsync=on"}})
	env := []string{"IMD_STORAGE_POSTGRES=" + pg.Database(t)}
	migrate := exec.Command(testenv.Binary(t), "migrate", "up", "--data-dir", t.TempDir()+"/none")
	migrate.Env = append(os.Environ(), env...)
	if out, err := migrate.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	c := &cluster{Node: &testenv.Node{Dir: t.TempDir() + "/data", Args: testenv.NoLimits(), Env: env, Layout: testenv.Split}}
	c.Begin(t)
	c.second = c.Beside("state")
	c.second.Begin(t)
	return c
}

// sender is one user who sends to another, one message after the other, until it
// is told to stop, and repeats what is not acknowledged.
type sender struct {
	name    string
	clock   *testenv.Clock
	acked   []*clientv1.SendAck
	slowest time.Duration // by the clock
	done    atomic.Int64  // how many are acknowledged
}

// startSenders begins to send as many users. stop ends them and waits until they have.
func startSenders(t *testing.T, c *cluster, name string, n int) (all []*sender, stop func()) {
	clock, end := testenv.NewClock(t), make(chan struct{})
	var wg sync.WaitGroup
	for i := range n {
		s := &sender{name: fmt.Sprint(name, i), clock: clock}
		all = append(all, s)
		wg.Go(func() { s.run(t, c, end) })
	}
	return all, func() { close(end); wg.Wait() }
}

// load lets them send for a time, and until each has got an answer more.
func load(t *testing.T, all []*sender, d time.Duration) {
	t.Helper()
	had := make([]int64, len(all))
	for i, s := range all {
		had[i] = s.done.Load()
	}
	time.Sleep(d)
	for i, s := range all {
		until(t, s.name+" has an answer", func() bool { return s.done.Load() > had[i] })
	}
}

func (s *sender) run(t *testing.T, c *cluster, stop <-chan struct{}) {
	client := testenv.Login(t, c.URL(), protocol.Proto, c.Token(s.name), "d")
	for {
		select {
		case <-stop:
			return
		default:
		}
		begin := s.clock.Now()
		m := testenv.ToUser(s.name+"-peer", fmt.Sprint(len(s.acked)))
		seqs := client.SendAll([]*clientv1.Send{m})
		s.slowest = max(s.slowest, s.clock.Since(begin))
		s.acked = append(s.acked, &clientv1.SendAck{Seq: seqs[0], ClientMessageId: m.ClientMessageId})
		s.done.Add(1)
	}
}

// Whatever happens to one of two state nodes: what was acknowledged is there
// once, in the order in which it was sent, and senders wait for a moment only.
func TestAStateNodeMayFail(t *testing.T) {
	c := startCluster(t)
	for name, fault := range map[string]func(){
		"killed": func() { c.second.Kill(); c.second.Start() },
		"paused": func() {
			c.second.Signal(syscall.SIGSTOP)
			time.Sleep(4 * time.Second) // how long the fault lasts
			c.second.Signal(syscall.SIGCONT)
		},
		"stopped": func() {
			if code := c.second.Stop(); code != 0 {
				t.Errorf("exit %d", code)
			}
			c.second.Start()
		},
	} {
		t.Run(name, func(t *testing.T) {
			senders, stop := startSenders(t, c, name, 12)
			load(t, senders, time.Second)
			fault()
			load(t, senders, time.Second)
			stop()
			worst := time.Duration(0)
			for _, s := range senders {
				worst = max(worst, s.slowest)
				judge(t, c, s)
			}
			t.Logf("the slowest send took %v", worst.Round(time.Millisecond))
			if worst > 4*time.Second {
				t.Errorf("a send took %v", worst)
			}
		})
	}
}

// judge reads what is stored and compares it with what was acknowledged.
func judge(t *testing.T, c *cluster, s *sender) {
	reader := testenv.Login(t, c.URL(), protocol.Proto, c.Token(s.name), "reader")
	if len(s.acked) == 0 {
		t.Errorf("%s sent nothing", s.name)
		return
	}
	conv := reader.MustSend(testenv.ToUser(s.name+"-peer", "last")).ConversationId
	entries, _ := reader.Walk(conv, 500, false)
	if len(entries) != len(s.acked)+1 {
		t.Errorf("%s: %d of %d messages are there", s.name, len(entries)-1, len(s.acked))
		return
	}
	for i, a := range s.acked {
		if e := entries[i]; e.ClientMessageId != a.ClientMessageId || e.Seq != a.Seq || e.Content.GetText() != fmt.Sprint(i) {
			t.Errorf("%s: message %d is %v, acknowledged as seq %d", s.name, i, e, a.Seq)
		}
	}
}
