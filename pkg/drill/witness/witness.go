// Package witness is a process of a drill that takes part in the control plane as
// nodes do, with the same code, and writes down what it sees: which nodes it would
// use, which settings it has in force, when it believes to lead, and the ids that
// it makes. It has no clients, so that many of them cost little.
//
// While it leads, it has an effect every 50 ms on the store that the drill lends
// to all witnesses, which is what a second leader would show at.
package witness

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/backoff"
	"github.com/imdhq/imd/pkg/control"
	"github.com/imdhq/imd/pkg/control/etcd"
	"github.com/imdhq/imd/pkg/datadir"
	"github.com/imdhq/imd/pkg/drill/ledger"
	"github.com/imdhq/imd/pkg/history"
	"github.com/imdhq/imd/pkg/idgen"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/settings"
	"github.com/imdhq/imd/pkg/store"
)

const (
	// Election is the one that witnesses take part in.
	Election = "drill"
	// Role is what they register as.
	Role = "witness"

	effectEvery = 50 * time.Millisecond
	idEvery     = 100 * time.Millisecond
	callLimit   = 5 * time.Second // of one call of the ledger
	announceFor = 3 * time.Second // then the record follows when etcd is there
)

// pauses are between attempts to get a worker number.
var pauses = backoff.Policy{Base: 100 * time.Millisecond, Max: time.Second}

// Job is what a witness is told. All fields are needed.
type Job struct {
	Node    im.NodeID
	Dir     string   // for its endpoints.json and what it keeps
	URLs    []string // of etcd
	Cluster string
	Ledger  string // address of the store that is lent
	Report  string // the file that it appends records to, a line each, with wall-clock times in nanoseconds
}

// witness is one at work.
type witness struct {
	Job
	log    *zap.Logger
	boot   string
	handle *control.Handle
	live   *settings.Live
	ledger *ledger.Client
	driver *etcd.Driver

	mu   sync.Mutex
	file *os.File
	used map[im.NodeID]string // boot ids of the nodes in use
}

// Run takes part until ctx is done; then it leaves in order and returns nil.
// known are the settings that it judges changes by. An error says that it could
// not begin, or that another process has its name.
func Run(ctx context.Context, j Job, known *settings.Registry, log *zap.Logger) (err error) {
	w := &witness{Job: j, log: log, boot: datadir.RandomID("", 10), handle: &control.Handle{}, ledger: ledger.NewClient(j.Ledger), used: map[im.NodeID]string{}}
	defer w.ledger.Close()
	if w.file, err = os.OpenFile(j.Report, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644); err != nil {
		return err
	}
	defer w.file.Close()
	w.live = settings.NewLive(known, settings.Identity{Node: string(j.Node), Roles: []string{Role}}, log)
	w.live.Subscribe("report", w.settings)
	w.tell(history.Record{Kind: history.Began, Entry: w.boot})
	health := etcd.NewHealth()
	client, err := etcd.Dial(etcd.Endpoints{URLs: j.URLs, Health: health}, log)
	if err != nil {
		return err
	}
	w.driver = etcd.New(client, etcd.Options{
		Cluster: j.Cluster, Node: j.Node, Publish: w.view, PublishLeaders: w.handle.SetLeaders, Settings: w.live, Health: health,
		LastKnown: filepath.Join(j.Dir, "nodes.json"), Log: log,
	})
	var away *control.AwayError
	if err := w.driver.Load(ctx); err != nil && !errors.As(err, &away) {
		return errors.Join(err, w.driver.Close())
	}
	return errors.Join(w.take(ctx), w.driver.Close())
}

// take opens the listener and takes part until ctx is done.
func (w *witness) take(ctx context.Context) error {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	srv := &http.Server{Handler: w.handler(), ReadHeaderTimeout: time.Second}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = srv.Serve(ln) // ends with Close
	}()
	defer func() { _ = srv.Close(); <-served }()
	running, stop := context.WithCancel(context.WithoutCancel(ctx)) // the registration ends last
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	wg.Go(func() { _ = w.driver.Run(running) }) // of a client with endpoints it fails never
	wg.Go(func() { w.live.Run(running) })
	node := control.Node{ID: w.Node, BootID: w.boot, Roles: []string{Role}, State: control.Serving, Version: "drill", Ops: ln.Addr().String(), Weight: 1, Started: time.Now()}
	if err := w.announce(ctx, node); err != nil {
		return err
	}
	if err := w.points(node); err != nil {
		return err
	}
	var work sync.WaitGroup
	failed := make(chan error, 1) // one campaign
	work.Go(func() {
		failed <- w.driver.Campaign(ctx, control.Candidacy{Name: Election, Fences: func() (store.Fences, error) { return w.ledger, nil }, Lead: w.lead})
	})
	work.Go(func() { w.ids(ctx) })
	work.Wait()
	node.State = control.Draining
	return errors.Join(<-failed, w.announce(context.WithoutCancel(ctx), node))
}

// announce registers; etcd may be away.
func (w *witness) announce(ctx context.Context, n control.Node) error {
	ctx, cancel := context.WithTimeout(ctx, announceFor)
	defer cancel()
	var taken *control.TakenError
	if err := w.driver.Announce(ctx, n); errors.As(err, &taken) {
		return err
	} else if err != nil {
		w.log.Warn("not registered yet", zap.Error(err))
	}
	return nil
}

// points writes where the witness listens, as nodes do.
func (w *witness) points(n control.Node) error {
	raw, err := json.Marshal(datadir.Endpoints{Node: n.ID, BootID: w.boot, PID: os.Getpid(), Ops: n.Ops, Started: n.Started})
	if err != nil {
		return err
	}
	path := filepath.Join(w.Dir, "endpoints.json")
	if err := os.WriteFile(path+".new", raw, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// handler answers probes, and standbys that wait for the end of a term.
func (w *witness) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", func(rw http.ResponseWriter, _ *http.Request) { rw.Header().Set(control.BootHeader, w.boot) })
	mux.HandleFunc("GET /readyz", func(http.ResponseWriter, *http.Request) {})
	mux.Handle("GET "+control.AwaitPath, control.Await(w.boot, w.driver.TermEnded))
	return mux
}

// tell appends a record with the time and the name of this witness.
func (w *witness) tell(r history.Record) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.tellLocked(r)
}

func (w *witness) tellLocked(r history.Record) {
	r.T, r.User = time.Now().UnixNano(), string(w.Node)
	raw, err := json.Marshal(r)
	if err == nil {
		_, err = w.file.Write(append(raw, '\n')) // one write: a killed process leaves no half of a line
	}
	if err != nil {
		w.log.Error("a record is lost", zap.Error(err))
	}
}

// view takes in a new list of nodes and tells what has changed in which of them
// are in use.
func (w *witness) view(v *control.View) {
	w.handle.SetView(v)
	now := map[im.NodeID]string{}
	roles := map[string]bool{}
	for _, n := range v.Nodes {
		for _, r := range n.Roles {
			if roles[r] {
				continue
			}
			roles[r] = true
			for _, n := range v.With(r) {
				now[n.ID] = n.BootID
			}
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for id, boot := range w.used {
		if now[id] != boot {
			w.tellLocked(history.Record{Kind: history.Seen, Device: string(id), Entry: boot, Stop: true})
		}
	}
	for id, boot := range now {
		if w.used[id] != boot {
			w.tellLocked(history.Record{Kind: history.Seen, Device: string(id), Entry: boot})
		}
	}
	w.used = now
}

// settings tells what is in force. It is a subscriber.
func (w *witness) settings(_ context.Context, _, now *settings.Snapshot) {
	values := map[string]string{}
	for _, key := range Keys() {
		if e, ok := now.Get(key); ok {
			values[key] = e.Text
		}
	}
	one, other := Numbers(values)
	w.tell(history.Record{Kind: history.Applied, N: one, To: other, Seq: now.Revision})
}

// lead has effects until the term ends.
func (w *witness) lead(ctx context.Context, t control.Term) error {
	p := t.Proof()
	w.tell(history.Record{Kind: history.Led, Name: Election, N: p.Token})
	defer w.tell(history.Record{Kind: history.Led, Name: Election, N: p.Token, Stop: true})
	tick := time.NewTicker(effectEvery)
	defer tick.Stop()
	for {
		// An effect is not taken back when the term ends: that is what the fence is for.
		one, cancel := context.WithTimeout(context.WithoutCancel(ctx), callLimit)
		sent := make(chan error, 1) // the caller may have gone
		go func() {
			defer cancel()
			_, err := w.ledger.Expire(one, p, time.Now())
			sent <- err
		}()
		select {
		case err := <-sent:
			if errors.Is(err, store.ErrFenced) {
				return fmt.Errorf("effect: %w", err)
			}
		case <-ctx.Done():
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// ids makes ids until ctx is done.
func (w *witness) ids(ctx context.Context) {
	g := idgen.New(idgen.Deps{Marks: w.ledger, Log: w.log,
		Leaser: idgen.Fallback{First: w.driver, Then: idgen.StoreLeaser{Numbers: w.ledger, Node: w.Node, Log: w.log}, Log: w.log}})
	for attempt := 0; g.Start(ctx) != nil; attempt++ {
		if pauses.Sleep(ctx, attempt) != nil {
			return
		}
	}
	var wg sync.WaitGroup
	wg.Go(func() { _ = g.Run(ctx) })
	tick := time.NewTicker(idEvery)
	defer tick.Stop()
	for ctx.Err() == nil {
		if id, err := g.Next(); err == nil {
			w.tell(history.Record{Kind: history.Made, MID: int64(id)})
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
	wg.Wait()
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), callLimit)
	defer cancel()
	_ = g.Close(last) // what it could not give back lapses
}
