package segment

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/lane"
	"github.com/imdhq/imd/pkg/ring"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/pkg/store/postgres"
	"github.com/imdhq/imd/pkg/testenv"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// processVar, when set, makes the test program one of the processes.
const processVar = "IMD_TEST_SEGMENT_PROCESS"

func TestMain(m *testing.M) {
	if text := os.Getenv(processVar); text != "" {
		if err := serve(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(testenv.Tests{M: m}.Run())
}

// setup is what a process is told.
type setup struct {
	Node string
	DSN  string
	Ring string // file with a ringFile
}

// ringFile is what the control plane would tell a process.
type ringFile struct {
	Revision int64
	Members  []string
}

// request is one send, or the making of a group.
type request struct {
	ID      int64
	Conv    string
	Sender  string
	CMID    string
	Text    string
	MID     int64
	Members []string // makes the group Conv instead
}

// response is the answer to a request.
type response struct {
	ID        int64
	OK        bool
	MID       int64
	Seq, Prev int64
	Dup       bool
	Why       string
	Stale     bool // another process owns it
}

// serve is a process: requests come from standard input, one a line.
func serve(text string) error {
	var s setup
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		return err
	}
	u, err := url.Parse(s.DSN)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	st, err := postgres.OpenURL(ctx, u, zap.NewNop())
	if err != nil {
		return err
	}
	view := &view{node: s.Node, path: s.Ring}
	view.load()
	go view.follow(ctx)
	if owned := st.(store.Sharded); owned.Segmented() {
		owned.Follow(view.current)
	}
	out := json.NewEncoder(os.Stdout)
	var mu sync.Mutex
	reply := func(r response) {
		mu.Lock()
		defer mu.Unlock()
		_ = out.Encode(r) // who reads it is gone
	}
	lanes := []*driver{newDriver(st), newDriver(st)}
	for _, l := range lanes {
		go l.run(ctx)
	}
	reply(response{OK: true}) // ready
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		var r request
		if err := json.Unmarshal(in.Bytes(), &r); err != nil {
			return err
		}
		lanes[ring.Shard(r.Conv)%len(lanes)].submit(r, reply)
	}
	return in.Err()
}

// view is the ring as the process sees it.
type view struct {
	node, path string
	now        atomic.Pointer[store.Ring]
}

func (v *view) current() store.Ring { return *v.now.Load() }

func (v *view) follow(ctx context.Context) {
	for range time.Tick(10 * time.Millisecond) {
		if ctx.Err() != nil {
			return
		}
		v.load()
	}
}

func (v *view) load() {
	raw, err := os.ReadFile(v.path)
	var f ringFile
	if err != nil || json.Unmarshal(raw, &f) != nil {
		return
	}
	if old := v.now.Load(); old != nil && old.Revision == f.Revision {
		return
	}
	r := ringOf(f.Members)
	v.now.Store(&store.Ring{Node: im.NodeID(v.node), Cluster: 1, Revision: f.Revision, Mine: func(shard int) bool {
		return r.Get(ring.ShardKey(shard)) == v.node
	}})
}

func ringOf(members []string) *ring.Ring {
	nodes := make([]ring.Node, len(members))
	for i, m := range members {
		nodes[i] = ring.Node{ID: m, Weight: 1}
	}
	r, err := ring.New(nodes, 0)
	if err != nil {
		panic(err) // the points are right
	}
	return r
}

// driver runs a lane, as the state role does.
type driver struct {
	st   store.MessageStore
	work chan *lane.Work // capacity 1: one call is out at a time

	mu   sync.Mutex
	lane *lane.Lane
}

func newDriver(st store.MessageStore) *driver {
	return &driver{st: st, work: make(chan *lane.Work, 1), lane: lane.New()}
}

func (d *driver) do(ev lane.Event) {
	d.mu.Lock()
	defer d.mu.Unlock()
	fx := d.lane.Step(time.Now(), ev)
	for _, a := range fx.Answers {
		a.Run.Reply(a.At, a.Verdict)
	}
	for _, s := range fx.Settled {
		s.Run.Settled(s.Result, s.Err)
	}
	if fx.Work != nil {
		d.work <- fx.Work
	}
	if fx.Wake > 0 {
		time.AfterFunc(fx.Wake, func() { d.do(lane.Tick{}) })
	}
}

func (d *driver) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case w := <-d.work:
			time.Sleep(w.After)
			d.do(d.call(ctx, w))
		}
	}
}

func (d *driver) call(ctx context.Context, w *lane.Work) (ev lane.Result) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	if w.Change != nil {
		ev.Change, ev.Err = d.st.Change(ctx, *w.Change.Change)
		return ev
	}
	ev.Results, ev.Err = d.st.Append(ctx, w.Append)
	return ev
}

// submit brings a request to the lane, which is told after 1.2 s that nobody
// waits any more.
func (d *driver) submit(r request, reply func(response)) {
	run := &lane.Run{Conv: im.ConversationID(r.Conv)}
	if r.Members != nil {
		run.Change = &store.Change{Conversation: run.Conv, RequestID: im.ClientMessageID(r.CMID), MessageID: im.MessageID(r.MID), Actor: im.UserID(r.Sender)}
		run.Change.Create = &store.CreateGroup{Name: "g", Owner: run.Change.Actor}
		for _, m := range r.Members {
			run.Change.Create.Members = append(run.Change.Create.Members, im.UserID(m))
		}
		run.Settled = func(res store.ChangeResult, err error) {
			reply(response{ID: r.ID, OK: err == nil, Seq: int64(res.Entry.Seq), Why: fmt.Sprint(err), Stale: errors.Is(err, store.ErrNotOwner)})
		}
	} else {
		row := store.AppendRow{
			Conversation: run.Conv, Sender: im.UserID(r.Sender), ClientMessageID: im.ClientMessageID(r.CMID), MessageID: im.MessageID(r.MID),
			BodyHash: hash(r.Text), Kind: clientv1.EntryKind_ENTRY_KIND_MESSAGE, Content: []byte(r.Text), Countable: true,
		}
		run.Sends = []lane.Send{{Row: row, Size: len(r.Text) + 160}}
		run.Reply = func(_ int, v lane.Verdict) {
			out := response{ID: r.ID, OK: v.Err == nil, MID: int64(v.Result.MessageID), Seq: int64(v.Result.Seq), Prev: int64(v.Result.PrevSeq), Dup: v.Duplicate}
			if v.Err != nil {
				out.Why, out.Stale = im.ReasonName(v.Err.Reason), errors.Is(v.Err, store.ErrNotOwner)
			}
			reply(out)
		}
	}
	d.do(lane.Submit{Run: run})
	time.AfterFunc(1200*time.Millisecond, func() { d.do(lane.Expire{Run: run}) })
}
