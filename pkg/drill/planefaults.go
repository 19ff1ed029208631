package drill

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/imdhq/imd/pkg/history"
)

// The pace of compactions and of changes of settings in a storm.
const (
	compactEvery = 200 * ms
	floodEvery   = 100 * ms // each a wrong change and a right one
)

// ailing runs a fault of a part of etcd: etcd is limping from its beginning
// until it is healed and has answered.
func (f *fault) ailing(how string, do func() error) error {
	return f.ailingUntil(how, history.EtcdGood, do)
}

// ailingUntil is the same, with how etcd is afterwards.
func (f *fault) ailingUntil(how, after string, do func() error) error {
	p := f.b.plane
	p.is(how)
	err := do()
	ctx, cancel := healing(p.d.ctx)
	defer cancel()
	err = errors.Join(err, p.etcd.Await(ctx))
	p.is(after)
	return err
}

// member is the one that is hit.
func (f *fault) member() int { return f.rng.IntN(len(f.b.plane.members)) }

func (f *fault) memberKill(ctx context.Context) error {
	m := f.b.plane.members[f.member()]
	return f.ailing(f.minority(), func() error {
		m.kill()
		hold(ctx, f.For)
		return m.begin()
	})
}

// minority is what the loss of one member is.
func (f *fault) minority() string {
	if len(f.b.plane.members) < 3 {
		return history.EtcdAway
	}
	return history.EtcdLimping
}

func (f *fault) memberPause(ctx context.Context) error {
	m := f.b.plane.members[f.member()]
	return f.ailing(f.minority(), func() error {
		if err := m.signal(syscall.SIGSTOP); err != nil {
			return err
		}
		hold(ctx, f.For)
		return m.signal(syscall.SIGCONT)
	})
}

func (f *fault) memberPartition(ctx context.Context) error {
	i := f.member()
	return f.ailing(f.minority(), func() error {
		f.b.plane.mesh.isolate(i, true)
		hold(ctx, f.For)
		f.b.plane.mesh.isolate(i, false)
		return nil
	})
}

func (f *fault) leaderChange(ctx context.Context) error {
	return f.ailing(history.EtcdLimping, func() error {
		err := f.b.plane.etcd.MoveLeader(ctx)
		hold(ctx, f.For)
		return err
	})
}

// compaction forgets the history again and again while it grows.
func (f *fault) compaction(ctx context.Context) error {
	var errs []error
	for end := time.Now().Add(f.For); time.Now().Before(end); {
		errs = append(errs, f.b.plane.etcd.Compact(ctx))
		f.b.plane.change(ctx, false)
		if !hold(ctx, compactEvery) {
			break
		}
	}
	return errors.Join(errs...)
}

// leaseRevoke takes the lease of a living node away.
func (f *fault) leaseRevoke(ctx context.Context) error {
	all := append(append([]*node{}, f.b.nodes...), f.b.plane.witnesses...)
	n := all[f.rng.IntN(len(all))]
	err := f.b.plane.etcd.Revoke(ctx, "/imd/"+clusterName+"/nodes/"+n.spec.Name)
	hold(ctx, f.For)
	return err
}

func (f *fault) etcdOutage(ctx context.Context) error {
	p := f.b.plane
	return f.ailing(history.EtcdAway, func() error {
		for _, m := range p.members {
			m.kill()
		}
		hold(ctx, f.For)
		return p.startMembers()
	})
}

// etcdRestore saves the data of etcd, lets it go on for a while, and puts it back
// to what was saved.
func (f *fault) etcdRestore(ctx context.Context) error {
	p := f.b.plane
	saved := filepath.Join(p.d.Dir, "saved")
	defer os.RemoveAll(saved)
	err := f.ailing(history.EtcdAway, func() error {
		return p.offline(func(m *node) error { return os.CopyFS(filepath.Join(saved, m.spec.Name), os.DirFS(m.dir)) })
	})
	if err != nil {
		return err
	}
	hold(ctx, f.For)
	return f.ailingUntil(history.EtcdAway, history.EtcdRestored, func() error {
		return p.offline(func(m *node) error {
			if err := os.RemoveAll(m.dir); err != nil {
				return err
			}
			return os.CopyFS(m.dir, os.DirFS(filepath.Join(saved, m.spec.Name)))
		})
	})
}

// offline does something to the data of each member while none runs.
func (p *plane) offline(do func(*node) error) error {
	var errs []error
	for _, m := range p.members {
		m.kill()
	}
	for _, m := range p.members {
		errs = append(errs, do(m))
	}
	return errors.Join(append(errs, p.startMembers())...)
}

// nodePause stops a witness for longer than its lease, mostly the one that leads,
// and that one in the middle of an effect.
func (f *fault) nodePause(ctx context.Context) error {
	p := f.b.plane
	n, release := p.witnesses[f.rng.IntN(len(p.witnesses))], func() {}
	if leader, holder := p.leading(); leader != nil && f.rng.IntN(4) > 0 {
		n = leader
		came, open := p.ledger.Hold(holder)
		release = open
		select {
		case <-came:
		case <-time.After(time.Second): // it does not lead any more
		case <-ctx.Done():
		}
	}
	defer release()
	if err := n.signal(syscall.SIGSTOP); err != nil {
		return err
	}
	hold(ctx, f.For)
	release()
	return n.signal(syscall.SIGCONT)
}

// nodeKill lets a witness be away for longer than its lease.
func (f *fault) nodeKill(ctx context.Context) error {
	p := f.b.plane
	n := p.witnesses[f.rng.IntN(len(p.witnesses))]
	n.kill()
	hold(ctx, f.For)
	return n.begin()
}

// settingsFlood changes settings twenty times a second, half of it wrong.
func (f *fault) settingsFlood(ctx context.Context) error {
	for end := time.Now().Add(f.For); time.Now().Before(end); {
		f.b.plane.change(ctx, true)
		if !hold(ctx, floodEvery) {
			break
		}
	}
	return nil
}
