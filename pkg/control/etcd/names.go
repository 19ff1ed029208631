package etcd

import (
	"context"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Names reads addresses that somebody keeps in etcd: one key each below a
// prefix, with the address as its value. Safe for concurrent use.
type Names struct{ client *clientv3.Client }

// NewNames reads through a client, which Close closes.
func NewNames(client *clientv3.Client) *Names { return &Names{client} }

// List gives the values of all keys that begin with the prefix, by key, within
// 2 s. Errors: etcd does not answer; what was known stays true.
func (n *Names) List(ctx context.Context, prefix string) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	res, err := n.client.Get(ctx, prefix, clientv3.WithPrefix())
	if err != nil {
		return nil, fmt.Errorf("read names below %s: %w", prefix, err)
	}
	out := make([]string, 0, len(res.Kvs))
	for _, kv := range res.Kvs {
		out = append(out, string(kv.Value))
	}
	return out, nil
}

// Close ends the connections.
func (n *Names) Close() error { return n.client.Close() }
