package scheduler

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/imdhq/imd/pkg/control"
	"github.com/imdhq/imd/pkg/presence"
	"github.com/imdhq/imd/pkg/settings"
	"github.com/imdhq/imd/pkg/store"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
)

const (
	// inboxSize is how many reports wait; gateways are asked again when there is
	// room.
	inboxSize = 64
	// statsEvery is how often it is counted who is online.
	statsEvery = 5 * time.Second
	// lastSaves bounds what is still saved when a leader resigns.
	lastSaves = 300 * time.Millisecond
)

// What may change while a scheduler leads.
var (
	offlineAfter = settings.Duration("presence.offline_after", 500*time.Millisecond, 0, time.Hour,
		"How long a user whose last connection of a class closed or broke is still shown with it, in case it comes back.")
	returnAfter = settings.Duration("presence.return_after", 5*time.Second, 0, time.Hour,
		"The same for a connection that the server ended and whose client was told to come back: a node that stops, a device that did not answer.")

	declared = settings.Schema{Keys: []settings.Declared{offlineAfter, returnAfter, retentionDirect, retentionGroup, retentionPace, scheduleKeep}}
)

// GatewayClient is what the leader asks of a gateway. Safe for concurrent use.
type GatewayClient interface {
	Follow(context.Context, *v1.FollowRequest) (*v1.FollowResponse, error)
	Show(context.Context, *v1.ShowRequest) (*v1.ShowResponse, error)
}

// presenceMetrics count what the leader hears and says of presence.
type presenceMetrics struct {
	users, sessions, watched prometheus.Gauge
	gateways                 *prometheus.GaugeVec   // label: state (followed, awaited)
	changes                  *prometheus.CounterVec // label: kind
	shown, superseded        prometheus.Counter
	saved                    *prometheus.CounterVec // label: result (ok, failed, dropped)
	turns                    *prometheus.CounterVec // label: result (ok, failed)
}

func newPresenceMetrics(reg prometheus.Registerer) *presenceMetrics {
	const ns, sub = "imd", "presence"
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Namespace: ns, Subsystem: sub, Name: name, Help: help})
	}
	counter := func(name, help string) prometheus.CounterOpts {
		return prometheus.CounterOpts{Namespace: ns, Subsystem: sub, Name: name, Help: help}
	}
	m := &presenceMetrics{
		users:    gauge("users", "Users that are shown as online; counted by the leader, 0 elsewhere."),
		sessions: gauge("sessions", "Sessions that the leader knows of; 0 elsewhere."),
		watched:  gauge("watched", "Users that some gateway wants to hear of; 0 where nobody leads."),
		gateways: prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: ns, Subsystem: sub, Name: "gateways",
			Help: "Gateways that the leader follows: followed, or awaited because they have not told all they have."}, []string{"state"}),
		changes:    prometheus.NewCounterVec(counter("changes_total", "What gateways told the leader: began, ended, watch, unwatch."), []string{"kind"}),
		shown:      prometheus.NewCounter(counter("shown_total", "States of users that the leader told gateways.")),
		superseded: prometheus.NewCounter(counter("superseded_total", "Sessions that the leader had dropped because newer ones of the same login and device are elsewhere.")),
		saved:      prometheus.NewCounterVec(counter("saved_total", "Times of when users were last seen: saved, tried again after a failure, or dropped because too many wait."), []string{"result"}),
	}
	for _, k := range kinds {
		m.changes.WithLabelValues(k)
	}
	m.turns = prometheus.NewCounterVec(counter("events_total", "Users that came or went, for receivers of user.online and user.offline: stored, or tried again after a failure."), []string{"result"})
	for _, r := range []string{"ok", "failed"} {
		m.turns.WithLabelValues(r)
	}
	for _, r := range []string{"ok", "failed", "dropped"} {
		m.saved.WithLabelValues(r)
	}
	reg.MustRegister(m.users, m.sessions, m.watched, m.gateways, m.changes, m.shown, m.superseded, m.saved, m.turns)
	m.show(presence.Stats{})
	return m
}

func (m *presenceMetrics) show(s presence.Stats) {
	m.users.Set(float64(s.Users))
	m.sessions.Set(float64(s.Sessions))
	m.watched.Set(float64(s.Watched))
	m.gateways.WithLabelValues("followed").Set(float64(s.Followed))
	m.gateways.WithLabelValues("awaited").Set(float64(s.Awaited))
}

// kinds names the kinds of changes.
var kinds = [...]string{presence.Began: "began", presence.Ended: "ended", presence.Watch: "watch", presence.Unwatch: "unwatch"}

// work is all that the leader does: its jobs, and showing who is online. It ends
// when either of the two finds that another node leads.
func (s *Scheduler) work(ctx context.Context, t control.Term) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer s.schedule.noneOpen()
	shown := make(chan error, 1)
	go func() {
		err := s.showPresence(ctx, t)
		if err != nil {
			cancel()
		}
		shown <- err
	}()
	err := s.lead(ctx, t)
	cancel()
	return errors.Join(err, <-shown)
}

// following is the leader's view of who is online, for one term.
type following struct {
	s     *Scheduler
	t     control.Term
	core  *presence.Core
	book  *book
	turns *turned // nil = nobody outside is told
	links map[store.Home]*link
	inbox chan presence.Event
	over  chan error // why the term is over; holds one
	wg    sync.WaitGroup

	view  uint64 // serial of the one that was taken in
	count time.Time
}

// showPresence follows all gateways and tells them who is online, until ctx is
// done. Errors: store.ErrFenced: another node leads.
func (s *Scheduler) showPresence(ctx context.Context, t control.Term) error {
	f := &following{s: s, t: t, core: presence.New(s.waits()), links: map[store.Home]*link{},
		inbox: make(chan presence.Event, inboxSize), over: make(chan error, 1)}
	f.book, f.turns = newBook(f), turnedFor(f)
	work, cancel := context.WithCancel(ctx)
	defer func() {
		cancel()
		f.wg.Wait()
		s.presence.show(presence.Stats{})
		s.online.Store(nil)
	}()
	f.wg.Go(func() { f.book.run(work) })
	if f.turns != nil {
		f.wg.Go(func() { f.turns.run(work) })
	}
	tick := time.NewTicker(presence.TickTime)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			cancel()
			f.resign()
			return nil
		case err := <-f.over:
			return err
		case ev := <-f.inbox:
			f.step(ev)
		case <-tick.C:
			f.look(work)
			f.core.Waits = s.waits()
			f.step(presence.Tick{})
		}
	}
}

// waits are the settings in force.
func (s *Scheduler) waits() presence.Waits {
	now := s.current()
	return presence.Waits{Offline: offlineAfter.In(now), Return: returnAfter.In(now)}
}

// step takes in an event and hands out what follows from it.
func (f *following) step(ev presence.Event) {
	if r, ok := ev.(presence.Report); ok {
		for _, c := range r.Changes {
			f.s.presence.changes.WithLabelValues(kinds[c.Kind]).Inc()
		}
	}
	fx := f.core.Step(time.Now(), ev)
	for _, t := range fx.Tell {
		f.s.presence.shown.Add(float64(len(t.States)))
		f.s.presence.superseded.Add(float64(len(t.Superseded)))
		if l := f.links[t.Home]; l != nil {
			l.add(t)
		}
	}
	f.book.add(fx)
	f.turns.add(fx.Turned)
}

// look takes in who is in the cluster, and follows newcomers.
func (f *following) look(ctx context.Context) {
	if now := time.Now(); now.Sub(f.count) >= statsEvery {
		f.count = now
		f.s.showStats(f.core.Stats())
	}
	if f.s.Gateway == nil {
		return
	}
	v := f.s.View()
	if v.Revision == 0 || v.Stale || v.Serial == f.view {
		return // a view that may be old says nothing
	}
	f.view = v.Serial
	var list []presence.Gateway
	there := map[store.Home]bool{}
	for _, n := range v.Nodes {
		if !n.Has("gateway") {
			continue
		}
		h := store.Home{Node: n.ID, Boot: n.BootID}
		there[h] = true
		list = append(list, presence.Gateway{Home: h, Serving: n.State != control.Starting})
		if f.links[h] == nil {
			f.links[h] = f.link(ctx, h)
		}
	}
	for h, l := range f.links {
		if !there[h] {
			l.cancel()
			delete(f.links, h)
		}
	}
	f.step(presence.Gateways{List: list})
}

// end says that the term is over.
func (f *following) end(err error) {
	select {
	case f.over <- errors.Join(store.ErrFenced, err):
	default: // somebody has said so
	}
}

// resign saves what is known of those who are online, if the node stops: they may
// be gone when another one leads.
func (f *following) resign() {
	select {
	case <-f.s.leave:
	default:
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), lastSaves)
	defer cancel()
	now := time.Now()
	for _, u := range f.core.Online() {
		f.book.note(presence.Seen{User: u, At: now})
	}
	for f.book.saveSome(ctx) {
	}
}
