package otlp

import (
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/imdhq/imd/pkg/testenv"
	"github.com/imdhq/imd/pkg/trace"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func open(t *testing.T, o Options) *Exporter {
	t.Helper()
	if o.Log == nil {
		o.Log = zap.NewNop()
	}
	e, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func aSpan() trace.Span {
	c, ok := trace.ParseContext("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	if !ok {
		panic("a bad example")
	}
	return trace.Span{Context: c.Child(), Parent: c, Name: "persist", Kind: trace.Client, Begin: time.Unix(100, 5), End: time.Unix(101, 7), Failed: "busy",
		Attrs: []trace.Attr{{Key: "text", Text: "x"}, {Key: "count", Count: 3}}}
}

// A span arrives as it was, with the ids that it had, and whatever waits is sent
// at the end.
func TestSpansArrive(t *testing.T) {
	c := testenv.StartCollector(t)
	e := open(t, Options{Endpoint: c.URL, Header: "Authorization: Bearer k", Node: "n1", Version: "v"})
	x := aSpan()
	e.Add(x)
	root := trace.Span{Context: x.Parent, Name: "send", Begin: time.Unix(99, 0), End: time.Unix(102, 0)}
	e.Add(root)
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	got := c.Spans()
	if len(got) != 2 {
		t.Fatalf("%+v", got)
	}
	s := got[0]
	if "00-"+s.Trace+"-"+s.ID+"-01" != x.Context.String() || s.Trace != "0af7651916cd43dd8448eb211c80319c" || s.Above != "b7ad6b7169203331" || s.Node != "n1" || s.Service != "imd" ||
		s.Name != "persist" || s.Kind != "SPAN_KIND_CLIENT" || s.Failed != "busy" || !s.Begin.Equal(x.Begin) || !s.End.Equal(x.End) || s.Attrs["text"] != "x" {
		t.Errorf("%+v", s)
	}
	if r := got[1]; r.ID != "b7ad6b7169203331" || r.Above != "" || r.Kind != "SPAN_KIND_INTERNAL" {
		t.Errorf("%+v", r)
	}
	if c.Header().Get("Authorization") != "Bearer k" {
		t.Errorf("%v", c.Header())
	}
	if s := e.Stats(); s != (Stats{Made: 2, Exported: 2}) {
		t.Errorf("%+v", s)
	}
}

// A collector that takes a connection and never answers, or is not there, costs
// spans and no time, and the end is not held up.
func TestNobodyWaitsForACollector(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0") // a backlog that nobody serves
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	for name, at := range map[string]string{"silent": "http://" + ln.Addr().String(), "away": "http://127.0.0.1:1"} {
		before := goleak.IgnoreCurrent()
		e := open(t, Options{Endpoint: at})
		x, worst := aSpan(), time.Duration(0)
		const n = 3 * maxQueue
		each := testenv.Took(func() {
			for range n {
				one := time.Now()
				e.Add(x)
				worst = max(worst, time.Since(one))
			}
		}) / n
		ends := testenv.Took(func() {
			if err := e.Close(); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		})
		t.Logf("%s: a span takes %v, at most %v; the end %v", name, each, worst, ends.Round(time.Millisecond))
		if each > 200*time.Microsecond {
			t.Errorf("%s: a span takes %v", name, each)
		}
		if ends > closeLimit+time.Second {
			t.Errorf("%s: the end takes %v", name, ends)
		}
		if s := e.Stats(); s.Made != n || s.Exported != 0 {
			t.Errorf("%s: %+v", name, s)
		}
		goleak.VerifyNone(t, before) // nothing goes on sending
	}
}

// What the collector refuses is counted, and said once.
func TestRefusedSpans(t *testing.T) {
	bad := true
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if bad {
			http.Error(w, "no", http.StatusForbidden)
		}
	}))
	defer srv.Close()
	core, seen := observer.New(zap.InfoLevel)
	e := open(t, Options{Endpoint: srv.URL, Log: zap.New(core)})
	for _, bad = range []bool{true, true, false} {
		e.Add(aSpan())
		if err := e.provider.ForceFlush(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	if s := e.Stats(); s != (Stats{Made: 3, Exported: 1, Failed: 2}) {
		t.Errorf("%+v", s)
	}
	if all := seen.All(); len(all) != 2 || all[0].Level != zap.WarnLevel || all[1].Level != zap.InfoLevel {
		t.Errorf("%+v", all)
	}
}

func TestOptions(t *testing.T) {
	junk := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(junk, []byte("junk"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, o := range map[string]Options{
		"no URL": {Endpoint: "127.0.0.1:4318"}, "another scheme": {Endpoint: "grpc://h:1"}, "no host": {Endpoint: "http://"},
		"no value": {Endpoint: "http://h", Header: "Authorization"}, "no name": {Endpoint: "http://h", Header: ": x"},
		"no file": {Endpoint: "https://h", CAFile: junk + "x"}, "no certificates": {Endpoint: "https://h", CAFile: junk},
	} {
		if _, err := Open(o); err == nil {
			t.Errorf("%s is taken", name)
		}
	}
}
