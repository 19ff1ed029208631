package drill

import (
	"context"
	"errors"
	"strings"
	"syscall"
	"time"

	"github.com/imdhq/imd/pkg/failpoint"
	"github.com/imdhq/imd/pkg/history"
)

// midway is how long a leader may take to come to the job in whose middle it is to be
// hit. Some jobs seldom have anything to do.
const midway = 3 * time.Second

// whoIsTold are the receivers that a fault hits.
var whoIsTold = []string{toldEvents, toldPushes, toldBoth}

const (
	toldEvents = "events"
	toldPushes = "pushes"
	toldBoth   = "both"
)

// JobsOfLeaders are the jobs in whose middle leaders are hit: all there are.
func JobsOfLeaders() []string {
	return []string{"announce", "expire", "forget", "gather", "handover", "push", "retain", "scheduled", "sweep", "tally", "trim", "webhooks"}
}

// receiver gives receivers another manner for a while.
func (f *fault) receiver(ctx context.Context) error {
	m := map[Kind]manner{ReceiverHang: hanging, ReceiverLie: lying, ReceiverTwice: forgetful}[f.Kind]
	for _, to := range []manner{m, honest} {
		for _, r := range []*receiver{f.b.effects.events, f.b.effects.pushes} {
			if f.Level == toldBoth || f.Level == r.name {
				r.behave(to)
			}
		}
		if to == m {
			hold(ctx, f.For)
		}
	}
	return nil
}

// leader is the node that was given the newest token; if that cannot be told, one of those
// that can lead.
func (f *fault) leader(ctx context.Context) *node {
	all := havingRole(f.b.nodes, "scheduler")
	holder, err := f.b.db.sql.Holder(ctx, schedulerElection)
	for _, n := range all {
		if err == nil && strings.HasPrefix(holder, n.spec.Name+"/") && n.alive() {
			return n
		}
	}
	return all[f.rng.IntN(len(all))]
}

// catch stops the leader in the middle of the job of the fault; if it does not come there
// soon, in the middle of the next one; and if this build has no fail points, where it is.
func (f *fault) catch(ctx context.Context) (*node, error) {
	n := f.leader(ctx)
	where := "none"
	if failpoint.Built {
		for _, at := range []struct {
			point failpoint.Point
			name  string
		}{{failpoint.InJob(f.Level), f.Level}, {failpoint.BeforeEffect, "another"}} {
			ok, err := n.stopsAt(ctx, at.point)
			if err != nil {
				return n, err
			}
			if ok {
				where = at.name
				break
			}
		}
		if err := writeRules(n.rules, n.standing); err != nil {
			return n, err
		}
		if where == "none" { // it runs, and is to know the rules before it stands still
			hold(ctx, 100*ms)
		}
	}
	f.b.caught(where)
	return n, n.signal(syscall.SIGSTOP)
}

// stopsAt lets a node stop at a point, and reports whether it came there in time.
func (n *node) stopsAt(ctx context.Context, p failpoint.Point) (bool, error) {
	r := failpoint.Rules{List: []failpoint.Rule{{Point: p, Action: failpoint.Stop}}}
	if err := writeRules(n.rules, r.String()+n.standing); err != nil {
		return false, err
	}
	for end := time.Now().Add(midway); time.Now().Before(end) && hold(ctx, 10*ms); {
		if s := processState(n.pid()); len(s) > 0 && s[0] == "T" {
			return true, nil
		}
	}
	return false, nil
}

func (f *fault) leaderKill(ctx context.Context) error {
	n, err := f.catch(ctx)
	n.kill()
	hold(ctx, f.For)
	return errors.Join(err, n.begin())
}

func (f *fault) leaderPause(ctx context.Context) error {
	n, err := f.catch(ctx)
	hold(ctx, f.For)
	return errors.Join(err, n.signal(syscall.SIGCONT))
}

// leaderCut lets nothing through between the leader and all others, stores and etcd
// included. For those who judge it stands still until that is over, as nothing can
// reach it.
func (f *fault) leaderCut(ctx context.Context) error {
	n, err := f.catch(ctx)
	errs := []error{err, f.b.alone(ctx, n, true), n.send(syscall.SIGCONT)}
	hold(ctx, f.For)
	errs = append(errs, f.b.alone(ctx, n, false))
	if n.alive() {
		n.tell(history.Resumed)
	}
	return errors.Join(errs...)
}

// alone lets nothing through between a node and all others, all stores and etcd, or heals
// that.
func (b *breaker) alone(ctx context.Context, n *node, on bool) error {
	errs := []error{b.cutOff(ctx, n, on)}
	if b.hosts != nil {
		heal, done := healing(ctx)
		defer done()
		errs = append(errs, b.hosts.of(n).swallow(heal, on, etcdHost))
	} else {
		b.plane.cut(n.spec.Name, on)
	}
	b.db.cut(n.spec.Name, on)
	if b.cache != nil {
		b.cache.cut(n.spec.Name, on)
	}
	return errors.Join(errs...)
}
