// Package tamper does to an etcd cluster what operators, mistakes and other
// programs do to it, for drills: it moves the leader, compacts, revokes leases of
// others and writes what nobody checked.
package tamper

import (
	"context"
	"errors"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/control"
	"github.com/imdhq/imd/pkg/control/etcd"
)

const (
	callLimit = 2 * time.Second
	// look is how long a member may take to say whether it has a leader.
	look = 300 * time.Millisecond
)

// errNoMember says that no member answered, or none has a leader.
var errNoMember = errors.New("no member of etcd takes a call")

// Cluster is an etcd cluster, each member by a client of its own. Safe for
// concurrent use.
type Cluster struct {
	members []*clientv3.Client
}

// Open makes the clients; it makes no call. urls are one for each member.
func Open(urls []string) (*Cluster, error) {
	c := &Cluster{}
	for _, u := range urls {
		m, err := etcd.Dial(etcd.Endpoints{URLs: []string{u}}, zap.NewNop())
		if err != nil {
			return nil, errors.Join(err, c.Close())
		}
		c.members = append(c.members, m)
	}
	return c, nil
}

// Close closes the clients.
func (c *Cluster) Close() error {
	var errs []error
	for _, m := range c.members {
		if err := m.Close(); err != nil && !errors.Is(err, context.Canceled) { // how a client says that it was closed
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// member is one that answers and has a leader, with what it says.
func (c *Cluster) member(ctx context.Context) (*clientv3.Client, *clientv3.StatusResponse, error) {
	for _, m := range c.members {
		if s, err := status(ctx, m); err == nil && s.Leader != 0 {
			return m, s, nil
		}
	}
	return nil, nil, errNoMember
}

func status(ctx context.Context, m *clientv3.Client) (*clientv3.StatusResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, look)
	defer cancel()
	return m.Status(ctx, m.Endpoints()[0])
}

// Await waits until the cluster answers a read that a majority confirms.
func (c *Cluster) Await(ctx context.Context) error {
	for {
		m, _, err := c.member(ctx)
		if err == nil {
			one, cancel := context.WithTimeout(ctx, callLimit)
			_, err = m.Get(one, "/")
			cancel()
		}
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("etcd does not come back: %w", err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// MoveLeader makes another member the leader.
func (c *Cluster) MoveLeader(ctx context.Context) error {
	for _, m := range c.members {
		s, err := status(ctx, m)
		if err != nil || s.Leader != s.Header.MemberId {
			continue
		}
		for _, other := range c.members {
			o, err := status(ctx, other)
			if err != nil || o.Header.MemberId == s.Leader {
				continue
			}
			ctx, cancel := context.WithTimeout(ctx, callLimit)
			defer cancel()
			if _, err := m.MoveLeader(ctx, o.Header.MemberId); err != nil {
				return fmt.Errorf("move the leader of etcd: %w", err)
			}
			return nil
		}
	}
	return fmt.Errorf("move the leader of etcd: %w", errNoMember)
}

// Compact forgets the whole history.
func (c *Cluster) Compact(ctx context.Context) error {
	m, s, err := c.member(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	if _, err = m.Compact(ctx, s.Header.Revision); err != nil {
		return fmt.Errorf("compact etcd: %w", err)
	}
	return nil
}

// Revoke ends the lease that a key hangs on.
func (c *Cluster) Revoke(ctx context.Context, key string) error {
	m, _, err := c.member(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	got, err := m.Get(ctx, key)
	if err != nil {
		return fmt.Errorf("read %s: %w", key, err)
	}
	if len(got.Kvs) == 0 || got.Kvs[0].Lease == 0 {
		return fmt.Errorf("there is no lease of %s", key)
	}
	if _, err := m.Revoke(ctx, clientv3.LeaseID(got.Kvs[0].Lease)); err != nil {
		return fmt.Errorf("revoke the lease of %s: %w", key, err)
	}
	return nil
}

// Put writes keys in one revision, which it returns, whatever they hold. The
// class of an error says whether it may have been written.
func (c *Cluster) Put(ctx context.Context, values map[string]string) (revision int64, class control.Class, err error) {
	m, _, err := c.member(ctx)
	if err != nil {
		return 0, control.ClassRetry, err
	}
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	var puts []clientv3.Op
	for k, v := range values {
		puts = append(puts, clientv3.OpPut(k, v))
	}
	res, err := m.Txn(ctx).Then(puts...).Commit()
	if err != nil {
		return 0, control.ClassUnknown, fmt.Errorf("write to etcd: %w", err)
	}
	return res.Header.Revision, control.ClassOK, nil
}
