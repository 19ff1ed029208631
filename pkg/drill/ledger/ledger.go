// Package ledger lends the fences and worker numbers of one message store to
// processes on the same machine, and records what the store decided: the claims
// and the effects of leaders, in the order in which they were decided.
//
// It stands in for a store that several nodes share. Nothing in it decides: the
// store does.
package ledger

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/imdhq/imd/pkg/history"
	"github.com/imdhq/imd/pkg/store"
)

// Store is what is lent.
type Store interface {
	store.Fences
	store.Workers
	// Expire is an effect: it proves the fence in its transaction.
	Expire(ctx context.Context, p store.Proof, now time.Time) (int, error)
}

const (
	// callLimit bounds one call of the store.
	callLimit = 3 * time.Second
	// heldLimit bounds how long a call is held back.
	heldLimit = time.Minute
)

// Server lends a store. Safe for concurrent use.
type Server struct {
	store  Store
	record func(history.Record)
	http   *http.Server
	ln     net.Listener
	done   chan struct{}

	decide sync.Mutex // held over a decision and its record

	mu   sync.Mutex
	held *hold // nil = nothing is held back
}

// hold keeps the next effect of a process back.
type hold struct {
	holder string
	taken  bool
	came   chan struct{} // closed when it is there
	open   chan struct{} // closed to let it go on
}

// Listen lends a store on a loopback address. record gets each decision, in
// order; it is called from one goroutine at a time.
func Listen(s Store, record func(history.Record)) (*Server, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	l := &Server{store: s, record: record, ln: ln, done: make(chan struct{})}
	l.http = &http.Server{Handler: l, ReadHeaderTimeout: callLimit}
	go func() {
		defer close(l.done)
		_ = l.http.Serve(ln) // ends with Close
	}()
	return l, nil
}

// Address is what clients are told.
func (l *Server) Address() string { return "http://" + l.ln.Addr().String() }

// Close ends the server, after the calls that are under way.
func (l *Server) Close() {
	ctx, cancel := context.WithTimeout(context.Background(), callLimit)
	defer cancel()
	if l.http.Shutdown(ctx) != nil {
		_ = l.http.Close() // one is held back
	}
	<-l.done
}

// Hold keeps the next effect of a process back until release is called, a minute
// at most. came is closed when it has arrived. One effect is held at a time.
func (l *Server) Hold(holder string) (came <-chan struct{}, release func()) {
	h := &hold{holder: holder, came: make(chan struct{}), open: make(chan struct{})}
	l.mu.Lock()
	l.held = h
	l.mu.Unlock()
	return h.came, sync.OnceFunc(func() {
		l.mu.Lock()
		if l.held == h {
			l.held = nil
		}
		l.mu.Unlock()
		close(h.open)
	})
}

// request is one call of the store.
type request struct {
	Op     string
	Claim  store.FenceClaim
	Proof  store.Proof
	Name   string
	Worker int
	Holder string
	From   time.Time
	To     time.Time
	TTL    time.Duration
}

// answer is its outcome.
type answer struct {
	Fence store.Fence
	Time  time.Time
	OK    bool
	Error string // "" = none
	Kind  string // of the error, one of kinds; "" = another
}

// kinds are errors that mean something to callers.
var kinds = map[string]error{"fenced": store.ErrFenced, "not_found": store.ErrNotFound, "unknown": store.ErrUnknownOutcome}

// ServeHTTP answers one call.
func (l *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var q request
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 64<<10)).Decode(&q); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if q.Op == opEffect {
		l.wait(q.Proof.Holder)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), callLimit) // its caller may be gone, its effect is not
	defer cancel()
	var a answer
	err := l.do(ctx, q, &a)
	if err != nil {
		a.Error = err.Error()
		for kind, known := range kinds {
			if errors.Is(err, known) {
				a.Kind = kind
			}
		}
	}
	_ = json.NewEncoder(w).Encode(a) // the caller may have been killed
}

// The operations.
const (
	opClaim  = "claim"
	opFence  = "fence"
	opEffect = "effect"
	opMark   = "mark"
	opMove   = "move"
	opTake   = "take"
	opRenew  = "renew"
	opFree   = "free"
)

func (l *Server) do(ctx context.Context, q request, a *answer) (err error) {
	switch q.Op {
	case opClaim, opEffect:
		return l.decided(ctx, q, a)
	case opFence:
		a.Fence, err = l.store.Fence(ctx, q.Name)
	case opMark:
		a.Time, err = l.store.WorkerMark(ctx, q.Worker)
	case opMove:
		a.OK, err = l.store.MoveWorkerMark(ctx, q.Worker, q.From, q.To)
	case opTake:
		a.OK, err = l.store.TakeWorker(ctx, q.Worker, q.Holder, q.TTL)
	case opRenew:
		a.OK, err = l.store.RenewWorker(ctx, q.Worker, q.Holder, q.TTL)
	case opFree:
		err = l.store.FreeWorker(ctx, q.Worker, q.Holder)
	default:
		err = fmt.Errorf("there is no operation %q", q.Op)
	}
	return err
}

// decided calls the store and records what it decided, before the next call.
func (l *Server) decided(ctx context.Context, q request, a *answer) (err error) {
	l.decide.Lock()
	defer l.decide.Unlock()
	r := history.Record{Kind: history.Effect, Name: q.Proof.Name, User: q.Proof.Holder, N: q.Proof.Token}
	if q.Op == opClaim {
		a.Fence, err = l.store.ClaimFence(ctx, q.Claim)
		r = history.Record{Kind: history.Claim, Name: q.Claim.Name, User: q.Claim.Holder, N: a.Fence.Token}
	} else {
		_, err = l.store.Expire(ctx, q.Proof, time.Now())
	}
	switch {
	case err == nil:
		r.Ack = history.AckOK
	case errors.Is(err, store.ErrFenced):
		r.Ack = history.AckFail
	default:
		r.Ack = history.AckUnknown
	}
	l.record(r)
	return err
}

// wait holds an effect back if Hold says so.
func (l *Server) wait(holder string) {
	l.mu.Lock()
	h := l.held
	if h == nil || h.holder != holder || h.taken {
		l.mu.Unlock()
		return
	}
	h.taken = true
	l.mu.Unlock()
	close(h.came)
	late := time.NewTimer(heldLimit)
	defer late.Stop()
	select {
	case <-h.open:
	case <-late.C:
	}
}
