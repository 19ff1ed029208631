package scheduler

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/imdhq/imd/pkg/control"
	"github.com/imdhq/imd/pkg/status"
	"github.com/imdhq/imd/pkg/store"
)

// A leader goes on where the one before it stood: a round that was done is not
// done again before its time, and one that is overdue is done at once.
func TestJobsGoOnWhereTheFormerLeaderStood(t *testing.T) {
	for name, tt := range map[string]struct {
		ago   time.Duration // when the former leader's last round began
		after time.Duration // when the next one is due
	}{
		"never":             {-1, 0},
		"half an hour ago":  {30 * time.Minute, 30 * time.Minute},
		"overdue":           {5 * time.Hour, 0},
		"by a clock ahead":  {-time.Hour, time.Hour},
		"just a moment ago": {time.Millisecond, time.Hour - time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			c := &counting{}
			synctest.Test(t, func(t *testing.T) {
				if tt.ago != -1 {
					c.jobs = map[string]store.JobRow{"expire": {Name: "expire", Token: 7, Ran: time.Now().Add(-tt.ago), Rounds: 41}}
				}
				during(t, c, func(s *Scheduler, _ *sole) {
					if tt.after > 0 {
						time.Sleep(tt.after - time.Second)
						synctest.Wait()
						if c.rounds() != 0 {
							t.Fatal("the round came early")
						}
						time.Sleep(time.Second)
					}
					time.Sleep(time.Millisecond)
					synctest.Wait()
					if c.rounds() != 1 {
						t.Fatalf("%d rounds", c.rounds())
					}
					if row := c.row("expire"); row.Token != 1 || tt.ago != -1 && row.Rounds != 42 {
						t.Errorf("row %+v", row)
					}
				})
			})
		})
	}
}

// While the rows cannot be read nothing begins; then everything does.
func TestJobsWaitForTheirRows(t *testing.T) {
	c := &counting{away: true}
	running(t, c, func(s *Scheduler, e *sole) {
		time.Sleep(time.Minute)
		synctest.Wait()
		if c.rounds() != 0 || e.terms != 1 {
			t.Errorf("%d rounds in %d terms without a row", c.rounds(), e.terms)
		}
		c.set(func(c *counting) { c.away = false })
		time.Sleep(retryMost)
		synctest.Wait()
		if c.rounds() != 1 {
			t.Errorf("%d rounds", c.rounds())
		}
	})
}

// A round that hangs ends at its limit, and other jobs do not wait for it.
func TestAHangingJobDelaysNoOther(t *testing.T) {
	c := &counting{}
	hung := 0
	running(t, c, func(s *Scheduler, _ *sole) {
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		j := Job{Name: "hangs", Limit: time.Second, Every: 2 * time.Second}
		j.begin = func() round {
			return func(ctx context.Context, _ control.Term) error { hung++; <-ctx.Done(); return ctx.Err() }
		}
		go func() { done <- s.keep(ctx, j, term(1)) }()
		time.Sleep(20 * time.Second)
		cancel()
		if err := <-done; err != nil || hung < 3 {
			t.Errorf("%d rounds, %v", hung, err)
		}
		if c.rounds() != 1 {
			t.Errorf("%d rounds of the other job", c.rounds())
		}
	})
}

// A job without rounds begins anew when it ends by itself, and ends the term if
// it finds that another leads.
func TestAttendedJobs(t *testing.T) {
	c := &counting{}
	running(t, c, func(s *Scheduler, _ *sole) {
		calls := 0
		j := Job{Name: "stream", attend: func(context.Context, control.Term) error {
			if calls++; calls < 4 {
				return errors.New("broken")
			}
			return store.ErrFenced
		}}
		if err := s.keep(context.Background(), j, term(1)); !errors.Is(err, store.ErrFenced) || calls != 4 {
			t.Errorf("%d calls, %v", calls, err)
		}
		if row := c.row("stream"); row.Rounds != 4 {
			t.Errorf("row %+v", row)
		}
	})
}

// The page tells what the rows and this process know.
func TestJobsPage(t *testing.T) {
	c := &counting{}
	get := func(s *Scheduler) (out JobsStatus) {
		w := httptest.NewRecorder()
		status.Handler(s.page).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/statusz/jobs", nil))
		if err := json.Unmarshal(w.Body.Bytes(), &out); err != nil {
			t.Fatal(err)
		}
		return out
	}
	running(t, c, func(s *Scheduler, _ *sole) {
		time.Sleep(time.Second)
		synctest.Wait()
		got := get(s)
		if !got.Leads || got.Token != 1 || len(got.Jobs) != len(Jobs()) || got.Jobs[0].Name != "expire" || got.Jobs[0].Result != "ok" ||
			got.Jobs[0].Rounds != 1 || got.Jobs[0].Next == nil || got.Unread != "" {
			t.Errorf("leading: %+v", got)
		}
		c.set(func(c *counting) { c.away = true })
		if err := s.Drain(context.Background()); err != nil {
			t.Fatal(err)
		}
		if got = get(s); got.Leads || got.Jobs[0].Next != nil || got.Unread == "" {
			t.Errorf("standing by: %+v", got)
		}
	})
}

var nameRE = regexp.MustCompile(`^[a-z]+(-[a-z]+)*$`)

// Every row of the table is whole, and the tests that it names are there.
func TestTableOfJobs(t *testing.T) {
	seen := map[string]bool{}
	for _, j := range Jobs() {
		if seen[j.Name] || !nameRE.MatchString(j.Name) || len(j.Name) > 64 {
			t.Errorf("%q is no name of a job, or is there twice", j.Name)
		}
		seen[j.Name] = true
		if j.Trigger == "" || j.Row == "" || j.Effect == "" || j.Fence == "" {
			t.Errorf("%s does not say everything", j.Name)
		}
		if rounds := j.begin != nil; rounds == (j.attend != nil) || rounds != (j.Limit > 0) || rounds != (j.Every > 0) {
			t.Errorf("%s has neither rounds with a limit nor a life of its own", j.Name)
		}
		folder, name, ok := strings.Cut(j.Test, " ")
		files, err := filepath.Glob(filepath.Join("../..", folder, "*_test.go"))
		found := false
		for _, f := range files {
			text, rerr := os.ReadFile(f)
			if rerr != nil {
				t.Fatal(rerr)
			}
			found = found || strings.Contains(string(text), "func "+name+"(")
		}
		if err != nil || !ok || !found {
			t.Errorf("%s: there is no test %q", j.Name, j.Test)
		}
	}
}
