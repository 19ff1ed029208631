// Package redis is a process's way to Redis: one place that builds the client
// and bounds its calls. It works with one server, with a primary behind Sentinel
// and with a cluster.
//
// Every call has a deadline of its own, kept here and not by the client
// library, whose calls may hang in a dial. What does not answer three times in
// a row is not asked any more until a PING in the background is answered.
package redis

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"
	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/circuit"
	"github.com/imdhq/imd/pkg/obs"
)

const (
	// CallTime bounds calls that nobody waits for.
	CallTime = 200 * time.Millisecond
	// dialTime bounds the making of a connection, and answerTime how long one may
	// be silent before it is closed.
	dialTime   = time.Second
	answerTime = 500 * time.Millisecond
	// askEvery is between two questions whether the server is there again.
	askEvery = 250 * time.Millisecond
	// closeTime bounds Close.
	closeTime = 2 * time.Second
)

// Config says where the server is.
type Config struct {
	// URL names it: redis://user:password@host:port/db, rediss:// for TLS, or
	// unix:///path. More nodes of a cluster or Sentinels follow as ?addr=host:port;
	// &master_set=NAME makes them Sentinels.
	URL string
	// TLS is used for rediss URLs; nil = the certificates of the system.
	TLS *tls.Config
}

// Use says what a Link is for.
type Use struct {
	Name     string // of what is kept there, for logs
	Without  string // what happens while it does not answer, for logs
	Calls    int    // that may be on their way
	Pipeline int    // commands that one call has at most
	Cache    bool   // DoCached is used; the server must speak its protocol 3
}

// Link is a connection that makes itself, now or when the server is there. Safe
// for concurrent use.
type Link struct {
	use  Use
	opt  rueidis.ClientOption
	log  *zap.Logger
	slot chan struct{}  // capacity Use.Calls: one for each call on its way
	wg   sync.WaitGroup // calls on their way, and the one that asks
	ask  chan struct{}  // capacity 1: the circuit has opened
	stop context.CancelFunc

	client atomic.Pointer[rueidis.Client] // nil until the server was reached once

	mu      sync.Mutex
	circuit circuit.Circuit
}

// Open makes a link. The error is about cfg only.
func Open(cfg Config, use Use, log *zap.Logger) (*Link, error) {
	opt, err := options(cfg)
	if err != nil {
		return nil, err
	}
	opt.DisableCache = !use.Cache
	opt.BlockingPipeline = max(use.Pipeline, 1) // never a connection for one call
	ctx, stop := context.WithCancel(context.Background())
	l := &Link{
		use: use, opt: opt, log: log, slot: make(chan struct{}, use.Calls), ask: make(chan struct{}, 1), stop: stop,
		circuit: circuit.NewOpenCircuit(),
	}
	l.ask <- struct{}{}
	l.wg.Go(func() { l.run(ctx) })
	return l, nil
}

// options are the client's.
func options(cfg Config) (rueidis.ClientOption, error) {
	opt, err := rueidis.ParseURL(cfg.URL)
	if err != nil {
		return opt, errors.New("not of the form redis://host:port/db or rediss://host:port/db") // err may repeat the password
	}
	if opt.TLSConfig != nil && cfg.TLS != nil {
		server := opt.TLSConfig.ServerName
		opt.TLSConfig = cfg.TLS.Clone()
		if opt.TLSConfig.ServerName == "" {
			opt.TLSConfig.ServerName = server
		}
	}
	opt.DisableRetry, opt.DisableCache, opt.AlwaysPipelining = true, true, true
	opt.ConnWriteTimeout, opt.Dialer.Timeout = answerTime, dialTime
	opt.ReadBufferEachConn, opt.WriteBufferEachConn = 64<<10, 64<<10
	opt.PipelineMultiplex = -1 // one connection a server
	opt.ClientName = "imd"
	return opt, nil
}

// Away reports whether calls are not made, as the server did not answer lately
// or was never reached.
func (l *Link) Away() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.circuit.Open()
}

// Close ends the connections. It leaves calls behind that do not end in time.
func (l *Link) Close() error {
	l.stop()
	done := make(chan struct{})
	go func() {
		defer close(done)
		if cl := l.client.Load(); cl != nil {
			(*cl).Close()
		}
		l.wg.Wait()
	}()
	timer := time.NewTimer(closeTime)
	defer timer.Stop()
	select {
	case <-done:
		return nil
	case <-timer.C:
		return errors.New("the connections to Redis did not close in time")
	}
}

// run asks whether the server is there whenever the circuit has opened.
func (l *Link) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.ask:
		}
		since, warned := time.Now(), false
		for {
			err := l.there(ctx)
			if ctx.Err() != nil {
				return
			}
			l.mu.Lock()
			closed := l.circuit.Asked(err == nil)
			l.mu.Unlock()
			if closed {
				l.log.Info(l.use.Name+" answers", obs.Took(time.Since(since)))
				break
			}
			if !warned {
				warned = true
				l.log.Warn(l.use.Name+" does not answer; "+l.use.Without, obs.Err(err))
			}
			if !wait(ctx, askEvery) {
				return
			}
		}
	}
}

// wait waits, and reports false if ctx ends first.
func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// there asks whether the server answers, connecting if need be.
func (l *Link) there(ctx context.Context) error {
	if l.client.Load() == nil {
		cl, err := rueidis.NewClient(l.opt)
		if err != nil {
			return Classified(err)
		}
		if ctx.Err() != nil {
			cl.Close()
			return ctx.Err()
		}
		l.client.Store(&cl)
	}
	ctx, cancel := context.WithTimeout(ctx, CallTime)
	defer cancel()
	cl := *l.client.Load()
	return Classified(cl.Do(ctx, cl.B().Ping().Build()).Error())
}

// Do makes one call of at most limit. The commands are built by build, and
// their results belong to the caller. Errors are *circuit.Error.
func (l *Link) Do(ctx context.Context, limit time.Duration, build func(rueidis.Builder) rueidis.Commands) ([]rueidis.RedisResult, error) {
	return l.call(ctx, limit, func(cl rueidis.Client) func(context.Context) []rueidis.RedisResult {
		cmds := build(cl.B())
		return func(ctx context.Context) []rueidis.RedisResult { return cl.DoMulti(ctx, cmds...) }
	})
}

// DoCached is Do for reads whose results may come from this process's memory.
func (l *Link) DoCached(ctx context.Context, limit time.Duration, build func(rueidis.Builder) []rueidis.CacheableTTL) ([]rueidis.RedisResult, error) {
	return l.call(ctx, limit, func(cl rueidis.Client) func(context.Context) []rueidis.RedisResult {
		cmds := build(cl.B())
		return func(ctx context.Context) []rueidis.RedisResult { return cl.DoMultiCache(ctx, cmds...) }
	})
}

// call makes one call. prepare is run here, as what its commands are made of is
// the caller's again when the call is given up.
func (l *Link) call(ctx context.Context, limit time.Duration, prepare func(rueidis.Client) func(context.Context) []rueidis.RedisResult) ([]rueidis.RedisResult, error) {
	if l.Away() {
		return nil, &circuit.Error{Class: circuit.Open}
	}
	select {
	case l.slot <- struct{}{}:
	default:
		return nil, &circuit.Error{Class: circuit.Busy}
	}
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	do := prepare(*l.client.Load())
	answer := make(chan []rueidis.RedisResult, 1)
	l.wg.Go(func() {
		defer func() { <-l.slot }()
		answer <- do(limited)
	})
	var res []rueidis.RedisResult
	err := error(&circuit.Error{Class: circuit.Timeout})
	select {
	case res = <-answer:
		err = nil
		for _, r := range res {
			if e := r.NonRedisError(); e != nil && !rueidis.IsRedisNil(e) {
				err = Classified(e)
				break
			}
		}
	case <-limited.Done():
	}
	if ctx.Err() == nil { // else the caller's time was shorter than a call's
		l.called(circuit.ClassOf(err))
	}
	if err != nil {
		return nil, err
	}
	return res, nil
}

// called counts what came of a call.
func (l *Link) called(what circuit.Class) {
	l.mu.Lock()
	opened := l.circuit.Called(what)
	l.mu.Unlock()
	if opened {
		l.ask <- struct{}{} // it is empty: the circuit was closed until now
	}
}

// String names the server without its password, for logs.
func (l *Link) String() string { return fmt.Sprintf("redis at %v", l.opt.InitAddress) }
