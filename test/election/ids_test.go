package election

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/control"
	"github.com/imdhq/imd/pkg/control/embedded"
	"github.com/imdhq/imd/pkg/control/etcd"
	"github.com/imdhq/imd/pkg/idgen"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/pkg/store/sqlite"
	"github.com/imdhq/imd/pkg/testenv"
)

// Etcd goes away and stays away: ids go on without a single refusal, with a
// worker number of the message store before the lease of the first one ends.
func TestIDsOutliveEtcd(t *testing.T) {
	dir := t.TempDir()
	address := testenv.FreeAddress(t, "127.0.0.1")
	srv, err := embedded.Start(t.Context(), filepath.Join(dir, "etcd"), zap.NewNop(), embedded.Listen(address))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { srv.Close() })
	messages, err := sqlite.Open(t.Context(), sqlite.Options{Path: filepath.Join(dir, "imd.db")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { messages.Close() })
	client, err := etcd.Dial(etcd.Endpoints{URLs: []string{"http://" + address}}, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	d := etcd.New(client, etcd.Options{Cluster: "c", Node: "n", Publish: func(*control.View) {}, Log: zap.NewNop(),
		WorkerTTL: 30 * time.Second, WorkerRenew: time.Second}) // 20 s to go, of which the last 15 count as fading
	t.Cleanup(func() { d.Close() })
	g := idgen.New(idgen.Deps{
		Leaser: idgen.Fallback{First: d, Then: idgen.StoreLeaser{Numbers: messages, Node: "n", Log: zap.NewNop()}, Log: zap.NewNop()},
		Marks:  messages, Log: zap.NewNop(),
	})
	if err := g.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- g.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		<-done
		if err := g.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	if w := g.Stats().Worker; w < store.FallbackWorkers {
		t.Fatalf("with etcd the worker number is %d", w)
	}
	if err := srv.Close(); err != nil {
		t.Fatal(err)
	}
	seen := map[im.MessageID]bool{}
	end := time.Now().Add(patience)
	for after := 0; after < 100; {
		id, err := g.Next()
		if err != nil || seen[id] {
			t.Fatalf("after %d ids: %v, %v", len(seen), id, err)
		}
		seen[id] = true
		if idgen.Worker(id) < store.FallbackWorkers {
			after++
		}
		if time.Now().After(end) {
			t.Fatalf("the worker number is still %d after %v", idgen.Worker(id), patience)
		}
		time.Sleep(2 * time.Millisecond)
	}
	if s := g.Stats(); s.Refused != 0 || s.Retired != 1 {
		t.Errorf("counted %+v", s)
	}
}
