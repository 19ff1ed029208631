package bench

import (
	"errors"
	"fmt"
	"time"

	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

const (
	// watchAtOnce is how many devices ask at a time whom they watch, and watchAgain
	// the pause of one that was refused for now.
	watchAtOnce = 200
	watchAgain  = 200 * time.Millisecond
	// watchLimit is how long it may take until all watch.
	watchLimit = 5 * time.Minute
	// restAfter is how long after a round it is waited for events that are late, or
	// too many.
	restAfter = time.Second
	// joinAgain is the pause of the user who is watched when the server refused it.
	joinAgain = 200 * time.Millisecond
)

// presence measures what watchers see of a user who comes and goes. All devices
// but the first watch the user of the first one, which connects and disconnects
// Flaps times within Within, and then stays where it is until all see it so, or
// Settle is over: that is a round. Rounds end in turn offline, online, online and
// offline, and follow each other until Duration is over. An operation is a
// watcher that sees the right thing at the end of a round.
func (r *runner) presence() error {
	switch {
	case r.o.Conns < 2 || r.o.Users < r.o.Conns || r.o.Group == nil:
		return errors.New("presence wants at least 2 devices, each of a user of its own, and a way to make a group")
	case r.o.Flaps < 1 || r.o.Within <= 0:
		return errors.New("presence wants a number of flaps and the time for them")
	}
	var users []string
	for i := range r.o.Users {
		users = append(users, r.user(i))
	}
	if _, err := r.o.Group(r.ctx, users[0], users[1:]); err != nil {
		return fmt.Errorf("make the group: %w", err)
	}
	f := &flapping{r: r, watchers: make([]watcher, r.o.Conns), online: r.recorder("online"), offline: r.recorder("offline")}
	if err := r.connectAll(r.o.Conns, f.prepare); err != nil {
		return err
	}
	f.take(r.devices[0])
	if err := f.watchAll(); err != nil {
		return err
	}
	f.there = false
	f.leave()
	if _, err := r.wait("warm up", r.o.Settle, func() bool { return f.right() == r.o.Conns-1 }); err != nil {
		return err
	}
	r.primary = f.offline
	r.begin()
	r.end = time.Duration(1<<63 - 1)
	var err error
	for until := r.l.now + r.o.Duration; err == nil && r.l.now < until; {
		err = f.round()
	}
	r.finish()
	return err
}

// watcher is what one device sees.
type watcher struct {
	online bool
	at     time.Duration // since when
	events int           // in this round
}

// flapping is the user who is watched, and those who watch.
type flapping struct {
	r        *runner
	d        *device
	watchers []watcher // by number of the device; the first is none
	rounds   int

	there           bool // the device is online, or about to be
	left            int  // changes of this round
	began           time.Duration
	changed         time.Duration // when it last came or went
	online, offline *recorder
}

// take makes a device the one that comes and goes. If the server refuses it, or
// drops it, it comes back a little later.
func (f *flapping) take(d *device) {
	f.d, d.comesBack, f.there = d, false, true
	down := d.onDown
	d.onDown = func(reason string, err error) {
		down(reason, err)
		if f.r.dropping || !f.there {
			return
		}
		f.r.l.after(joinAgain, func() {
			if f.there && !d.online() {
				d.ended = false
				d.join()
			}
		})
	}
}

// prepare lets a device take what it sees. It syncs as its like do, and so has
// nothing to read later, when heads are compared.
func (f *flapping) prepare(d *device) {
	d.syncs = true
	if d.i == 0 {
		return
	}
	d.onPresence = func(p *clientv1.Presence) {
		w := &f.watchers[d.i]
		for _, u := range p.Users {
			if u.UserId != f.r.user(0) {
				continue
			}
			w.events++
			w.online, w.at = u.Online, f.r.l.now
			f.r.deliveries++
			f.r.lastSeen = f.r.l.now
		}
	}
}

// watchAll makes all others watch, some at a time.
func (f *flapping) watchAll() error {
	next, watching := 1, 0
	var ask func(d *device)
	more := func() {
		if next < len(f.r.devices) {
			next++
			ask(f.r.devices[next-1])
		}
	}
	ask = func(d *device) {
		if d.cur == nil {
			return // the wait below ends without it
		}
		d.cur.request(&clientv1.ClientFrame{Kind: &clientv1.ClientFrame_WatchPresence{
			WatchPresence: &clientv1.WatchPresence{UserIds: []string{f.r.user(0)}}}}, func(a *clientv1.ServerFrame) {
			switch {
			case a.GetPresence() != nil:
				for _, u := range a.GetPresence().Users {
					f.watchers[d.i].online = u.Online
				}
				watching++
				more()
			case a.GetError().GetRetryable():
				f.r.l.after(watchAgain, func() { ask(d) })
			default:
				f.r.stop(fmt.Errorf("%s cannot watch: %s", d.user, reasonOf(a)))
			}
		})
	}
	for range watchAtOnce {
		more()
	}
	all := len(f.r.devices) - 1
	f.r.toFill = func() float64 { return float64(watching) / float64(all) }
	ok, err := f.r.wait("watch", watchLimit, func() bool { return watching == all })
	f.r.toFill = nil
	if err == nil && !ok {
		err = fmt.Errorf("%d of %d devices watch after %v%s", watching, all, watchLimit, f.r.why())
	}
	return err
}

// right is how many watchers see what is.
func (f *flapping) right() (n int) {
	for _, w := range f.watchers[1:] {
		if w.online == f.there {
			n++
		}
	}
	return n
}

// round lets the user come and go, and looks at what the watchers see.
func (f *flapping) round() error {
	r, before := f.r, f.there
	for i := range f.watchers {
		f.watchers[i].events = 0
	}
	f.began, f.left = r.l.now, 2*r.o.Flaps-f.rounds%2
	f.rounds++
	f.change(r.o.Within / time.Duration(2*r.o.Flaps))
	limit := r.o.Within + r.o.Settle
	_, err := r.wait("flap", limit, func() bool { return f.left == 0 && f.d.online() == f.there && f.right() == r.o.Conns-1 })
	if err != nil {
		return err
	}
	if _, err := r.wait("rest", restAfter, func() bool { return false }); err != nil {
		return err
	}
	f.judge(before)
	return nil
}

// judge counts what the watchers saw in a round that began with the user there,
// or not.
func (f *flapping) judge(before bool) {
	r := f.r
	for i, w := range f.watchers[1:] {
		r.open++
		r.eventsMost = max(r.eventsMost, w.events)
		switch {
		case !r.devices[i+1].online():
			r.fail("a watcher lost its connection")
		case w.online != f.there:
			r.fail("wrong at the end of a round")
		default:
			r.done(nil, r.l.now)
			if w.events > 0 && !w.online {
				f.offline.add(max(w.at-f.changed, 1))
			}
			if w.events > 0 && w.online && !before {
				f.online.add(max(w.at-f.began, 1))
			}
		}
	}
}

// change makes the user come or go, again and again with a pause between.
func (f *flapping) change(pause time.Duration) {
	f.left--
	f.there = !f.there
	next := f.r.l.now + pause
	again := func() {
		f.changed = f.r.l.now
		if f.left > 0 {
			f.r.l.at(next, func() { f.change(pause) })
		}
	}
	if !f.there {
		f.leave()
		again()
		return
	}
	f.d.ended = false
	f.d.onJoin = func(time.Duration) {
		f.d.onJoin = nil // a return that was not asked for changes nothing
		again()
	}
	f.d.join()
}

// leave ends the connection of the user.
func (f *flapping) leave() {
	f.r.dropping = true
	if f.d.cur != nil {
		f.d.cur.c.drop(errDropped)
	}
	f.r.dropping = false
}
