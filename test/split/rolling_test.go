package split

import (
	"context"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/imdhq/imd/pkg/bench"
	"github.com/imdhq/imd/pkg/faultproxy"
	"github.com/imdhq/imd/pkg/history"
	"github.com/imdhq/imd/pkg/store/memory"
	"github.com/imdhq/imd/pkg/testenv"
	"github.com/imdhq/imd/pkg/verify"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// migrated is the name of a Postgres database with the schema.
func migrated(t *testing.T) string {
	t.Helper()
	dsn := testenv.StartPostgres(t, testenv.PostgresOptions{Settings: []string{"fsync=on"}}).Database(t)
	migrate := exec.Command(testenv.Binary(t), "migrate", "up", "--data-dir", t.TempDir()+"/none")
	migrate.Env = append(os.Environ(), "IMD_STORAGE_POSTGRES="+dsn)
	if out, err := migrate.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return dsn
}

// doors are the addresses of gateways that stay when a gateway is started anew.
type doors map[string]*faultproxy.Proxy

func (d doors) open(t *testing.T, w *world, ids ...string) (all []netip.AddrPort) {
	t.Helper()
	for _, id := range ids {
		p, err := faultproxy.Listen("127.0.0.1:0", w.nodes[id].public)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.Close)
		d[id] = p
		all = append(all, netip.MustParseAddrPort(p.Address()))
	}
	return all
}

// restart stops a node in order and starts it again, as an upgrade does, and
// waits until all know it.
func (w *world) restart(t *testing.T, d doors, id string, roles []string) {
	began := time.Now()
	w.part(id).stop()
	stopped := time.Since(began)
	p := w.launch(t, id, roles)
	w.mu.Lock()
	w.nodes[id] = p
	w.mu.Unlock()
	w.settle(t)
	if door := d[id]; door != nil {
		door.SetTarget(p.public)
	}
	t.Logf("%s stopped within %v and was back after %v", id, stopped.Round(10*time.Millisecond), time.Since(began).Round(10*time.Millisecond))
}

// load is devices that use the cluster, send again what is not answered, and
// record what they see.
func (w *world) load(t *testing.T, at []netip.AddrPort, rec *history.Recorder, d time.Duration) bench.Options {
	return bench.Options{
		Scenario: "mix", Addresses: at, Conns: 40, Users: 32, GroupSize: 5, Rate: 100, Outstanding: 1, Duration: d, Settle: 40 * time.Second,
		Size: 64, Page: 50, Seed: 1, Prefix: "r-", Reconnect: true, Record: rec,
		Token: func(_ context.Context, user string) (string, error) { return w.token(t, user), nil },
		Group: func(ctx context.Context, owner string, members []string) (string, error) {
			res, err := w.part("c1").peers.State().Change(ctx, &v1.ChangeRequest{UserId: owner, RequestId: uuid.NewString(), Change: &v1.ChangeRequest_Create{Create: &v1.CreateGroup{Name: "r", UserIds: members}}})
			return res.GetConversationId(), err
		},
		Log: func(ctx context.Context, conv string, after int64, limit int) (*clientv1.Page, error) {
			res, err := w.part("c1").peers.State().History(ctx, &v1.HistoryRequest{History: &clientv1.History{ConversationId: conv, AfterSeq: after, Limit: int32(limit)}})
			return res.GetResult().GetPage(), err
		},
	}
}

// Every node of a cluster is restarted, one after the other, while devices send:
// nothing is lost, doubled or out of order, and nobody waits long.
func TestRollingRestart(t *testing.T) {
	t.Parallel()
	nodes := map[string][]string{
		"g1": {"gateway"}, "g2": {"gateway"}, "s1": {"state"}, "s2": {"state"}, "p1": {"push"}, "p2": {"push"}, "c1": {"scheduler"}, "c2": {"scheduler"},
	}
	w := newWorldOn(t, migrated(t))
	w.begin(t, nodes)
	gates := doors{}
	dir := filepath.Join(t.TempDir(), "history")
	rec, err := history.NewRecorder(dir)
	if err != nil {
		t.Fatal(err)
	}
	o := w.load(t, gates.open(t, w, "g1", "g2"), rec, 25*time.Second)
	var rolling sync.Once
	rolled := make(chan int, 1)
	o.Progress = func(p bench.Progress) {
		if p.Phase == "measure" {
			rolling.Do(func() {
				began := time.Now()
				go func() {
					under := 0 // nodes restarted while the load went on
					for _, id := range []string{"p1", "s1", "g1", "c1", "p2", "s2", "g2", "c2"} {
						w.restart(t, gates, id, nodes[id])
						if time.Since(began) < o.Duration {
							under++
						}
					}
					rolled <- under
				}()
			})
		}
	}
	pace := newPace(t)
	res, err := bench.Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	under := <-rolled
	slow := pace.slowness()
	if float64(under)*slow < 4 {
		t.Errorf("only %d nodes were back before the load was over, on a machine %.1f times slower than usual", under, slow)
	}
	w.stopAll()
	if err := rec.Close(history.Run{Seed: 1, Allocator: "transaction"}); err != nil {
		t.Fatal(err)
	}
	h, err := verify.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	v := pace.judge(h)
	for _, i := range v.Invariants {
		for _, broken := range i.Violations {
			t.Errorf("%s: %+v", i.ID, broken)
		}
	}
	a := v.Availability
	t.Logf("%d operations, %d sends, %d given up; stalls: p50 %.0f ms, p99 %.0f ms, longest %.0f ms", res.Operations, v.Counts.Sends, a.GivenUp, a.P50, a.P99, a.Longest)
	if float64(v.Counts.Acked)*slow < 500 || a.GivenUp > 0 || a.P99 > 2000*slow {
		t.Errorf("on a machine %.1f times slower than usual: %+v %+v", slow, v.Counts, a)
	}
}

// newWorldOn is a cluster, without nodes yet, that keeps its messages in a
// Postgres.
func newWorldOn(t *testing.T, dsn string) *world {
	t.Helper()
	return &world{etcd: startEtcd(t), stores: shared{nil, memory.New()}, nodes: map[string]*part{}, dsn: dsn, grace: 35 * time.Second}
}
