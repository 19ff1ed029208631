package module

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/control"
)

// Time limits of a node's life.
const (
	// DefaultGrace is how long a stop may take in all.
	DefaultGrace = 35 * time.Second

	cutoff        = 2 * time.Second        // for Run to return once its context is done
	announceLimit = 3 * time.Second        // for one announcement: the control plane may be away
	readyPoll     = 100 * time.Millisecond // between looks at the readiness while starting
	readyLimit    = time.Second            // for one look
	readyLog      = 10 * time.Second       // between two lines about what is awaited
)

// Announcer is a module that tells the cluster about this node. The node hands
// it the record each time it changes.
type Announcer interface {
	Announce(ctx context.Context, n control.Node) error
}

// Options are what a node needs beside its modules.
type Options struct {
	Record control.Node  // what is announced; the node fills State and the addresses
	Grace  time.Duration // for a stop in all; 0 = DefaultGrace
	Ready  *Ready        // awaited before the node serves; nil = not awaited
	Log    *zap.Logger
	// Changed is called with each new state and the addresses known by then; it
	// must be quick. nil = nobody wants to know.
	Changed func(control.Node)
	// Env makes what a module is built with.
	Env func(Spec) *Env
}

// Node is the modules of one process. Its life is one call of Run.
type Node struct {
	o     Options
	units []*unit

	mu     sync.Mutex
	record control.Node
}

// unit is one module and its goroutine.
type unit struct {
	name   string
	mod    Module
	share  float64 // of the time that is left, for its drain
	cancel context.CancelFunc
	done   chan struct{} // closed when Run has returned; nil before it is called
}

// New builds the modules in the order given, which Order made. It opens
// nothing.
func New(specs []Spec, o Options) (*Node, error) {
	if o.Grace == 0 {
		o.Grace = DefaultGrace
	}
	n := &Node{o: o, record: o.Record}
	n.record.State = control.Starting
	for _, s := range specs {
		env := o.Env(s)
		announce := env.Announce
		env.Announce = func(name, address string) {
			n.bound(name, address)
			if announce != nil {
				announce(name, address)
			}
		}
		env.Capacity = n.capacity
		m, err := s.New(env)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.Name, err)
		}
		n.units = append(n.units, &unit{name: s.Name, mod: m, share: cmp.Or(s.DrainShare, 0.5)})
	}
	return n, nil
}

// bound notes an address that a module has bound.
func (n *Node) bound(name, address string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch name {
	case "public", "public-tls":
		n.record.Public, n.record.PublicTLS = address, name == "public-tls"
	case "ops":
		n.record.Ops = address
	case "internal":
		n.record.Internal = address
	}
}

// capacity notes how many client connections the node takes.
func (n *Node) capacity(connections int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.record.MaxConns = connections
}

// Bound notes an address that was bound outside of the modules: "public",
// "ops" or "internal". Before Run.
func (n *Node) Bound(name, address string) { n.bound(name, address) }

// Record is what the node says of itself now.
func (n *Node) Record() control.Node {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.record
}

// Run starts the modules in order, announces the node and waits until ctx is
// done or a module fails. Then it stops the modules in reverse. It returns the
// failure that ended the run, or nil; what went wrong while stopping is part
// of it.
func (n *Node) Run(ctx context.Context) error {
	started, err := n.start(ctx)
	if err != nil {
		err = errors.Join(err, closeAll(started))
		if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
			return nil // asked to stop while starting
		}
		return err
	}
	failed := make(chan error, len(started)) // one slot each: a sender never blocks
	for _, u := range started {
		u.run(context.WithoutCancel(ctx), failed) // the signal must not cut modules off before they drain
	}
	if err = n.serve(ctx, failed); err == nil {
		select {
		case <-ctx.Done():
		case err = <-failed:
		}
	}
	return errors.Join(err, n.stop(started))
}

// start starts the modules one by one.
func (n *Node) start(ctx context.Context) (started []*unit, err error) {
	for _, u := range n.units {
		if err := ctx.Err(); err != nil {
			return started, err
		}
		began := time.Now()
		if err := u.start(ctx); err != nil {
			return started, fmt.Errorf("%s: %w", u.name, err)
		}
		n.o.Log.Debug("module started", zap.String("role", u.name), zap.Float64("took_ms", float64(time.Since(began))/1e6))
		started = append(started, u)
	}
	return started, nil
}

// serve announces the node as starting, waits until everything it depends on
// is there, and announces it as serving. It ends early without an error when
// ctx is done, and with one when a module fails.
func (n *Node) serve(ctx context.Context, failed chan error) error {
	if err := n.announce(ctx, control.Starting); err != nil {
		return err
	}
	tick := time.NewTicker(readyPoll)
	defer tick.Stop()
	var logged time.Time
	for !n.ready(ctx, &logged) {
		select {
		case <-ctx.Done():
			return nil
		case err := <-failed:
			return err
		case <-tick.C:
		}
	}
	if ctx.Err() != nil {
		return nil
	}
	return n.announce(ctx, control.Serving)
}

func (n *Node) ready(ctx context.Context, logged *time.Time) bool {
	if n.o.Ready == nil {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, readyLimit)
	defer cancel()
	all, ok := n.o.Ready.Check(ctx)
	if !ok && time.Since(*logged) >= readyLog && ctx.Err() == nil {
		if !logged.IsZero() {
			n.o.Log.Warn("waiting to become ready", zap.Any("checks", slices.DeleteFunc(all, func(s Status) bool { return s.Ready })))
		}
		*logged = time.Now()
	}
	return ok
}

// announce changes the state and tells the cluster. An unreachable control
// plane holds nothing up: the record follows when it is back. The only error is
// that another living process has this node's id.
func (n *Node) announce(ctx context.Context, s control.State) error {
	n.mu.Lock()
	n.record.State = s
	record := n.record
	n.mu.Unlock()
	if n.o.Changed != nil {
		n.o.Changed(record)
	}
	for _, u := range n.units {
		a, ok := u.mod.(Announcer)
		if !ok {
			continue
		}
		actx, cancel := context.WithTimeout(ctx, announceLimit)
		err := a.Announce(actx, record)
		cancel()
		var taken *control.TakenError
		if errors.As(err, &taken) {
			return err
		}
		if err != nil && ctx.Err() == nil {
			n.o.Log.Warn("the node could not be announced", zap.String("state", string(s)), zap.Error(err))
		}
	}
	return nil
}

// stop first tells the cluster that this node takes no new work, then ends the
// modules in reverse start order. It spends about the grace in all.
func (n *Node) stop(units []*unit) error {
	ctx, cancel := context.WithTimeout(context.Background(), n.o.Grace)
	defer cancel()
	_ = n.announce(ctx, control.Draining) // whoever has the id, this node goes
	var errs []error
	for _, u := range slices.Backward(units) {
		began := time.Now()
		if err := u.end(ctx); err != nil {
			errs = append(errs, fmt.Errorf("stop %s: %w", u.name, err))
		}
		n.o.Log.Debug("module stopped", zap.String("role", u.name), zap.Float64("took_ms", float64(time.Since(began))/1e6))
	}
	return errors.Join(append(errs, closeAll(units))...)
}

func (u *unit) start(ctx context.Context) (err error) {
	defer recovered(&err)
	return u.mod.Start(ctx)
}

// run calls Run in a goroutine and reports any return that was not asked for.
func (u *unit) run(ctx context.Context, failed chan<- error) {
	ctx, u.cancel = context.WithCancel(ctx)
	u.done = make(chan struct{})
	go func() {
		defer close(u.done)
		err := u.guarded(ctx)
		switch {
		case err != nil:
			failed <- fmt.Errorf("%s: %w", u.name, err)
		case ctx.Err() == nil:
			failed <- fmt.Errorf("%s: ended without being asked to", u.name)
		}
	}()
}

func (u *unit) guarded(ctx context.Context) (err error) {
	defer recovered(&err)
	return u.mod.Run(ctx)
}

// end drains the module for at most its share of the time that is left, so that
// a slow one cannot starve those that stop after it, and then ends its Run.
func (u *unit) end(ctx context.Context) error {
	deadline, _ := ctx.Deadline()
	dctx, cancel := context.WithTimeout(ctx, time.Duration(float64(time.Until(deadline))*u.share))
	err := u.drain(dctx)
	cancel()
	u.cancel()
	late := time.NewTimer(cutoff)
	defer late.Stop()
	select {
	case <-u.done:
	case <-late.C:
		err = errors.Join(err, fmt.Errorf("still running %v after its context ended", cutoff))
	}
	return err
}

// drain calls Drain and does not wait past the deadline for one that ignores
// it.
func (u *unit) drain(ctx context.Context) error {
	out := make(chan error, 1) // the sender never blocks
	go func() {
		var err error
		defer func() { out <- err }()
		defer recovered(&err)
		err = u.mod.Drain(ctx)
	}()
	select {
	case err := <-out:
		if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
			return nil // the time was over, which is normal
		}
		return err
	case <-ctx.Done():
	}
	select {
	case <-out:
		return nil
	case <-time.After(cutoff):
		return fmt.Errorf("still draining %v after its time was over", cutoff)
	}
}

// closeAll closes the modules, newest first.
func closeAll(units []*unit) error {
	var errs []error
	for _, u := range slices.Backward(units) {
		if err := u.close(); err != nil {
			errs = append(errs, fmt.Errorf("close %s: %w", u.name, err))
		}
	}
	return errors.Join(errs...)
}

func (u *unit) close() (err error) {
	defer recovered(&err)
	return u.mod.Close()
}

// recovered turns a panic of a module into the error that stops the node in
// order.
func recovered(err *error) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
	}
}
