package relay_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"google.golang.org/protobuf/proto"

	"github.com/imdhq/imd/pkg/control"
	"github.com/imdhq/imd/pkg/control/relay"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/proto/gen/internalv1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const secret = "shared"

// source gives one answer to everybody.
type source struct {
	mu    sync.Mutex
	batch control.Batch
	err   error
	hang  bool // until the caller gives up
	asked []ask
}

type ask struct {
	area control.Area
	at   control.Cursor
	wait time.Duration
}

func (s *source) Secret() string { return secret }

func (s *source) Changes(ctx context.Context, area control.Area, at control.Cursor, wait time.Duration) (control.Batch, error) {
	s.mu.Lock()
	s.asked = append(s.asked, ask{area, at, wait})
	b, err, hang := s.batch, s.err, s.hang
	s.mu.Unlock()
	if hang {
		<-ctx.Done()
	}
	return b, err
}

func (s *source) set(to func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	to()
}

func (s *source) calls() []ask {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked
}

// handler is the relay of a node.
func handler(s *source) http.Handler {
	mux := http.NewServeMux()
	relay.NewServer(func() (relay.Source, bool) { return s, s != nil }, zap.NewNop()).Mount(mux.Handle, prometheus.NewRegistry())
	return mux
}

func listen(t *testing.T, h http.Handler) string {
	srv := httptest.NewServer(h)
	t.Cleanup(func() { srv.CloseClientConnections(); srv.Close() })
	return srv.Listener.Addr().String()
}

// client asks nodes at addresses.
func client(t *testing.T, addresses ...string) *relay.Client {
	v := &control.View{}
	for i, a := range addresses {
		v.Nodes = append(v.Nodes, control.Node{ID: im.NodeID(rune('a' + i)), Relay: true, Ops: a, State: control.Serving})
	}
	c := relay.NewClient("self", func() *control.View { return v }, func() string { return secret })
	t.Cleanup(c.Close)
	return c
}

var at = control.Cursor{Revision: 5, Cluster: 7}

func changes(rev int64, records ...control.Record) control.Batch {
	return control.Batch{Cursor: control.Cursor{Revision: rev, Cluster: 7}, Records: records}
}

func TestABatchArrivesAsItIs(t *testing.T) {
	want := changes(9,
		control.Record{Key: "a", Value: []byte("x"), Revision: 6, Created: 3, Version: 2, Lease: 8},
		control.Record{Key: "b", Revision: 9, Gone: true})
	s := &source{batch: want}
	got, err := client(t, listen(t, handler(s))).Changes(t.Context(), control.AreaLeaders, at, time.Hour)
	if err != nil || got.Cursor != want.Cursor || got.Full || len(got.Records) != 2 {
		t.Fatalf("%+v, %v", got, err)
	}
	a, b := got.Records[0], got.Records[1]
	if a.Key != "a" || string(a.Value) != "x" || a.Revision != 6 || a.Created != 3 || a.Version != 2 || a.Lease != 8 || a.Gone || b.Key != "b" || !b.Gone {
		t.Errorf("records %+v", got.Records)
	}
	if n := s.calls(); len(n) != 1 || n[0].area != control.AreaLeaders || n[0].at != at || n[0].wait != relay.MaxWait {
		t.Errorf("the source was asked %+v; a wait is %v at most", n, relay.MaxWait)
	}
}

// A client stays with a node until that fails, and then asks another one.
func TestAnotherNodeIsAsked(t *testing.T) {
	stale, good := &source{err: errors.New("not following")}, &source{batch: changes(6)}
	c := client(t, listen(t, handler(stale)), listen(t, handler(good)), listen(t, handler(nil)))
	failures := 0
	for range 20 {
		if _, err := c.Changes(t.Context(), control.AreaNodes, at, 0); err != nil {
			failures++
		}
	}
	// It begins anywhere, and never asks the same failing node twice in a row.
	if n := len(good.calls()); n < 1 || failures > 19 {
		t.Errorf("the good node was asked %d times, %d calls failed", n, failures)
	}
	before := len(good.calls())
	for range 10 {
		if _, err := c.Changes(t.Context(), control.AreaSettings, at, 0); err != nil {
			failures++
		}
	}
	if n := len(good.calls()); n <= before {
		t.Errorf("the client left the good node: %d calls of %d", n, before)
	}
}

func TestNobodyToAsk(t *testing.T) {
	v := &control.View{Nodes: []control.Node{
		{ID: "self", Relay: true, Ops: "127.0.0.1:1"},
		{ID: "no-relay", Ops: "127.0.0.1:1"},
		{ID: "no-address", Relay: true},
		{ID: "draining", Relay: true, Ops: "127.0.0.1:1", State: control.Draining},
		{ID: "suspect", Relay: true, Ops: "127.0.0.1:1", Standing: control.Suspect},
	}}
	c := relay.NewClient("self", func() *control.View { return v }, func() string { return "" })
	if _, err := c.Changes(t.Context(), control.AreaNodes, at, 0); !errors.Is(err, relay.ErrNobody) {
		t.Errorf("error %v", err)
	}
}

// A node that is stopped and started again at its address is asked again.
func TestServerRestarts(t *testing.T) {
	s := &source{batch: changes(6)}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	srv := &http.Server{Handler: handler(s)}
	go func() { _ = srv.Serve(l) }()
	c := client(t, address)
	if _, err := c.Changes(t.Context(), control.AreaNodes, at, 0); err != nil {
		t.Fatal(err)
	}
	_ = srv.Close()
	if _, err := c.Changes(t.Context(), control.AreaNodes, at, 0); err == nil {
		t.Error("a stopped node answers")
	}
	if l, err = net.Listen("tcp", address); err != nil {
		t.Fatal(err)
	}
	again := &http.Server{Handler: handler(s)}
	go func() { _ = again.Serve(l) }()
	t.Cleanup(func() { _ = again.Close() })
	if _, err := c.Changes(t.Context(), control.AreaNodes, at, 0); err != nil {
		t.Errorf("after the restart: %v", err)
	}
}

// A node that never answers costs the caller its own deadline and no more.
func TestDeadline(t *testing.T) {
	c := client(t, listen(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // a server notices that a caller leaves once it has read all
		<-r.Context().Done()
	})))
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := c.Changes(ctx, control.AreaNodes, at, time.Second); err == nil || ctx.Err() == nil {
		t.Errorf("error %v, context %v", err, ctx.Err())
	}
}

func TestStrangersAreRefused(t *testing.T) {
	s := &source{batch: changes(6)}
	v := &control.View{Nodes: []control.Node{{ID: "a", Relay: true, Ops: listen(t, handler(s))}}}
	for _, shown := range []string{"", "guess"} {
		c := relay.NewClient("self", func() *control.View { return v }, func() string { return shown })
		if _, err := c.Changes(t.Context(), control.AreaNodes, at, 0); err == nil {
			t.Errorf("the secret %q opens", shown)
		}
		c.Close()
	}
	if n := s.calls(); len(n) != 0 {
		t.Errorf("strangers reached the source %d times", len(n))
	}
}

func TestGarbageIsRefused(t *testing.T) {
	cursor := control.Cursor{Revision: 9, Cluster: 7}
	rec := func(key string, rev int64) control.Record { return control.Record{Key: key, Revision: rev} }
	tests := map[string]struct {
		b    control.Batch
		good bool
	}{
		"nothing new":                    {control.Batch{Cursor: at}, true},
		"the same revision twice":        {changes(9, rec("a", 6), rec("b", 6)), true},
		"everything, also what is known": {control.Batch{Cursor: cursor, Full: true, Records: []control.Record{rec("a", 2), rec("b", 9)}}, true},
		"everything of an older node":    {control.Batch{Cursor: control.Cursor{Revision: 3, Cluster: 7}, Full: true}, true},
		"no revision":                    {control.Batch{Cursor: control.Cursor{Cluster: 7}, Full: true}, false},
		"no cluster":                     {control.Batch{Cursor: control.Cursor{Revision: 9}, Full: true}, false},
		"another cluster, in part":       {control.Batch{Cursor: control.Cursor{Revision: 9, Cluster: 8}}, false},
		"an older revision, in part":     {changes(4), false},
		"a record that is known":         {changes(9, rec("a", 5)), false},
		"a record from the future":       {changes(9, rec("a", 10)), false},
		"records out of order":           {changes(9, rec("a", 8), rec("b", 7)), false},
		"a record without a key":         {changes(9, rec("", 6)), false},
		"everything, but something gone": {control.Batch{Cursor: cursor, Full: true, Records: []control.Record{{Key: "a", Revision: 6, Gone: true}}}, false},
		"gone, but with a value":         {changes(9, control.Record{Key: "a", Revision: 6, Gone: true, Value: []byte("x")}), false},
	}
	s := &source{}
	c := client(t, listen(t, handler(s)))
	for name, tt := range tests {
		s.set(func() { s.batch = tt.b })
		if _, err := c.Changes(t.Context(), control.AreaNodes, at, 0); (err == nil) != tt.good {
			t.Errorf("%s: %v", name, err)
		}
	}
	bytes := listen(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/proto")
		_, _ = w.Write([]byte("\xff\xffnonsense"))
	}))
	big, err := proto.Marshal(&internalv1.ChangesResponse{Records: []*internalv1.RegistryRecord{{Value: make([]byte, 17<<20)}}})
	if err != nil {
		t.Fatal(err)
	}
	flood := listen(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/proto")
		_, _ = w.Write(big)
	}))
	for name, address := range map[string]string{"bytes": bytes, "too much": flood} {
		if _, err := client(t, address).Changes(t.Context(), control.AreaNodes, at, 0); err == nil {
			t.Errorf("%s are taken", name)
		}
	}
}

// A subscriber that goes away leaves nothing behind at the node.
func TestGoneSubscribers(t *testing.T) {
	s := &source{hang: true}
	c := client(t, listen(t, handler(s)))
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() { _, _ = c.Changes(ctx, control.AreaNodes, at, relay.MaxWait) })
	}
	for len(s.calls()) < 20 {
		time.Sleep(time.Millisecond)
	}
	cancel()
	wg.Wait() // that the handlers ended is what the check for goroutines shows
}
