package cmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"github.com/imdhq/imd/modules/storage"
	"github.com/imdhq/imd/pkg/config"
	"github.com/imdhq/imd/pkg/datadir"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/pkg/store/postgres"
	"github.com/imdhq/imd/pkg/store/sqlite"
	"github.com/imdhq/imd/pkg/store/synthetic"
	"github.com/imdhq/imd/pkg/store/transfer"
)

func newStore(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:   "store",
		Short: "Move message stores",
	}
	c.AddCommand(newStoreCopy(a), newStoreNewEpoch(a))
	return c
}

// storeFlags name a message store on the command line.
type storeFlags struct {
	*settingFlags
	to string
}

// target is the data source name of the store to fill: --to, or that of the
// configuration.
func (f *storeFlags) target() (dsn string, st storage.Config, dir string, err error) {
	l, err := f.load()
	if err != nil {
		return "", st, "", err
	}
	st = storage.DefaultConfig()
	if err := l.values.Decode("storage", &st); err != nil {
		return "", st, "", err
	}
	if dir, err = l.dataDir(f.app.getenv); err != nil {
		return "", st, "", err
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return "", st, "", err
	}
	if f.to != "" {
		dsn, err = storeName("--to", f.to, dir)
	} else {
		dsn, _ = st.Messages(dir)
	}
	return dsn, st, dir, err
}

// storeName completes what a flag names.
func storeName(flag, name, dir string) (string, error) {
	u, err := url.Parse(name)
	if err != nil || u.Scheme == "" {
		return "", usagef("%s: not of the form sqlite:PATH or postgres://USER@HOST/DATABASE", flag) // it may hold a password
	}
	if u.Scheme != "sqlite" {
		return name, nil
	}
	dsn, _ := storage.Config{DSN: name}.Messages(dir)
	return dsn, nil
}

func newStoreCopy(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:   "copy",
		Short: "Copy a whole message store into an empty one",
		Long: `Copy moves the messages of a laptop or a small site into Postgres: users, blocks,
revocations, API keys, conversations, members, positions, when users were last
seen, scheduled messages, announcements, notices to offline users, and every entry,
with their ids, numbers and keys. The data_epoch goes along, so that clients go on
where they were. Events for receivers are not copied: they must have been told of
all. No node may run on either store. The schema of a Postgres must be there:
imd migrate up.

It can be stopped or killed at any moment and run again: it goes on where it was.
In the end everything is read back and compared by count and check sum; before that
no node starts on the target. At last the source gets a new data_epoch, so that a
node that is started on it by mistake does not pass for the store that moved.

A target with data that this copy did not bring is refused. So is a source that has
changed since the copy began: then begin anew with an empty database.

Exit status: 0 done; 1 failed, or a node runs on one of the stores; 3 there is no
source; 6 the target is not empty, or the source has changed; 78 wrong
configuration.`,
		Example: `  imd migrate up --postgres-file /etc/imd/postgres
  imd store copy --data-dir /var/lib/imd/main --postgres-file /etc/imd/postgres
  imd store copy --from sqlite:/var/lib/imd/main/imd.db --to postgres://imd@db/imd?sslmode=verify-full`,
		Args: cobra.NoArgs,
	}
	f := &storeFlags{settingFlags: addSettings(a, c).only("data_dir", "storage.postgres", "storage.postgres_file")}
	from := c.Flags().String("from", "sqlite:", "store to copy: sqlite: (the file imd.db in the data folder) or sqlite:PATH")
	c.Flags().StringVar(&f.to, "to", "", "store to fill (default: --postgres-file or the Postgres of the configuration)")
	c.RunE = func(c *cobra.Command, _ []string) error {
		to, st, dir, err := f.target()
		if err != nil {
			return err
		}
		if f.to == "" && st.Postgres == "" {
			return usagef("name the store to fill with --postgres-file or --to")
		}
		source, err := storeName("--from", *from, dir)
		if err != nil {
			return err
		}
		ctx, release := untilSignal(c.Context(), func(os.Signal) {})
		defer release()
		src, err := sources.Open(ctx, source, zap.NewNop())
		if err != nil {
			return err
		}
		return a.copyStore(ctx, src, to)
	}
	return c
}

// copyStore copies src, which it closes, and tells.
func (a *app) copyStore(ctx context.Context, src store.Source, to string) (err error) {
	defer func() { err = errors.Join(err, src.Close()) }()
	began := time.Now()
	r, err := a.fillStore(ctx, src, to)
	if err != nil {
		return err
	}
	type row struct {
		Table store.Table `json:"table"`
		Rows  int64       `json:"rows"`
		Sum   string      `json:"sum"`
	}
	out := struct {
		DataEpoch string `json:"data_epoch"`
		Retired   string `json:"data_epoch_of_source"`
		Resumed   bool   `json:"resumed"`
		Took      int64  `json:"took_ms"`
		Tables    []row  `json:"tables"`
	}{DataEpoch: r.DataEpoch, Retired: r.Retired, Resumed: r.Resumed, Took: time.Since(began).Milliseconds()}
	for _, t := range r.Tables {
		out.Tables = append(out.Tables, row(t))
	}
	return a.printer().data(out, func(w io.Writer) {
		var rows [][]string
		for _, t := range r.Tables {
			rows = append(rows, []string{string(t.Table), fmt.Sprint(t.Rows), t.Sum})
		}
		table(w, "TABLE ROWS SUM", rows)
		fmt.Fprintf(w, "copied and compared in %s; data_epoch %s goes on in the copy, the source has %s now\n", span(time.Since(began)), r.DataEpoch, r.Retired)
	})
}

// fillStore fills the store of a data source name from src.
func (a *app) fillStore(ctx context.Context, src store.Source, to string) (r *transfer.Report, err error) {
	target, err := targets.Open(ctx, to, zap.NewNop())
	if err != nil {
		return nil, ofDatabase(err)
	}
	defer func() { err = errors.Join(err, target.Close()) }()
	line := newLive(a)
	r, err = transfer.Copy(ctx, src, target, transfer.Options{Step: copyLine(line)})
	line.clear()
	switch {
	case errors.Is(err, store.ErrOccupied):
		return nil, newFailure(exitConflict, "occupied", err.Error(), "copy into an empty database")
	case errors.Is(err, store.ErrChanged):
		return nil, newFailure(exitConflict, "changed", err.Error(), "empty the target and begin anew")
	case errors.Is(err, transfer.ErrDiffers):
		return nil, newFailure(exitFailed, "differs", err.Error(), "empty the target and begin anew; no node starts on it")
	case errors.Is(err, context.Canceled):
		return nil, err
	case err != nil:
		return nil, newFailure(exitFailed, "failed", err.Error(), "run it again: it goes on where it was")
	}
	return r, nil
}

// copyLine shows how far a copy is.
func copyLine(l *live) func(transfer.Step) {
	began, last := time.Now(), time.Time{}
	var now store.Table
	checking := false
	return func(s transfer.Step) {
		if s.Table != now || s.Checking != checking {
			now, checking, began = s.Table, s.Checking, time.Now()
		}
		if time.Since(last) < 100*time.Millisecond {
			return
		}
		last = time.Now()
		what := "copy"
		if s.Checking {
			what = "compare"
		}
		l.put(fmt.Sprintf("%-8s %-13s %d rows, %.0f/s", what, s.Table, s.Rows, float64(s.Rows)/max(time.Since(began).Seconds(), 0.001)))
	}
}

func newStoreNewEpoch(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:   "new-epoch",
		Short: "Begin a new data_epoch, so that every client reads its conversations anew",
		Long: `New-epoch is for a store that may lack what was acknowledged, in a way that a node
cannot notice: a standby of Postgres took over that was behind, or the disk went
back to an earlier state, as with a snapshot of a virtual machine. Clients that
went on with their old numbers would miss or mix up messages; with a new data_epoch
they drop what they have and read anew.

Nodes on a Postgres may run: their connections to it are ended once, and they see
the new data_epoch when they connect again. On the embedded store no node may run.

Exit status: 0 done; 1 failed, or a node runs on the embedded store; 3 there is no
store; 78 wrong configuration.`,
		Example: "  imd store new-epoch --postgres-file /etc/imd/postgres\n  imd store new-epoch --data-dir /var/lib/imd/main",
		Args:    cobra.NoArgs,
	}
	f := &storeFlags{settingFlags: addSettings(a, c).only("data_dir", "storage.postgres", "storage.postgres_file")}
	c.RunE = func(c *cobra.Command, _ []string) error {
		dsn, _, _, err := f.target()
		if err != nil {
			return err
		}
		ctx, cancel := a.bounded(c.Context())
		defer cancel()
		return a.newEpoch(ctx, dsn)
	}
	return c
}

func (a *app) newEpoch(ctx context.Context, dsn string) error {
	u, err := url.Parse(dsn)
	if err != nil {
		return config.Errorf("storage", "the message store has no good name")
	}
	out := struct {
		Was   string `json:"was"`
		Now   string `json:"data_epoch"`
		Ended int    `json:"connections_ended"`
	}{}
	if u.Scheme == "sqlite" {
		path, perr := sqlite.Path(u)
		if perr != nil {
			return perr
		}
		out.Was, out.Now, err = sqlite.NewEpoch(ctx, path)
	} else {
		out.Was, out.Now, out.Ended, err = postgres.NewEpoch(ctx, dsn)
	}
	if errors.Is(err, store.ErrNotFound) {
		return newFailure(exitNotFound, "no_store", "no node has ever used this database", "")
	}
	if err != nil {
		return ofDatabase(err)
	}
	return a.printer().data(out, func(w io.Writer) {
		fmt.Fprintf(w, "data_epoch %s, it was %s\n", out.Now, out.Was)
		if out.Ended > 0 {
			fmt.Fprintf(w, "%d connections of nodes were ended; they connect again by themselves\n", out.Ended)
		}
	})
}

func newBenchLoad(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:   "load",
		Short: "Fill an empty store with made-up conversations, to measure it when it is large",
		Long: `Load writes users, one group and many direct conversations straight into an empty
message store, without a server. The group, g_1, has --big entries; its members are
the first users, load-00000000 and on. The first user also has --busy direct
conversations. It goes on where it was if it is run again with the same flags.`,
		Example: "  imd bench load --data-dir ./big --entries 2000000\n  imd bench load --postgres-file ./postgres --entries 10000000 --users 50000 --conversations 100000",
		Args:    cobra.NoArgs,
	}
	f := &storeFlags{settingFlags: addSettings(a, c).only("data_dir", "storage.postgres", "storage.postgres_file")}
	p := synthetic.Plan{}
	until := time.Now().UTC().Truncate(24 * time.Hour)
	fl := c.Flags()
	fl.StringVar(&f.to, "to", "", "store to fill (default: that of the configuration and the data folder)")
	fl.IntVar(&p.Users, "users", 10_000, "users in all")
	fl.IntVar(&p.Conversations, "conversations", 20_000, "conversations in all")
	fl.Int64Var(&p.Entries, "entries", 2_000_000, "entries in all")
	fl.Int64Var(&p.Big, "big", 1_000_000, "entries of the group")
	fl.IntVar(&p.Members, "members", 10, "members of the group")
	fl.IntVar(&p.Busy, "busy", 499, "direct conversations of the first user")
	fl.IntVar(&p.Size, "size", 128, "bytes of text in each message, 16 to 16000")
	fl.Func("until", "day before which everything was sent, as 2026-01-31 (default: today)", func(s string) (err error) {
		until, err = time.Parse(time.DateOnly, s)
		return err
	})
	c.RunE = func(c *cobra.Command, _ []string) error {
		p.Until = until
		if err := p.Check(); err != nil {
			return usagef("%s", strings.ReplaceAll(err.Error(), "\n", "; "))
		}
		to, _, dir, err := f.target()
		if err != nil {
			return err
		}
		ctx, release := untilSignal(c.Context(), func(os.Signal) {})
		defer release()
		if !strings.HasPrefix(to, "sqlite:") {
			return a.benchLoad(ctx, p, to)
		}
		d, err := datadir.Hold(dir)
		if err != nil {
			return err
		}
		return errors.Join(a.benchLoad(ctx, p, to), d.Close())
	}
	return c
}

func (a *app) benchLoad(ctx context.Context, p synthetic.Plan, to string) error {
	began := time.Now()
	r, err := a.fillStore(ctx, synthetic.New(p), to)
	if err != nil {
		return err
	}
	out := struct {
		DataEpoch string         `json:"data_epoch"`
		Group     string         `json:"group"`
		Reader    string         `json:"reader"`
		Took      int64          `json:"took_ms"`
		Plan      synthetic.Plan `json:"plan"`
	}{r.DataEpoch, string(synthetic.Group), string(synthetic.User(0)), time.Since(began).Milliseconds(), p}
	return a.printer().data(out, func(w io.Writer) {
		fmt.Fprintf(w, "%d entries in %d conversations of %d users in %s; %d of them in %s, which %s reads\n",
			p.Entries, p.Conversations, p.Users, span(time.Since(began)), p.Big, out.Group, out.Reader)
	})
}
