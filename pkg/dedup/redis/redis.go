// Package redis is the dedup cache in Redis, which all state nodes share: a
// repeat that reaches another node than the first copy is answered from it too.
// It works with one server, with a primary behind Sentinel and with a cluster.
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

	"github.com/imdhq/imd/pkg/dedup"
	"github.com/imdhq/imd/pkg/obs"
)

const (
	// tryTime bounds a Try, which senders wait for.
	tryTime = 5 * time.Millisecond
	// callTime bounds the other calls, which nobody waits for.
	callTime = 200 * time.Millisecond
	// dialTime bounds the making of a connection, and answerTime how long one may
	// be silent before it is closed.
	dialTime   = time.Second
	answerTime = 500 * time.Millisecond
	// askEvery is between two questions whether the server is there again.
	askEvery = 250 * time.Millisecond
	// maxCalls is how many calls may be on their way.
	maxCalls = 32
	// closeTime bounds Close.
	closeTime = 2 * time.Second
	// maxValue is more than the longest value of ours.
	maxValue = 256
)

// Config says where the server is.
type Config struct {
	// URL names it: redis://user:password@host:port/db, rediss:// for TLS, or
	// unix:///path. More nodes of a cluster or Sentinels follow as ?addr=host:port;
	// &master_set=NAME makes them Sentinels.
	URL string
	// TLS is used for rediss URLs; nil = the certificates of the system.
	TLS *tls.Config
	dedup.Options
}

// Cache is a dedup.Cache in Redis.
type Cache struct {
	cfg  Config
	opt  rueidis.ClientOption
	log  *zap.Logger
	slot chan struct{}  // capacity maxCalls: one for each call on its way
	wg   sync.WaitGroup // calls on their way, and the one that asks
	ask  chan struct{}  // capacity 1: the circuit has opened
	stop context.CancelFunc

	client atomic.Pointer[rueidis.Client] // nil until the server was reached once

	mu      sync.Mutex
	circuit dedup.Circuit
}

// Open makes a cache that connects by itself, now or when the server is there.
// The error is about cfg only.
func Open(cfg Config, log *zap.Logger) (*Cache, error) {
	opt, err := options(cfg)
	if err != nil {
		return nil, err
	}
	cfg.Options = cfg.Options.WithDefaults()
	ctx, stop := context.WithCancel(context.Background())
	c := &Cache{
		cfg: cfg, opt: opt, log: log, slot: make(chan struct{}, maxCalls), ask: make(chan struct{}, 1), stop: stop,
		circuit: dedup.NewOpenCircuit(),
	}
	c.ask <- struct{}{}
	c.wg.Go(func() { c.run(ctx) })
	return c, nil
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
	opt.BlockingPipeline = 4 * dedup.MaxKeys // never a connection for one call
	opt.PipelineMultiplex = -1               // one connection a server
	opt.ClientName = "imd"
	return opt, nil
}

// Open is dedup.Cache's.
func (c *Cache) Open() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.circuit.Open()
}

// Close is dedup.Cache's. It leaves calls behind that do not end in time.
func (c *Cache) Close() error {
	c.stop()
	done := make(chan struct{})
	go func() {
		defer close(done)
		if cl := c.client.Load(); cl != nil {
			(*cl).Close()
		}
		c.wg.Wait()
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
func (c *Cache) run(ctx context.Context) {
	since, warned := time.Now(), false
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.ask:
			since, warned = time.Now(), false
		}
		for {
			err := c.there(ctx)
			if ctx.Err() != nil {
				return
			}
			c.mu.Lock()
			closed := c.circuit.Asked(err == nil)
			c.mu.Unlock()
			if closed {
				c.log.Info("the dedup cache answers", obs.Took(time.Since(since)))
				break
			}
			if !warned {
				warned = true
				c.log.Warn("the dedup cache does not answer; repeats go to the message store", obs.Err(err))
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
func (c *Cache) there(ctx context.Context) error {
	if c.client.Load() == nil {
		cl, err := rueidis.NewClient(c.opt)
		if err != nil {
			return classified(err)
		}
		if ctx.Err() != nil {
			cl.Close()
			return ctx.Err()
		}
		c.client.Store(&cl)
	}
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	cl := *c.client.Load()
	return classified(cl.Do(ctx, cl.B().Ping().Build()).Error())
}

// do makes one call of at most limit. The commands are built by build, and
// their results belong to the caller.
func (c *Cache) do(ctx context.Context, limit time.Duration, build func(rueidis.Builder) rueidis.Commands) ([]rueidis.RedisResult, error) {
	if c.Open() {
		return nil, &dedup.Error{Class: dedup.Open}
	}
	select {
	case c.slot <- struct{}{}:
	default:
		return nil, &dedup.Error{Class: dedup.Busy}
	}
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	cl := *c.client.Load()
	cmds := build(cl.B()) // here, as what they are made of is the caller's again when the call is given up
	answer := make(chan []rueidis.RedisResult, 1)
	c.wg.Go(func() {
		defer func() { <-c.slot }()
		answer <- cl.DoMulti(limited, cmds...)
	})
	var res []rueidis.RedisResult
	err := error(&dedup.Error{Class: dedup.Timeout})
	select {
	case res = <-answer:
		err = nil
		for _, r := range res {
			if e := r.NonRedisError(); e != nil && !rueidis.IsRedisNil(e) {
				err = classified(e)
				break
			}
		}
	case <-limited.Done():
	}
	if ctx.Err() == nil { // else the caller's time was shorter than a call's
		c.called(dedup.ClassOf(err))
	}
	if err != nil {
		return nil, err
	}
	return res, nil
}

// called counts what came of a call.
func (c *Cache) called(what dedup.Class) {
	c.mu.Lock()
	opened := c.circuit.Called(what)
	c.mu.Unlock()
	if opened {
		c.ask <- struct{}{} // it is empty: the circuit was closed until now
	}
}

// Try is dedup.Cache's.
func (c *Cache) Try(ctx context.Context, owner string, keys []dedup.Key) ([]dedup.Found, error) {
	if len(keys) == 0 {
		return nil, nil
	}
	mark := dedup.TryValue(owner)
	res, err := c.do(ctx, tryTime, func(b rueidis.Builder) rueidis.Commands {
		cmds := make(rueidis.Commands, 0, 2*len(keys))
		for _, k := range keys {
			key := k.String()
			cmds = append(cmds,
				b.Set().Key(key).Value(mark).Nx().Px(c.cfg.TryTTL).Build(),
				b.Getrange().Key(key).Start(0).End(maxValue-1).Build()) // whatever is there, it costs little
		}
		return cmds
	})
	if err != nil {
		return nil, err
	}
	found := make([]dedup.Found, len(keys))
	for i := range keys {
		value, err := res[2*i+1].ToString()
		switch class := classOf(err); {
		case err == nil && value == "": // not even the mark, for lack of room
		case err == nil:
			found[i] = dedup.ParseValue(value, owner)
		case class == dedup.WrongType:
			found[i].State = dedup.Unreadable
		default:
			return nil, &dedup.Error{Class: class, Err: err}
		}
	}
	return found, nil
}

// Confirm is dedup.Cache's.
func (c *Cache) Confirm(ctx context.Context, done []dedup.Confirmed) error {
	if len(done) == 0 {
		return nil
	}
	res, err := c.do(ctx, callTime, func(b rueidis.Builder) rueidis.Commands {
		cmds := make(rueidis.Commands, len(done))
		for i, d := range done {
			cmds[i] = b.Set().Key(d.Key.String()).Value(d.Answer.Value()).Px(c.cfg.TTL).Build()
		}
		return cmds
	})
	return firstError(res, err)
}

// release removes a key if it holds what it is given.
const release = `if redis.call("GET", KEYS[1]) == ARGV[1] then return redis.call("DEL", KEYS[1]) end return 0`

// Cancel is dedup.Cache's.
func (c *Cache) Cancel(ctx context.Context, owner string, keys []dedup.Key) error {
	if len(keys) == 0 {
		return nil
	}
	res, err := c.do(ctx, callTime, func(b rueidis.Builder) rueidis.Commands {
		cmds := make(rueidis.Commands, len(keys))
		for i, k := range keys {
			cmds[i] = b.Eval().Script(release).Numkeys(1).Key(k.String()).Arg(dedup.TryValue(owner)).Build()
		}
		return cmds
	})
	return firstError(res, err)
}

// firstError is the first error of a call.
func firstError(res []rueidis.RedisResult, err error) error {
	if err != nil {
		return err
	}
	for _, r := range res {
		if err := r.Error(); err != nil {
			return classified(err)
		}
	}
	return nil
}

// String names the server without its password, for logs.
func (c *Cache) String() string { return fmt.Sprintf("redis at %v", c.opt.InitAddress) }
