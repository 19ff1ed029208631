package etcd

import (
	"errors"
	"strings"
	"testing"
	"time"
)

// healthy is a cluster of three members without a fault.
func healthy() Facts {
	f := Facts{Members: 3, Writes: []time.Duration{time.Millisecond, 2 * time.Millisecond, 3 * time.Millisecond}}
	for _, u := range []string{"a", "b", "c"} {
		f.Endpoints = append(f.Endpoints, EndpointFacts{
			URL: u, Version: "3.7.3", Cluster: 1, Leader: 1, Rev: 500_000, DB: 100 << 20, Quota: 2 << 30,
			Metrics: true, Compacted: 400_000, Fsync: 2 * time.Millisecond, Commit: 4 * time.Millisecond,
		})
	}
	return f
}

// Whatever needs a leader is not waited for where nobody knows one.
func TestLeaderless(t *testing.T) {
	away, alone, led := EndpointFacts{Err: errors.New("refused"), Leader: 1}, EndpointFacts{}, EndpointFacts{Leader: 1}
	for _, tt := range []struct {
		all  []EndpointFacts
		want bool
	}{{[]EndpointFacts{away, away}, true}, {[]EndpointFacts{away, alone}, true}, {[]EndpointFacts{alone, led}, false}} {
		if got := (Facts{Endpoints: tt.all}).leaderless(); got != tt.want {
			t.Errorf("%+v: %v", tt.all, got)
		}
	}
}

func TestJudge(t *testing.T) {
	tests := []struct {
		name   string
		change func(*Facts)
		check  string
		want   Verdict
	}{
		{"healthy", func(*Facts) {}, "", Good},
		{"one member is away", func(f *Facts) { f.Endpoints[1].Err = errors.New("refused") }, "endpoints", Doubt},
		{"all are", func(f *Facts) {
			for i := range f.Endpoints {
				f.Endpoints[i].Err = errors.New("refused")
			}
			f.Writes, f.WriteErr = nil, errors.New("late")
		}, "endpoints", Failing},
		{"no leader", func(f *Facts) { f.Endpoints[0].Leader = 0 }, "quorum", Failing},
		{"no leader anywhere", func(f *Facts) { f.MemberErr, f.WriteErr = errNotTried, errNotTried }, "writes", Failing},
		{"two leaders", func(f *Facts) { f.Endpoints[0].Leader = 2 }, "quorum", Doubt},
		{"two clusters", func(f *Facts) { f.Endpoints[0].Cluster = 2 }, "quorum", Failing},
		{"one member", func(f *Facts) { f.Members, f.Endpoints = 1, f.Endpoints[:1] }, "members", Doubt},
		{"four members", func(f *Facts) { f.Members = 4 }, "members", Doubt},
		{"nine members", func(f *Facts) { f.Members = 9 }, "members", Doubt},
		{"endpoints for a part", func(f *Facts) { f.Members = 5 }, "members", Doubt},
		{"members that may not be listed", func(f *Facts) { f.MemberErr = errors.New("denied") }, "members", Doubt},
		{"an old version", func(f *Facts) { f.Endpoints[2].Version = "3.5.9" }, "version", Failing},
		{"just new enough", func(f *Facts) {
			for i := range f.Endpoints {
				f.Endpoints[i].Version = "3.5.13"
			}
		}, "version", Good},
		{"a mixture", func(f *Facts) { f.Endpoints[2].Version = "3.6.0-rc.1" }, "version", Doubt},
		{"no write", func(f *Facts) { f.WriteErr = errors.New("no space") }, "writes", Failing},
		{"slow writes", func(f *Facts) { f.Writes = []time.Duration{60 * time.Millisecond, 60 * time.Millisecond} }, "writes", Doubt},
		{"slow fsync", func(f *Facts) { f.Endpoints[0].Fsync = 16 * time.Millisecond }, "fsync", Doubt},
		{"very slow fsync", func(f *Facts) { f.Endpoints[0].Fsync = time.Second }, "fsync", Failing},
		{"slow commit", func(f *Facts) { f.Endpoints[0].Commit = 64 * time.Millisecond }, "commit", Doubt},
		{"a full database", func(f *Facts) { f.Endpoints[0].DB = 1900 << 20 }, "size", Failing},
		{"a large one", func(f *Facts) { f.Endpoints[0].DB = 1400 << 20 }, "size", Doubt},
		{"an unknown quota", func(f *Facts) { f.Endpoints[0].Quota, f.Endpoints[0].DB = 0, 1900<<20 }, "size", Failing},
		{"an alarm", func(f *Facts) { f.Alarms = []string{"NOSPACE of member 1"} }, "alarms", Failing},
		{"no compaction", func(f *Facts) { f.Endpoints[0].Compacted = -1 }, "compaction", Doubt},
		{"a young cluster", func(f *Facts) {
			for i := range f.Endpoints {
				f.Endpoints[i].Compacted, f.Endpoints[i].Rev = -1, 50
			}
		}, "compaction", Good},
		{"a clock that is off", func(f *Facts) { f.Endpoints[0].Skew = -5 * time.Second }, "clock", Doubt},
		{"far off", func(f *Facts) { f.Endpoints[0].Skew = time.Hour }, "clock", Failing},
		{"metrics that cannot be read", func(f *Facts) {
			for i := range f.Endpoints {
				f.Endpoints[i].Metrics = false
			}
		}, "clock", Doubt},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := healthy()
			tt.change(&f)
			for _, got := range f.Judge() {
				want := Good
				if got.Check == tt.check {
					want = tt.want
				}
				if got.Verdict != want && (got.Check == tt.check || tt.check == "") {
					t.Errorf("%s is %s, want %s: %s", got.Check, got.Verdict, want, got.Text)
				}
				if got.Verdict != Good && got.Fix == "" {
					t.Errorf("%s tells no way out: %s", got.Check, got.Text)
				}
			}
		})
	}
}

func TestParseMetrics(t *testing.T) {
	m := parseMetrics(strings.NewReader(`# HELP x y
etcd_debugging_mvcc_compact_revision 12
etcd_other{a="b"} 3
etcd_disk_wal_fsync_duration_seconds_bucket{le="0.001"} 50
etcd_disk_wal_fsync_duration_seconds_bucket{le="0.002"} 99
etcd_disk_wal_fsync_duration_seconds_bucket{le="+Inf"} 100
`))
	if m.values["etcd_debugging_mvcc_compact_revision"] != 12 {
		t.Errorf("values %v", m.values)
	}
	if got := m.p99("etcd_disk_wal_fsync_duration_seconds_bucket"); got != 2*time.Millisecond {
		t.Errorf("p99 %v", got)
	}
	if got := m.p99("nothing"); got != 0 {
		t.Errorf("p99 of nothing %v", got)
	}
}
