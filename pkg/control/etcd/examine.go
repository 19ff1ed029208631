package etcd

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// Facts are what an examination of a cluster found.
type Facts struct {
	Endpoints []EndpointFacts
	Members   int   // that vote
	Learners  int   // that do not yet
	MemberErr error // why the members could not be asked
	Alarms    []string
	Writes    []time.Duration // what some small writes took
	WriteErr  error           // why no write was possible
}

// EndpointFacts are about one endpoint.
type EndpointFacts struct {
	URL     string
	Err     error // why it did not answer; nil = it did
	Version string
	Cluster uint64
	Leader  uint64 // 0 = it knows none
	Learner bool
	Rev     int64
	DB      int64 // bytes of the database file
	Quota   int64 // bytes at which writes stop; 0 = not told

	Metrics   bool          // its metrics could be read; the rest is from there
	Compacted float64       // newest revision that was compacted away
	Fsync     time.Duration // p99 of writes to its log
	Commit    time.Duration // p99 of commits to its database
	Resident  float64       // bytes of memory
	Skew      time.Duration // its clock less ours, to a second
}

// testWrites is how many small writes an examination makes.
const testWrites = 10

// Examine asks an etcd cluster what matters for its health. It writes ten times
// to one key below the cluster's prefix and removes it. An error means that
// the endpoints cannot be used at all; what does not answer is in the facts.
func Examine(ctx context.Context, e Endpoints, cluster string, log *zap.Logger) (Facts, error) {
	c, err := Dial(e, log)
	if err != nil {
		return Facts{}, err
	}
	defer c.Close()
	secure, err := e.tls()
	if err != nil {
		return Facts{}, err
	}
	tr := &http.Transport{TLSClientConfig: secure} // no Proxy: variables of the environment are ignored
	defer tr.CloseIdleConnections()
	hc := &http.Client{Transport: tr, Timeout: callLimit}
	f := Facts{Endpoints: make([]EndpointFacts, len(e.URLs))}
	var wg sync.WaitGroup
	for i, u := range e.URLs {
		wg.Go(func() { f.Endpoints[i] = examineEndpoint(ctx, c, hc, u) })
	}
	wg.Wait()
	if f.leaderless() { // both would wait until their time is over, and then tell less
		f.MemberErr, f.WriteErr = errNotTried, errNotTried
		return f, nil
	}
	f.askMembers(ctx, c)
	f.tryWrites(ctx, c, "/imd/"+cluster+"/doctor")
	return f, nil
}

// errNotTried is why a cluster without a leader is asked nothing that needs one.
var errNotTried = errors.New("not tried, for there is no leader")

// leaderless reports whether nobody who answers knows a leader.
func (f Facts) leaderless() bool {
	return !slices.ContainsFunc(f.Endpoints, func(e EndpointFacts) bool { return e.Err == nil && e.Leader != 0 })
}

func examineEndpoint(ctx context.Context, c *clientv3.Client, hc *http.Client, url string) EndpointFacts {
	e := EndpointFacts{URL: url}
	sctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	s, err := c.Status(sctx, url)
	if err != nil {
		e.Err = fmt.Errorf("%s", short(err))
		return e
	}
	e.Version, e.Leader, e.Learner, e.DB, e.Quota = s.Version, s.Leader, s.IsLearner, s.DbSize, s.DbSizeQuota
	e.Cluster, e.Rev = s.Header.GetClusterId(), s.Header.GetRevision()
	e.readMetrics(ctx, hc)
	return e
}

// readMetrics reads what the server tells over HTTP, if it can be had.
func (e *EndpointFacts) readMetrics(ctx context.Context, hc *http.Client) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimRight(e.URL, "/")+"/metrics", nil)
	if err != nil {
		return
	}
	asked := time.Now()
	resp, err := hc.Do(req)
	if err != nil {
		return
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return
	}
	if date, err := http.ParseTime(resp.Header.Get("Date")); err == nil {
		e.Skew = date.Add(500 * time.Millisecond).Sub(asked.Add(time.Since(asked) / 2)) // the header has whole seconds
	}
	m := parseMetrics(io.LimitReader(resp.Body, 4<<20))
	e.Metrics = true
	e.Compacted, e.Resident = m.values["etcd_debugging_mvcc_compact_revision"], m.values["process_resident_memory_bytes"]
	e.Fsync = m.p99("etcd_disk_wal_fsync_duration_seconds_bucket")
	e.Commit = m.p99("etcd_disk_backend_commit_duration_seconds_bucket")
	if q := m.values["etcd_server_quota_backend_bytes"]; e.Quota == 0 && q > 0 {
		e.Quota = int64(q)
	}
}

// metricText is a page of metrics: plain values, and the buckets of histograms.
type metricText struct {
	values  map[string]float64
	buckets map[string][]bucket
}

type bucket struct{ le, count float64 }

// parseMetrics reads the text format, as far as it is needed here.
func parseMetrics(r io.Reader) metricText {
	m := metricText{values: map[string]float64{}, buckets: map[string][]bucket{}}
	for s := bufio.NewScanner(r); s.Scan(); {
		name, text, ok := strings.Cut(s.Text(), " ")
		value, err := strconv.ParseFloat(text, 64)
		if !ok || err != nil || strings.HasPrefix(name, "#") {
			continue
		}
		base, labels, _ := strings.Cut(name, "{")
		if le, ok := strings.CutPrefix(labels, `le="`); ok {
			if bound, err := strconv.ParseFloat(strings.TrimSuffix(le, `"}`), 64); err == nil {
				m.buckets[base] = append(m.buckets[base], bucket{bound, value})
			}
			continue
		}
		if labels == "" {
			m.values[base] = value
		}
	}
	return m
}

// p99 is the bound of the bucket that holds the 99th percentile; 0 = no calls.
func (m metricText) p99(name string) time.Duration {
	b := m.buckets[name]
	if len(b) == 0 || b[len(b)-1].count == 0 {
		return 0
	}
	all := b[len(b)-1].count
	for _, k := range b {
		if k.count >= 0.99*all {
			if math.IsInf(k.le, 1) {
				return time.Minute
			}
			return time.Duration(k.le * float64(time.Second))
		}
	}
	return 0
}

func (f *Facts) askMembers(ctx context.Context, c *clientv3.Client) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	resp, err := c.MemberList(ctx)
	if err != nil {
		f.MemberErr = fmt.Errorf("%s", short(err))
		return
	}
	for _, m := range resp.Members {
		if m.IsLearner {
			f.Learners++
		} else {
			f.Members++
		}
	}
	alarms, err := c.AlarmList(ctx)
	if err != nil {
		f.MemberErr = fmt.Errorf("%s", short(err))
		return
	}
	for _, a := range alarms.Alarms {
		if a.Alarm != pb.AlarmType_NONE {
			f.Alarms = append(f.Alarms, fmt.Sprintf("%s of member %x", a.Alarm, a.MemberID))
		}
	}
}

// tryWrites measures some writes to one key.
func (f *Facts) tryWrites(ctx context.Context, c *clientv3.Client, key string) {
	ctx, cancel := context.WithTimeout(ctx, 2*callLimit)
	defer cancel()
	for range testWrites {
		start := time.Now()
		if _, err := c.Put(ctx, key, ""); err != nil {
			f.WriteErr = fmt.Errorf("%s", short(err))
			return
		}
		f.Writes = append(f.Writes, time.Since(start))
	}
	slices.Sort(f.Writes)
	if _, err := c.Delete(ctx, key); err != nil {
		f.WriteErr = fmt.Errorf("%s", short(err))
	}
}
