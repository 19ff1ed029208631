package module_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/control"
	"github.com/imdhq/imd/pkg/module"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// journal is what the recording modules did, in order.
type journal struct {
	mu    sync.Mutex
	lines []string
}

func (j *journal) add(line string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lines = append(j.lines, line)
}

func (j *journal) all() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return strings.Join(j.lines, ", ")
}

// recorder is a module that writes down its life.
type recorder struct {
	name string
	j    *journal

	startErr, drainErr error
	fail               chan error                      // ends Run; nil = never
	drain              func(ctx context.Context) error // nil = at once
	stuck              bool                            // Run does not heed its context
	addr               func(name, address string)
}

func (r *recorder) Start(context.Context) error {
	if r.startErr != nil {
		return r.startErr
	}
	r.j.add("start " + r.name)
	if r.addr != nil {
		r.addr("public", "127.0.0.1:1")
	}
	return nil
}

func (r *recorder) Run(ctx context.Context) error {
	if r.stuck {
		time.Sleep(time.Hour)
	}
	select {
	case <-ctx.Done():
	case err := <-r.fail:
		return err
	}
	r.j.add("ran " + r.name)
	return nil
}

func (r *recorder) Drain(ctx context.Context) error {
	r.j.add("drain " + r.name)
	if r.drain != nil {
		return r.drain(ctx)
	}
	return r.drainErr
}

func (r *recorder) Close() error {
	r.j.add("close " + r.name)
	return nil
}

// announcer also tells the cluster.
type announcer struct {
	recorder
	err error
}

func (a *announcer) Announce(_ context.Context, n control.Node) error {
	a.j.add(string(n.State) + n.Public)
	return a.err
}

func newNode(t *testing.T, ready *module.Ready, mods map[string]module.Module, specs ...module.Spec) *module.Node {
	t.Helper()
	for i, s := range specs {
		specs[i].New = func(e *module.Env) (module.Module, error) {
			if r, ok := mods[s.Name].(*recorder); ok && s.Name == "b" {
				r.addr = e.Announce
			}
			return mods[s.Name], nil
		}
	}
	n, err := module.New(specs, module.Options{
		Log: zap.NewNop(), Ready: ready, Env: func(module.Spec) *module.Env { return &module.Env{} },
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestOrderOfLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := &journal{}
		n := newNode(t, nil, map[string]module.Module{
			"a": &announcer{recorder: recorder{name: "a", j: j}, err: errors.New("etcd is away")},
			"b": &recorder{name: "b", j: j},
		}, module.Spec{Name: "a"}, module.Spec{Name: "b"})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- n.Run(ctx) }()
		synctest.Wait()
		if s := n.Record().State; s != control.Serving {
			t.Errorf("state = %s", s)
		}
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run() = %v", err)
		}
		want := "start a, start b, starting127.0.0.1:1, serving127.0.0.1:1, draining127.0.0.1:1, drain b, ran b, drain a, ran a, close b, close a"
		if got := j.all(); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	})
}

// Two living processes with one id would take each other's work: the second
// one ends.
func TestTakenIDEndsTheNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := &journal{}
		taken := &control.TakenError{Node: "n1", Ours: "here", Theirs: "there"}
		n := newNode(t, nil, map[string]module.Module{"a": &announcer{recorder: recorder{name: "a", j: j}, err: taken}}, module.Spec{Name: "a"})
		if err := n.Run(t.Context()); !errors.Is(err, taken) {
			t.Errorf("Run() = %v; want %v", err, taken)
		}
		if want := "start a, starting, draining, drain a, ran a, close a"; j.all() != want {
			t.Errorf("got %s; want %s", j.all(), want)
		}
	})
}

func TestFailingStartClosesWhatWasStarted(t *testing.T) {
	j := &journal{}
	bad := module.Configf("the schema is newer than this binary")
	n := newNode(t, nil, map[string]module.Module{
		"a": &recorder{name: "a", j: j}, "b": &recorder{name: "b", j: j}, "c": &recorder{name: "c", j: j, startErr: bad},
	}, module.Spec{Name: "a"}, module.Spec{Name: "b"}, module.Spec{Name: "c"})
	err := n.Run(t.Context())
	var ce *module.ConfigError
	if !errors.As(err, &ce) || !strings.HasPrefix(err.Error(), "c: the schema") {
		t.Errorf("Run() = %v; want the configuration error of c", err)
	}
	if got, want := j.all(), "start a, start b, close b, close a"; got != want {
		t.Errorf("got %s; want %s", got, want)
	}
}

func TestStopWhileStarting(t *testing.T) {
	j := &journal{}
	ctx, cancel := context.WithCancel(t.Context())
	n := newNode(t, nil, map[string]module.Module{"a": &recorder{name: "a", j: j}}, module.Spec{Name: "a"})
	cancel()
	if err := n.Run(ctx); err != nil {
		t.Errorf("Run() = %v; want nil", err)
	}
	if j.all() != "" {
		t.Errorf("got %s", j.all())
	}
}

func TestFailingRunStopsTheNode(t *testing.T) {
	for name, fail := range map[string]error{"b: disk on fire": errors.New("disk on fire"), "b: ended without being asked to": nil} {
		synctest.Test(t, func(t *testing.T) {
			j := &journal{}
			ch := make(chan error, 1)
			ch <- fail
			n := newNode(t, nil, map[string]module.Module{
				"a": &recorder{name: "a", j: j}, "b": &recorder{name: "b", j: j, fail: ch},
			}, module.Spec{Name: "a"}, module.Spec{Name: "b"})
			if err := n.Run(t.Context()); err == nil || err.Error() != name {
				t.Errorf("Run() = %v; want %s", err, name)
			}
			if want := "start a, start b, drain b, drain a, ran a, close b, close a"; j.all() != want {
				t.Errorf("got %s; want %s", j.all(), want)
			}
		})
	}
}

func TestPanicsStopInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := &journal{}
		n := newNode(t, nil, map[string]module.Module{
			"a": &recorder{name: "a", j: j}, "b": panicky{&recorder{name: "b", j: j}},
		}, module.Spec{Name: "a"}, module.Spec{Name: "b"})
		if err := n.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "b: panic: oh no") {
			t.Errorf("Run() = %v", err)
		}
		if !strings.HasSuffix(j.all(), "close b, close a") {
			t.Errorf("got %s", j.all())
		}
	})
}

type panicky struct{ *recorder }

func (panicky) Run(context.Context) error { panic("oh no") }

// A drain takes at most its share of what is left, a half unless it says
// otherwise, so that the modules behind it get theirs, and the whole stop stays
// within the grace.
func TestDrainBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := &journal{}
		var spent []time.Duration
		slow := func(ctx context.Context) error {
			began := time.Now()
			<-ctx.Done()
			spent = append(spent, time.Since(began))
			return ctx.Err()
		}
		n := newNode(t, nil, map[string]module.Module{
			"a": &recorder{name: "a", j: j, drain: slow}, "b": &recorder{name: "b", j: j, drain: slow}, "c": &recorder{name: "c", j: j, drain: slow},
		}, module.Spec{Name: "a"}, module.Spec{Name: "b", DrainShare: 0.8}, module.Spec{Name: "c"})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- n.Run(ctx) }()
		synctest.Wait()
		began := time.Now()
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run() = %v", err)
		}
		if want := []time.Duration{17500 * time.Millisecond, 14 * time.Second, 1750 * time.Millisecond}; !slices.Equal(spent, want) {
			t.Errorf("drains took %v; want %v", spent, want)
		}
		if total := time.Since(began); total > module.DefaultGrace {
			t.Errorf("the stop took %v", total)
		}
	})
}

func TestStuckModuleIsLeftBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := &journal{}
		n := newNode(t, nil, map[string]module.Module{"a": &recorder{name: "a", j: j, stuck: true}}, module.Spec{Name: "a"})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- n.Run(ctx) }()
		synctest.Wait()
		cancel()
		if err := <-done; err == nil || !strings.Contains(err.Error(), "stop a: still running 2s after its context ended") {
			t.Errorf("Run() = %v", err)
		}
		if !strings.HasSuffix(j.all(), "close a") {
			t.Errorf("got %s", j.all())
		}
		time.Sleep(2 * time.Hour) // let the stuck goroutine end
	})
}

// A node is not offered to callers before what it depends on is there.
func TestServesOnlyWhenReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := &journal{}
		var up atomic.Bool
		ready := module.NewReady()
		ready.Add("database", func(context.Context) module.Status {
			return module.Status{Ready: up.Load(), Reason: "cannot be reached"}
		})
		n := newNode(t, ready, map[string]module.Module{"a": &announcer{recorder: recorder{name: "a", j: j}}}, module.Spec{Name: "a"})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- n.Run(ctx) }()
		time.Sleep(time.Minute)
		if got, want := j.all(), "start a, starting"; got != want {
			t.Errorf("got %s; want %s", got, want)
		}
		up.Store(true)
		time.Sleep(time.Second)
		if got, want := j.all(), "start a, starting, serving"; got != want {
			t.Errorf("got %s; want %s", got, want)
		}
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run() = %v", err)
		}
	})
}

func TestReadyAnswersInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := module.NewReady()
		r.Add("good", func(context.Context) module.Status { return module.Status{Ready: true} })
		r.Add("slow", func(context.Context) module.Status { time.Sleep(time.Minute); return module.Status{Ready: true} })
		r.Add("wild", func(context.Context) module.Status { panic("no") })
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		all, ok := r.Check(ctx)
		want := []module.Status{{Name: "good", Ready: true}, {Name: "slow", Reason: "no answer in time"}, {Name: "wild", Reason: "the check panicked"}}
		if ok || !slices.Equal(all, want) {
			t.Errorf("Check() = %v, %v; want %v", all, ok, want)
		}
		time.Sleep(2 * time.Minute)
	})
}

func TestOrder(t *testing.T) {
	specs := []module.Spec{
		{Name: "controlplane"},
		{Name: "storage", Needs: []string{"controlplane"}},
		{Name: "scheduler", Role: true, Needs: []string{"gateway"}},
		{Name: "gateway", Role: true, Needs: []string{"storage"}},
	}
	tests := []struct {
		name  string
		specs []module.Spec
		roles []string
		want  string // names, or the error
	}{
		{name: "needs come first", specs: specs, roles: []string{"scheduler", "gateway"}, want: "controlplane storage gateway scheduler"},
		{name: "only what is needed", specs: specs, roles: []string{"gateway"}, want: "controlplane storage gateway"},
		{name: "unknown role", specs: specs, roles: []string{"gatway"}, want: "there is no module gatway"},
		{name: "unknown need", specs: []module.Spec{{Name: "a", Needs: []string{"x"}}}, roles: []string{"a"}, want: "module a needs x, which does not exist"},
		{name: "declared twice", specs: []module.Spec{{Name: "a"}, {Name: "a"}}, roles: []string{"a"}, want: "module a is declared twice"},
		{
			name:  "circle",
			specs: []module.Spec{{Name: "a", Needs: []string{"b"}}, {Name: "b", Needs: []string{"c"}}, {Name: "c", Needs: []string{"b"}}},
			roles: []string{"a"}, want: "the modules need each other in a circle: b -> c -> b",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := module.Order(tt.specs, tt.roles)
			text := ""
			for _, s := range got {
				text += " " + s.Name
			}
			if err != nil {
				text = " " + err.Error()
			}
			if text[1:] != tt.want {
				t.Errorf("Order() = %s; want %s", text[1:], tt.want)
			}
		})
	}
}

func TestChooseRoles(t *testing.T) {
	specs := []module.Spec{{Name: "storage"}, {Name: "state", Role: true}, {Name: "gateway", Role: true}}
	tests := []struct {
		words []string
		want  string
	}{
		{[]string{"all"}, "state gateway"},
		{[]string{"gateway", "state", "gateway"}, "state gateway"},
		{[]string{"gateway"}, "gateway"},
		{[]string{"storage"}, `roles: there is no role "storage"; the roles are state, gateway, or all`},
		{nil, "roles: no role is chosen; the roles are state, gateway, or all"},
	}
	for _, tt := range tests {
		got, err := module.ChooseRoles(specs, tt.words)
		text := strings.Join(got, " ")
		if err != nil {
			text = err.Error()
		}
		if text != tt.want {
			t.Errorf("ChooseRoles(%q) = %s; want %s", tt.words, text, tt.want)
		}
	}
}
