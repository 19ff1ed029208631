package etcd

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/backoff"
)

// entry is one key of a mirror.
type entry struct {
	create, mod int64
	lease       leaseID
	value       []byte
}

// table is an immutable copy of the keys below a prefix at one revision.
type table struct {
	rev     int64
	cluster uint64
	history int // rises when etcd was found with another history; revisions begin anew
	stale   bool
	keys    map[string]entry
}

// mirror keeps a copy of the few keys below a prefix, whatever they mean. One
// goroutine, run, changes it.
type mirror struct {
	etcd    lister
	prefix  string
	timing  timing
	changed func(*table)
	log     *zap.Logger

	cur    *table // nil = nothing was read yet
	behind int    // reads in a row that were behind cur
}

// errRead ends a watch because everything is read again once a minute.
var errRead = errors.New("time to read everything")

// run keeps the copy current until ctx is done.
func (m *mirror) run(ctx context.Context) {
	attempt := 0
	for ctx.Err() == nil {
		err := m.load(ctx)
		began := time.Now()
		if err == nil {
			err = m.follow(ctx)
		}
		if ctx.Err() != nil {
			return
		}
		if errors.Is(err, errRead) {
			attempt = 0
			continue
		}
		m.mark()
		m.log.Debug("keys are read again", zap.String("prefix", m.prefix), zap.Error(err))
		if time.Since(began) > m.timing.stale {
			attempt = 0
		}
		_ = pauses.Sleep(ctx, attempt) // the loop looks at ctx
		attempt = min(attempt+1, 3)
	}
}

// mark says that the copy may be old.
func (m *mirror) mark() {
	if m.cur == nil || m.cur.stale {
		return
	}
	next := *m.cur
	next.stale = true
	m.set(&next)
}

func (m *mirror) set(t *table) {
	m.cur = t
	m.changed(t)
}

var errBehind = errors.New("the member that answered is behind")

// load reads everything. The copy goes back in revision only if etcd did.
func (m *mirror) load(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	resp, err := m.etcd.Get(ctx, m.prefix, clientv3.WithPrefix())
	if err != nil {
		return err
	}
	next := &table{rev: resp.Header.Revision, cluster: resp.Header.ClusterId, keys: make(map[string]entry, len(resp.Kvs))}
	if old := m.cur; old != nil {
		next.history = old.history
		switch {
		case old.cluster != next.cluster:
			next.history++
		case next.rev < old.rev:
			if m.behind++; m.behind < stubborn {
				return errBehind
			}
			next.history++
		}
	}
	m.behind = 0
	for _, kv := range resp.Kvs {
		next.keys[string(kv.Key)] = entry{kv.CreateRevision, kv.ModRevision, kv.Lease, kv.Value}
	}
	m.set(next)
	return nil
}

// follow applies changes until something calls for reading everything again.
func (m *mirror) follow(ctx context.Context) error {
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	events := m.etcd.Watch(ctx, m.prefix, clientv3.WithPrefix(), clientv3.WithRev(m.cur.rev+1),
		clientv3.WithProgressNotify(), clientv3.WithCreatedNotify())
	ask := time.NewTicker(m.timing.progress)
	defer ask.Stop()
	silence := time.NewTimer(m.timing.stale)
	defer silence.Stop()
	again := time.NewTimer(backoff.Spread(m.timing.reconcile, 0.2, rand.Float64()))
	defer again.Stop()
	for {
		select {
		case resp, ok := <-events:
			if !ok {
				return errors.New("the watch ended")
			}
			if err := resp.Err(); err != nil {
				return err
			}
			if resp.Header.ClusterId != 0 && resp.Header.ClusterId != m.cur.cluster {
				return errors.New("etcd has another history")
			}
			silence.Reset(m.timing.stale)
			m.apply(resp)
		case <-ask.C:
			if err := m.ask(ctx); err != nil {
				return err
			}
		case <-silence.C:
			return errors.New("nothing was heard")
		case <-again.C:
			return errRead
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// ask requests a sign of life, with what the watch's context carries.
func (m *mirror) ask(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	if err := m.etcd.RequestProgress(ctx); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return nil // without an answer the silence will end the watch
}

// apply takes in one answer of the watch, which holds whole revisions.
func (m *mirror) apply(resp clientv3.WatchResponse) {
	next := &table{rev: m.cur.rev, cluster: m.cur.cluster, history: m.cur.history, keys: m.cur.keys}
	if resp.IsProgressNotify() {
		next.rev = max(next.rev, resp.Header.Revision)
	}
	if len(resp.Events) == 0 {
		if next.rev > m.cur.rev || m.cur.stale {
			m.set(next)
		}
		return
	}
	next.keys = make(map[string]entry, len(m.cur.keys)+1)
	for k, e := range m.cur.keys {
		next.keys[k] = e
	}
	for _, ev := range resp.Events {
		next.rev = max(next.rev, ev.Kv.ModRevision)
		if ev.Type == clientv3.EventTypeDelete {
			delete(next.keys, string(ev.Kv.Key))
			continue
		}
		next.keys[string(ev.Kv.Key)] = entry{ev.Kv.CreateRevision, ev.Kv.ModRevision, ev.Kv.Lease, ev.Kv.Value}
	}
	m.set(next)
}
