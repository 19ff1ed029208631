package cmd

import (
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/imdhq/imd/pkg/verify"
)

// verifyFlags are what the judge can be told.
type verifyFlags struct {
	app    *app
	opt    verify.Options
	report string
	mutate bool
	seed   uint64
	each   int
}

func newVerify(a *app) *cobra.Command {
	f := &verifyFlags{app: a}
	c := &cobra.Command{
		Use:   "verify DIR",
		Short: "Judge a recorded history: did the server keep its promises",
		Long: `Verify reads a folder that a load test recorded and checks every invariant: that
nothing acknowledged was lost, nothing shown twice or out of order, nothing missed,
nothing shown to those who may not see it, and the others. It needs no server.

With --mutate it judges itself instead: it corrupts a good history in every way an
invariant forbids, one mutant at a time, and prints how many mutants each invariant
caught.

Exit status: 0 no violation, or every mutant caught; 1 a violation, a mutant that
was not caught, or a history that is not good enough to mutate; 2 wrong usage; 3
nothing to judge: a file is missing, empty or malformed.`,
		Example: "  imd verify ./history\n  imd verify ./history --report verdict.html\n  imd verify --mutate ./history",
		Args:    cobra.ExactArgs(1),
		RunE:    func(_ *cobra.Command, args []string) error { return f.run(args[0]) },
	}
	c.Flags().StringVar(&f.report, "report", "", "also write the verdict as an HTML file")
	c.Flags().Float64Var(&f.opt.Share, "share", 0.95, "of the sends outside fault windows, how much must be acknowledged within 2 s")
	c.Flags().BoolVar(&f.mutate, "mutate", false, "corrupt the history and see whether it is noticed")
	c.Flags().Uint64Var(&f.seed, "seed", 1, "chooses the records that --mutate corrupts")
	c.Flags().IntVar(&f.each, "mutants", 3, "mutants of each kind, 1 to 1000")
	return c
}

func (f *verifyFlags) run(dir string) error {
	switch {
	case f.opt.Share <= 0 || f.opt.Share > 1:
		return usagef("--share: %v is not above 0 and at most 1", f.opt.Share)
	case f.each < 1 || f.each > 1000:
		return usagef("--mutants: %d is not within 1 and 1000", f.each)
	case f.mutate && f.report != "":
		return usagef("--report goes with a verdict, not with --mutate")
	}
	h, err := verify.Load(dir)
	if err != nil {
		return newFailure(exitNotFound, "nothing_to_judge", err.Error(), "")
	}
	if f.mutate {
		return f.mutants(h)
	}
	return f.judge(h)
}

func (f *verifyFlags) judge(h *verify.History) error {
	r := verify.Judge(h, f.opt)
	if f.report != "" {
		if err := writeReport(f.report, r); err != nil {
			return err
		}
	}
	if err := f.app.printer().data(r, r.Text); err != nil {
		return err
	}
	if r.Good {
		return nil
	}
	return quietly("violations", fmt.Sprintf("%d violations", r.Found()))
}

func (f *verifyFlags) mutants(h *verify.History) error {
	m, err := verify.Mutate(h, verify.MutateOptions{Seed: f.seed, Each: f.each, Options: f.opt})
	if err != nil {
		return newFailure(exitFailed, "not_good", err.Error(), "see what is wrong with it: imd verify without --mutate")
	}
	if err := f.app.printer().data(m, m.Text); err != nil {
		return err
	}
	if m.Good {
		return nil
	}
	return quietly("mutants_missed", "not every invariant caught all its mutants")
}

// quietly fails after the command has said why.
func quietly(reason, message string) error {
	f := newFailure(exitFailed, reason, message, "")
	f.quiet = true
	return f
}

// writeReport writes the HTML report into a file.
func writeReport(path string, r interface{ HTML(w io.Writer) error }) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	if err := r.HTML(file); err != nil {
		_ = file.Close()
		return err
	}
	return file.Close()
}
