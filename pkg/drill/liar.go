package drill

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"
)

// How a node lies.
const (
	lieLate   = "late"   // an answer comes when nobody may wait any more
	lieStatus = "status" // another status, with a page in the place of the answer
	lieCut    = "cut"    // an answer breaks off in the middle
	lieShort  = "short"  // half an answer passes for a whole one
	lieMixed  = "mixed"  // an answer to another call
)

const (
	// lieChance is which part of the answers are lies.
	lieChance = 0.2
	// latest is how late an answer may be.
	latest = 1500 * ms
	// liarLimit bounds one call on its way through.
	liarLimit = 5 * time.Second
)

// lieStatuses are the statuses of lies; connect has a meaning for some.
var lieStatuses = []int{200, 204, 302, 400, 401, 403, 404, 413, 429, 500, 502, 503, 504}

// liar passes calls to a node on and gives some of them another answer.
type liar interface {
	address() string
	// lies is how many it has told.
	lies() int
	close()
}

// newLiar makes one in front of a node that listens at target; pipes says how calls travel.
func newLiar(target, how string, rng *rand.Rand, pipes bool) (liar, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	if pipes {
		return newPipeLiar(ln, target, how, rng), nil
	}
	return newHTTPLiar(ln, target, how, rng), nil
}

// httpLiar is one where each call is a request of HTTP/2.
type httpLiar struct {
	how    string
	target string
	srv    *http.Server
	out    *http.Transport
	at     string
	done   chan struct{}

	mu   sync.Mutex
	rng  *rand.Rand
	last map[string]answerOf // by method
	told int
}

// answerOf is an answer that was given.
type answerOf struct {
	header http.Header
	body   []byte
}

func newHTTPLiar(ln net.Listener, target, how string, rng *rand.Rand) *httpLiar {
	var h2 http.Protocols
	h2.SetUnencryptedHTTP2(true)
	l := &httpLiar{how: how, target: target, at: ln.Addr().String(), done: make(chan struct{}), rng: rng, last: map[string]answerOf{}}
	l.out = &http.Transport{Protocols: &h2, DisableCompression: true}
	l.srv = &http.Server{Handler: l, Protocols: &h2, ReadHeaderTimeout: liarLimit}
	go func() {
		defer close(l.done)
		_ = l.srv.Serve(ln) // until close
	}()
	return l
}

func (l *httpLiar) address() string { return l.at }

func (l *httpLiar) lies() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.told
}

// close ends all calls.
func (l *httpLiar) close() {
	_ = l.srv.Close()
	<-l.done
	l.out.CloseIdleConnections()
}

// ServeHTTP passes one call on.
func (l *httpLiar) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), liarLimit)
	defer cancel()
	a, status, err := l.ask(ctx, r)
	if err != nil {
		panic(http.ErrAbortHandler) // the caller sees what it would see without us
	}
	l.answer(ctx, w, r.URL.Path, a, status)
}

// ask asks the node.
func (l *httpLiar) ask(ctx context.Context, r *http.Request) (a answerOf, status int, err error) {
	req := r.Clone(ctx)
	req.URL.Scheme, req.URL.Host, req.RequestURI = "http", l.target, ""
	res, err := l.out.RoundTrip(req)
	if err != nil {
		return a, 0, err
	}
	defer res.Body.Close()
	a.header = res.Header
	a.body, err = io.ReadAll(res.Body)
	return a, res.StatusCode, err
}

// lie chooses whether to lie about an answer, and takes note of it; with is another one.
func (l *httpLiar) lie(path string, a answerOf) (yes bool, with answerOf, dice int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	with, had := l.last[path]
	l.last[path] = a
	yes = l.rng.Float64() < lieChance
	switch l.how {
	case lieMixed:
		yes = yes && had && !bytes.Equal(with.body, a.body)
	case lieShort, lieCut:
		yes = yes && len(a.body) > 1
	}
	if yes {
		l.told++
	}
	return yes, with, l.rng.IntN(1 << 30)
}

func (l *httpLiar) answer(ctx context.Context, w http.ResponseWriter, path string, a answerOf, status int) {
	yes, with, dice := l.lie(path, a)
	if yes {
		switch l.how {
		case lieLate:
			hold(ctx, time.Duration(dice)%latest)
		case lieStatus:
			w.Header().Set("Content-Type", "text/html")
			w.WriteHeader(lieStatuses[dice%len(lieStatuses)])
			_, _ = io.WriteString(w, "<html>no</html>")
			return
		case lieCut:
			give(w, a.header, status, len(a.body), a.body[:len(a.body)/2])
			panic(http.ErrAbortHandler)
		case lieShort:
			a.body = a.body[:1+dice%(len(a.body)-1)]
		case lieMixed:
			a.body = with.body
		}
	}
	give(w, a.header, status, len(a.body), a.body)
}

// give gives an answer that says that it has so many bytes.
func give(w http.ResponseWriter, header http.Header, status, length int, body []byte) {
	for k, v := range header {
		w.Header()[k] = slices.Clone(v)
	}
	w.Header().Set("Content-Length", strconv.Itoa(length))
	w.WriteHeader(status)
	_, _ = w.Write(body)
	if f, ok := w.(http.Flusher); ok {
		f.Flush()
	}
}

// roleLie puts a liar between one node and those that call it.
func (f *fault) roleLie(ctx context.Context) error {
	w, to := f.b.network, slices.Index(f.b.network.nodes, f.n)
	l, err := newLiar(internal(to), f.Level, f.rng, f.b.pipes)
	if err != nil {
		return err
	}
	defer l.close()
	w.lead(to, l.address())
	hold(ctx, f.For)
	w.lead(to, internal(to))
	if l.lies() == 0 && f.n.proxy == nil && !f.n.has("scheduler") { // nobody has many questions for these
		return errors.New("nobody asked")
	}
	return nil
}

// lead leads all ways to a node to another address.
func (m *mesh) lead(member int, target string) {
	for other, row := range m.ways {
		if other != member {
			row[member].SetTarget(target)
			row[member].Reset()
		}
	}
}

// drainCut has a node stop that nothing gets through to, so that it cannot hand anything
// over. It must end all the same, and with status 0.
func (f *fault) drainCut(ctx context.Context) error {
	began := time.Now()
	err := f.b.cutOff(ctx, f.n, true)
	hold(ctx, 500*ms)
	f.b.stop(f.n, f.n.terminate)
	err = errors.Join(err, f.b.cutOff(ctx, f.n, false))
	hold(ctx, f.For-time.Since(began))
	if err := f.n.begin(); err != nil {
		return fmt.Errorf("after it had stopped alone: %w", err)
	}
	return err
}
