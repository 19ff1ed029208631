package scheduler

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/admin"
	"github.com/imdhq/imd/pkg/control"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/module"
	"github.com/imdhq/imd/pkg/outbox"
	"github.com/imdhq/imd/pkg/rpc"
	"github.com/imdhq/imd/pkg/settings"
	"github.com/imdhq/imd/pkg/status"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/pkg/tally"
	"github.com/imdhq/imd/pkg/webhook"
	"github.com/imdhq/imd/proto/gen/adminv1/adminv1connect"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
)

// Election is the name of the election in which this role takes part.
const Election = "scheduler"

// limit is how long one round of a job, and one call for its row, may take.
const limit = 10 * time.Second

// Messages is what the scheduler asks of the message store.
type Messages interface {
	store.Fences
	store.Jobs
	store.Outbox
	store.Retention
	ClaimScheduled(ctx context.Context, p store.Proof, c store.ScheduledClaim) ([]store.Scheduled, error)
	SettleScheduled(ctx context.Context, p store.Proof, done []store.ScheduledResult) error
	TrimScheduled(ctx context.Context, p store.Proof, before time.Time, limit int) (int, error)
	ScheduledCounts(ctx context.Context) (store.ScheduledCounts, error)
	Announcements(ctx context.Context, q store.AnnouncementQuery) ([]store.Announcement, error)
	AnnouncementVersion(ctx context.Context) (int64, error)
	TrimAnnouncements(ctx context.Context, p store.Proof, before time.Time) (int, error)
	DataEpoch() string
	Entry(ctx context.Context, conv im.ConversationID, seq im.Seq) (im.Entry, error)
	Expire(ctx context.Context, p store.Proof, now time.Time) (int, error)
	SaveSeen(ctx context.Context, p store.Proof, seen []store.Seen) error
	Seen(ctx context.Context, users []im.UserID) ([]store.Seen, error)
}

// StateClient is what the leader asks of state nodes. Safe for concurrent use.
type StateClient interface {
	Mark(context.Context, *v1.MarkRequest) (*v1.MarkResponse, error)
}

// Elector is what the scheduler asks of the control plane.
type Elector interface {
	Campaign(ctx context.Context, c control.Candidacy) error
}

// Deps is what the role works with.
type Deps struct {
	Node    im.NodeID // this node
	Log     *zap.Logger
	Reg     prometheus.Registerer
	Elector func() Elector // asked once, in Run; nil = there is none yet
	Store   func() (Messages, error)
	Routes  func() (store.Sweeper, error)
	View    func() *control.View
	// Live finds the routes of users; nil = that cannot be known here.
	Live func(ctx context.Context, users []im.UserID) ([]store.Route, error)
	// State is asked what devices have acknowledged; nil = it cannot be.
	State    StateClient
	Webhooks WebhookConfig
	Push     PushConfig
	Version  string // of the program, for receivers
	// Gateway is one node's gateway, whose sessions are followed; nil = none is.
	Gateway func(im.NodeID) GatewayClient
	// Tally asks all nodes for what they counted; nil = nothing is counted. Errors:
	// forbidden (another node leads).
	Tally func(context.Context, *v1.TallyRequest) ([]tally.Answer, error)
	// Kept keeps what was counted of the cluster.
	Kept *tally.Book
	// Submitter is the state role, which commits what is sent.
	Submitter Submitter
	// StateHome names the node that orders a conversation; nil = there is only one.
	StateHome func(conv string) im.NodeID
	// Settings may change while the role runs; nil = none are set.
	Settings settings.Source
}

// Scheduler is the scheduler role of one node.
type Scheduler struct {
	Deps
	runs    *prometheus.CounterVec
	took    *prometheus.HistogramVec
	expired prometheus.Counter
	swept   prometheus.Counter
	board   *board

	gathered prometheus.Counter
	trimmed  prometheus.Counter
	handed   prometheus.Counter
	pushed   *prometheus.CounterVec
	asked    *prometheus.CounterVec
	hooks    *outbox.Metrics

	receivers []receiver      // set by Start
	provider  outbox.Provider // set by Start; nil = offline users are not notified
	news      *news           // there are new events
	poke      chan struct{}   // capacity 1: pushes became due

	presence    *presenceMetrics
	online      atomic.Pointer[int64] // users shown as online; nil = not known, as nobody leads here or not all gateways have told
	silentNodes prometheus.Gauge
	retained    prometheus.Counter
	schedule    *scheduleMetrics
	// announced counts gateways that took announcements in, and unheard those that did
	// not.
	announced, unheard prometheus.Counter

	drain sync.Once
	leave chan struct{} // closed when the node drains
	left  chan struct{} // closed when the campaign has ended
}

// Spec declares the scheduler role.
func Spec() module.Spec {
	return module.Spec{
		Name:     "scheduler",
		Role:     true,
		Needs:    []string{"controlplane", "storage", "peers"},
		Calls:    []string{"gateway", "state"},
		Settings: declared,
		New: func(env *module.Env) (module.Module, error) {
			hooks, push := DefaultWebhookConfig(), DefaultPushConfig()
			if err := errors.Join(env.Config("webhooks", &hooks), env.Config("offline_push", &push)); err != nil {
				return nil, err
			}
			s := New(Deps{
				Node: env.Node, Log: env.Log, Reg: env.Reg, Webhooks: hooks, Push: push, Version: env.Version,
				Live: func(ctx context.Context, users []im.UserID) ([]store.Route, error) {
					r, err := env.Store.Routes()
					if err != nil {
						return nil, err
					}
					return r.Lookup(ctx, users)
				},
				Elector: func() Elector {
					if e := env.Control.Elector(); e != nil {
						return e
					}
					return nil
				},
				Store:   func() (Messages, error) { return env.Store.Messages() },
				Routes:  func() (store.Sweeper, error) { return env.Store.Routes() },
				View:    env.Control.View,
				Gateway: func(n im.NodeID) GatewayClient { return env.Peers.Gateway(n) },
				State:   env.Peers.State(),
				Tally:   env.Peers.Tally, Kept: env.Tally,
				Settings: env.Settings, Submitter: env.Peers.State(), StateHome: env.Peers.StateHome,
			})
			env.MountOps("GET /statusz/jobs", status.Handler(s.page))
			hookService := rpc.NewServer(rpc.Options{Log: env.Log, Metrics: rpc.NewMetrics(env.Reg), Timeout: serviceTimeout})
			adminv1connect.RegisterWebhookServiceHandler(hookService.Connect(), service{s})
			hookService.Mount(env.MountOps, func(h http.Handler) http.Handler { return admin.Auth(env.Keys.AdminKey(), h) })
			return s, nil
		},
	}
}

// New makes the role; nothing runs yet.
func New(d Deps) *Scheduler {
	s := &Scheduler{Deps: d, leave: make(chan struct{}), left: make(chan struct{}),
		runs: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "imd", Subsystem: "scheduler", Name: "runs_total",
			Help: "Rounds of a job: ok, failed, fenced because another node leads, or ended with the term."}, []string{"job", "result"}),
		took: prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: "imd", Subsystem: "scheduler", Name: "run_seconds",
			Help: "How long rounds of a job took.", Buckets: []float64{.001, .005, .025, .1, .5, 2, 10}}, []string{"job"}),
		expired: prometheus.NewCounter(prometheus.CounterOpts{Namespace: "imd", Subsystem: "scheduler", Name: "expired_total",
			Help: "Rows removed because they are over: revocations, notes of sessions, mutes."}),
	}
	s.swept = prometheus.NewCounter(prometheus.CounterOpts{Namespace: "imd", Subsystem: "scheduler", Name: "routes_swept_total",
		Help: "Routes removed that gateways left behind which ended without a word."})
	s.presence, s.schedule = newPresenceMetrics(d.Reg), newScheduleMetrics(d.Reg)
	s.announced = prometheus.NewCounter(prometheus.CounterOpts{Namespace: "imd", Subsystem: "scheduler", Name: "proclaimed_total",
		Help: "Times that a gateway has taken in all announcements in force."})
	s.unheard = prometheus.NewCounter(prometheus.CounterOpts{Namespace: "imd", Subsystem: "scheduler", Name: "proclaim_failures_total",
		Help: "Times that a gateway has not taken announcements in; it is told again twice a second."})
	s.silentNodes = prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "imd", Subsystem: "tally", Name: "silent_nodes",
		Help: "Nodes that did not tell the leader what they counted; 0 where nobody leads."})
	s.retained = prometheus.NewCounter(prometheus.CounterOpts{Namespace: "imd", Subsystem: "retention", Name: "entries_total",
		Help: "Entries that have gone because of their age."})
	s.board = newBoard(s.jobs())
	s.gathered = prometheus.NewCounter(prometheus.CounterOpts{Namespace: "imd", Subsystem: "outbox", Name: "marks_total",
		Help: "Marks of commits turned into events."})
	s.trimmed = prometheus.NewCounter(prometheus.CounterOpts{Namespace: "imd", Subsystem: "outbox", Name: "trimmed_total",
		Help: "Events removed because of their age."})
	s.handed = prometheus.NewCounter(prometheus.CounterOpts{Namespace: "imd", Subsystem: "offline", Name: "handed_over_total",
		Help: "Conversations of offline users of which they are to be notified."})
	s.pushed = prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "imd", Subsystem: "offline", Name: "pushes_total",
		Help: "Tries to notify users: taken, failed or given_up."}, []string{"result"})
	s.asked = prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "imd", Subsystem: "offline", Name: "asked_total",
		Help: "Members with a connected device of whom state nodes were asked whether it has acknowledged: acknowledged, silent or not_member; failed counts questions without an answer."}, []string{"result"})
	for _, r := range []string{"acknowledged", "silent", "not_member", "failed"} {
		s.asked.WithLabelValues(r)
	}
	s.hooks = outbox.NewMetrics(d.Reg)
	s.news, s.poke = newNews(), make(chan struct{}, 1)
	d.Reg.MustRegister(s.announced, s.unheard, s.runs, s.took, s.expired, s.swept, s.gathered, s.trimmed, s.handed, s.pushed, s.asked, s.silentNodes, s.retained)
	return s
}

// Start reads the keys of receivers.
func (s *Scheduler) Start(context.Context) error { return s.openReceivers() }

// Run takes part in the election until the node drains, and ends with ctx.
func (s *Scheduler) Run(ctx context.Context) error {
	err := s.campaign(ctx)
	close(s.left)
	if err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

func (s *Scheduler) campaign(ctx context.Context) error {
	e := s.Elector()
	if e == nil {
		return errors.New("scheduler: the control plane has not started")
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-s.leave:
			cancel()
		case <-ctx.Done():
		}
	}()
	return e.Campaign(ctx, control.Candidacy{
		Name:   Election,
		Fences: func() (store.Fences, error) { return s.Store() },
		Lead:   s.work,
	})
}

// Drain resigns, so that another node leads before this one stops.
func (s *Scheduler) Drain(ctx context.Context) error {
	s.drain.Do(func() { close(s.leave) })
	select {
	case <-s.left:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Close ends connections to receivers that are idle.
func (s *Scheduler) Close() error {
	for _, r := range s.receivers {
		r.sender.Close()
	}
	if p, ok := s.provider.(outbox.WebhookProvider); ok {
		if c, ok := p.Sender.(*webhook.Sender); ok {
			c.Close()
		}
	}
	return nil
}
