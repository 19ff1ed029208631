package cmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/imdhq/imd/modules/storage"
	"github.com/imdhq/imd/pkg/backup"
	"github.com/imdhq/imd/pkg/config"
	"github.com/imdhq/imd/pkg/datadir"
	"github.com/imdhq/imd/pkg/obs"
	"github.com/imdhq/imd/pkg/store/sqlite"
)

func newBackup(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:   "backup",
		Short: "Copy the data of a node with the embedded store into one file",
		Long: `Backup writes the database of a data folder as it is at this moment, and the keys
that sign client tokens, into one file. The node may run and is not held up: what
is acknowledged before the backup begins is in it, what comes later is not.

The file is a tar archive with a manifest and check sums. Whoever can read it can
read every message and, unless --no-keys is given, make tokens for every user.
Settings are kept in etcd and are not in it: imd settings list -o json.

A store in Postgres is backed up with the tools of Postgres.

Exit status: 0 done; 1 failed; 3 there is no database; 6 the file is there already;
78 wrong configuration, or messages are not in the embedded store.`,
		Example: "  imd backup --to imd-monday.tar\n  imd backup --data-dir /var/lib/imd/main --to /backup/imd.tar --force -o json",
		Args:    cobra.NoArgs,
	}
	s := addKeySettings(a, c)
	var o backup.WriteOptions
	var noKeys bool
	c.Flags().StringVar(&o.To, "to", "", "the file to make")
	c.Flags().BoolVar(&o.Replace, "force", false, "replace the file if it is there")
	c.Flags().BoolVar(&noKeys, "no-keys", false, "leave the keys out that sign client tokens")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if o.To == "" {
			return usagef("give --to FILE")
		}
		dir, path, err := s.embedded()
		if err != nil {
			return err
		}
		o.Database, o.Version = path, obs.ThisBuild().Version
		if !noKeys {
			o.Folder = dir
		}
		ctx, release := untilSignal(c.Context(), func(os.Signal) {})
		defer release()
		return a.backup(ctx, o)
	}
	return c
}

// embedded is the data folder and the database file in use there.
func (s *settingFlags) embedded() (dir, path string, err error) {
	l, err := s.load()
	if err != nil {
		return "", "", err
	}
	if dir, err = l.dataDir(s.app.getenv); err != nil {
		return "", "", err
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return "", "", err
	}
	st := storage.DefaultConfig()
	if err := l.values.Decode("storage", &st); err != nil {
		return "", "", err
	}
	dsn, key := st.Messages(dir)
	u, err := url.Parse(dsn)
	if err != nil || u.Scheme != "sqlite" {
		return "", "", config.Errorf(key, "messages are not kept in the embedded store; use the tools of the database that has them")
	}
	path, err = sqlite.Path(u)
	return dir, path, err
}

func (a *app) backup(ctx context.Context, o backup.WriteOptions) error {
	began := time.Now()
	line := newLive(a)
	o.Progress = line.bytes("backup")
	w, err := backup.Write(ctx, o)
	line.clear()
	switch {
	case errors.Is(err, fs.ErrExist):
		return newFailure(exitConflict, "exists", "there is a file "+o.To+" already", "choose another name, or replace it with --force")
	case errors.Is(err, fs.ErrNotExist) && w == nil && !exists(o.Database):
		return newFailure(exitNotFound, "no_database", "there is no database "+o.Database, "name the data folder with --data-dir")
	case err != nil:
		return err
	}
	out := struct {
		File   string `json:"file"`
		Bytes  int64  `json:"bytes"`
		SHA256 string `json:"database_sha256"`
		Took   int64  `json:"took_ms"`
		backup.Manifest
	}{o.To, w.Size, w.SHA256, time.Since(began).Milliseconds(), w.Manifest}
	return a.printer().data(out, func(p io.Writer) {
		fmt.Fprintf(p, "%s: %s, %d conversations, %d entries, data_epoch %s, schema %d\n",
			o.To, size(w.Size), w.Counts["conversation"], w.Counts["entry"], w.DataEpoch, w.Schema)
		if !w.Keys {
			fmt.Fprintln(p, "without the keys that sign client tokens")
		}
	})
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func newRestore(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:   "restore",
		Short: "Put a backup of the embedded store back",
		Long: `Restore checks a file that imd backup made and puts its database and keys into a
data folder on which no node runs. The store gets a new data_epoch: messages since
the backup are gone and their numbers will be given again, so every client reads
its conversations anew. No message id comes twice.

A folder that has data is refused without --force. With it the former database is
kept beside the new one, and the keys of the folder stay.

Exit status: 0 done; 1 failed, the backup is damaged, or a node runs on the folder;
3 there is no such file; 6 there is data already; 78 wrong configuration, or the
backup is of a newer imd.`,
		Example: "  imd restore --from imd-monday.tar --data-dir ./data\n  imd restore --from /backup/imd.tar --data-dir /var/lib/imd/main --force",
		Args:    cobra.NoArgs,
	}
	s := addKeySettings(a, c)
	var o backup.ReadOptions
	c.Flags().StringVar(&o.From, "from", "", "the file that imd backup made")
	c.Flags().BoolVar(&o.Replace, "force", false, "replace the data that is there; the former database is kept")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if o.From == "" {
			return usagef("give --from FILE")
		}
		dir, path, err := s.embedded()
		if err != nil {
			return err
		}
		if _, err := os.Stat(o.From); err != nil { // before a folder is made for nothing
			return err
		}
		o.Database = path
		ctx, release := untilSignal(c.Context(), func(os.Signal) {})
		defer release()
		return a.restore(ctx, dir, o)
	}
	return c
}

func (a *app) restore(ctx context.Context, dir string, o backup.ReadOptions) (err error) {
	if o.Dir, err = datadir.Hold(dir); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.Dir.Close()) }()
	line := newLive(a)
	o.Progress = line.bytes("restore")
	r, err := backup.Read(ctx, o)
	line.clear()
	switch {
	case errors.Is(err, backup.ErrOccupied):
		return newFailure(exitConflict, "occupied", err.Error(), "choose another folder with --data-dir, or replace the data with --force")
	case errors.Is(err, backup.ErrDamaged):
		return newFailure(exitFailed, "damaged", err.Error(), "take another backup")
	case err != nil:
		return err
	}
	if r.Unread != nil {
		fmt.Fprintf(a.errOut, "imd: warning: the former database cannot be read (%v); make sure that the clock is right, so that no message id comes twice\n", r.Unread)
	}
	out := struct {
		Database  string          `json:"database"`
		DataEpoch string          `json:"data_epoch"`
		Former    string          `json:"former_database,omitempty"`
		KeptKeys  bool            `json:"kept_keys,omitempty"`
		Backup    backup.Manifest `json:"backup"`
	}{o.Database, r.DataEpoch, r.Former, r.KeptKeys, r.Manifest}
	return a.printer().data(out, func(p io.Writer) {
		fmt.Fprintf(p, "%s: %d conversations, %d entries of %s, new data_epoch %s\n",
			o.Database, r.Counts["conversation"], r.Counts["entry"], r.Made.Format(time.RFC3339), r.DataEpoch)
		if r.Former != "" {
			fmt.Fprintf(p, "the former database is %s\n", r.Former)
		}
		if r.KeptKeys {
			fmt.Fprintln(p, "the keys of the folder are others than those of the backup, and stay")
		}
	})
}

// bytes shows how far a copy is.
func (l *live) bytes(what string) func(done, all int64) {
	var last time.Time
	return func(done, all int64) {
		if l.w == nil || all == 0 || done < all && time.Since(last) < 100*time.Millisecond {
			return
		}
		last = time.Now()
		full := int(done * barWidth / all)
		l.put(fmt.Sprintf("%-8s [%s%s] %s of %s", what, strings.Repeat("█", full), strings.Repeat("·", barWidth-full), size(done), size(all)))
	}
}

// size is a number of bytes for people.
func size(n int64) string {
	switch {
	case n >= 10<<30:
		return fmt.Sprintf("%d GiB", n>>30)
	case n >= 10<<20:
		return fmt.Sprintf("%d MiB", n>>20)
	}
	return fmt.Sprintf("%d KiB", (n+1023)>>10)
}
