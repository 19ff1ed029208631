package settings

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/imdhq/imd/pkg/testenv"
	"github.com/imdhq/imd/proto/gen/adminv1"
	"github.com/imdhq/imd/proto/gen/adminv1/adminv1connect"
)

// nodes starts some nodes with all roles on three members of etcd.
func nodes(t testing.TB, n int) (*testenv.Etcd, []*testenv.Node) {
	t.Helper()
	c := testenv.StartEtcd(t, 3)
	var out []*testenv.Node
	for i := range n {
		out = append(out, testenv.Start(t, "--set", "controlplane.endpoints="+strings.Join(c.URLs(), ","),
			"--set", "controlplane.cluster=c", "--node-name", fmt.Sprint("n", i)))
	}
	return c, out
}

// list reads two settings of a node, at one revision.
func list(t testing.TB, s adminv1connect.SettingsServiceClient) (factor, members string, res *adminv1.ListSettingsResponse) {
	t.Helper()
	res, err := s.ListSettings(t.Context(), &adminv1.ListSettingsRequest{Keys: []string{"rate.factor", "receipt.max_members"}})
	if err != nil {
		t.Fatal(err)
	}
	return res.GetSettings()[0].GetValue(), res.GetSettings()[1].GetValue(), res
}

// Twenty changes a second are written past the tools, each of two settings of
// two sections in one revision; half of them are wrong in one way or another,
// old revisions are compacted, and the leader of etcd moves. No node ever has
// half of a change or a wrong one in force, all end alike and say so, and who is
// connected notices nothing.
func TestFloodOverACluster(t *testing.T) {
	t.Parallel()
	c, all := nodes(t, 2)
	var services []adminv1connect.SettingsServiceClient
	for _, n := range all {
		services = append(services, service(n))
	}
	ann := dial(t, all[0], "ann")
	wrong := []string{`{"all":{"rate.factor":"1000"}}`, `{"all":{"rate.factor":"fast"}}`, `{"all":{"rate.faktor":"2"}}`, `{`}
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	var good, last int64
	value := 0
	for i := range 60 {
		<-tick.C
		factor := fmt.Sprintf(`{"all":{"rate.factor":"%d"}}`, 1+i%9)
		if i%2 == 1 {
			factor = wrong[i/2%len(wrong)]
		}
		last = c.Put("/imd/c/config/rate", factor, "/imd/c/config/receipt", fmt.Sprintf(`{"all":{"receipt.max_members":"%d"}}`, 101+i%9))
		if i%2 == 0 {
			good, value = last, i%9
		}
		if i%20 == 10 {
			c.Compact()
		}
		if i == 30 {
			c.MoveLeader()
		}
		f, m, res := list(t, services[i%2])
		if res.GetRevision() > 0 && (len(f) != 1 || "10"+f != m) {
			t.Errorf("half of a change is in force: %s and %s", f, m)
		}
		ann.MustSend(testenv.ToUser("bob", fmt.Sprint(i)))
	}
	for i, s := range services {
		eventually(t, "the node has the last good change in force and tells of the wrong one", func() bool {
			f, m, res := list(t, s)
			return f == fmt.Sprint(1+value) && m == fmt.Sprint(101+value) && res.GetRefusedRevision() == last && res.GetRefusedReason() != ""
		})
		eventually(t, "all nodes report the same", func() bool {
			res, err := s.ListSettingsStatus(t.Context(), &adminv1.ListSettingsStatusRequest{})
			if err != nil || len(res.GetNodes()) != len(all) {
				return false
			}
			for _, n := range res.GetNodes() {
				if n.GetAppliedRevision() != good || n.GetRefusedRevision() != last || n.GetRefusedReason() == "" {
					return false
				}
			}
			return true
		})
		if v := all[i].Metric("imd_settings_drift_total"); v != 0 {
			t.Errorf("n%d: drift %v", i, v)
		}
	}
	if ann.Closed() {
		t.Error("a connection was closed")
	}
}

// How long a change takes, from the call at one node until five nodes have it in
// force, with three members of etcd.
func BenchmarkSettingApplied(b *testing.B) {
	_, all := nodes(b, 5)
	var services []adminv1connect.SettingsServiceClient
	for _, n := range all {
		services = append(services, service(n))
	}
	var took []time.Duration
	for b.Loop() {
		value := fmt.Sprint(101 + len(took)%100)
		began := time.Now()
		if _, err := set(b.Context(), services[len(took)%len(services)], "receipt.max_members", value); err != nil {
			b.Fatal(err)
		}
		for _, s := range services {
			for end := began.Add(20 * time.Second); ; {
				if _, members, _ := list(b, s); members == value {
					break
				}
				if time.Now().After(end) {
					b.Fatalf("%s is not in force everywhere", value)
				}
			}
		}
		took = append(took, time.Since(began))
	}
	testenv.ReportTimes(b, took)
}
