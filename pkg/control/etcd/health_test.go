package etcd

import (
	"slices"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

func good(applied uint64) mark {
	return mark{asked: true, reachable: true, leader: 1, applied: applied}
}

func TestPreferred(t *testing.T) {
	tests := []struct {
		name string
		by   map[string]mark
		want []string
	}{
		{name: "before the first probe all are used", by: map[string]mark{}, want: []string{"a", "b", "c"}},
		{name: "good ones", by: map[string]mark{"a": good(9), "b": good(9), "c": good(8)}, want: []string{"a", "b", "c"}},
		{name: "one that does not answer is avoided", by: map[string]mark{"a": {asked: true, err: "refused"}, "b": good(9)}, want: []string{"b", "c"}},
		{name: "one without a leader", by: map[string]mark{"a": {asked: true, reachable: true}, "b": good(9), "c": good(9)}, want: []string{"b", "c"}},
		{name: "one that lags", by: map[string]mark{"a": good(1), "b": good(9000), "c": good(8999)}, want: []string{"b", "c"}},
		{name: "a learner", by: map[string]mark{"a": {asked: true, reachable: true, leader: 1, learner: true}, "b": good(1)}, want: []string{"b", "c"}},
		{name: "if none is good, all", by: map[string]mark{"a": {asked: true}, "b": {asked: true}, "c": {asked: true}}, want: []string{"a", "b", "c"}},
	}
	for _, tt := range tests {
		if got := (marks{urls: []string{"a", "b", "c"}, by: tt.by}).preferred(); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}

// A bad mark never outlives one good probe.
func TestMarkHeals(t *testing.T) {
	m := marks{urls: []string{"a", "b"}}.with("a", mark{asked: true}).with("b", good(1))
	if got := m.preferred(); !slices.Equal(got, []string{"b"}) {
		t.Fatalf("preferred %v", got)
	}
	if got := m.with("a", good(1)).preferred(); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("after one good probe: %v", got)
	}
}

func TestListChanges(t *testing.T) {
	m := marks{}.listed([]string{"a", "b"})
	if got := m.preferred(); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("the first list: %v", got)
	}
	m = m.with("a", good(1)).with("b", good(1)).listed([]string{"a", "c"})
	if got := m.preferred(); !slices.Equal(got, []string{"a"}) {
		t.Errorf("a new endpoint is used before it was asked: %v", got)
	}
	if got := m.with("c", good(1)).preferred(); !slices.Equal(got, []string{"a", "c"}) {
		t.Errorf("a new endpoint that is good: %v", got)
	}
}

func TestReadMark(t *testing.T) {
	k := readMark("a", &pb.StatusResponse{
		Header: &pb.ResponseHeader{MemberId: 7, Revision: 12}, Leader: 7, Version: "3.7.3", DbSize: 100, DbSizeQuota: 1000, RaftAppliedIndex: 5,
		Errors: []string{"memberID:1 alarm:NOSPACE ", "memberID:2 alarm:CORRUPT "},
	})
	if !k.reachable || !k.corrupt || k.stats.Alarms != 2 || !k.stats.Leader || k.stats.Revision != 12 || k.stats.DBQuota != 1000 {
		t.Errorf("read %+v", k)
	}
	if k := readMark("a", &pb.StatusResponse{Errors: []string{"etcdserver: no leader"}}); k.stats.Alarms != 0 || k.leader != 0 {
		t.Errorf("a member without a leader is read as %+v", k)
	}
}
