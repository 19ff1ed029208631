package cmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/imdhq/imd/pkg/drill"
	"github.com/imdhq/imd/pkg/failpoint"
	"github.com/imdhq/imd/pkg/store"
)

// drillFlags are what a drill can be told.
type drillFlags struct {
	app     *app
	o       drill.Options
	faults  []string
	minutes float64
	layout  string
	keep    string
	report  string
}

func newDrill(a *app) *cobra.Command {
	f := &drillFlags{app: a, o: drill.Defaults()}
	c := &cobra.Command{
		Use:   "drill",
		Short: "Break a cluster on this machine, then judge what its clients saw",
		Long: `Drill starts a cluster of its own on this machine, puts a load on it through fault
proxies, and breaks it: nodes are killed, stopped and restarted, their disks fill
up, connections are cut and slowed and lose what is said, peers misbehave. With Postgres, Redis and
split roles there are faults of each of these. Then it
lets the cluster heal and judges the recorded history as imd verify does.

The schedule follows from --seed, --faults and --minutes alone. With --keep all
that was recorded stays in a folder: the history, the schedule and the logs of the
nodes. Without it they stay only after a bad verdict.

Exit status: 0 no violation, and no node ended by itself; 1 a violation, or a node
that did; 2 wrong usage; 5 the load could not be put on the cluster, so that there
is nothing to judge; 130 interrupted.`,
		Example: `  imd drill
  imd drill --minutes 2 --faults kill,pause,drop --seed 7
  imd drill --layout cluster.yaml --keep ./drill
  imd drill replay 7 --minutes 2 --faults kill,pause,drop`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if !c.Flags().Changed("seed") {
				f.o.Seed = uint64(rand.Uint32())
			}
			return f.run(c.Context())
		},
	}
	f.add(c)
	c.Flags().Uint64Var(&f.o.Seed, "seed", 0, "chooses the schedule (default: random, and printed)")
	c.AddCommand(newDrillReplay(a), newDrillSchedule(a), newDrillWitness(a))
	return c
}

func newDrillReplay(a *app) *cobra.Command {
	f := &drillFlags{app: a, o: drill.Defaults()}
	c := &cobra.Command{
		Use:   "replay SEED",
		Short: "Play the schedule of a former drill again",
		Long: `Replay plays the schedule of a seed again: the same faults at the same times, if
--faults and --minutes are those of that drill. What the processes make of it is
not the same to the microsecond, so play it several times.`,
		Example: "  imd drill replay 7 --minutes 2",
		Args:    cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			seed, err := strconv.ParseUint(args[0], 10, 64)
			if err != nil {
				return usagef("%q is no seed: a number is wanted", args[0])
			}
			f.o.Seed = seed
			return f.run(c.Context())
		},
	}
	f.add(c)
	return c
}

func newDrillSchedule(a *app) *cobra.Command {
	f := &drillFlags{app: a, o: drill.Defaults()}
	c := &cobra.Command{
		Use:   "schedule SEED",
		Short: "Print the schedule of a seed, without a drill",
		Args:  cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			seed, err := strconv.ParseUint(args[0], 10, 64)
			if err != nil {
				return usagef("%q is no seed: a number is wanted", args[0])
			}
			if err := f.check(); err != nil {
				return err
			}
			events := drill.Plan(seed, f.o.Kinds, f.o.Duration)
			return a.printer().data(events, func(w io.Writer) { fmt.Fprint(w, drill.Print(events)) })
		},
	}
	f.addPlan(c)
	return c
}

// addPlan adds the flags that a schedule depends on.
func (f *drillFlags) addPlan(c *cobra.Command) {
	var kinds []string
	for _, k := range drill.Kinds() {
		kinds = append(kinds, string(k))
	}
	fl := c.Flags()
	fl.StringSliceVar(&f.faults, "faults", nil, "of "+strings.Join(kinds, ", ")+" (default: all that are possible here)")
	fl.StringVar(&f.layout, "layout", "one", "one (a node with all roles), control (members of etcd, witnesses of the control plane), postgres (a node on Postgres and Redis), split (the roles in processes of their own, on both), split-http (the same with calls over HTTP/2), hosts (split with each process in a network namespace) or a YAML file with the nodes of the cluster")
	fl.Float64Var(&f.minutes, "minutes", 10, "how long the load runs under faults, 0.2 to 1440")
}

func (f *drillFlags) add(c *cobra.Command) {
	f.addPlan(c)
	fl := c.Flags()
	fl.StringVar(&f.keep, "keep", "", "new folder for history and logs, which stay whatever the verdict")
	fl.StringVar(&f.report, "report", "", "also write the verdict as an HTML file")
	fl.IntVar(&f.o.Conns, "conns", f.o.Conns, "devices of the load")
	fl.IntVar(&f.o.Users, "users", f.o.Users, "users they belong to")
	fl.Float64Var(&f.o.Rate, "rate", f.o.Rate, "operations a second in all")
	fl.DurationVar(&f.o.Settle, "settle", f.o.Settle, "the longest wait, after the faults, until every device has everything")
	fl.StringVar(&f.o.Allocator, "allocator", f.o.Allocator, "who numbers messages: transaction, or segment in layouts with Postgres (default: with Postgres the seed chooses, else transaction)")
	fl.DurationVar(&f.o.AntiEntropy, "antientropy", f.o.AntiEntropy, "time between two comparisons of heads in the gateways")
}

// check reads what the flags say.
func (f *drillFlags) check() (err error) {
	o := &f.o
	switch {
	case !(f.minutes >= 0.2 && f.minutes <= 1440):
		return usagef("--minutes: %v is not within 0.2 and 1440", f.minutes)
	case o.Users < 4 || o.Conns < o.Users || o.Conns > 10_000:
		return usagef("--users: %d is not within 4 and the %d of --conns, which is at most 10000", o.Users, o.Conns)
	case !(o.Rate > 0 && o.Rate <= 100_000):
		return usagef("--rate: %v is not above 0 and at most 100000", o.Rate)
	case o.Settle < time.Second:
		return usagef("--settle: %v is less than 1s", o.Settle)
	}
	o.Duration = time.Duration(f.minutes * float64(time.Minute)).Round(time.Millisecond)
	o.Name = f.layout
	if known, ok := drill.Layouts()[f.layout]; ok {
		o.Layout = known
	} else if o.Layout, err = drill.ReadLayout(f.layout); err != nil {
		return newFailure(exitConfig, "layout", err.Error(), "")
	}
	switch {
	case o.Allocator != "" && o.Allocator != store.Transaction && o.Allocator != store.Segment:
		return usagef("--allocator: %q is neither transaction nor segment", o.Allocator)
	case o.Allocator == store.Segment && !o.Layout.Postgres:
		return newFailure(exitNotAllowed, "impossible", "--allocator segment wants a layout with Postgres, such as --layout postgres", "")
	}
	if why := drill.Missing(o.Layout); why != "" {
		return newFailure(exitNotAllowed, "impossible", "the layout "+why, "take another one with --layout")
	}
	if len(f.faults) == 0 {
		o.Kinds = drill.Possible(o.Layout)
	} else {
		o.Kinds = nil
		for _, name := range f.faults {
			k := drill.Kind(name)
			if !slices.Contains(drill.Kinds(), k) {
				return usagef("--faults: there is no fault %q", name)
			}
			if why := drill.Impossible(k, o.Layout); why != "" {
				return newFailure(exitNotAllowed, "impossible", fmt.Sprintf("fault %s %s", k, why), "leave it out with --faults")
			}
			o.Kinds = append(o.Kinds, k)
		}
	}
	return nil
}

func (f *drillFlags) run(ctx context.Context) error {
	if err := f.check(); err != nil {
		return err
	}
	if f.o.Layout.Hosts && !drill.OwnNetwork() {
		return f.inOwnNetwork(ctx)
	}
	ctx, release := untilSignal(ctx, func(os.Signal) {})
	defer release()
	dir, err := f.folder()
	if err != nil {
		return err
	}
	o := f.o
	o.Dir = dir
	if o.Exe, err = os.Executable(); err != nil {
		return err
	}
	if path := f.app.getenv(failpoint.FileVar); path != "" && failpoint.Built {
		text, err := os.ReadFile(path)
		if err != nil {
			return fmt.Errorf("%s: %w", failpoint.FileVar, err)
		}
		o.Standing = string(text)
	}
	if err := raiseFiles(4*o.Conns + 1000); err != nil {
		return err
	}
	o.OpenLedger, o.OpenRoutes = openLedger, openDrillRoutes
	fmt.Fprintf(f.app.errOut, "drill with seed %d, %v of load, in %s\n", o.Seed, o.Duration, dir)
	line := newLive(f.app)
	o.Progress = func(p drill.Progress) { line.put(drillLine(p)) }
	out, err := drill.Run(ctx, o)
	line.clear()
	if err != nil {
		return f.failed(ctx, dir, err)
	}
	return f.tell(out)
}

// inOwnNetwork runs the same command in a process whose network is its own and empty, so
// that the network of the machine is not touched, and nothing is left of it.
func (f *drillFlags) inOwnNetwork(ctx context.Context) error {
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	args := slices.Clone(os.Args[1:])
	if !slices.ContainsFunc(args, func(a string) bool { return strings.HasPrefix(a, "--seed") }) && !slices.Contains(args, "replay") {
		args = append(args, fmt.Sprint("--seed=", f.o.Seed))
	}
	cmd := exec.Command(exe, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGTERM}
	runtime.LockOSThread() // the signal of death is for the end of this thread
	defer runtime.UnlockOSThread()
	if err := cmd.Start(); err != nil {
		return newFailure(exitNotAllowed, "impossible", "a network of its own: "+err.Error(), "run it as root")
	}
	_, release := untilSignal(ctx, func(s os.Signal) { _ = cmd.Process.Signal(s) })
	defer release()
	err = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); err != nil && code > 0 {
		return &failure{Exit: code, Code: "drill", Message: fmt.Sprintf("the drill ended with status %d", code), quiet: true}
	}
	return err
}

// folder is where the drill works.
func (f *drillFlags) folder() (string, error) {
	if f.keep == "" {
		return os.MkdirTemp("", "imd-drill-")
	}
	dir, err := filepath.Abs(f.keep)
	if err != nil {
		return "", err
	}
	if entries, err := os.ReadDir(dir); err == nil && len(entries) > 0 {
		return "", usagef("--keep: the folder %s is not empty", dir)
	}
	return dir, os.MkdirAll(dir, 0o700)
}

// failed is the failure of a drill without a verdict.
func (f *drillFlags) failed(ctx context.Context, dir string, err error) error {
	hint := "see the logs in " + dir
	switch {
	case ctx.Err() != nil:
		if f.keep == "" {
			return errors.Join(ctx.Err(), os.RemoveAll(dir))
		}
		return ctx.Err()
	case errors.Is(err, drill.ErrLoad):
		return newFailure(exitUnavailable, "no_load", err.Error(), hint)
	}
	return newFailure(exitFailed, "no_verdict", err.Error(), hint)
}

// tell prints the outcome and leaves or removes the folder.
func (f *drillFlags) tell(out *drill.Outcome) error {
	if f.report != "" {
		if err := writeReport(f.report, out.Verdict); err != nil {
			return err
		}
	}
	if out.Good && f.keep == "" {
		if err := os.RemoveAll(out.Dir); err != nil {
			return err
		}
		out.Dir = ""
	}
	if err := f.app.printer().data(out, out.Text); err != nil {
		return err
	}
	if out.Good {
		return nil
	}
	return quietly("violations", fmt.Sprintf("%d violations, %d crashes", out.Verdict.Found(), len(out.Crashes)))
}

// drillLine is a drill's line on a terminal.
func drillLine(p drill.Progress) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%-8s ", p.Phase)
	if p.Done >= 0 {
		full := int(p.Done * barWidth)
		fmt.Fprintf(&b, "[%s%s] %3.0f%%  ", strings.Repeat("█", full), strings.Repeat("·", barWidth-full), p.Done*100)
	}
	if p.All > 0 {
		fmt.Fprintf(&b, "%d online  %d/s  fault %d of %d", p.Up, p.Rate, p.Faults, p.All)
	}
	if len(p.Now) > 0 {
		fmt.Fprintf(&b, ": %s", strings.Join(p.Now, ", "))
	}
	return b.String()
}
