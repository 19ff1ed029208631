package etcd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/control"
	"github.com/imdhq/imd/pkg/store"
)

const (
	electLimit  = time.Second             // of one call of an election
	resignLimit = 1200 * time.Millisecond // of giving up the place
)

// candidate carries out what election.step decides, for one candidacy. One
// goroutine, run, drives it.
type candidate struct {
	control.Candidacy
	elector *elector
	key     string
	log     *zap.Logger
	wake    chan struct{} // capacity 1: something new waits in the fields below
	vigil   *vigil        // at another's process; of run's goroutine

	mu      sync.Mutex
	state   election
	seen    *sight // newest copy of the keys; nil once it was taken in
	history int    // of the last copy that was taken in
	idle    bool   // Lead has returned
	fenced  bool   // and said that an effect was refused
	refused int64  // create revision of a key whose process is dead
	term    *term  // the present one, until Lead has returned; set by run's goroutine
}

// term is one period of leadership.
type term struct {
	proof  store.Proof
	until  atomic.Int64 // deadline, in ns since began
	began  time.Time
	cancel context.CancelFunc
	alarm  *time.Timer   // cancels at the deadline, whatever the loop is doing
	ended  chan struct{} // closed when the term is over
	once   sync.Once
}

// Proof is what the leader shows.
func (t *term) Proof() store.Proof { return t.proof }

// Valid compares with the monotonic clock.
func (t *term) Valid() bool {
	select {
	case <-t.ended:
		return false
	default:
		return time.Since(t.began) < time.Duration(t.until.Load())
	}
}

func (t *term) extend(deadline time.Time) {
	t.until.Store(int64(deadline.Sub(t.began)))
	t.alarm.Reset(time.Until(deadline))
}

func (t *term) end() {
	t.once.Do(func() {
		close(t.ended)
		t.alarm.Stop()
		t.cancel()
	})
}

// run takes part until ctx is done, and then resigns.
func (c *candidate) run(ctx context.Context) {
	act := c.take(ctx, electionEvent{kind: evWake})
	for ctx.Err() == nil {
		act = c.take(ctx, c.do(ctx, act))
		for ev, ok := c.news(); ok; ev, ok = c.news() {
			act = c.take(ctx, ev)
		}
	}
	last := context.WithoutCancel(ctx)
	act = c.take(ctx, electionEvent{kind: evStop})
	for act.kind != actEnd {
		act = c.take(ctx, c.do(last, act))
		for ev, ok := c.news(); ok; ev, ok = c.news() {
			act = c.take(ctx, ev)
		}
	}
	c.watchOver(nil)
}

// take feeds the state machine and makes Lead and the vigil follow it.
func (c *candidate) take(ctx context.Context, ev electionEvent) electionAction {
	ev.at, ev.rnd = time.Now(), rand.Float64()
	c.mu.Lock()
	before := c.state
	next, act := c.state.step(ev)
	c.state = next
	c.mu.Unlock()
	began := next.terms != before.terms
	if began {
		c.begin(ctx, next)
	}
	switch {
	case !next.acting && (began || before.acting):
		c.term.end()
		c.log.Info("leading no more", zap.String("reason", next.quit), zap.Int64("token", next.token))
	case next.acting && !next.sent.Equal(before.sent):
		c.term.extend(next.deadline())
	}
	if before.busy && !next.busy {
		c.mu.Lock()
		c.term = nil
		c.mu.Unlock()
	}
	if next.fenced != before.fenced {
		c.log.Warn("the fence has a newer claim", zap.Int64("token", next.over))
	}
	if next.other != before.other || next.create != before.create || c.vigil == nil && ev.kind == evSeen {
		c.watchOver(&next)
	}
	return act
}

// begin starts Lead.
func (c *candidate) begin(ctx context.Context, s election) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx)) // the term ends it, also when the campaign is to end
	t := &term{
		proof: store.Proof{Name: c.Name, Token: s.token, Holder: c.elector.holder()},
		began: time.Now(), cancel: cancel, ended: make(chan struct{}),
	}
	t.alarm = time.AfterFunc(time.Until(s.deadline()), t.cancel)
	t.until.Store(int64(s.deadline().Sub(t.began)))
	c.mu.Lock()
	c.term = t
	c.mu.Unlock()
	c.log.Info("leading", zap.Int64("token", s.token))
	c.elector.wg.Go(func() {
		err := c.Lead(ctx, t)
		t.cancel()
		c.mu.Lock()
		c.idle, c.fenced = true, errors.Is(err, store.ErrFenced)
		c.mu.Unlock()
		c.poke()
	})
}

// leading is closed when the present term ends; nil if there is none.
func (c *candidate) leading() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.term == nil || !c.state.acting {
		return nil
	}
	return c.term.ended
}

// watchOver keeps a vigil at the process that leads, if it is another one.
func (c *candidate) watchOver(s *election) {
	if c.vigil != nil {
		c.vigil.stop()
		c.vigil = nil
	}
	seen := c.elector.sight()
	if s == nil || s.other == 0 || s.create != 0 || s.timing.forced == 0 || seen == nil {
		return
	}
	e, ok := seen.records[c.key]
	l, err := leaderOf(e)
	if !ok || err != nil || e.create != s.other {
		return // not read yet: the next copy has it
	}
	c.vigil = c.elector.vigilAt(l, func() {
		c.mu.Lock()
		c.refused = e.create
		c.mu.Unlock()
		c.poke()
	})
}

func (c *candidate) poke() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// notice takes a copy of the keys.
func (c *candidate) notice(t *sight) {
	c.mu.Lock()
	c.seen = t
	c.mu.Unlock()
	c.poke()
}

// news is what came from outside since the last look.
func (c *candidate) news() (electionEvent, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.seen
	c.seen = nil
	switch {
	case c.idle:
		c.idle, c.seen = false, t
		return electionEvent{kind: evIdle, fenced: c.fenced}, true
	case t != nil && !t.stale: // a stale one has nothing new
		ev := c.elector.saw(c.key, t)
		ev.anew, c.history = t.history != c.history, t.history
		return ev, true
	case c.refused != 0:
		create := c.refused
		c.refused = 0
		return electionEvent{kind: evRefused, create: create}, true
	}
	return electionEvent{}, false
}

// do makes one call, or waits.
func (c *candidate) do(ctx context.Context, act electionAction) electionEvent {
	if act.kind == actWait {
		c.wait(ctx, act.until)
		return electionEvent{kind: evWake}
	}
	if act.kind == actResign {
		return c.resign(ctx, act)
	}
	limit := electLimit
	if act.kind == actRenew {
		limit = min(limit, max(time.Until(act.until), time.Millisecond))
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var ev electionEvent
	var err error
	switch act.kind {
	case actGrant:
		ev, err = c.grant(ctx)
	case actCreate:
		ev, err = c.create(ctx, act)
	case actClaim:
		ev, err = c.claim(ctx, act)
	case actConfirm:
		ev, err = c.confirm(ctx, act)
	case actAnnounce:
		ev, err = c.announce(ctx, act)
	case actRenew:
		ev, err = c.renew(ctx, act)
	case actLook:
		ev, err = c.look(ctx)
	case actForce:
		ev, err = c.force(ctx, act)
	}
	switch {
	case errors.Is(err, rpctypes.ErrLeaseNotFound):
		return electionEvent{kind: evLeaseGone}
	case err != nil:
		c.log.Debug("election", zap.Error(err))
		return electionEvent{kind: evFailed, did: act.kind}
	}
	return ev
}

func (c *candidate) wait(ctx context.Context, until time.Time) {
	var due <-chan time.Time
	if !until.IsZero() {
		t := time.NewTimer(time.Until(until))
		defer t.Stop()
		due = t.C
	}
	select {
	case <-due:
	case <-c.wake:
	case <-ctx.Done():
	}
}

func (c *candidate) grant(ctx context.Context) (electionEvent, error) {
	sent := time.Now()
	resp, err := c.elector.client.Grant(ctx, seconds(c.elector.timing.ttl))
	if err != nil {
		return electionEvent{}, fmt.Errorf("grant a lease: %w", err)
	}
	return electionEvent{kind: evGranted, lease: int64(resp.ID), ttl: time.Duration(resp.TTL) * time.Second, sent: sent}, nil
}

// record is what the key says of us.
func (c *candidate) record(token int64) string {
	l := c.elector.record(c.Name)
	l.Token = token
	b, err := json.Marshal(l)
	if err != nil {
		panic(fmt.Sprintf("control: the record of a leader cannot be encoded: %v", err)) // it has strings, a number and a time
	}
	return string(b)
}

func (c *candidate) create(ctx context.Context, act electionAction) (electionEvent, error) {
	resp, err := c.elector.client.Txn(ctx).
		If(clientv3.Compare(clientv3.CreateRevision(c.key), "=", 0)).
		Then(clientv3.OpPut(c.key, c.record(0), clientv3.WithLease(clientv3.LeaseID(act.lease)))).
		Else(clientv3.OpGet(c.key), clientv3.OpGet(c.key+wishSuffix)).
		Commit()
	if err != nil {
		return electionEvent{}, fmt.Errorf("create the key: %w", err)
	}
	if !resp.Succeeded {
		return c.read(resp), nil
	}
	return electionEvent{kind: evWon, create: resp.Header.Revision, rev: resp.Header.Revision, cluster: clusterID(resp.Header.ClusterId)}, nil
}

// read takes in both keys as a transaction has read them.
func (c *candidate) read(resp *clientv3.TxnResponse) electionEvent {
	var kvs []*mvccpb.KeyValue
	for _, r := range resp.Responses {
		kvs = append(kvs, r.GetResponseRange().GetKvs()...)
	}
	return c.elector.saw(c.key, &sight{replica: replicaOf(nil, resp.Header.Revision, resp.Header.ClusterId, kvs)})
}

func (c *candidate) look(ctx context.Context) (electionEvent, error) {
	resp, err := c.elector.client.Txn(ctx).Then(clientv3.OpGet(c.key), clientv3.OpGet(c.key+wishSuffix)).Commit()
	if err != nil {
		return electionEvent{}, fmt.Errorf("read the key: %w", err)
	}
	return c.read(resp), nil
}

// claim asks the message store for the token.
func (c *candidate) claim(ctx context.Context, act electionAction) (electionEvent, error) {
	fences, err := c.Fences()
	if err != nil {
		return electionEvent{}, err
	}
	c.mu.Lock()
	cluster := c.state.cluster
	c.mu.Unlock()
	f, err := fences.ClaimFence(ctx, store.FenceClaim{
		Name: c.Name, Holder: c.elector.holder(), Cluster: cluster, Revision: act.create, Over: act.token,
	})
	switch {
	case errors.Is(err, store.ErrFenced):
		return electionEvent{kind: evFenced, token: f.Token}, nil
	case err != nil:
		return electionEvent{}, fmt.Errorf("claim the fence: %w", err)
	}
	return electionEvent{kind: evClaimed, token: f.Token}, nil
}

func (c *candidate) confirm(ctx context.Context, act electionAction) (electionEvent, error) {
	resp, err := c.elector.client.Get(ctx, c.key)
	if err != nil {
		return electionEvent{}, fmt.Errorf("read the own key: %w", err)
	}
	return electionEvent{kind: evConfirmed, ours: len(resp.Kvs) == 1 && resp.Kvs[0].CreateRevision == act.create}, nil
}

// announce puts the token into the key, which proves that the key is still ours
// after the claim, and fulfils a wish.
func (c *candidate) announce(ctx context.Context, act electionAction) (electionEvent, error) {
	resp, err := c.elector.client.Txn(ctx).
		If(clientv3.Compare(clientv3.CreateRevision(c.key), "=", act.create)).
		Then(clientv3.OpPut(c.key, c.record(act.token), clientv3.WithLease(clientv3.LeaseID(act.lease))), clientv3.OpDelete(c.key+wishSuffix)).
		Commit()
	if err != nil {
		return electionEvent{}, fmt.Errorf("announce the token: %w", err)
	}
	return electionEvent{kind: evProclaimed, ours: resp.Succeeded, rev: resp.Header.Revision}, nil
}

func (c *candidate) renew(ctx context.Context, act electionAction) (electionEvent, error) {
	sent, ttl, err := renew(ctx, c.elector.client, act.lease)
	return electionEvent{kind: evRenewed, sent: sent, ttl: ttl}, err
}

// force ends the lease of a leader whose process is gone. An error leaves open
// whether it did; doing it again does no harm.
func (c *candidate) force(ctx context.Context, act electionAction) (electionEvent, error) {
	_, err := c.elector.client.Revoke(ctx, clientv3.LeaseID(act.lease))
	if err != nil && !errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return electionEvent{}, fmt.Errorf("revoke the lease of a dead leader: %w", err)
	}
	c.log.Info("the leader's process is gone; taking over")
	return electionEvent{kind: evForced, ours: err == nil}, nil
}

// resign deletes the key, if it is ours, and ends the lease.
func (c *candidate) resign(ctx context.Context, act electionAction) electionEvent {
	ctx, cancel := context.WithTimeout(ctx, resignLimit)
	defer cancel()
	ev := electionEvent{kind: evResigned, ours: true}
	if act.create != 0 {
		resp, err := c.elector.client.Txn(ctx).
			If(clientv3.Compare(clientv3.CreateRevision(c.key), "=", act.create)).
			Then(clientv3.OpDelete(c.key)).
			Commit()
		if err == nil {
			ev.rev = resp.Header.Revision
		}
		ev.ours = err == nil && resp.Succeeded
	}
	if act.lease != 0 {
		_, err := c.elector.client.Revoke(ctx, clientv3.LeaseID(act.lease))
		if err != nil && !errors.Is(err, rpctypes.ErrLeaseNotFound) {
			c.log.Debug("the lease of a term could not be revoked and will expire", zap.Error(err))
		}
	}
	return ev
}

// clusterID is how the fence knows an etcd cluster.
func clusterID(id uint64) string { return strconv.FormatUint(id, 16) }
