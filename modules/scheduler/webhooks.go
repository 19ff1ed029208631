package scheduler

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/control"
	"github.com/imdhq/imd/pkg/failpoint"
	"github.com/imdhq/imd/pkg/obs"
	"github.com/imdhq/imd/pkg/outbox"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/pkg/webhook"
)

const (
	// gatherEvery is how often marks are looked for, and gatherMost how many are
	// turned into events at once.
	gatherEvery = 100 * time.Millisecond
	gatherMost  = 500
	// trimEvery is how often old events are removed, and trimMost how many at once.
	trimEvery = 10 * time.Second
	trimMost  = 5000
	// outboxCall bounds one call of the message store.
	outboxCall = 5 * time.Second
)

// receiver is one receiver of the configuration, ready to be told.
type receiver struct {
	ReceiverConfig
	sender *webhook.Sender
}

// news tells many that something is there. Safe for concurrent use.
type news struct {
	mu sync.Mutex
	ch chan struct{}
}

func newNews() *news { return &news{ch: make(chan struct{})} }

// next is closed with the next tell.
func (n *news) next() <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.ch
}

func (n *news) tell() {
	n.mu.Lock()
	defer n.mu.Unlock()
	close(n.ch)
	n.ch = make(chan struct{})
}

// openReceivers makes senders for those of the configuration.
func (s *Scheduler) openReceivers() error {
	agent := "imd/" + s.Version
	for _, c := range s.Webhooks.Receivers {
		keys, err := openKeys(c.KeyFile, s.Log)
		if err != nil {
			return fmt.Errorf("webhooks.receivers: key_file of %s: %w", c.Name, err)
		}
		s.receivers = append(s.receivers, receiver{c, webhook.New(webhook.Target{
			URL: c.URL, Timeout: or(c.Timeout, defaultTimeout), Connections: or(c.Concurrency, defaultConcurrency),
			PublicOnly: c.PublicOnly, Keys: keys.now, Agent: agent,
		})})
	}
	if s.Push.URL == "" {
		return nil
	}
	keys, err := openKeys(s.Push.KeyFile, s.Log)
	if err != nil {
		return fmt.Errorf("offline_push.key_file: %w", err)
	}
	s.provider = outbox.WebhookProvider{Sender: webhook.New(webhook.Target{
		URL: s.Push.URL, Timeout: s.Push.Timeout, Connections: s.Push.Concurrency, PublicOnly: s.Push.PublicOnly, Keys: keys.now, Agent: agent,
	})}
	return nil
}

// gathers turns what commits leave behind into events, as long as the term lasts.
func (s *Scheduler) gathers(ctx context.Context, t control.Term) error {
	if err := s.feed(ctx, t); err != nil {
		return err
	}
	tick := time.NewTicker(gatherEvery)
	defer tick.Stop()
	for {
		if err := s.gather(ctx, t); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// feed switches the outbox on if somebody is to be told, and off if nobody is and
// nobody ever was.
func (s *Scheduler) feed(ctx context.Context, t control.Term) error {
	ctx, cancel := context.WithTimeout(ctx, outboxCall)
	defer cancel()
	st, err := s.Store()
	if err != nil {
		return err
	}
	known, err := st.Receivers(ctx)
	if err != nil {
		return err
	}
	state, err := st.OutboxState(ctx)
	if err != nil {
		return err
	}
	mine := map[string]bool{offlineNow: s.provider != nil, offlineLate: s.provider != nil}
	for _, r := range s.receivers {
		mine[r.Name] = true
	}
	on := len(s.receivers) > 0 || s.provider != nil
	for _, r := range known {
		if !mine[r.Name] {
			s.Log.Warn("a receiver is not in the configuration of this node; its events wait (imd webhook remove forgets it)", zap.String("receiver", r.Name))
			on = on || state.On
		}
	}
	if on == state.On {
		return nil
	}
	if err := st.SetFeed(ctx, t.Proof(), on); err != nil {
		return err
	}
	s.Log.Info("commits become events", zap.Bool("on", on))
	return nil
}

// gather turns the marks that there are into events.
func (s *Scheduler) gather(ctx context.Context, t control.Term) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	st, err := s.Store()
	if err != nil {
		return err
	}
	state, err := st.OutboxState(ctx)
	if err != nil || !state.Marks {
		return err
	}
	failpoint.HitJob("gather")
	for n := gatherMost; n == gatherMost; {
		if n, err = st.Gather(ctx, t.Proof(), gatherMost); err != nil {
			return err
		}
		s.gathered.Add(float64(n))
		s.news.tell()
	}
	return nil
}

// tells runs everybody who is told, each for itself, as long as the term lasts.
func (s *Scheduler) tells(ctx context.Context, t control.Term) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	for _, r := range s.receivers {
		wg.Go(func() {
			if err := s.tell(ctx, t, r); errors.Is(err, store.ErrFenced) {
				cancel(err)
			}
		})
	}
	wg.Wait()
	<-ctx.Done()
	if err := context.Cause(ctx); errors.Is(err, store.ErrFenced) {
		return err
	}
	return nil
}

// tell runs one receiver, again and again if the store fails. Errors: store.ErrFenced.
func (s *Scheduler) tell(ctx context.Context, t control.Term, r receiver) error {
	defer s.hooks.Forget(r.Name)
	for failed := 0; ; failed++ {
		began := time.Now()
		run := outbox.NewRunner(outbox.Options{
			Name: r.Name, Limits: r.limits(), Types: r.Events, Sender: r.sender, News: s.news.next, Metrics: s.hooks, Log: s.Log,
			Store: func() (outbox.Store, error) { return s.Store() },
		})
		err := run.Run(ctx, t.Proof())
		if ctx.Err() != nil || errors.Is(err, store.ErrFenced) {
			return err
		}
		s.Log.Warn("a receiver cannot be told now; it goes on in a moment", zap.String("receiver", r.Name), obs.Err(err))
		if time.Since(began) > retryMost {
			failed = 0
		}
		if err := retry.Sleep(ctx, failed); err != nil {
			return err
		}
	}
}

// trim is one round of removing events that are too old.
func (s *Scheduler) trim(ctx context.Context, t control.Term) error {
	st, err := s.Store()
	if err != nil {
		return err
	}
	for n := trimMost; n == trimMost; {
		failpoint.HitJob("trim")
		if n, err = st.TrimEvents(ctx, t.Proof(), time.Now().Add(-s.Webhooks.Keep), trimMost); err != nil {
			return err
		}
		s.trimmed.Add(float64(n))
	}
	return nil
}
