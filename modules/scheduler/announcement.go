package scheduler

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/imdhq/imd/pkg/control"
	"github.com/imdhq/imd/pkg/failpoint"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/obs"
	"github.com/imdhq/imd/pkg/store"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

const (
	// announceEvery is how often is looked for announcements and new gateways.
	announceEvery = 500 * time.Millisecond
	// announceLimit bounds the call of one gateway, and announceCalls how many are
	// called at once.
	announceLimit = time.Second
	announceCalls = 16
	// deafWarning is the shortest time between warnings of gateways that take none.
	deafWarning = time.Minute
	// announcementKept is how long announcements that ended stay in the list.
	announcementKept = 30 * 24 * time.Hour
)

// proclaimer hands announcements to gateways during one term.
type proclaimer struct {
	*Scheduler
	version int64 // of list
	known   bool
	epoch   string
	list    []*clientv1.Announcement // in force
	gone    []*clientv1.Announcement // would be, if they were not withdrawn
	held    map[store.Home]int64     // the version that each gateway has from this leader
	warned  time.Time                // of a gateway that takes none
}

// announces are the rounds of one term that hand out announcements.
func (s *Scheduler) announces() round {
	p := &proclaimer{Scheduler: s, held: map[store.Home]int64{}}
	return p.round
}

// round hands what is in force to the gateways that have another version, or have
// it not from this leader. A gateway that refuses says that another node leads.
func (p *proclaimer) round(ctx context.Context, t control.Term) error {
	if p.Gateway == nil {
		return nil
	}
	if ok, err := p.read(ctx); err != nil || !ok {
		return err
	}
	var behind []store.Home
	held := map[store.Home]int64{}
	for _, n := range p.View().Nodes {
		if !n.Has("gateway") {
			continue
		}
		h := store.Home{Node: n.ID, Boot: n.BootID}
		if v, ok := p.held[h]; ok && v == p.version {
			held[h] = v
		} else {
			behind = append(behind, h)
		}
	}
	p.held = held
	if len(behind) == 0 {
		return nil
	}
	failpoint.HitJob("announce")
	return p.proclaim(ctx, t, behind)
}

// read takes in what is in force, if it has changed. It returns false if that changed
// while it was read: a withdrawal without an announcement that came just before it
// would make clients believe that they have both.
func (p *proclaimer) read(ctx context.Context) (bool, error) {
	st, err := p.Store()
	if err != nil {
		return false, err
	}
	version, err := st.AnnouncementVersion(ctx)
	epoch := st.DataEpoch()
	if err != nil || p.known && version == p.version && epoch == p.epoch {
		return err == nil, err
	}
	now := time.Now()
	list, err := st.Announcements(ctx, store.AnnouncementQuery{At: now})
	if err != nil {
		return false, err
	}
	gone, err := st.Announcements(ctx, store.AnnouncementQuery{At: now, Withdrawn: true})
	if err != nil {
		return false, err
	}
	if after, err := st.AnnouncementVersion(ctx); err != nil || after != version || st.DataEpoch() != epoch {
		return false, err
	}
	p.take(list, gone)
	p.version, p.epoch, p.known = version, epoch, true
	clear(p.held)
	return true, nil
}

// take keeps lists as gateways are told them.
func (p *proclaimer) take(list, gone []store.Announcement) {
	p.list, p.gone = nil, nil
	for _, a := range list {
		p.list = append(p.list, &clientv1.Announcement{Seq: a.Seq, Text: a.Text, CreatedMs: a.Created.UnixMilli(), ExpiresMs: a.Expires.UnixMilli()})
	}
	for _, a := range gone {
		p.gone = append(p.gone, &clientv1.Announcement{Seq: a.Seq, Withdrawn: true, WithdrawalSeq: a.Withdrawal, ExpiresMs: a.Expires.UnixMilli()})
	}
}

// deaf notes that a gateway has not taken announcements in; the caller has the lock
// of a proclaim.
func (p *proclaimer) deaf(node im.NodeID, err error) {
	p.unheard.Inc()
	if now := time.Now(); now.Sub(p.warned) >= deafWarning {
		p.warned = now
		p.Log.Warn("a gateway takes no announcements; it is told again", obs.Peer(string(node)), obs.Err(err))
	}
}

// proclaim tells gateways, and notes which have taken it in. One that does not
// answer is told in the next round.
func (p *proclaimer) proclaim(ctx context.Context, t control.Term, homes []store.Home) error {
	proof := t.Proof()
	gate := make(chan struct{}, announceCalls)
	var wg sync.WaitGroup
	var mu sync.Mutex // of held and refused
	var refused error
	for _, h := range homes {
		gate <- struct{}{}
		wg.Go(func() {
			defer func() { <-gate }()
			ctx, cancel := context.WithTimeout(ctx, announceLimit)
			defer cancel()
			res, err := p.Gateway(h.Node).Proclaim(ctx, &v1.ProclaimRequest{
				Leader: &v1.LeaderProof{Election: proof.Name, Token: proof.Token}, Version: p.version, Announcements: p.list, Withdrawn: p.gone, DataEpoch: p.epoch,
			})
			mu.Lock()
			defer mu.Unlock()
			switch {
			case im.ReasonOf(err) == clientv1.Reason_REASON_FORBIDDEN:
				refused = fmt.Errorf("%w: %w", store.ErrFenced, err)
			case err != nil:
				p.deaf(h.Node, err)
			case res.BootId == h.Boot:
				p.held[h] = p.version
				p.announced.Inc()
			}
		})
	}
	wg.Wait()
	return refused
}
