package scheduler

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/backoff"
	"github.com/imdhq/imd/pkg/control"
	"github.com/imdhq/imd/pkg/failpoint"
	"github.com/imdhq/imd/pkg/obs"
	"github.com/imdhq/imd/pkg/store"
)

// Job is one row of the table of jobs: work that only the leader does, and what
// makes it safe that a leader is killed, paused or cut off in the middle of it.
// What is said in words is for people.
type Job struct {
	Name    string        // in metrics, in the store and on the page; a-z and -
	Trigger string        // when there is something to do
	Row     string        // what remembers where the job stands
	Effect  string        // what it changes
	Fence   string        // what stops the effect of a leader that was replaced
	Limit   time.Duration // of one round; 0 = it goes on as long as the term
	Every   time.Duration // from the beginning of one round to the next; 0 with Limit 0
	Test    string        // that shows it: package and name

	// begin gives the rounds of one term; nil if attend does the work.
	begin func() round
	// attend works until ctx is done. If it returns earlier, it is called again.
	attend func(ctx context.Context, t control.Term) error
}

// round is one round of a job. An error ends the round, and store.ErrFenced the
// term.
type round func(ctx context.Context, t control.Term) error

const (
	// saveEvery is how often the row of a job is written that has more rounds than that.
	saveEvery = time.Minute
	// retryMost is the longest pause after a round that failed.
	retryMost = 30 * time.Second
)

// retry are the pauses after rounds that failed.
var retry = backoff.Policy{Base: time.Second, Max: retryMost}

// jobs is the table. A row is added here and nowhere else.
func (s *Scheduler) jobs() []Job {
	return []Job{
		{
			Name: "expire", Every: time.Hour, Limit: limit, begin: func() round { return s.expire },
			Trigger: "every hour", Row: "`job`", Effect: "removes what has been over for a day, 500 rows of a kind at a time: revocations that no token can need any more, notes of sessions, mutes",
			Fence: "token proved in the transaction that removes them", Test: "modules/scheduler TestTheLeaderExpiresRevocationsEveryHour",
		},
		{
			Name: "sweep", Every: sweepEvery, Limit: limit, begin: func() round { dead := absence{}; return dead.sweeps(s) },
			Trigger: "every 1 s, for processes that are missing for 3 s", Row: "none: what is to be done shows in the routes",
			Effect: "removes the routes of gateways that ended without giving them back",
			Fence:  "token asked for before; a process that is gone never comes back under its boot id", Test: "modules/scheduler TestTheLeaderSweepsWhatDeadGatewaysLeft",
		},
		{
			Name: "scheduled", Every: dueEvery, Limit: limit, begin: s.due,
			Trigger: "every 0.2 s, for messages whose time has come", Row: "`scheduled`", Effect: "sends scheduled messages",
			Fence: "token proved where a message is claimed, which ends the time to cancel it, and where its end is noted; what is sent has a client message id of its own, so that a repeat is one",
			Test:  "test/outbox TestScheduledOutliveTheirLeader",
		},
		{
			Name: "forget", Every: forgetEvery, Limit: limit, begin: func() round { return s.forget },
			Trigger: "every 10 s, for scheduled messages that ended before `schedule.keep`, and announcements that ended 30 days ago", Row: "`scheduled`, `announcement`", Effect: "removes them from the list",
			Fence: "token proved in the transaction that removes them", Test: "modules/scheduler TestEndedScheduledMessagesGo",
		},
		{
			Name: "announce", Every: announceEvery, Limit: limit, begin: s.announces,
			Trigger: "every 0.5 s, for announcements and gateways that are new", Row: "none: each gateway is told by each leader", Effect: "hands the announcements in force to all gateways",
			Fence: "each gateway refuses a leader that was followed, and a client knows a repeat by its number", Test: "modules/scheduler TestAllGatewaysHearAnnouncements",
		},
		{
			Name: "gather", attend: s.gathers,
			Trigger: "every 0.1 s, for what commits left behind", Row: "`feed`, `outbox`", Effect: "turns marks of commits into numbered events",
			Fence: "token proved in the transaction that takes the marks and adds the events", Test: "test/outbox TestEventsAreTold",
		},
		{
			Name: "webhooks", attend: s.tells,
			Trigger: "events, and pauses after failures", Row: "`receiver`, `dead_letter`", Effect: "tells receivers of events",
			Fence: "token proved where the cursor moves; a receiver knows a repeat by its id", Test: "test/outbox TestEventsAreTold",
		},
		{
			Name: "handover", attend: s.handovers,
			Trigger: "the age of a message that no device has acknowledged", Row: "`receiver`", Effect: "makes a push due for each conversation of an offline user",
			Fence: "token proved in the transaction that moves the cursor and adds the pushes", Test: "test/outbox TestOfflineUsersAreNotified",
		},
		{
			Name: "push", attend: s.pushes,
			Trigger: "pushes that are due", Row: "`push`", Effect: "notifies users who are offline, and takes back what they have read",
			Fence: "token proved where the push is settled; the provider knows a repeat by its id", Test: "test/outbox TestOfflineUsersAreNotified",
		},
		{
			Name: "tally", Every: tallyEvery, Limit: tallyLimit, begin: s.tallies,
			Trigger: "every 5 s", Row: "none: every node keeps what was counted", Effect: "counts users, sessions and messages, and hands every node the sum",
			Fence: "each node refuses the token of a leader that was followed", Test: "modules/scheduler TestWhatIsCountedOutlivesALeader",
		},
		{
			Name: "retain", Every: retainEvery, Limit: limit, begin: s.retains,
			Trigger: "every 1 s, if `retention.direct_days` or `retention.group_days` is set", Row: "`conversation.kept`",
			Effect: "hides messages that are too old from everyone, and removes their content",
			Fence:  "token proved in the transaction that raises the border and removes the content", Test: "modules/scheduler TestOldMessagesGo",
		},
		{
			Name: "trim", Every: trimEvery, Limit: limit, begin: func() round { return s.trim },
			Trigger: "every 10 s, for events older than `webhooks.keep`", Row: "`outbox`", Effect: "removes old events and dead letters",
			Fence: "token proved in the transaction that removes them", Test: "modules/scheduler TestOldEventsGo",
		},
	}
}

// Jobs is the table of jobs, for documents.
func Jobs() []Job { return (&Scheduler{}).jobs() }

// lead does the work of the one that was elected: every job, each for itself, so
// that none waits for another. The rows say where the leader before stood.
func (s *Scheduler) lead(ctx context.Context, t control.Term) error {
	ctx, cancel := context.WithCancelCause(ofTerm(ctx))
	defer cancel(nil)
	var wg sync.WaitGroup
	s.board.begin(t.Proof())
	defer s.board.end()
	for _, j := range s.jobs() {
		wg.Go(func() {
			if err := s.keep(ctx, j, t); errors.Is(err, store.ErrFenced) && !failpoint.Bad(failpoint.NoFence) {
				cancel(err)
			}
		})
	}
	wg.Wait()
	s.silentNodes.Set(0)
	if err := context.Cause(ctx); errors.Is(err, store.ErrFenced) {
		return err
	}
	return nil
}

// keep does one job until the term ends. Errors: store.ErrFenced.
func (s *Scheduler) keep(ctx context.Context, j Job, t control.Term) error {
	had, err := s.row(ctx, j)
	if err != nil {
		return err
	}
	if j.attend != nil {
		return s.attended(ctx, j, t, had)
	}
	run, saved, failed := j.begin(), time.Time{}, 0
	timer := time.NewTimer(time.Until(had.Ran.Add(j.Every)))
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}
		began := time.Now()
		err := s.round(ctx, j, t, run)
		switch {
		case errors.Is(err, store.ErrFenced):
			return err
		case ctx.Err() != nil:
			return nil
		case err != nil:
			failed++
			timer.Reset(min(j.Every, retry.Bound(failed-1)))
			continue
		}
		failed = 0
		had.Ran, had.Rounds = began, had.Rounds+1
		if j.Every >= saveEvery || began.Sub(saved) >= saveEvery {
			if err := s.save(ctx, t, had); errors.Is(err, store.ErrFenced) {
				return err
			} else if err == nil {
				saved = began
			}
		}
		s.board.next(j.Name, began.Add(j.Every))
		timer.Reset(time.Until(began.Add(j.Every)))
	}
}

// row reads where a job stands, as often as it takes.
func (s *Scheduler) row(ctx context.Context, j Job) (store.JobRow, error) {
	for failed := 0; ; failed++ {
		row, err := s.readRow(ctx, j)
		if err == nil {
			return row, nil
		}
		if ctx.Err() == nil {
			s.Log.Warn("where a job stands cannot be read; it begins when it can", zap.String("job", j.Name), obs.Err(err))
		}
		if err := retry.Sleep(ctx, failed); err != nil {
			return row, err
		}
	}
}

func (s *Scheduler) readRow(ctx context.Context, j Job) (store.JobRow, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	row := store.JobRow{Name: j.Name}
	st, err := s.Store()
	if err != nil {
		return row, err
	}
	all, err := st.Jobs(ctx)
	for _, one := range all {
		if one.Name == j.Name {
			row = one
		}
	}
	if now := time.Now(); row.Ran.After(now) { // of a clock that is ahead
		row.Ran = now
	}
	return row, err
}

// save writes the row of a job. Its error has been dealt with, except for
// ErrFenced: a row that is behind makes the next leader begin a round early.
func (s *Scheduler) save(ctx context.Context, t control.Term, row store.JobRow) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	st, err := s.Store()
	if err == nil {
		err = st.SaveJob(ctx, t.Proof(), row)
	}
	if err != nil && !errors.Is(err, store.ErrFenced) && ctx.Err() == nil {
		s.Log.Warn("where a job stands was not written; the next round does it", zap.String("job", row.Name), obs.Err(err))
	}
	return err
}

// round is one round, counted.
func (s *Scheduler) round(ctx context.Context, j Job, t control.Term, run round) error {
	ctx, cancel := context.WithTimeout(ctx, j.Limit)
	defer cancel()
	began := time.Now()
	err := run(ctx, t)
	s.ended(j, t, began, err)
	return err
}

// ended counts what a round, or a stretch of an attended job, ended with.
func (s *Scheduler) ended(j Job, t control.Term, began time.Time, err error) {
	took, result := time.Since(began), "ok"
	token := zap.Int64("token", t.Proof().Token)
	switch {
	case errors.Is(err, store.ErrFenced):
		result = "fenced"
		s.Log.Warn("another node leads; the job had no effect", zap.String("job", j.Name), token, obs.Err(err))
	case errors.Is(err, context.Canceled):
		result = "ended"
	case err != nil:
		result = "failed"
		s.Log.Warn("a job failed; it is tried again", zap.String("job", j.Name), token, obs.Took(took), obs.Err(err))
	}
	s.runs.WithLabelValues(j.Name, result).Inc()
	s.took.WithLabelValues(j.Name).Observe(took.Seconds())
	s.board.ended(j.Name, began, took, result)
}

// attended does a job that has no rounds.
func (s *Scheduler) attended(ctx context.Context, j Job, t control.Term, had store.JobRow) error {
	for failed := 0; ; failed++ {
		began := time.Now()
		had.Ran, had.Rounds = began, had.Rounds+1
		err := s.save(ctx, t, had)
		if err == nil {
			s.board.ended(j.Name, began, 0, "runs")
			err = j.attend(ctx, t)
			s.ended(j, t, began, err)
		}
		if ctx.Err() != nil || errors.Is(err, store.ErrFenced) {
			return err
		}
		if time.Since(began) > retryMost {
			failed = 0
		}
		if err := retry.Sleep(ctx, failed); err != nil {
			return err
		}
	}
}
