package etcd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/control"
)

// registrar carries out what registration.step decides. The loop is driven by
// run or, before it runs, by announce.
type registrar struct {
	client *clientv3.Client
	prefix string // of all records
	timing timing
	log    *zap.Logger
	driver chan struct{} // capacity 1: whoever fills it drives the loop
	wake   chan struct{} // capacity 1: something new waits in the fields below

	mu      sync.Mutex
	node    control.Node // announced last
	gen     int          // number of node
	nudged  bool
	state   registration
	rival   control.Node  // last record of another boot under our id
	lastErr error         // of the last call, nil if it went well
	changed chan struct{} // closed and replaced when state changes
}

func newRegistrar(c *clientv3.Client, prefix string, t timing, log *zap.Logger) *registrar {
	return &registrar{
		client: c, prefix: prefix, timing: t, log: log,
		driver: make(chan struct{}, 1), wake: make(chan struct{}, 1),
		state: registration{timing: t}, changed: make(chan struct{}),
	}
}

// announce sets the record and waits until etcd has it.
func (r *registrar) announce(ctx context.Context, n control.Node) error {
	r.mu.Lock()
	r.gen++
	r.node = n
	gen := r.gen
	r.mu.Unlock()
	r.poke()
	for {
		done, changed, err := r.outcome(gen)
		if done {
			return err
		}
		select {
		case r.driver <- struct{}{}:
			r.drive(ctx, gen)
			<-r.driver
			if done, _, err := r.outcome(gen); done {
				return err
			}
		case <-changed:
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			return fmt.Errorf("control: the record of %s is not written yet: %w", n.ID, r.cause(ctx))
		}
	}
}

// outcome tells whether record gen, or a later one, has been decided on.
func (r *registrar) outcome(gen int) (done bool, changed <-chan struct{}, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.state.ended:
		return true, nil, errEnded
	case r.state.written >= gen:
		return true, nil, nil
	case r.state.refused >= gen:
		return true, nil, &control.TakenError{Node: r.node.ID, Ours: addresses(r.node), Theirs: addresses(r.rival)}
	}
	return false, r.changed, nil
}

var errEnded = errors.New("control: the registration has ended")

// cause is the last thing that went wrong, or why ctx ended.
func (r *registrar) cause(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.lastErr != nil {
		return errors.Join(ctx.Err(), r.lastErr)
	}
	return ctx.Err()
}

// run keeps the record written until ctx is done, and then gives up the lease.
func (r *registrar) run(ctx context.Context) {
	r.driver <- struct{}{}
	defer func() { <-r.driver }()
	r.drive(ctx, 0)
	r.end(context.WithoutCancel(ctx))
}

// close gives up the lease if run has not.
func (r *registrar) close() {
	r.driver <- struct{}{}
	defer func() { <-r.driver }()
	r.end(context.Background())
}

func (r *registrar) end(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, revokeLimit)
	defer cancel()
	act := r.take(event{kind: evStop})
	for act.kind != actEnd {
		act = r.take(r.do(ctx, act))
	}
}

// drive loops until ctx is done or, if gen is not 0, until record gen has been
// decided on. The caller holds the driver slot.
func (r *registrar) drive(ctx context.Context, gen int) {
	act := r.take(r.news())
	for ctx.Err() == nil && act.kind != actEnd {
		if gen != 0 {
			if done, _, _ := r.outcome(gen); done {
				return
			}
		}
		ev := r.do(ctx, act)
		act = r.take(ev)
		if ev.kind != evWake {
			continue
		}
		if n := r.news(); n.kind != evWake {
			act = r.take(n)
		}
	}
}

// take feeds the state machine and publishes its state.
func (r *registrar) take(ev event) action {
	ev.at, ev.rnd = time.Now(), rand.Float64()
	r.mu.Lock()
	defer r.mu.Unlock()
	before := r.state
	var act action
	r.state, act = r.state.step(ev)
	if r.state.lost != before.lost {
		r.log.Warn("the lease of this node ended; registering again", zap.Int64("lease", before.lease))
	}
	if r.state.repairs != before.repairs {
		r.log.Warn("the record of this node was missing or wrong; writing it again")
	}
	if r.state.refused != before.refused && r.state.refused != 0 {
		r.log.Error("another running process has the id of this node", zap.String("address", addresses(r.rival)))
	}
	close(r.changed)
	r.changed = make(chan struct{})
	return act
}

// news is what was asked for since the last look; evWake if nothing was.
func (r *registrar) news() event {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.gen != r.state.want {
		return event{kind: evAnnounced, gen: r.gen}
	}
	if r.nudged {
		r.nudged = false
		return event{kind: evNudged}
	}
	return event{kind: evWake}
}

// noticed is told by the watch that a node's key changed. Other keys, and the
// value as this process writes it, do not matter.
func (r *registrar) noticed(ev *clientv3.Event) {
	r.mu.Lock()
	if r.gen == 0 || string(ev.Kv.Key) != r.key() {
		r.mu.Unlock()
		return
	}
	n, err := decode(ev.Kv)
	if ev.Type == clientv3.EventTypePut && err == nil && n.BootID == r.node.BootID && ev.Kv.Lease == r.state.lease {
		r.mu.Unlock()
		return
	}
	r.nudged = true
	r.mu.Unlock()
	r.poke()
}

// doubt makes it look at the own key now.
func (r *registrar) doubt() {
	r.mu.Lock()
	r.nudged = true
	r.mu.Unlock()
	r.poke()
}

func (r *registrar) poke() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// key is where the record stands. The caller holds mu.
func (r *registrar) key() string { return r.prefix + string(r.node.ID) }

// boot is the boot id that was announced; "" = nothing was.
func (r *registrar) boot() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.node.BootID
}

// record is what is to be written: its number, key and value.
func (r *registrar) record() (gen int, n control.Node, key, value string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	b, err := json.Marshal(r.node)
	if err != nil {
		panic(fmt.Sprintf("control: a node record cannot be encoded: %v", err)) // it has strings, numbers and a time
	}
	return r.gen, r.node, r.key(), string(b)
}

// stats adds what the registration knows.
func (r *registrar) stats(s *control.Stats) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s.Registered = r.state.written != 0 && r.state.held(time.Now())
	s.LeaseLost, s.Repairs, s.Renewals, s.RenewFails = r.state.lost, r.state.repairs, r.state.renewals, r.state.renewFails
}

// do makes one call, or waits.
func (r *registrar) do(ctx context.Context, act action) event {
	var ev event
	var err error
	switch act.kind {
	case actWait:
		return r.wait(ctx, act.until)
	case actGrant:
		ev, err = r.grant(ctx)
	case actPut:
		ev, err = r.put(ctx, act)
	case actRenew:
		ev, err = r.renew(ctx, act)
	case actCheck:
		ev, err = r.check(ctx, act)
	case actProbe:
		ev = r.probe(ctx)
	case actClean, actRevoke:
		ev = r.revoke(ctx, act)
	}
	if err != nil && ctx.Err() == nil {
		r.log.Debug("registration", zap.Error(err))
	}
	r.mu.Lock()
	r.lastErr = err
	r.mu.Unlock()
	switch {
	case errors.Is(err, rpctypes.ErrLeaseNotFound):
		return event{kind: evLeaseGone}
	case err != nil:
		return event{kind: evFailed, did: act.kind}
	}
	return ev
}

func (r *registrar) wait(ctx context.Context, until time.Time) event {
	var due <-chan time.Time
	if !until.IsZero() {
		t := time.NewTimer(time.Until(until))
		defer t.Stop()
		due = t.C
	}
	select {
	case <-due:
	case <-r.wake:
	case <-ctx.Done():
	}
	return event{kind: evWake}
}

func (r *registrar) grant(ctx context.Context) (event, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	sent := time.Now()
	resp, err := r.client.Grant(ctx, seconds(r.timing.ttl))
	if err != nil {
		return event{}, fmt.Errorf("grant a lease: %w", err)
	}
	return event{kind: evGranted, lease: int64(resp.ID), ttl: time.Duration(resp.TTL) * time.Second, sent: sent}, nil
}

func (r *registrar) renew(ctx context.Context, act action) (event, error) {
	sent, ttl, err := renew(ctx, r.client, act.lease)
	if err != nil {
		return event{}, err
	}
	return event{kind: evRenewed, ttl: ttl, sent: sent}, nil
}

// put writes the record if the key is still as the action says. After a put
// whose answer was lost, the next one reads it back.
func (r *registrar) put(ctx context.Context, act action) (event, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	gen, _, key, value := r.record()
	resp, err := r.client.Txn(ctx).
		If(clientv3.Compare(clientv3.ModRevision(key), "=", act.rev)).
		Then(clientv3.OpPut(key, value, clientv3.WithLease(clientv3.LeaseID(act.lease)))).
		Else(clientv3.OpGet(key)).
		Commit()
	if err != nil {
		return event{}, fmt.Errorf("write the record: %w", err)
	}
	if resp.Succeeded {
		return event{kind: evWrote, gen: gen, rev: resp.Header.Revision}, nil
	}
	ev := r.found(evConflict, resp.Responses[0].GetResponseRange().Kvs, act.lease)
	if ev.owner == ownerUs && ev.same {
		return event{kind: evWrote, gen: gen, rev: ev.rev}, nil // by a put whose answer was lost
	}
	return ev, nil
}

func (r *registrar) check(ctx context.Context, act action) (event, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	_, _, key, _ := r.record()
	resp, err := r.client.Get(ctx, key)
	if err != nil {
		return event{}, fmt.Errorf("read the own record: %w", err)
	}
	return r.found(evChecked, resp.Kvs, act.lease), nil
}

// found says whose record is under our key.
func (r *registrar) found(kind eventKind, kvs []*mvccpb.KeyValue, lease leaseID) event {
	if len(kvs) == 0 {
		return event{kind: kind, owner: ownerNone}
	}
	kv := kvs[0]
	ev := event{kind: kind, rev: kv.ModRevision, lease: kv.Lease}
	_, ours, _, value := r.record()
	n, err := decode(kv)
	switch {
	case err != nil, n.BootID == "":
		ev.owner = ownerPast
		if kv.Lease == lease {
			ev.lease = 0 // written over ours by hand, under our own lease
		}
	case n.BootID == ours.BootID:
		ev.owner, ev.same = ownerUs, string(kv.Value) == value && kv.Lease == lease
	case sameAddress(n, ours):
		ev.owner = ownerPast
	default:
		ev.owner = ownerOther
		r.mu.Lock()
		r.rival = n
		r.mu.Unlock()
	}
	return ev
}

func (r *registrar) probe(ctx context.Context) event {
	r.mu.Lock()
	rival := r.rival
	r.mu.Unlock()
	if alive(ctx, rival) {
		return event{kind: evAlive}
	}
	r.log.Info("the record of a process that is gone stands under this node's id; taking it over",
		zap.String("address", addresses(rival)))
	return event{kind: evDead}
}

// revoke ends a lease. If it cannot, the lease ends by itself.
func (r *registrar) revoke(ctx context.Context, act action) event {
	ctx, cancel := context.WithTimeout(ctx, revokeLimit)
	defer cancel()
	_, err := r.client.Revoke(ctx, clientv3.LeaseID(act.lease))
	if err != nil && !errors.Is(err, rpctypes.ErrLeaseNotFound) {
		r.log.Debug("a lease could not be revoked and will expire", zap.Int64("lease", act.lease), zap.Error(err))
	}
	if act.kind == actClean {
		return event{kind: evCleaned}
	}
	return event{kind: evRevoked}
}
