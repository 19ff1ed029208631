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

// connectOnly opens all connections and keeps them idle for the duration; an
// operation is one connection.
func (r *runner) connectOnly() error {
	r.primary = r.connecting
	r.begin()
	r.end = time.Duration(1<<63 - 1)
	if err := r.connectAll(r.o.Conns, nil); err != nil {
		return err
	}
	r.ops = r.connecting.all.TotalCount()
	_, err := r.wait("hold", r.o.Duration, func() bool { return false })
	r.finish()
	return err
}

// sendTo makes the operation of sending into a lane; it ends with the answer.
func (r *runner) sendTo(rec *recorder, pick func(s *source) *lane) func(*source, time.Duration) {
	return func(s *source, at time.Duration) {
		s.d.out.send(pick(s), at, func(p *send, a *ackIn) {
			if a.status == clientv1.Ack_ACK_OK {
				r.done(rec, p.intended)
			} else {
				r.fail(string(a.reason))
			}
			s.ended()
		})
	}
}

// ask makes a request of a device; it fails the operation unless got says that
// the answer is what was asked for.
func (r *runner) ask(s *source, at time.Duration, rec *recorder, f *clientv1.ClientFrame, got func(*clientv1.ServerFrame) bool) {
	s.d.cur.request(f, func(a *clientv1.ServerFrame) {
		switch {
		case a == nil:
			r.late("unanswered", rec, at)
			r.open--
		case got(a):
			r.done(rec, at)
		default:
			r.fail(reasonOf(a))
		}
		s.ended()
	})
}

func reasonOf(f *clientv1.ServerFrame) string {
	if reason := f.GetError().GetReason(); reason != "" {
		return reason
	}
	return "another answer"
}

// sendPairs lets the first half of the users write to the second half, each to
// its own partner; an operation is one acknowledged message.
func (r *runner) sendPairs() error {
	n := r.o.Users / 2
	if n < 1 {
		return errors.New("send wants at least 2 users")
	}
	for i := range n {
		r.pair(r.user(i), r.user(n+i))
	}
	if err := r.connectAll(r.o.Conns, nil); err != nil {
		return err
	}
	var senders []*device
	for _, d := range r.devices {
		if d.i%r.o.Users < n {
			senders = append(senders, d)
		}
	}
	for _, d := range senders {
		to := d.out.lane("", r.user(n+d.i%r.o.Users))
		r.drive(d, len(senders), sendWindow, r.primary, r.sendTo(r.primary, func(*source) *lane { return to }))
	}
	return r.measure()
}

// fanout lets the first device write to a group in which all are online; an
// operation is one acknowledged message.
func (r *runner) fanout() error {
	if r.o.Users < 2 || r.o.Group == nil {
		return errors.New("fanout wants at least 2 users and a way to make a group")
	}
	var users []string
	for i := range r.o.Users {
		users = append(users, r.user(i))
	}
	conv, err := r.o.Group(r.ctx, users[0], users[1:])
	if err != nil {
		return fmt.Errorf("make the group: %w", err)
	}
	r.join(conv, users...)
	if err := r.connectAll(r.o.Conns, func(d *device) { d.in.large = r.o.Users > protocol.LargeGroup }); err != nil {
		return err
	}
	d := r.devices[0]
	to := d.out.lane(conv, "")
	r.drive(d, 1, sendWindow, r.primary, r.sendTo(r.primary, func(*source) *lane { return to }))
	return r.measure()
}

// fill writes messages and waits until all are stored and delivered: each
// device n into each of its lanes.
func (r *runner) fill(n int, lanes func(d *device) []*lane) error {
	left := 0
	done := func(*send, *ackIn) { left-- }
	total := 0
	for _, d := range r.devices {
		for _, l := range lanes(d) {
			left += n
			for range n {
				d.out.send(l, r.l.now, done)
			}
		}
	}
	total = max(left, 1)
	r.toFill = func() float64 { return float64(total-left) / float64(total) }
	ok, err := r.wait("fill", fillLimit, func() bool { return left == 0 && r.l.now-r.lastSeen > quiet })
	r.toFill = nil
	if err == nil && !ok {
		err = fmt.Errorf("%d of %d messages are stored after %v%s", total-left, total, fillLimit, r.why())
	}
	return err
}

// fillLimit is how long writing what a scenario reads may take.
const fillLimit = 10 * time.Minute

// readHistory reads pages of conversations, at places chosen at random, half of
// them backward; an operation is one page.
func (r *runner) readHistory() error {
	n := r.o.Users / 2
	if n < 1 {
		return errors.New("history wants at least 2 users")
	}
	entries := max(r.o.Entries, 1)
	for i := range n {
		r.pair(r.user(i), r.user(n+i))
	}
	if err := r.connectAll(r.o.Conns, nil); err != nil {
		return err
	}
	partner := func(d *device) string { return r.user((d.i%r.o.Users + n) % (2 * n)) }
	err := r.fill(entries, func(d *device) []*lane {
		if d.i >= n {
			return nil
		}
		return []*lane{d.out.lane("", partner(d))}
	})
	if err != nil {
		return err
	}
	r.primary = r.recorder("page")
	for _, d := range r.devices {
		if d.i%r.o.Users >= 2*n {
			continue // an odd one without a partner
		}
		conv := protocol.DirectID(d.user, partner(d))
		r.drive(d, len(r.devices), requestWindow, r.primary, func(s *source, at time.Duration) {
			r.ask(s, at, r.primary, r.randomPage(conv, int64(entries)), func(a *clientv1.ServerFrame) bool {
				p := a.GetHistoryResult().GetPage()
				r.entries += int64(len(p.GetEntries()))
				return p != nil
			})
		})
	}
	return r.measure()
}

// randomPage asks for a page of a conversation that has n entries.
func (r *runner) randomPage(conv string, n int64) *clientv1.ClientFrame {
	at := r.rng.Int64N(max(n, 1))
	if r.rng.IntN(2) == 0 {
		return historyFrame(conv, at, 0, false, r.o.Page)
	}
	return historyFrame(conv, 0, at+2, true, r.o.Page)
}

// befriend gives each user conversations with the users behind it; prepare it
// before connectAll.
func (r *runner) befriend() (lanes func(d *device) []*lane) {
	users := r.o.Users
	own := min(max((r.o.Conversations+1)/2, 1), max((users-1)/2, 1))
	peer := func(i, k int) string { return r.user((i + k) % users) }
	for i := range users {
		for k := 1; k <= own; k++ {
			r.pair(r.user(i), peer(i, k))
		}
	}
	return func(d *device) (all []*lane) {
		if d.i >= users {
			return nil // the user's first device writes
		}
		for k := 1; k <= own; k++ {
			all = append(all, d.out.lane("", peer(d.i, k)))
		}
		return all
	}
}

// syncs lets users ask what has changed: half of the calls with nothing in
// hand, half with the last token and a few conversations an entry behind; an
// operation is a sync to its end, with all of its pages.
func (r *runner) syncs() error {
	if r.o.Users < 2 {
		return errors.New("sync wants at least 2 users")
	}
	lanes := r.befriend()
	if err := r.connectAll(r.o.Conns, nil); err != nil {
		return err
	}
	if err := r.fill(1, lanes); err != nil {
		return err
	}
	full, since := r.recorder("full"), r.recorder("since")
	r.primary = since
	for _, d := range r.devices {
		token := ""
		r.drive(d, len(r.devices), requestWindow, since, func(s *source, at time.Duration) {
			rec, f := full, &clientv1.Sync{}
			if token != "" && r.rng.IntN(2) == 0 {
				rec, f = since, &clientv1.Sync{SyncToken: token, PageLimit: syncPage, Cursors: r.behind(d, 5)}
			}
			r.syncOn(s, at, rec, f, func(t string) { token = t })
		})
	}
	return r.measure()
}

// behind is the cursors of up to n of a device's conversations, each an entry
// back.
func (r *runner) behind(d *device, n int) (cursors []*clientv1.Cursor) {
	for id, cv := range d.in.convs { // in no order, which is what is wanted
		if len(cursors) == n {
			break
		}
		cursors = append(cursors, &clientv1.Cursor{ConversationId: id, Have: max(cv.seen()-1, 0)})
	}
	return cursors
}

// syncOn makes one page of a sync, and the next ones after it.
func (r *runner) syncOn(s *source, at time.Duration, rec *recorder, f *clientv1.Sync, got func(token string)) {
	s.d.cur.request(&clientv1.ClientFrame{Kind: &clientv1.ClientFrame_Sync{Sync: f}}, func(a *clientv1.ServerFrame) {
		res := a.GetSyncResult()
		switch {
		case a == nil:
			r.late("unanswered", rec, at)
			r.open--
		case res == nil:
			r.fail(reasonOf(a))
		case res.More && s.d.online():
			r.syncOn(s, at, rec, &clientv1.Sync{SyncToken: res.SyncToken, PageLimit: f.PageLimit, Cursors: f.Cursors}, got)
			return
		default:
			got(res.SyncToken)
			r.done(rec, at)
		}
		s.ended()
	})
}

// resume drops all connections at once and waits until every device is back
// and has synced, again and again for the duration, at least once; an operation
// is one device that is back. Each device comes as if it had missed an entry of
// each conversation.
func (r *runner) resume() error {
	if r.o.Users < 2 {
		return errors.New("resume wants at least 2 users")
	}
	lanes := r.befriend()
	if err := r.connectAll(r.o.Conns, nil); err != nil {
		return err
	}
	if err := r.fill(1, lanes); err != nil {
		return err
	}
	back, all := r.recorder("resume"), r.recorder("all")
	r.primary, r.connecting = back, r.recorder("hello")
	r.begin()
	r.end = time.Duration(1<<63 - 1)
	for until := r.began + r.o.Duration; ; {
		began := r.l.now
		if err := r.storm(began, back); err != nil {
			r.finish()
			return err
		}
		all.add(r.l.now - began)
		if r.l.now >= until {
			break
		}
	}
	r.finish()
	return r.settle()
}

// storm drops every connection and waits until all devices are back.
func (r *runner) storm(began time.Duration, back *recorder) error {
	left := 0
	for _, d := range r.devices {
		d.comesBack, d.in.backlog = true, func(have int64) int64 { return max(have-1, 0) }
		left++
		r.open++
		waits := true
		d.onSync = func() {
			if waits {
				waits = false
				left--
				r.done(back, began)
			}
		}
		d.onJoin = r.connecting.add
	}
	r.dropping = true
	for _, d := range r.devices {
		d.attempt = 0
		if d.cur != nil {
			d.cur.c.drop(errDropped)
		}
	}
	r.dropping = false
	ok, err := r.wait("resume", connectLimit, func() bool { return left == 0 })
	if err == nil && !ok {
		err = fmt.Errorf("%d of %d devices are back after %v%s", len(r.devices)-left, len(r.devices), connectLimit, r.why())
	}
	return err
}

// errDropped is what a reconnect storm ends connections with.
var errDropped = errors.New("dropped by the scenario")

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
		r.syncOn(s, at, r.recorder("sync"), &clientv1.Sync{SyncToken: m.token, Cursors: r.behind(s.d, 2), PageLimit: syncPage}, func(t string) { m.token = t })
	}
}
