package cmd

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"github.com/imdhq/imd/modules/controlplane"
	"github.com/imdhq/imd/modules/storage"
	"github.com/imdhq/imd/pkg/control/etcd"
	"github.com/imdhq/imd/pkg/store/postgres"
)

func newDoctor(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Examine what a node with this configuration would depend on",
		Long: `Doctor reads the configuration as serve does, goes out to what it names, and
prints one line a check, with what to do where something is wrong. It starts
nothing and may run beside a node. Of an etcd cluster it judges reach, quorum,
members, version, write, fsync and commit latency, size, alarms, compaction and
clocks; it writes one key a few times and removes it. Of a Postgres it judges
version, encoding, durability, standbys, connections, poolers, clock, distance, TLS
and schema;
of Redis reach, login, latency, version, role and eviction policy; it changes
nothing in either.

Exit status: 0 if nothing fails (warnings are no failure), 1 if something does,
78 if the configuration is wrong.`,
		Example: "  imd doctor --config imd.yaml\n  imd doctor --set controlplane.endpoints=http://10.0.0.1:2379,http://10.0.0.2:2379,http://10.0.0.3:2379",
		Args:    cobra.NoArgs,
	}
	s := addSettings(a, c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		cfg, err := s.load()
		if err != nil {
			return err
		}
		ctx, cancel := a.bounded(c.Context())
		defer cancel()
		found, err := a.examine(ctx, cfg)
		if err != nil {
			return err
		}
		if err := a.printer().data(map[string]any{"findings": found}, func(w io.Writer) { printFindings(w, found) }); err != nil {
			return err
		}
		for _, f := range found {
			if f.Verdict == etcd.Failing {
				return &failure{Exit: exitFailed, Code: "failed", Reason: "unhealthy", Message: f.Check + ": " + f.Text, quiet: true}
			}
		}
		return nil
	}
	return c
}

// examine runs all checks.
func (a *app) examine(ctx context.Context, cfg *loaded) ([]etcd.Finding, error) {
	st := storage.DefaultConfig()
	if err := cfg.values.Decode("storage", &st); err != nil {
		return nil, err
	}
	found, err := a.examineEtcd(ctx, cfg)
	if err != nil {
		return nil, err
	}
	found = append(found, examinePostgres(ctx, st.Postgres.Reveal())...)
	redis, err := examineRedis(ctx, cfg)
	return append(found, redis...), err
}

// examinePostgres judges the database of dsn; "" = there is none.
func examinePostgres(ctx context.Context, dsn string) []etcd.Finding {
	if dsn == "" {
		return []etcd.Finding{{Check: "messages", Verdict: etcd.Good, Text: "kept in SQLite inside the node; nothing outside is needed"}}
	}
	facts, err := postgres.Examine(ctx, dsn)
	if err != nil {
		f := etcd.Finding{Check: "postgres reach", Verdict: etcd.Failing, Text: plainText(err)}
		if f.Fix = "correct storage.postgres, or the rights of its user"; classify(err).Exit == exitUnavailable {
			f.Fix = "see that the server runs and that storage.postgres names it"
		}
		return []etcd.Finding{f}
	}
	var out []etcd.Finding
	for _, f := range facts.Judge() {
		out = append(out, etcd.Finding{Check: "postgres " + f.Check, Verdict: etcd.Verdict(f.Verdict), Text: f.Text, Fix: f.Fix})
	}
	return out
}

// examineEtcd judges the cluster that the configuration names.
func (a *app) examineEtcd(ctx context.Context, cfg *loaded) ([]etcd.Finding, error) {
	cp := controlplane.DefaultConfig()
	if err := cfg.values.Decode("controlplane", &cp); err != nil {
		return nil, err
	}
	if len(cp.Endpoints) == 0 {
		return []etcd.Finding{{Check: "etcd", Verdict: etcd.Good, Text: "runs inside the node; nothing outside is needed"}}, nil
	}
	facts, err := etcd.Examine(ctx, endpointsOf(cp), cp.Cluster, zap.NewNop())
	if err != nil {
		return nil, err
	}
	found := facts.Judge()
	for i := range found {
		found[i].Check = "etcd " + found[i].Check
	}
	var proxies []string
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"} {
		if a.getenv(name) != "" || a.getenv(strings.ToLower(name)) != "" {
			proxies = append(proxies, name)
		}
	}
	if len(proxies) > 0 {
		found = append(found, etcd.Finding{Check: "proxy", Verdict: etcd.Good, Text: strings.Join(proxies, ", ") + " is set and not used for etcd"})
	}
	return found, nil
}

// printFindings shows what is worst first.
func printFindings(w io.Writer, found []etcd.Finding) {
	rank := map[etcd.Verdict]int{etcd.Failing: 0, etcd.Doubt: 1, etcd.Good: 2}
	sorted := slices.Clone(found)
	slices.SortStableFunc(sorted, func(a, b etcd.Finding) int { return rank[a.Verdict] - rank[b.Verdict] })
	for _, f := range sorted {
		fmt.Fprintf(w, "%-4s  %-16s %s\n", f.Verdict, f.Check, f.Text)
		if f.Fix != "" {
			fmt.Fprintf(w, "      %-16s -> %s\n", "", f.Fix)
		}
	}
}
