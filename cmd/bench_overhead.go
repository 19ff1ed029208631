package cmd

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/imdhq/imd/pkg/bench"
)

func newBenchOverhead(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:   "overhead",
		Short: "Measure what recording costs: runs without and with it, by turns",
		Long: `Overhead runs the scenario send in pairs, once without and once with recording,
and prints the processor time of client and server for each message, the ratio of
each pair and the median of the ratios. The histories are thrown away.`,
		Example: "  imd bench overhead --conns 200 --outstanding 8\n  imd bench overhead --rate 2000 --pairs 9",
		Args:    cobra.NoArgs,
	}
	f := &benchFlags{serverFlags: addServer(a, c, "public listener"), inPairs: true}
	f.o.Scenario = "send"
	pairs := c.Flags().Int("pairs", 5, "pairs of runs, 1 to 100")
	f.addLoad(c)
	f.addServerSide(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		if *pairs < 1 || *pairs > 100 {
			return usagef("--pairs: %d is not within 1 and 100", *pairs)
		}
		ctx, release := untilSignal(c.Context(), func(os.Signal) {})
		defer release()
		return f.overhead(ctx, *pairs)
	}
	return c
}

func (f *benchFlags) overhead(ctx context.Context, pairs int) error {
	side, err := f.prepare()
	if err != nil {
		return err
	}
	defer side.close(ctx)
	if f.o.Log, err = side.systemLog(ctx); err != nil {
		return err
	}
	side.liftLimits(ctx)
	live := newLive(f.app)
	f.o.Progress = live.show
	all, err := bench.MeasureOverhead(ctx, f.o, pairs, func() (string, func(), error) {
		dir, err := os.MkdirTemp("", "imd-bench-")
		return filepath.Join(dir, "history"), func() { _ = os.RemoveAll(dir) }, err
	})
	live.clear()
	if len(all.Pairs) == 0 {
		return f.whyNot(err)
	}
	if printed := f.app.printer().data(all, func(w io.Writer) { printOverhead(w, all) }); printed != nil {
		return printed
	}
	return err
}

func printOverhead(w io.Writer, o bench.Overhead) {
	var rows [][]string
	for i, p := range o.Pairs {
		rows = append(rows, []string{fmt.Sprint(i + 1), fmt.Sprintf("%.1f", p.Plain), fmt.Sprintf("%.1f", p.Recorded), fmt.Sprintf("%.3f", p.Ratio)})
	}
	table(w, "PAIR PLAIN_US_EACH RECORDED_US_EACH RATIO", rows)
	fmt.Fprintf(w, "median ratio %.3f: recording takes %+.1f %% of the processor time of client and server\n", o.Median, (o.Median-1)*100)
}
