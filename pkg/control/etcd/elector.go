package etcd

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/control"
	"github.com/imdhq/imd/pkg/im"
)

const (
	wishSuffix = "/wish"
	wishTTL    = 3                // s; a wish that nobody fulfils ends by itself
	keepGone   = 10 * time.Second // a leader that has left stays in view
)

// wish asks a leader to resign. It is stored as JSON.
type wish struct {
	To  im.NodeID `json:"to,omitempty"` // who is to follow; "" = anybody else
	For int64     `json:"for"`          // create revision of the key of the leader that is asked
}

// departed is the last known leader of an election.
type departed struct {
	leader control.Leader
	at     time.Time // when it was seen to be gone; zero = it is there
}

// elector runs the elections of one process. The keys of all elections of the
// cluster are followed once.
type elector struct {
	client  *clientv3.Client
	prefix  string
	timing  electionTiming
	host    string
	publish func(*control.Leaders)
	log     *zap.Logger
	http    *http.Client
	wg      sync.WaitGroup // Lead and vigils
	known   chan struct{}  // closed when node is set

	mu         sync.Mutex
	node       control.Node // announced last
	cur        *sight       // nil = nothing was read yet
	candidates map[string]*candidate
	past       map[string]control.ElectionStats // of campaigns that ended
	gone       map[string]departed
	forget     *time.Timer // publishes again when a leader that has left is to be forgotten
	closed     bool
	standing   chan struct{} // closed when the number of candidates becomes 0 or more
}

// sight is a copy of the keys of all elections. It is never changed.
type sight struct {
	replica
	stale bool // etcd cannot be reached
}

func newElector(c *clientv3.Client, prefix string, et electionTiming, publish func(*control.Leaders), log *zap.Logger) *elector {
	return &elector{
		client: c, prefix: prefix, timing: et, host: hostName(), publish: publish, log: log,
		http: newVigilClient(), known: make(chan struct{}), candidates: map[string]*candidate{},
		past: map[string]control.ElectionStats{}, gone: map[string]departed{}, standing: make(chan struct{}),
	}
}

// own reports whether this process must see the keys with its own eyes, which a
// candidate must: what others hand on comes later, and may not come at all. The
// channel is closed when that changes.
func (e *elector) own() (bool, <-chan struct{}) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.candidates) > 0, e.standing
}

// stand notes that the first candidate came or the last one left. The caller
// holds mu.
func (e *elector) stand() {
	close(e.standing)
	e.standing = make(chan struct{})
}

// close waits for what campaigns have started.
func (e *elector) close() {
	e.mu.Lock()
	e.closed = true
	if e.forget != nil {
		e.forget.Stop()
	}
	e.mu.Unlock()
	e.wg.Wait()
}

// announced notes what this process says of itself.
func (e *elector) announced(n control.Node) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.node.BootID == "" && n.BootID != "" {
		close(e.known)
	}
	e.node = n
}

// holder is how the fence knows this process.
func (e *elector) holder() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return string(e.node.ID) + "/" + e.node.BootID
}

// record is what a key of ours says.
func (e *elector) record(name string) control.Leader {
	e.mu.Lock()
	defer e.mu.Unlock()
	return control.Leader{Name: name, Node: e.node.ID, BootID: e.node.BootID, Address: e.node.Ops, Host: e.host, Since: time.Now().UTC().Truncate(time.Millisecond)}
}

func (e *elector) sight() *sight {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.cur
}

// campaign is control.Elector's Campaign.
func (e *elector) campaign(ctx context.Context, c control.Candidacy) error {
	if err := control.CheckName(c.Name); err != nil {
		return err
	}
	select {
	case <-e.known: // who we are belongs into the key
	case <-ctx.Done():
		return nil
	}
	one := &candidate{
		Candidacy: c, elector: e, key: e.prefix + c.Name, log: e.log.With(zap.String("election", c.Name)),
		wake: make(chan struct{}, 1), state: election{timing: e.timing},
	}
	if err := e.enter(one); err != nil {
		return err
	}
	defer e.leave(one)
	one.run(ctx)
	return nil
}

func (e *elector) enter(c *candidate) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return errEnded
	}
	if e.candidates[c.Name] != nil {
		return fmt.Errorf("control: this process takes part in the election %q already", c.Name)
	}
	e.candidates[c.Name] = c
	if len(e.candidates) == 1 {
		e.stand()
	}
	c.seen = e.cur
	return nil
}

func (e *elector) leave(c *candidate) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.past[c.Name] = add(e.past[c.Name], c.stats())
	delete(e.candidates, c.Name)
	if len(e.candidates) == 0 {
		e.stand()
	}
}

// ended is closed when this process's term in the election ends; nil if it does
// not lead.
func (e *elector) ended(name string) <-chan struct{} {
	e.mu.Lock()
	c := e.candidates[name]
	e.mu.Unlock()
	if c == nil {
		return nil
	}
	return c.leading()
}

// took takes in a copy of all keys.
func (e *elector) took(u update) error {
	e.changed(&sight{replica: u.next})
	return nil
}

// away takes in that etcd cannot be reached.
func (e *elector) away() {
	e.mu.Lock()
	cur := e.cur
	e.mu.Unlock()
	if cur != nil {
		e.changed(&sight{replica: cur.replica, stale: true})
	}
}

// changed hands a copy of all keys on.
func (e *elector) changed(t *sight) {
	e.mu.Lock()
	e.cur = t
	all := slices.Collect(maps.Values(e.candidates))
	e.mu.Unlock()
	for _, c := range all {
		c.notice(t)
	}
	e.show()
}

// show publishes the leaders. Those that have left stay for a while.
func (e *elector) show() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed || e.cur == nil {
		return
	}
	now := time.Now()
	out := &control.Leaders{Revision: e.cur.rev, Stale: e.cur.stale}
	for k, kv := range e.cur.records {
		l, err := leaderOf(kv)
		name := strings.TrimPrefix(k, e.prefix)
		if strings.HasSuffix(k, wishSuffix) || err != nil || l.Name != name {
			continue
		}
		out.All = append(out.All, l)
		e.gone[name] = departed{leader: l}
	}
	var wait time.Duration
	for name, d := range e.gone {
		if _, there := out.Of(name); there {
			continue
		}
		if d.at.IsZero() {
			d.at, d.leader.Gone = now, true
			e.gone[name] = d
		}
		left := keepGone - now.Sub(d.at)
		if left <= 0 {
			delete(e.gone, name)
			continue
		}
		wait = max(wait, left)
		out.All = append(out.All, d.leader)
	}
	slices.SortFunc(out.All, func(a, b control.Leader) int { return strings.Compare(a.Name, b.Name) })
	if wait > 0 {
		if e.forget != nil {
			e.forget.Stop()
		}
		e.forget = time.AfterFunc(wait, e.show)
	}
	e.publish(out)
}

// leaderOf reads the record of a leader.
func leaderOf(r record) (control.Leader, error) {
	var l control.Leader
	err := json.Unmarshal(r.raw, &l)
	return l, err
}

// saw says what a copy of the keys means to a candidate of this process.
func (e *elector) saw(key string, t *sight) electionEvent {
	k := t.records[key]
	ev := electionEvent{kind: evSeen, rev: t.rev, create: k.create, lease: k.lease, cluster: clusterID(t.cluster)}
	raw, ok := t.records[key+wishSuffix]
	var w wish
	if !ok || json.Unmarshal(raw.raw, &w) != nil {
		return ev
	}
	e.mu.Lock()
	us := e.node.ID
	e.mu.Unlock()
	ev.wishFor = w.For
	switch w.To {
	case "":
		ev.wish = wishAny
	case us:
		ev.wish = wishMe
	default:
		ev.wish = wishElse
	}
	return ev
}

// transfer is control.Elector's Transfer. A wish is written only while the
// leader that it is for still leads.
func (e *elector) transfer(ctx context.Context, name string, to im.NodeID) (control.Leader, error) {
	if err := control.CheckName(name); err != nil {
		return control.Leader{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	key := e.prefix + name
	resp, err := e.client.Get(ctx, key)
	if err != nil {
		return control.Leader{}, fmt.Errorf("control: read the leader of %s: %w", name, err)
	}
	if len(resp.Kvs) == 0 {
		return control.Leader{}, fmt.Errorf("election %q: %w", name, control.ErrNoLeader)
	}
	kv := resp.Kvs[0]
	l, err := leaderOf(record{raw: kv.Value})
	if err == nil && to != "" && l.Node == to {
		return l, nil
	}
	asked, err := e.ask(ctx, key, wish{To: to, For: kv.CreateRevision})
	if err != nil {
		return control.Leader{}, fmt.Errorf("control: ask the leader of %s: %w", name, err)
	}
	if !asked {
		return control.Leader{}, fmt.Errorf("election %q: the leader has just changed: %w", name, control.ErrNoLeader)
	}
	return l, nil
}

// ask writes a wish, under a lease; false = its leader has left.
func (e *elector) ask(ctx context.Context, key string, w wish) (bool, error) {
	b, err := json.Marshal(w)
	if err != nil {
		return false, err
	}
	g, err := e.client.Grant(ctx, wishTTL)
	if err != nil {
		return false, err
	}
	done, err := e.client.Txn(ctx).
		If(clientv3.Compare(clientv3.CreateRevision(key), "=", w.For)).
		Then(clientv3.OpPut(key+wishSuffix, string(b), clientv3.WithLease(g.ID))).
		Commit()
	if err != nil {
		return false, err
	}
	return done.Succeeded, nil
}

// stats adds what the elections have counted.
func (e *elector) stats(s *control.Stats) {
	e.mu.Lock()
	defer e.mu.Unlock()
	s.Elections = maps.Clone(e.past)
	for name, c := range e.candidates {
		s.Elections[name] = add(e.past[name], c.stats())
	}
}

func (c *candidate) stats() control.ElectionStats {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := control.ElectionStats{Leading: c.state.acting, Terms: c.state.terms, Forced: c.state.forced, Fenced: c.state.fenced, Ends: c.state.ends}
	if s.Leading {
		s.Token = c.state.token
	}
	return s
}

// add sums up what two campaigns counted; b is the later one.
func add(a, b control.ElectionStats) control.ElectionStats {
	sum := control.ElectionStats{Leading: b.Leading, Token: b.Token, Terms: a.Terms + b.Terms, Forced: a.Forced + b.Forced,
		Fenced: a.Fenced + b.Fenced, Ends: map[string]uint64{}}
	for _, m := range []map[string]uint64{a.Ends, b.Ends} {
		for k, n := range m {
			sum.Ends[k] += n
		}
	}
	return sum
}
