package backup

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/imdhq/imd/pkg/datadir"
	"github.com/imdhq/imd/pkg/store/sqlite"
)

// Names in the archive.
const (
	manifestName = "manifest.json"
	databaseName = "imd.db"
	keysName     = "token.key"
	sumsName     = "SHA256SUMS"
)

// format is the version of the archive's form.
const format = 1

// Manifest says what a backup holds.
type Manifest struct {
	Format    int              `json:"format"` // of the archive; this package knows 1
	Made      time.Time        `json:"made"`   // the moment of the database, by the clock of that machine
	Version   string           `json:"version"`
	Schema    int64            `json:"schema"`
	DataEpoch string           `json:"data_epoch"`
	Newest    time.Time        `json:"newest_entry"` // server time; zero = there is none
	Bytes     int64            `json:"database_bytes"`
	Counts    map[string]int64 `json:"counts"` // rows of each table
	Keys      bool             `json:"keys"`   // the token keys are in it
}

// Progress is told how many bytes of the database are done, and of how many.
type Progress func(done, all int64)

// WriteOptions say what to back up.
type WriteOptions struct {
	Database string // the file
	Folder   string // data folder whose token keys go along; "" = no keys
	Version  string // of this program
	Replace  bool   // an existing file at To
	To       string // the file to make
	Progress Progress
}

// Written says what Write has made.
type Written struct {
	Manifest
	Size   int64  // of the file
	SHA256 string // of the database in it
}

// Write makes a backup. The server that writes to the database is not held up;
// what it writes after the beginning is not in the backup. The file appears as a
// whole or not at all.
//
// Errors: fs.ErrNotExist if there is no database, fs.ErrExist if there is a file
// at To already, store.ErrCorrupt, and what the file system says.
func Write(ctx context.Context, o WriteOptions) (_ *Written, err error) {
	if _, err := os.Lstat(o.To); err == nil && !o.Replace {
		return nil, fmt.Errorf("%s: %w", o.To, fs.ErrExist)
	}
	image, err := sqlite.OpenImage(ctx, o.Database)
	if err != nil {
		return nil, err
	}
	made := time.Now().UTC().Truncate(time.Millisecond)
	defer func() { err = errors.Join(err, image.Close()) }()
	w := &Written{Manifest: Manifest{
		Format: format, Made: made, Version: o.Version, Schema: image.Schema, DataEpoch: image.DataEpoch,
		Newest: image.Newest, Bytes: image.Bytes, Counts: image.Counts,
	}}
	var keys []byte
	if o.Folder != "" {
		if keys, err = os.ReadFile(datadir.TokenKeyFile(o.Folder)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		w.Keys = keys != nil
	}
	part := o.To + ".part"
	f, err := os.OpenFile(part, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, err
	}
	err = w.fill(ctx, f, image, keys, o.Progress)
	if err == nil {
		err = f.Sync()
	}
	if info, serr := f.Stat(); serr == nil {
		w.Size = info.Size()
	}
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(part, o.To)
	}
	if err != nil {
		return nil, errors.Join(err, os.Remove(part))
	}
	return w, syncFolder(o.To)
}

// fill writes the archive.
func (w *Written) fill(ctx context.Context, f io.Writer, image *sqlite.Image, keys []byte, progress Progress) error {
	a := &archive{tar: tar.NewWriter(f), made: w.Made}
	manifest, err := json.MarshalIndent(w.Manifest, "", "  ")
	if err != nil {
		return err
	}
	if err := a.add(manifestName, append(manifest, '\n')); err != nil {
		return err
	}
	sum, err := a.begin(databaseName, image.Bytes)
	if err != nil {
		return err
	}
	err = image.WriteTo(ctx, io.MultiWriter(a.tar, sum), func(done int64) {
		if progress != nil {
			progress(done, image.Bytes)
		}
	})
	if err != nil {
		return fmt.Errorf("copy the database: %w", err)
	}
	w.SHA256 = a.end(databaseName, sum)
	if keys != nil {
		if err := a.add(keysName, keys); err != nil {
			return err
		}
	}
	if err := a.add(sumsName, []byte(a.sums.String())); err != nil {
		return err
	}
	return a.tar.Close()
}

// archive is a tar file that is being written, with the sums of its files.
type archive struct {
	tar  *tar.Writer
	made time.Time
	sums strings.Builder
}

// begin begins a file; what is written to it goes to the sum too.
func (a *archive) begin(name string, size int64) (hash.Hash, error) {
	return sha256.New(), a.tar.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: size, ModTime: a.made, Format: tar.FormatPAX})
}

func (a *archive) end(name string, sum hash.Hash) string {
	s := hex.EncodeToString(sum.Sum(nil))
	fmt.Fprintf(&a.sums, "%s  %s\n", s, name)
	return s
}

// add writes a whole file.
func (a *archive) add(name string, data []byte) error {
	sum, err := a.begin(name, int64(len(data)))
	if err != nil {
		return err
	}
	if _, err := io.MultiWriter(a.tar, sum).Write(data); err != nil {
		return err
	}
	a.end(name, sum)
	return nil
}

func syncFolder(path string) error {
	d, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer d.Close() // nothing was written through it
	return d.Sync()
}
