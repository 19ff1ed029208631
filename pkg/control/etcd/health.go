package etcd

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/imdhq/imd/pkg/backoff"
	"github.com/imdhq/imd/pkg/control"
	"github.com/imdhq/imd/pkg/failpoint"
)

const (
	probePeriod = 5 * time.Second         // between probes of endpoints
	statusLimit = 1500 * time.Millisecond // of one probe
)

// Health marks the endpoints of one client by what a probe finds, so that calls
// prefer good ones, and counts the calls. Give it to Dial and to New. Safe for
// concurrent use.
type Health struct {
	mu    sync.Mutex
	calls map[callKey]*control.CallStats
	marks marks
	hurry chan struct{} // capacity 1: a call failed, so look at all endpoints now
}

type callKey struct {
	method string
	class  control.Class
}

// NewHealth knows nothing yet.
func NewHealth() *Health {
	return &Health{calls: map[callKey]*control.CallStats{}, hurry: make(chan struct{}, 1)}
}

// mark is what the last probe of one endpoint found.
type mark struct {
	asked     bool
	reachable bool
	leader    uint64 // the member that it thinks leads; 0 = none
	member    uint64
	applied   uint64
	learner   bool
	corrupt   bool
	stats     control.EndpointStats
	err       string
}

// marks are all endpoints in the order of the configuration.
type marks struct {
	urls []string
	by   map[string]mark
}

// behindBy is how many entries of the log an endpoint may lack and still be
// good.
const behindBy = 5000

// reason is why an endpoint is not good, "" if it is. An endpoint that was not
// asked yet is good.
func (m marks) reason(url string) string {
	k := m.by[url]
	newest := uint64(0)
	for _, o := range m.by {
		newest = max(newest, o.applied)
	}
	switch {
	case !k.asked:
		return ""
	case !k.reachable:
		return "does not answer: " + k.err
	case k.leader == 0 && !failpoint.Bad(failpoint.NoRequireLeader):
		return "has no leader"
	case k.learner:
		return "is a learner"
	case k.corrupt:
		return "its data is corrupt"
	case k.applied+behindBy < newest:
		return "lags behind"
	}
	return ""
}

// preferred lists the good endpoints, or all if none is good: a wrong mark must
// not cut us off.
func (m marks) preferred() []string {
	var good []string
	for _, u := range m.urls {
		if m.reason(u) == "" {
			good = append(good, u)
		}
	}
	if len(good) == 0 {
		return m.urls
	}
	return good
}

// with is a copy in which one endpoint has a new mark.
func (m marks) with(url string, k mark) marks {
	by := maps.Clone(m.by)
	if by == nil {
		by = map[string]mark{}
	}
	by[url] = k
	return marks{urls: m.urls, by: by}
}

// listed is a copy with other endpoints. Those that stay keep their marks; a new
// one is not used before a probe found it good.
func (m marks) listed(urls []string) marks {
	by := make(map[string]mark, len(urls))
	for _, u := range urls {
		k, known := m.by[u]
		if !known && len(m.urls) > 0 && !slices.Contains(m.urls, u) {
			k = mark{asked: true, err: "not asked yet"}
		}
		by[u] = k
	}
	return marks{urls: urls, by: by}
}

// read turns an answer into a mark.
func readMark(url string, s *pb.StatusResponse) mark {
	k := mark{asked: true, reachable: true, leader: s.Leader, member: s.Header.GetMemberId(), applied: s.RaftAppliedIndex, learner: s.IsLearner}
	k.stats = control.EndpointStats{
		URL: url, Version: s.Version, Leader: s.Leader != 0 && s.Leader == k.member, Revision: s.Header.GetRevision(),
		DBBytes: s.DbSize, DBInUse: s.DbSizeInUse, DBQuota: s.DbSizeQuota, RaftIndex: s.RaftAppliedIndex,
	}
	for _, e := range s.Errors {
		if strings.Contains(e, "no leader") {
			continue // told by leader as well
		}
		k.stats.Alarms++
		k.corrupt = k.corrupt || strings.Contains(e, "CORRUPT")
	}
	return k
}

// prober keeps the marks of one client current.
type prober struct {
	h      *Health
	client *clientv3.Client
	all    []string // of the configuration
	follow bool     // add the members that the cluster names
	every  time.Duration
	log    *zap.Logger
	conns  map[string]*grpc.ClientConn
	next   int // the endpoint that a quiet round asks
	synced time.Time
}

func newProber(h *Health, c *clientv3.Client, follow bool, every time.Duration, log *zap.Logger) *prober {
	p := &prober{h: h, client: c, all: c.Endpoints(), follow: follow, every: every, log: log, conns: map[string]*grpc.ClientConn{}}
	h.mu.Lock()
	h.marks = h.marks.listed(p.all)
	h.mu.Unlock()
	return p
}

// run probes until ctx is done. While all is well it asks one endpoint after the
// other, one each period; else all of them, and at once when a call fails.
func (p *prober) run(ctx context.Context) {
	defer p.close()
	tick := time.NewTicker(p.every)
	defer tick.Stop()
	p.round(ctx, true)
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			p.round(ctx, false)
		case <-p.h.hurry:
			p.round(ctx, true)
			select { // one hurried round a second is enough
			case <-ctx.Done():
				return
			case <-time.After(time.Second):
			}
		}
	}
}

func (p *prober) close() {
	for _, c := range p.conns {
		_ = c.Close()
	}
}

// round asks one endpoint, or all, and moves the client to the good ones.
func (p *prober) round(ctx context.Context, all bool) {
	if p.follow {
		p.sync(ctx)
	}
	p.h.mu.Lock()
	m := p.h.marks
	p.h.mu.Unlock()
	ask := m.urls
	if !all && len(m.preferred()) == len(m.urls) && len(m.urls) > 0 {
		ask = []string{m.urls[p.next%len(m.urls)]}
		p.next++
	}
	found := make([]mark, len(ask))
	var wg sync.WaitGroup
	for i, u := range ask {
		conn, err := p.conn(u)
		if err != nil {
			found[i] = mark{asked: true, err: err.Error()}
			continue
		}
		wg.Go(func() { found[i] = askStatus(ctx, u, conn) })
	}
	wg.Wait()
	if ctx.Err() != nil {
		return
	}
	p.take(ask, found)
}

func (p *prober) conn(url string) (*grpc.ClientConn, error) {
	if c := p.conns[url]; c != nil {
		return c, nil
	}
	c, err := p.client.Dial(url)
	if err == nil {
		p.conns[url] = c
	}
	return c, err
}

func askStatus(ctx context.Context, url string, conn *grpc.ClientConn) mark {
	ctx, cancel := context.WithTimeout(ctx, statusLimit)
	defer cancel()
	resp, err := pb.NewMaintenanceClient(conn).Status(ctx, &pb.StatusRequest{})
	if err != nil {
		return mark{asked: true, err: short(err)}
	}
	return readMark(url, resp)
}

// selfURL stands for the server in this process.
const selfURL = "embedded"

// inProcess asks the server in this process, until ctx is done.
func (d *Driver) inProcess(ctx context.Context) {
	for ctx.Err() == nil {
		sctx, cancel := context.WithTimeout(ctx, statusLimit)
		resp, err := d.client.Status(sctx, "")
		cancel()
		k := mark{asked: true}
		if err == nil {
			k = readMark(selfURL, (*pb.StatusResponse)(resp))
		} else {
			k.err = short(err)
		}
		m := marks{urls: []string{selfURL}}.with(selfURL, k)
		d.self.Store(&m)
		_ = backoff.Sleep(ctx, d.timing.probe) // the loop looks at ctx
	}
}

// short is the innermost cause of an error of a call.
func short(err error) string {
	text := err.Error()
	if i := strings.LastIndex(text, "desc = "); i >= 0 {
		text = strings.Trim(text[i+len("desc = "):], `"`)
	}
	return text
}

// take stores marks and, if the good endpoints are others now, moves the client
// to them. Connections to the others are closed when their calls have ended.
func (p *prober) take(urls []string, found []mark) {
	p.h.mu.Lock()
	before := p.h.marks
	m := before
	for i, u := range urls {
		m = m.with(u, found[i])
	}
	p.h.marks = m
	p.h.mu.Unlock()
	for _, u := range m.urls {
		if was, is := before.reason(u), m.reason(u); (was == "") != (is == "") {
			p.log.Info("an etcd endpoint changed", zap.String("endpoint", u), zap.Bool("good", is == ""), zap.String("reason", is))
		}
	}
	want, have := m.preferred(), p.client.Endpoints()
	slices.Sort(have)
	if !slices.Equal(slices.Sorted(slices.Values(want)), have) {
		p.client.SetEndpoints(want...)
	}
}

// syncPeriod is between two looks at the members of the cluster.
const syncPeriod = time.Minute

// sync adds the members that the cluster names to those of the configuration,
// and drops them when they leave it.
func (p *prober) sync(ctx context.Context) {
	if !p.synced.IsZero() && time.Since(p.synced) < syncPeriod {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	resp, err := p.client.MemberList(ctx)
	if err != nil {
		return // the next round tries again
	}
	p.synced = time.Now()
	urls := slices.Clone(p.all)
	secure := strings.HasPrefix(p.all[0], "https://")
	for _, m := range resp.Members {
		for _, u := range m.ClientURLs {
			if !m.IsLearner && !slices.Contains(urls, u) && strings.HasPrefix(u, "https://") == secure {
				urls = append(urls, u)
			}
		}
	}
	p.h.mu.Lock()
	p.h.marks = p.h.marks.listed(urls)
	p.h.mu.Unlock()
	for u, c := range p.conns {
		if !slices.Contains(urls, u) {
			_ = c.Close()
			delete(p.conns, u)
		}
	}
}

// stats adds what is known of calls and endpoints.
func (h *Health) stats(s *control.Stats) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range h.calls {
		s.Calls = append(s.Calls, *c)
	}
	s.Endpoints = h.marks.stats()
}

// stats shows all endpoints.
func (m marks) stats() []control.EndpointStats {
	out := make([]control.EndpointStats, 0, len(m.urls))
	for _, u := range m.urls {
		e := m.by[u].stats
		e.URL, e.Reason = u, m.reason(u)
		e.Good = e.Reason == ""
		out = append(out, e)
	}
	return out
}

// observe counts one call. One that its own caller has given up tells nothing.
func (h *Health) observe(ctx context.Context, method string, took time.Duration, err error) {
	if errors.Is(ctx.Err(), context.Canceled) {
		return
	}
	class := Classify(err)
	h.mu.Lock()
	k := callKey{strings.TrimPrefix(method, "/etcdserverpb."), class}
	c := h.calls[k]
	if c == nil {
		c = &control.CallStats{Method: k.method, Class: class}
		h.calls[k] = c
	}
	c.Count++
	c.Total += took
	for i, b := range control.CallBounds {
		if took <= b {
			c.Buckets[i]++
		}
	}
	h.mu.Unlock()
	if class == control.ClassUnknown || class == control.ClassRetry {
		select {
		case h.hurry <- struct{}{}:
		default:
		}
	}
}

// unary measures calls.
func (h *Health) unary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	if strings.HasSuffix(method, "Maintenance/Status") {
		return invoke(ctx, method, req, reply, cc, opts...) // a probe counts itself
	}
	start := time.Now()
	err := invoke(ctx, method, req, reply, cc, opts...)
	h.observe(ctx, method, time.Since(start), err)
	return err
}

// stream measures until the first answer, which is all of a renewal and the
// opening of a watch.
func (h *Health) stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	start := time.Now()
	s, err := open(ctx, desc, cc, method, opts...)
	if err != nil {
		h.observe(ctx, method, time.Since(start), err)
		return nil, err
	}
	return &timedStream{ClientStream: s, first: func(err error) { h.observe(ctx, method, time.Since(start), err) }}, nil
}

// timedStream tells of its first answer.
type timedStream struct {
	grpc.ClientStream
	once  sync.Once
	first func(error)
}

// RecvMsg receives.
func (t *timedStream) RecvMsg(m any) error {
	err := t.ClientStream.RecvMsg(m)
	t.once.Do(func() { t.first(err) })
	return err
}
