package scheduler

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/imdhq/imd/pkg/status"
	"github.com/imdhq/imd/pkg/store"
)

// board is what this process knows of its jobs. Safe for concurrent use.
type board struct {
	mu    sync.Mutex
	proof store.Proof // of the present term; zero = another node leads, or none
	jobs  map[string]JobStatus
}

func newBoard(jobs []Job) *board {
	b := &board{jobs: map[string]JobStatus{}}
	for _, j := range jobs {
		b.jobs[j.Name] = JobStatus{Name: j.Name, Trigger: j.Trigger, Limit: j.Limit.Seconds()}
	}
	return b
}

func (b *board) begin(p store.Proof) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.proof = p
}

func (b *board) end() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.proof = store.Proof{}
	for name, j := range b.jobs {
		j.Next = nil
		b.jobs[name] = j
	}
}

func (b *board) ended(job string, began time.Time, took time.Duration, result string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	j := b.jobs[job]
	j.Began, j.Took, j.Result = &began, took.Seconds(), result
	b.jobs[job] = j
}

func (b *board) next(job string, at time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	j := b.jobs[job]
	j.Next = &at
	b.jobs[job] = j
}

// JobsStatus is the jobs as one process knows them.
type JobsStatus struct {
	Leads bool        `json:"leads"` // this process does them
	Token int64       `json:"token"` // of its term; 0 = it does not lead
	Jobs  []JobStatus `json:"jobs"`
	// Unread says why the rows of the store are missing; "" = they are here.
	Unread string `json:"unread,omitempty"`
}

// JobStatus is one job: what its row in the message store says, and what this
// process did while it led.
type JobStatus struct {
	Name    string  `json:"name"`
	Trigger string  `json:"trigger"`
	Limit   float64 `json:"limit_seconds"` // of one round; 0 = it has none

	Ran    *time.Time `json:"ran"` // of the row
	Rounds int64      `json:"rounds"`
	Token  int64      `json:"token"`
	Holder string     `json:"holder"`

	Began  *time.Time `json:"began"` // of the last round here
	Took   float64    `json:"took_seconds"`
	Result string     `json:"result"` // ok, failed, fenced, ended, runs; "" = it had none here
	Next   *time.Time `json:"next"`
}

// pageLimit bounds the look into the message store.
const pageLimit = time.Second

func (s *Scheduler) report(ctx context.Context) JobsStatus {
	rows := map[string]store.JobRow{}
	ctx, cancel := context.WithTimeout(ctx, pageLimit)
	defer cancel()
	st, err := s.Store()
	if err == nil {
		var all []store.JobRow
		all, err = st.Jobs(ctx)
		for _, r := range all {
			rows[r.Name] = r
		}
	}
	s.board.mu.Lock()
	defer s.board.mu.Unlock()
	out := JobsStatus{Leads: s.board.proof != store.Proof{}, Token: s.board.proof.Token, Jobs: []JobStatus{}}
	if err != nil {
		out.Unread = "the message store does not answer"
	}
	for _, j := range s.jobs() {
		one := s.board.jobs[j.Name]
		if r, ok := rows[j.Name]; ok {
			one.Rounds, one.Token, one.Holder = r.Rounds, r.Token, r.Holder
			if !r.Ran.IsZero() {
				one.Ran = &r.Ran
			}
		}
		out.Jobs = append(out.Jobs, one)
	}
	return out
}

// page is the page of jobs.
func (s *Scheduler) page(r *http.Request) (any, status.Page) {
	rep := s.report(r.Context())
	title := "jobs: this node stands by"
	if rep.Leads {
		title = fmt.Sprintf("jobs: this node leads with token %d", rep.Token)
	}
	var rows [][]string
	for _, j := range rep.Jobs {
		rows = append(rows, []string{j.Name, j.Trigger, clock(j.Ran), fmt.Sprint(j.Rounds), fmt.Sprint(j.Token), j.Holder,
			j.Result, clock(j.Began), fmt.Sprintf("%.3f s", j.Took), clock(j.Next)})
	}
	caption := rep.Unread
	return rep, status.Page{Title: title, Tables: []status.Table{{Caption: caption, Rows: rows,
		Columns: []string{"job", "when", "ran", "rounds", "token", "leader", "last here", "began", "took", "next"}}}}
}

// clock is a time as pages show it; "" for none.
func clock(t *time.Time) string {
	if t == nil {
		return ""
	}
	return t.UTC().Format(time.RFC3339)
}
