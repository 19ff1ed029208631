package etcd

import (
	"context"
	crand "crypto/rand"
	"fmt"
	"math/rand/v2"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/imdhq/imd/pkg/backoff"
)

// shared reads the secret that the nodes of a cluster show each other. If there is
// none, it becomes mine, or a new one if mine is "". Whoever may read the registry in etcd may read it
// from a node.
func shared(ctx context.Context, c *clientv3.Client, key, mine string) (string, error) {
	if mine == "" {
		mine = crand.Text()
	}
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	resp, err := c.Txn(ctx).
		If(clientv3.Compare(clientv3.CreateRevision(key), "=", 0)).
		Then(clientv3.OpPut(key, mine), clientv3.OpGet(key)).
		Else(clientv3.OpGet(key)).
		Commit()
	if err != nil {
		return "", fmt.Errorf("read the shared secret: %w", err)
	}
	kvs := resp.Responses[len(resp.Responses)-1].GetResponseRange().Kvs
	if len(kvs) == 0 {
		return "", fmt.Errorf("read the shared secret: %s is not there", key)
	}
	return string(kvs[0].Value), nil
}

// learn reads the secret, and looks after it until ctx is done: an etcd that has lost
// it is given back what this process, or its last one, knew, so that nodes that start
// then and nodes that run understand each other. Where another one is there, that counts.
func (d *Driver) learn(ctx context.Context) {
	mine := d.Secret()
	if mine == "" {
		mine = d.discoverer.learnedBefore()
	}
	for attempt := 0; ctx.Err() == nil; attempt++ {
		s, err := shared(ctx, d.client, d.root+"secret", mine)
		if err != nil {
			_ = pauses.Sleep(ctx, attempt) // the loop looks at ctx
			continue
		}
		if known := d.Secret(); known != s {
			if known != "" {
				d.opts.Log.Warn("the nodes of the cluster share another secret now; calls between those that know it and those that do not yet fail for a moment")
			}
			d.secret.Store(&s)
			d.discoverer.learned(s)
		}
		mine, attempt = s, -1
		select {
		case <-time.After(backoff.Spread(d.timing.check, .2, rand.Float64())):
		case <-d.rewound:
		case <-ctx.Done():
		}
	}
}
