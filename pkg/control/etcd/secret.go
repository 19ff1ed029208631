package etcd

import (
	"context"
	"crypto/rand"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// shared reads the secret that the nodes of a cluster show each other. The first
// node makes it. Whoever may read the registry in etcd may read it from a node.
func shared(ctx context.Context, c *clientv3.Client, key string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	resp, err := c.Txn(ctx).
		If(clientv3.Compare(clientv3.CreateRevision(key), "=", 0)).
		Then(clientv3.OpPut(key, rand.Text()), clientv3.OpGet(key)).
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
