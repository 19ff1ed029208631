package cmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/imdhq/imd/pkg/config"
	"github.com/imdhq/imd/pkg/module"
)

// app is what every command gets: the program's modules and its surroundings.
type app struct {
	specs   []module.Spec
	environ []string
	out     io.Writer
	errOut  io.Writer
	program string // how the process was called; "" in tests

	format  format        // -o
	timeout time.Duration // --timeout
}

func (a *app) getenv(name string) string {
	value := ""
	for _, kv := range a.environ {
		if len(kv) > len(name) && kv[len(name)] == '=' && kv[:len(name)] == name {
			value = kv[len(name)+1:]
		}
	}
	return value
}

func (a *app) printer() printer { return printer{out: a.out, json: a.format == asJSON} }

// Main runs the command line of the process and returns its exit status.
func Main() int {
	a := &app{specs: specs(), environ: os.Environ(), out: os.Stdout, errOut: os.Stderr, program: os.Args[0]}
	return a.run(context.Background(), os.Args[1:])
}

// run runs one command line.
func (a *app) run(ctx context.Context, args []string) int {
	root := newRoot(a)
	root.SetArgs(args)
	root.SetOut(a.out)
	root.SetErr(a.errOut)
	called, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exitOK
	}
	var ran *ranError
	if !errors.As(err, &ran) {
		f := usagef("%v", err)
		f.Hint = "see " + called.CommandPath() + " --help"
		f.print(a.errOut, wantsJSON(args))
		return f.Exit
	}
	f := classify(ran.err)
	f.print(a.errOut, a.format == asJSON)
	return f.Exit
}

// ranError marks what a command returned, as opposed to what cobra found wrong
// with the command line.
type ranError struct{ err error }

func (r *ranError) Error() string { return r.err.Error() }

// wantsJSON finds -o json in a command line that could not be parsed.
func wantsJSON(args []string) bool {
	for i, a := range args {
		if a == "-o=json" || a == "-ojson" || a == "--output=json" || (a == "-o" || a == "--output") && slices.Contains(args[i+1:], "json") {
			return true
		}
	}
	return false
}

func newRoot(a *app) *cobra.Command {
	a.format = human
	root := &cobra.Command{
		Use:   "imd",
		Short: "A self-hosted instant-messaging server",
		Long: `imd is an instant-messaging server: one binary whose roles are switched on by a
flag. Without any other program, imd serve --roles=all is a whole server.

Exit status: 0 done, 1 failed, 2 wrong usage, 3 not found, 4 not allowed,
5 unavailable, 6 conflict, 78 wrong configuration, 130 interrupted.`,
		Example:       "  imd dev                                  try it: two demo users, throwaway data\n  imd serve --roles=all                    run a server\n  imd token mint --user alice              make a token for a user",
		SilenceErrors: true, SilenceUsage: true,
	}
	root.PersistentFlags().VarP(&a.format, "output", "o", "how data is printed")
	root.PersistentFlags().DurationVar(&a.timeout, "timeout", 10*time.Second, "how long to wait for a server")
	root.AddCommand(newServe(a), newDev(a), newConfig(a), newCheck(a), newNodes(a), newSettings(a), newLeader(a), newLocks(a), newToken(a), newKey(a), newUser(a), newSend(a), newTail(a), newChat(a), newBench(a), newVerify(a), newDrill(a), newVersion(a))
	root.AddCommand(newEtcd(a), newDoctor(a), newNode(a), newRing(a), newMigrate(a), newBackup(a), newRestore(a), newStore(a), newGen(a), newRoute(a), newTrace(a), newStats(a), newWebhook(a), newMessage(a), newAnnounce(a))
	markRan(root)
	return root
}

// markRan wraps what each command does, and makes commands that only hold
// others refuse arguments they do not know.
func markRan(c *cobra.Command) {
	if run := c.RunE; run != nil {
		c.Args = tellArgs(c.Args)
		c.RunE = func(c *cobra.Command, args []string) error {
			if err := run(c, args); err != nil {
				return &ranError{err}
			}
			return nil
		}
	} else {
		c.Args = cobra.ArbitraryArgs
		c.RunE = func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return c.Help()
			}
			return unknownCommand(c, args[0])
		}
		c.SetFlagErrorFunc(func(at *cobra.Command, err error) error {
			if args := at.Flags().Args(); at == c && len(args) > 0 { // the flag is of a command that is not there
				return unknownCommand(c, args[0])
			}
			return err
		})
	}
	for _, sub := range c.Commands() {
		markRan(sub)
	}
}

// unknownCommand says that c has no such command, and which one may be meant.
func unknownCommand(c *cobra.Command, name string) error {
	var names []string
	for _, sub := range c.Commands() {
		names = append(names, sub.Name())
	}
	hint := ""
	if n := config.Nearest(name, names); n != "" {
		hint = "; did you mean " + n + "?"
	}
	return fmt.Errorf("unknown command %q for %q%s", name, c.CommandPath(), hint)
}

// tellArgs says which argument is one too many, or how the command is used, where
// cobra counts them or speaks of commands.
func tellArgs(check cobra.PositionalArgs) cobra.PositionalArgs {
	if check == nil {
		return nil
	}
	return func(c *cobra.Command, args []string) error {
		if check(c, args) == nil {
			return nil
		}
		for n := len(args) - 1; n >= 0; n-- {
			if check(c, args[:n]) == nil {
				return fmt.Errorf("unexpected argument %q", args[n])
			}
		}
		return fmt.Errorf("an argument is missing: %s", c.UseLine())
	}
}

// together is within what time the same signal counts once: programs that start
// others, such as timeout and npm, pass on what the whole group got already.
const together = 500 * time.Millisecond

// untilSignal is a context that ends at the first SIGINT or SIGTERM, or when
// the terminal is gone. A second signal ends the process at once, with status
// 130, unless it repeats the first within moments. release undoes both.
func untilSignal(parent context.Context, first func(os.Signal)) (ctx context.Context, release func()) {
	ctx, cancel := context.WithCancel(parent)
	ch := make(chan os.Signal, 2) // one for each signal that matters
	done := make(chan struct{})
	signal.Notify(ch, os.Interrupt, syscall.SIGTERM)
	if isTerminal() {
		signal.Notify(ch, syscall.SIGHUP)
	}
	go func() {
		if signals(ch, done, func(s os.Signal) { first(s); cancel() }) {
			os.Exit(exitInterrupted)
		}
	}()
	return ctx, func() {
		signal.Stop(ch)
		close(done)
		cancel()
	}
}

// signals calls first for the first signal and reports whether a second one came
// before done.
func signals(ch <-chan os.Signal, done <-chan struct{}, first func(os.Signal)) (second bool) {
	var s os.Signal
	select {
	case s = <-ch:
	case <-done:
		return false
	}
	at := time.Now()
	first(s)
	for {
		select {
		case again := <-ch:
			if again != s || time.Since(at) >= together {
				return true
			}
		case <-done:
			return false
		}
	}
}
