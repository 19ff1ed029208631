package bench

import (
	"errors"
	"fmt"
	"time"

	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

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
	if r.o.Reader != "" {
		return r.syncLarge()
	}
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
			r.syncOn(s, at, rec, f, func(res *clientv1.SyncResult) { token = res.SyncToken })
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

// syncOn makes one page of a sync, and the next ones after it; got is called
// with each.
func (r *runner) syncOn(s *source, at time.Duration, rec *recorder, f *clientv1.Sync, got func(*clientv1.SyncResult)) {
	s.d.cur.request(&clientv1.ClientFrame{Kind: &clientv1.ClientFrame_Sync{Sync: f}}, func(a *clientv1.ServerFrame) {
		res := a.GetSyncResult()
		r.states += int64(len(res.GetConversations()))
		switch {
		case a == nil:
			r.late("unanswered", rec, at)
			r.open--
		case res == nil:
			r.fail(reasonOf(a))
		case res.More && s.d.online():
			got(res)
			r.syncOn(s, at, rec, &clientv1.Sync{SyncToken: res.SyncToken, PageLimit: f.PageLimit, Cursors: f.Cursors}, got)
			return
		default:
			got(res)
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
