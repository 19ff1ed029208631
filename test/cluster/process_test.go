package cluster

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/control"
	"github.com/imdhq/imd/pkg/control/etcd"
	"github.com/imdhq/imd/pkg/control/relay"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/settings"
	"github.com/imdhq/imd/pkg/testenv"
)

// childEnv makes the test binary run as a process of followers.
const childEnv = "IMD_TEST_CLUSTER_CHILD"

func TestMain(m *testing.M) {
	if text := os.Getenv(childEnv); text != "" {
		os.Exit(child(text))
	}
	flag.Parse()
	_ = flag.Set("test.parallel", "4") // most of them wait most of the time; the flag is there and takes numbers
	os.Exit(m.Run())
}

// process is the control plane of one node, with a listener that answers probes
// and subscribers.
type process struct {
	*etcd.Driver
	handle *control.Handle
	live   *settings.Live
	node   control.Node
	ops    *httptest.Server
	cancel context.CancelFunc
	done   chan struct{}
}

// count is the one setting that there is.
var count = settings.Int("count.n", 3, 0, 1000, "A count.")

// live follows the settings.
func live(node string) *settings.Live {
	reg, err := settings.NewRegistry([]string{"gateway"}, settings.Schema{Keys: []settings.Declared{count}})
	if err != nil {
		panic(err) // it is declared as it should be
	}
	return settings.NewLive(reg, settings.Identity{Node: node}, zap.NewNop())
}

// options are those of a node, with the usual periods unless change says
// otherwise.
type options struct {
	id       string
	urls     []string
	cluster  string // "" = c
	relayed  bool
	unlisted bool // it only follows
	change   func(*etcd.Options)
}

// launch starts a node and registers it.
func launch(o options) (*process, error) {
	p := &process{handle: &control.Handle{}, live: live(o.id), done: make(chan struct{})}
	health := etcd.NewHealth()
	if o.cluster == "" {
		o.cluster = "c"
	}
	opts := etcd.Options{
		Cluster: o.cluster, Node: im.NodeID(o.id), Publish: p.handle.SetView, PublishLeaders: p.handle.SetLeaders,
		Settings: p.live, Log: zap.NewNop(), Health: health,
	}
	if o.relayed {
		opts.Upstream = relay.NewClient(im.NodeID(o.id), p.handle.View, func() string { return p.Secret() })
	}
	if o.change != nil {
		o.change(&opts)
	}
	client, err := etcd.Dial(etcd.Endpoints{URLs: o.urls, Health: health}, zap.NewNop())
	if err != nil {
		return nil, err
	}
	p.Driver = etcd.New(client, opts)
	ctx, cancel := context.WithCancel(context.Background())
	p.cancel = cancel
	if err := p.loaded(ctx); err != nil {
		cancel()
		return nil, err
	}
	go func() { defer close(p.done); _ = p.Run(ctx) }()
	if o.unlisted {
		return p, nil
	}
	p.node = control.Node{ID: im.NodeID(o.id), BootID: "boot-" + o.id, Roles: []string{"gateway"}, State: control.Serving, Weight: 1, Relay: !o.relayed}
	mux := http.NewServeMux()
	mux.HandleFunc("/livez", func(w http.ResponseWriter, _ *http.Request) { w.Header().Set(control.BootHeader, p.node.BootID) })
	relay.NewServer(func() (relay.Source, bool) { return p, true }, zap.NewNop()).Mount(mux.Handle, prometheus.NewRegistry())
	p.ops = httptest.NewServer(mux)
	p.node.Ops = p.ops.Listener.Addr().String()
	return p, p.announce(ctx)
}

// loaded reads all records, again if etcd is too busy, as a server does.
func (p *process) loaded(ctx context.Context) error {
	return insist(func() error { return p.Load(ctx) })
}

// announce sets the record of the node. If etcd is too busy for it, it follows.
func (p *process) announce(ctx context.Context) error {
	if err := p.Announce(ctx, p.node); !isAway(err) {
		return err
	}
	return nil
}

// insist makes a call again and again while etcd is too busy for it.
func insist(call func() error) (err error) {
	for l := testenv.NewLimit(testenv.ReadyIn); ; {
		if err = call(); !isAway(err) || l.Over() {
			return err
		}
	}
}

func isAway(err error) bool {
	var away *control.AwayError
	return errors.As(err, &away)
}

// stop ends the node in order.
func (p *process) stop() {
	p.cancel()
	<-p.done
	_ = p.Close()
	if p.ops != nil {
		p.ops.CloseClientConnections()
		p.ops.Close()
	}
}

func start(t testing.TB, o options) *process {
	t.Helper()
	p, err := launch(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.stop)
	return p
}

// job is what a child process does.
type job struct {
	Name        string
	URLs        []string
	Subscribers int
	Direct      bool // the subscribers follow etcd themselves
	Quick       bool // short leases
}

// child runs followers, and a node of its own unless they get the registry from
// nodes elsewhere, until its standard input ends. It prints "ready", and then a line
// for each weight of the node "probe": when the last follower had seen it.
func child(text string) int {
	var j job
	if err := json.Unmarshal([]byte(text), &j); err != nil {
		return 2
	}
	fail := func(err error) int { fmt.Println("error", err); return 1 }
	o := options{id: j.Name, urls: j.URLs}
	if j.Quick {
		o.change = quick
	}
	if j.Direct || j.Subscribers == 0 {
		own, err := launch(o)
		if err != nil {
			return fail(err)
		}
		defer own.stop()
	}
	seen := make(chan int, 1000) // a weight that a follower has seen
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	defer wg.Wait()
	defer cancel()
	for i := range j.Subscribers {
		f, err := launch(options{id: fmt.Sprintf("%s-%d", j.Name, i), urls: j.URLs, relayed: !j.Direct, unlisted: true})
		if err != nil {
			return fail(err)
		}
		defer f.stop()
		wg.Go(func() {
			last := 0
			for v := f.handle.View(); ctx.Err() == nil; v = f.handle.Next(ctx, v.Serial) {
				if n, ok := v.Node("probe"); ok && n.Weight != last {
					last = n.Weight
					seen <- last
				}
			}
		})
	}
	wg.Go(func() {
		count := map[int]int{}
		for {
			select {
			case w := <-seen:
				if count[w]++; count[w] == j.Subscribers {
					fmt.Println("seen", w, time.Now().UnixNano())
				}
			case <-ctx.Done():
				return
			}
		}
	})
	fmt.Println("ready")
	for s := bufio.NewScanner(os.Stdin); s.Scan(); {
	}
	return 0
}

// spawn starts a child and hands its lines on.
func spawn(t testing.TB, j job) (*exec.Cmd, <-chan string) {
	t.Helper()
	text, err := json.Marshal(j)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+string(text))
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := make(chan string, 100)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for s := bufio.NewScanner(out); s.Scan(); {
			lines <- s.Text()
		}
	}()
	t.Cleanup(func() {
		_ = in.Close()
		late := time.AfterFunc(10*time.Second, func() { _ = cmd.Process.Kill() })
		defer late.Stop()
		<-ended
		_ = cmd.Wait()
	})
	return cmd, lines
}

// rounds is how often a figure is measured: enough to see a fault in tests,
// IMD_TEST_ROUNDS for figures.
func rounds(few int) int {
	if n, err := strconv.Atoi(os.Getenv("IMD_TEST_ROUNDS")); err == nil && n > 0 {
		return n
	}
	return few
}
