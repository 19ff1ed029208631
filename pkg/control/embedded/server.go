package embedded

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3rpc"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
)

const (
	startLimit = 10 * time.Second // opening the data and electing itself takes 0.1 s
	closeLimit = 2 * time.Second

	tick     = 50  // ms
	election = 250 // ms; a restart waits for one to two of it

	quota       = 256 << 20 // bytes; the memory map is sized by it
	walSegment  = 8 << 20   // bytes, allocated ahead, two at a time
	keepHistory = "1h"      // revisions older than this are compacted away
)

// Option changes how a server starts.
type Option func(*settings)

type settings struct {
	listen string
	tokens time.Duration
	cost   int
}

// Listen makes the server answer etcd clients at host:port, without encryption
// and authentication: keep it on loopback. Without it only Client reaches the
// server.
func Listen(address string) Option { return func(s *settings) { s.listen = address } }

// Tokens says how long a client that logged in may be silent before it must log
// in again, in whole seconds, and what a login costs the server, from 4 to 31;
// without it that is five minutes, and 10.
func Tokens(life time.Duration, cost int) Option {
	return func(s *settings) { s.tokens, s.cost = life, cost }
}

// Server is a running etcd server.
type Server struct {
	dir    string
	etcd   *embed.Etcd
	client *clientv3.Client
	net    *grpc.Server // nil without Listen
	log    *serverLog
	failed chan error // room for the one failure that the watcher reports
	done   chan struct{}
	once   sync.Once

	lock       *os.File // of a member's data; nil = the caller holds one
	closeLimit time.Duration
}

// Start opens the data in dir, making it if there is none, and returns when the
// server answers. The caller must hold a lock that keeps other processes off
// dir: a second server on the same data would wait for the first one.
//
// Errors are one sentence: dir cannot be written, the disk is full, the data is
// damaged, or the server did not become ready within 10 s or before ctx ended.
func Start(ctx context.Context, dir string, log *zap.Logger, opts ...Option) (*Server, error) {
	var st settings
	for _, o := range opts {
		o(&st)
	}
	if err := prepare(dir); err != nil {
		return nil, err
	}
	s := &Server{dir: dir, log: newServerLog(log), failed: make(chan error, 1), done: make(chan struct{}), closeLimit: closeLimit}
	cfg := config(dir, s.log)
	if st.tokens > 0 {
		cfg.AuthTokenTTL, cfg.BcryptCost = uint(st.tokens/time.Second), uint(st.cost)
	}
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	if err := s.open(ctx, cfg); err != nil {
		s.log.quiet()
		return nil, explain(dir, err)
	}
	s.client = v3client.New(s.etcd.Server)
	go s.watch()
	if st.listen != "" {
		if err := s.listen(ctx, st.listen); err != nil {
			return nil, errors.Join(err, s.Close())
		}
	}
	return s, nil
}

// listen serves the etcd protocol. Clients may ping as often as a stand-alone
// etcd lets them.
func (s *Server) listen(ctx context.Context, address string) error {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("embedded etcd: %w", err)
	}
	s.net = v3rpc.Server(s.etcd.Server, nil, nil, grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{
		MinTime: embed.DefaultGRPCKeepAliveMinTime,
	}))
	go func() { _ = s.net.Serve(l) }() // ends with Close
	return nil
}

var segment sync.Once

// config is a server of one member that knows no peer and listens nowhere.
func config(dir string, log *serverLog) *embed.Config {
	segment.Do(func() { wal.SegmentSizeBytes = walSegment })
	c := embed.NewConfig()
	c.Name, c.Dir = "imd", dir
	c.ListenClientUrls, c.ListenPeerUrls = nil, nil
	c.InitialCluster = c.InitialClusterFromName(c.Name)
	c.TickMs, c.ElectionMs = tick, election
	c.QuotaBackendBytes = quota
	c.MaxWalFiles, c.MaxSnapFiles = 2, 2
	c.AutoCompactionMode, c.AutoCompactionRetention = embed.CompactorModePeriodic, keepHistory
	c.WatchProgressNotifyInterval = time.Minute
	c.ZapLoggerBuilder = embed.NewZapLoggerBuilder(log.logger())
	return c
}

// open starts etcd in a goroutine, because etcd may end it on bad data instead
// of returning.
func (s *Server) open(ctx context.Context, cfg *embed.Config) error {
	type opened struct {
		etcd *embed.Etcd
		err  error
	}
	result := make(chan opened, 1) // room for the answer when nobody waits any more
	abandoned := make(chan struct{})
	go func() {
		e, err := startEtcd(cfg)
		select {
		case <-abandoned:
			if e != nil {
				e.Close()
			}
		case result <- opened{e, err}:
		}
	}()
	var e *embed.Etcd
	select {
	case r := <-result:
		if r.err != nil {
			return r.err
		}
		e = r.etcd
	case err := <-s.log.fatal:
		close(abandoned)
		return err
	case <-ctx.Done():
		close(abandoned)
		return errNotReady
	}
	select {
	case <-e.Server.ReadyNotify():
		s.etcd = e
		return nil
	case err := <-s.log.fatal:
		return err
	case err := <-e.Err():
		closeWithin(e, s.closeLimit)
		return err
	case <-ctx.Done():
		closeWithin(e, s.closeLimit)
		return errNotReady
	}
}

// startEtcd turns a panic into an error: a log that reads as nothing is a nil
// pointer in there.
func startEtcd(cfg *embed.Config) (e *embed.Etcd, err error) {
	defer func() {
		if p := recover(); p != nil {
			e, err = nil, &fatalError{message: fmt.Sprintf("panic while opening: %v", p)}
		}
	}()
	return embed.StartEtcd(cfg)
}

// watch reports a server that ends by itself.
func (s *Server) watch() {
	var err error
	select {
	case err = <-s.log.fatal:
	case err = <-s.etcd.Err():
	case <-s.etcd.Server.StopNotify():
		err = errors.New("the server stopped")
	case <-s.done:
		return
	}
	s.failed <- explain(s.dir, err)
}

// Client talks to the server without a network. It belongs to the server: Close
// closes it.
func (s *Server) Client() *clientv3.Client { return s.client }

// Failed gives one error if the server ends without Close, for example because
// the disk is full. The node cannot go on then.
func (s *Server) Failed() <-chan error { return s.failed }

// Close stops the server within 2 s, a member within 8. It may be called more than once.
func (s *Server) Close() error {
	var err error
	s.once.Do(func() {
		close(s.done)
		s.log.quiet()
		if s.net != nil {
			s.net.Stop()
		}
		_ = s.client.Close() // always "canceled" for a client without connection
		err = closeWithin(s.etcd, s.closeLimit)
		if s.lock != nil {
			_ = s.lock.Close()
		}
	})
	return err
}

// closeWithin closes e, but does not wait for a server that hangs, which it
// does after it has ended one of its own goroutines.
func closeWithin(e *embed.Etcd, limit time.Duration) error {
	closed := make(chan struct{})
	go func() {
		e.Close()
		close(closed)
	}()
	t := time.NewTimer(limit)
	defer t.Stop()
	select {
	case <-closed:
		return nil
	case <-t.C:
		return fmt.Errorf("embedded etcd: still closing after %v", limit)
	}
}

// prepare makes dir and proves that it can be written.
func prepare(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return explain(dir, err)
	}
	probe := filepath.Join(dir, ".writable")
	if err := os.WriteFile(probe, make([]byte, 4096), 0o600); err != nil {
		_ = os.Remove(probe)
		return explain(dir, err)
	}
	if err := os.Remove(probe); err != nil {
		return explain(dir, err)
	}
	return nil
}

var errNotReady = errors.New("not ready in time")

// explain turns what the server or the file system said into one sentence.
func explain(dir string, err error) error {
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return fmt.Errorf("embedded etcd: the disk that holds %s is full: %w", dir, err)
	case errors.Is(err, syscall.EROFS):
		return fmt.Errorf("embedded etcd: %s is on a read-only file system: %w", dir, err)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("embedded etcd: %s cannot be written by this user: %w", dir, err)
	case errors.Is(err, errNotReady):
		return fmt.Errorf("embedded etcd: the server on %s was not ready within %v; another process may use the data: %w", dir, startLimit, err)
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("embedded etcd: %w", err)
	}
	var f *fatalError
	if errors.As(err, &f) {
		return fmt.Errorf("embedded etcd: the data in %s is damaged or cannot be used; restore it or move the folder away: %w", dir, err)
	}
	return fmt.Errorf("embedded etcd on %s: %w", dir, err)
}
