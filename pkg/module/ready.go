package module

import (
	"context"
	"sort"
	"sync"
)

// Status is the outcome of one readiness check.
type Status struct {
	Name     string `json:"name"`
	Ready    bool   `json:"ready"`
	Degraded bool   `json:"degraded,omitempty"` // ready, but something is away
	Reason   string `json:"reason,omitempty"`   // one clause, without secrets; "" when fine
}

// Ready collects the readiness checks of a node. Safe for concurrent use.
type Ready struct {
	mu     sync.Mutex
	checks map[string]func(context.Context) Status
}

// NewReady has no checks and is ready.
func NewReady() *Ready { return &Ready{checks: map[string]func(context.Context) Status{}} }

// Add registers a check under a name, replacing one of the same name. check
// must return by the deadline of its context.
func (r *Ready) Add(name string, check func(context.Context) Status) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.checks[name] = check
}

// Check runs all checks at once and returns them by name; ok is false if any
// is not ready. A check that has not answered when ctx is done counts as not
// ready.
func (r *Ready) Check(ctx context.Context) (all []Status, ok bool) {
	r.mu.Lock()
	checks := make(map[string]func(context.Context) Status, len(r.checks))
	for n, c := range r.checks {
		checks[n] = c
	}
	r.mu.Unlock()
	out := make(chan Status, len(checks)) // one slot each: a late check does not block
	for n, c := range checks {
		go func() { out <- run(ctx, n, c) }()
	}
	ok = true
	for len(checks) > 0 {
		var s Status
		select {
		case s = <-out:
		case <-ctx.Done():
			s = late(checks, out)
		}
		if _, open := checks[s.Name]; !open {
			continue // it was counted as late already
		}
		delete(checks, s.Name)
		ok = ok && s.Ready
		all = append(all, s)
	}
	sort.Slice(all, func(i, j int) bool { return all[i].Name < all[j].Name })
	return all, ok
}

func run(ctx context.Context, name string, check func(context.Context) Status) (s Status) {
	defer func() {
		if recover() != nil {
			s = Status{Reason: "the check panicked"}
		}
		s.Name = name
	}()
	return check(ctx)
}

// late is an answer that is there already, or the failure of any check that is
// not.
func late(checks map[string]func(context.Context) Status, out <-chan Status) Status {
	select {
	case s := <-out:
		return s
	default:
	}
	for n := range checks {
		return Status{Name: n, Reason: "no answer in time"}
	}
	return Status{}
}
