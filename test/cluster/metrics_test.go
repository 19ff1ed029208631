package cluster

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/imdhq/imd/pkg/testenv"
)

var metricName = regexp.MustCompile(`\b(imd|etcd|process|go)_[a-z_]+[a-z]\b`)

// families are the metrics of a page, by the name that rules use.
func families(page string) map[string]bool {
	out := map[string]bool{}
	for line := range strings.Lines(page) {
		if f := strings.Fields(line); len(f) == 4 && f[0] == "#" && f[1] == "TYPE" {
			out[f[2]] = true
			if f[3] == "histogram" {
				for _, suffix := range []string{"_bucket", "_count", "_sum"} {
					out[f[2]+suffix] = true
				}
			}
		}
	}
	return out
}

// The metrics that tell how the control plane fares are there on a running node
// with a cluster, and on a member of `imd etcd`; alert rules name no others.
func TestMetricsAreThere(t *testing.T) {
	m := testenv.StartEtcd(t, 1).Members[0]
	n := testenv.Start(t, "--set", "controlplane.endpoints="+m.URL, "--set", "controlplane.cluster=c")
	var node, member map[string]bool
	eventually(t, "the node knows its endpoints and has asked to lead", testenv.ReadyIn, func() bool {
		node, member = families(testenv.Page(n.OpsURL()+"/metrics")), families(testenv.Page(m.URL+"/metrics"))
		return node["imd_etcd_member_revision"] && node["imd_etcd_call_seconds_count"] && node["imd_election_leading"] && node["imd_election_token"]
	})
	want := func(of string, have map[string]bool, names ...string) {
		t.Helper()
		for _, name := range names {
			if !have[name] {
				t.Errorf("%s has no %s", of, name)
			}
		}
	}
	want("a node", node,
		"imd_etcd_renewals_total", "imd_etcd_lease_lost_total", "imd_etcd_watch_resyncs_total", "imd_discovery_drift_total", // the registration and the copies
		"imd_discovery_suspects_total", "imd_discovery_held_total", "imd_discovery_evicted_total",
		"imd_etcd_watches", "imd_relay_waiting", "imd_etcd_revision_lag", "imd_etcd_view_age_seconds",
		"imd_election_leading", "imd_election_token", "imd_election_terms_total", "imd_election_ends_total",
		"imd_settings_revision", "imd_settings_refused_revision", "imd_settings_refused_total", "imd_settings_gaps_total",
		"imd_etcd_call_seconds_count", "imd_etcd_member_revision", "imd_etcd_member_db_bytes", "imd_etcd_member_db_quota_bytes",
		"process_resident_memory_bytes")
	want("a member", member,
		"etcd_debugging_mvcc_current_revision", "etcd_debugging_mvcc_watch_stream_total", "etcd_debugging_mvcc_watcher_total", // growth and watches
		"etcd_debugging_mvcc_slow_watcher_total", "etcd_debugging_mvcc_pending_events_total", // what they have not heard yet
		"etcd_debugging_lease_granted_total", "etcd_debugging_lease_revoked_total", "etcd_debugging_server_lease_expired_total",
		"etcd_mvcc_db_total_size_in_bytes", "etcd_server_quota_backend_bytes", "process_resident_memory_bytes")
	labelled := testenv.Page(n.OpsURL() + "/metrics")
	for _, class := range []string{`class="ok"`, `method="`} {
		if !strings.Contains(labelled, class) {
			t.Errorf("calls are not told by %s", class)
		}
	}
	files, err := filepath.Glob(filepath.Join("..", "..", "deploy", "alerts-*.yml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no rules: %v", err)
	}
	documented, err := os.ReadFile(filepath.Join("..", "..", "docs", "operations.md")) // those of parts that this node does not have
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		rules(t, file, func(alert, expr string) {
			for _, name := range metricName.FindAllString(expr, -1) {
				have := node
				if strings.HasPrefix(name, "etcd_") {
					have = member
				}
				if !have[name] && !strings.Contains(string(documented), "| `"+name+"` |") {
					t.Errorf("%s: %s uses %s, which nothing has", filepath.Base(file), alert, name)
				}
			}
		})
	}
}

// rules calls f for each rule of a file.
func rules(t *testing.T, file string, f func(alert, expr string)) {
	t.Helper()
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var all struct {
		Groups []struct {
			Rules []struct{ Alert, Expr string }
		}
	}
	if err := yaml.Unmarshal(raw, &all); err != nil {
		t.Fatal(err)
	}
	for _, g := range all.Groups {
		for _, r := range g.Rules {
			f(r.Alert, r.Expr)
		}
	}
}
