package peers

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/module"
	"github.com/imdhq/imd/pkg/obs"
	"github.com/imdhq/imd/pkg/peer"
)

// namesEvery is how often names are read.
const namesEvery = 5 * time.Second

// Names reads addresses from a naming service.
type Names interface {
	// List gives the addresses below a prefix, within 2 s.
	List(ctx context.Context, prefix string) ([]string, error)
	Close() error
}

// NamesOpener connects to the naming service at the hosts; none = the etcd of the
// control plane. It does not wait until the service answers.
type NamesOpener func(hosts []string) (Names, error)

// naming keeps one role where a naming service says it is.
type naming struct {
	role   string
	prefix string
	names  Names
	set    *peer.Set
	log    *zap.Logger
	sick   bool // the last reading failed
}

// places takes in where the roles are that do not come from the registry.
func (p *Peers) places() error {
	for role, text := range map[string]string{"state": p.cfg.State, "push": p.cfg.Push} {
		place, err := peer.ParsePlace(text, role)
		if err != nil {
			return &module.ConfigError{Err: fmt.Errorf("peers.%s: %w", role, err)}
		}
		if place.Nodes != nil {
			p.Set.SetPlace(role, place.Nodes)
		}
		if place.Prefix == "" {
			continue
		}
		names, err := p.Names(place.Hosts)
		if err != nil {
			return &module.ConfigError{Err: fmt.Errorf("peers.%s: %w", role, err)}
		}
		p.Set.SetPlace(role, nil) // until the first reading there are none
		p.named = append(p.named, &naming{role: role, prefix: place.Prefix, names: names, set: p.Set, log: p.Log})
	}
	return nil
}

// run reads the names again and again until ctx is done.
func (n *naming) run(ctx context.Context) {
	tick := time.NewTicker(namesEvery)
	defer tick.Stop()
	for {
		n.read(ctx)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// read reads the names once. Bad ones, or none at all, leave the last good ones
// in force.
func (n *naming) read(ctx context.Context) {
	list, err := n.names.List(ctx, n.prefix)
	if err == nil && len(list) == 0 {
		err = errors.New("there are no names")
	}
	if err == nil {
		nodes, perr := peer.ParseNodes(list, n.role)
		if err = perr; err == nil {
			n.set.SetPlace(n.role, nodes)
		}
	}
	if sick := err != nil; sick != n.sick && ctx.Err() == nil {
		n.sick = sick
		if sick {
			n.log.Warn("the names of a role cannot be read; the last ones stay in force", zap.String("role", n.role), zap.String("prefix", n.prefix), obs.Err(err))
		} else {
			n.log.Info("the names of a role are read again", zap.String("role", n.role))
		}
	}
}
