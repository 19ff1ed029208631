package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// Mix says how often each operation is chosen, as shares of their sum.
type Mix struct {
	Direct  int `json:"direct"`  // a message to one user
	Group   int `json:"group"`   // a message to a group
	Read    int `json:"read"`    // read up to the newest entry
	History int `json:"history"` // a page
	Sync    int `json:"sync"`    // what has changed
}

// DefaultMix is a chat on an ordinary day.
var DefaultMix = Mix{Direct: 50, Group: 20, Read: 15, History: 10, Sync: 5}

func (m Mix) sum() int { return m.Direct + m.Group + m.Read + m.History + m.Sync }

// strangers is how many of n users are in no conversation.
func strangers(n int) int {
	if n < 4 {
		return 0
	}
	return max(n/20, 1)
}

// makeGroups puts the first n users into groups.
func (r *runner) makeGroups(n int) (of []string, err error) {
	size := max(r.o.GroupSize, 2)
	users := make([]string, n)
	for i := range users {
		users[i] = r.user(i)
	}
	chunks := slices.Collect(slices.Chunk(users, size))
	convs := make([]string, len(chunks))
	err = parallel(r.ctx, len(chunks), func(ctx context.Context, i int) (err error) {
		convs[i], err = r.o.Group(ctx, chunks[i][0], chunks[i][1:])
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("make the groups: %w", err)
	}
	of = make([]string, n)
	for i := range of {
		of[i] = convs[i/size]
		r.join(of[i], users[i])
	}
	return of, nil
}

// mixed does everything at once. Some users are strangers: they try to read
// what they may not.
func (r *runner) mixed() error {
	users := (r.o.Users - strangers(r.o.Users)) / 2 * 2
	if users < 2 || r.o.Group == nil {
		return errors.New("mix wants at least 2 users and a way to make groups")
	}
	if r.o.Mix.sum() <= 0 {
		r.o.Mix = DefaultMix
	}
	groups, err := r.makeGroups(users)
	if err != nil {
		return err
	}
	for i := 0; i < users; i += 2 {
		r.pair(r.user(i), r.user(i+1))
	}
	if err := r.connectAll(r.o.Conns, func(d *device) { d.stranger = d.i%r.o.Users >= users }); err != nil {
		return err
	}
	for _, rec := range []string{"direct", "group", "read", "history", "sync"} {
		r.recorder(rec)
	}
	for _, d := range r.devices {
		i := d.i % r.o.Users
		if d.stranger {
			r.drive(d, len(r.devices), requestWindow, r.recorder("refusal"), r.trespass(groups))
			continue
		}
		m := &mixer{r: r, direct: d.out.lane("", r.user(i^1)), group: d.out.lane(groups[i], "")}
		m.sendDirect = r.sendTo(r.recorder("direct"), func(*source) *lane { return m.direct })
		m.sendGroup = r.sendTo(r.recorder("group"), func(*source) *lane { return m.group })
		r.primary = r.recorder("direct")
		r.drive(d, len(r.devices), requestWindow, r.primary, m.begin)
	}
	return r.measure()
}

// trespass reads a conversation as a stranger; a refusal is what is wanted.
func (r *runner) trespass(groups []string) func(*source, time.Duration) {
	return func(s *source, at time.Duration) {
		conv := groups[r.rng.IntN(len(groups))]
		r.ask(s, at, r.recorder("refusal"), historyFrame(conv, 0, 0, false, r.o.Page), func(a *clientv1.ServerFrame) bool {
			if p := a.GetHistoryResult().GetPage(); p != nil {
				r.errors["a stranger could read"]++
				for _, e := range p.Entries {
					r.h.rec.leak(s.d, conv, e)
				}
			}
			return a.GetError().GetReason() == protocol.ReasonNotMember
		})
	}
}

// mixer is the operations of one device of mix.
type mixer struct {
	r                     *runner
	direct, group         *lane
	sendDirect, sendGroup func(*source, time.Duration)
	token                 string
}

func (m *mixer) begin(s *source, at time.Duration) {
	r, mix := m.r, m.r.o.Mix
	pick := r.rng.IntN(mix.sum())
	take := func(share int) bool {
		pick -= share
		return pick < 0
	}
	conv := m.direct.conv
	if r.rng.IntN(2) == 0 {
		conv = m.group.conv
	}
	cv := s.d.in.convs[conv]
	switch {
	case take(mix.Direct) || cv == nil || cv.seen() == 0:
		m.sendDirect(s, at)
	case take(mix.Group):
		m.sendGroup(s, at)
	case take(mix.Read):
		r.ask(s, at, r.recorder("read"), &clientv1.ClientFrame{Kind: &clientv1.ClientFrame_Read{Read: &clientv1.Read{ConversationId: conv, Seq: cv.seen()}}},
			func(a *clientv1.ServerFrame) bool { return a.GetReceipt() != nil })
	case take(mix.History):
		r.ask(s, at, r.recorder("history"), r.randomPage(conv, cv.seen()),
			func(a *clientv1.ServerFrame) bool { return a.GetHistoryResult() != nil })
	default:
		r.syncOn(s, at, r.recorder("sync"), &clientv1.Sync{SyncToken: m.token, Cursors: r.behind(s.d, 2), PageLimit: syncPage}, func(res *clientv1.SyncResult) { m.token = res.SyncToken })
	}
}
