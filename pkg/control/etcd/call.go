package etcd

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/imdhq/imd/pkg/control"
)

const (
	callLimit   = 2 * time.Second         // of every call; calls to an absent etcd would wait for ever
	renewLimit  = time.Second             // of one renewal
	revokeLimit = 1500 * time.Millisecond // of giving up a lease at the end
)

// renew makes one attempt to renew a lease. It returns when it was sent, which
// is what the lease is counted from, and the TTL that the server gave.
func renew(ctx context.Context, c *clientv3.Client, id leaseID) (sent time.Time, ttl time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, renewLimit)
	defer cancel()
	sent = time.Now()
	resp, err := c.KeepAliveOnce(ctx, clientv3.LeaseID(id))
	if err != nil {
		return sent, 0, fmt.Errorf("renew the lease: %w", err)
	}
	return sent, time.Duration(resp.TTL) * time.Second, nil
}

// seconds rounds up to what etcd counts in.
func seconds(d time.Duration) int64 { return int64((d + time.Second - 1) / time.Second) }

// decode reads the record of a node.
func decode(kv *mvccpb.KeyValue) (control.Node, error) {
	var n control.Node
	if err := json.Unmarshal(kv.Value, &n); err != nil {
		return control.Node{}, fmt.Errorf("record %s: %w", kv.Key, err)
	}
	return n, nil
}
