package election

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/control"
	"github.com/imdhq/imd/pkg/control/etcd"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
)

// What a candidate process is told.
const (
	nameVar  = "IMD_TEST_ELECTION_NODE"
	etcdVar  = "IMD_TEST_ELECTION_ETCD"
	storeVar = "IMD_TEST_ELECTION_STORE"
	leaseVar = "IMD_TEST_ELECTION_LEASE" // "1" = no fast takeover
)

const job = "job"

// candidate is the main function of a process that takes part in the election
// and, while it leads, has an effect every 20 ms.
func candidate() error {
	id := im.NodeID(os.Getenv(nameVar))
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	client, err := etcd.Dial(etcd.Endpoints{URLs: strings.Split(os.Getenv(etcdVar), ",")}, zap.NewNop())
	if err != nil {
		return err
	}
	d := etcd.New(client, etcd.Options{Cluster: "c", Node: id, Publish: func(*control.View) {}, Log: zap.NewNop(), LeaseOnly: os.Getenv(leaseVar) == "1"})
	ops, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	boot := fmt.Sprint(os.Getpid())
	srv := &http.Server{Handler: control.Await(boot, d.TermEnded), ReadHeaderTimeout: time.Second}
	go func() { _ = srv.Serve(ops) }()
	running, end := context.WithCancel(context.Background())
	defer end()
	done := make(chan error, 1)
	go func() { done <- d.Run(running) }()
	if err := d.Announce(ctx, control.Node{ID: id, BootID: boot, Ops: ops.Addr().String(), State: control.Serving}); err != nil {
		return err
	}
	remote := remoteStore{os.Getenv(storeVar)}
	err = d.Campaign(ctx, control.Candidacy{
		Name:   job,
		Fences: func() (store.Fences, error) { return remote, nil },
		Lead:   remote.lead,
	})
	end()
	if rerr := <-done; err == nil {
		err = rerr
	}
	_ = srv.Close()
	return err
}

// remoteStore is the message store behind the test's own HTTP.
type remoteStore struct{ base string }

// claimed is the answer to a claim.
type claimed struct {
	Fence  store.Fence
	Fenced bool
}

func (r remoteStore) post(ctx context.Context, path string, in, out any) error {
	b, err := json.Marshal(in)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.base+path, bytes.NewReader(b))
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusConflict {
		return store.ErrFenced
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("status %d", resp.StatusCode)
	}
	return json.NewDecoder(resp.Body).Decode(out)
}

// ClaimFence is store.Fences'.
func (r remoteStore) ClaimFence(ctx context.Context, c store.FenceClaim) (store.Fence, error) {
	var out claimed
	err := r.post(ctx, "/claim", c, &out)
	if err == nil && out.Fenced {
		err = store.ErrFenced
	}
	return out.Fence, err
}

// Fence is store.Fences'.
func (r remoteStore) Fence(context.Context, string) (store.Fence, error) {
	return store.Fence{}, store.ErrNotFound
}

func (r remoteStore) lead(ctx context.Context, t control.Term) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		// An effect is not given up when the term ends: that is the point.
		var ok bool
		if err := r.post(context.WithoutCancel(ctx), "/effect", t.Proof(), &ok); err == store.ErrFenced {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}
