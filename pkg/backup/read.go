package backup

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/imdhq/imd/pkg/datadir"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/pkg/store/sqlite"
)

// Why a backup is not put back. Nothing was changed then.
var (
	// ErrDamaged says that the file is no backup, was cut, or was changed.
	ErrDamaged = errors.New("the backup is damaged")
	// ErrOccupied says that there is data already.
	ErrOccupied = errors.New("there is data already")
)

// smallFile bounds the files of an archive that are read into memory, in bytes.
const smallFile = 1 << 20

// ReadOptions say what to put back and where.
type ReadOptions struct {
	From     string       // the file
	Dir      *datadir.Dir // the folder, held
	Database string       // the file to make or replace
	Replace  bool         // a database that is there; it is kept beside the new one
	Progress Progress
}

// Restored says what Read has done.
type Restored struct {
	Manifest
	DataEpoch string // the new one
	Former    string // where the database is that was there before; "" = none was
	Unread    error  // why the former database could not be read, if so; see sqlite.Installed
	KeptKeys  bool   // the folder has other token keys than the backup, and keeps them
}

// Read puts a backup back, after all of it was checked. The database gets a new
// data_epoch; see sqlite.Install. After a crash there is the former database or
// the new one, and Read can be called again.
//
// Errors: ErrDamaged, ErrOccupied, store.ErrSchema, store.ErrClock if this
// machine's clock is before the backup, and what the file system says.
func Read(ctx context.Context, o ReadOptions) (_ *Restored, err error) {
	part := o.Database + ".restoring"
	defer func() { _ = os.Remove(part) }() // gone already if it was installed
	u, err := unpack(ctx, o.From, part, o.Progress)
	if err != nil {
		return nil, err
	}
	if now := time.Now(); u.Made.After(now.Add(time.Minute)) {
		return nil, fmt.Errorf("the clock of this machine says %s, but the backup is from %s; set the clock: %w",
			now.UTC().Format(time.RFC3339), u.Made.Format(time.RFC3339), store.ErrClock)
	}
	if _, err := os.Stat(o.Database); err == nil && !o.Replace {
		return nil, fmt.Errorf("%s: %w", o.Database, ErrOccupied)
	}
	r := &Restored{Manifest: u.Manifest}
	if u.keys != nil {
		same, err := o.Dir.WriteTokenKeys(u.keys) // first: a node that starts without keys makes others
		if err != nil {
			return nil, err
		}
		if r.KeptKeys = !same; r.KeptKeys && !o.Replace {
			return nil, fmt.Errorf("%s: %w", datadir.TokenKeyFile(o.Dir.Path()), ErrOccupied)
		}
	}
	in, err := sqlite.Install(ctx, o.Database, part)
	if err != nil {
		return nil, err
	}
	r.DataEpoch, r.Former, r.Unread = in.DataEpoch, in.Former, in.Unread
	return r, nil
}

// unpacked is an archive whose sums were right.
type unpacked struct {
	Manifest
	keys []byte
}

// unpack checks the archive and writes its database to the file at to.
func unpack(ctx context.Context, from, to string, progress Progress) (*unpacked, error) {
	f, err := os.Open(from)
	if err != nil {
		return nil, err
	}
	defer f.Close() // only read
	u, err := read(ctx, tar.NewReader(f), to, progress)
	if err != nil && ctx.Err() == nil && (errors.Is(err, tar.ErrHeader) || errors.Is(err, io.ErrUnexpectedEOF)) {
		err = fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", from, err)
	}
	return u, nil
}

func read(ctx context.Context, t *tar.Reader, to string, progress Progress) (*unpacked, error) {
	u := &unpacked{}
	var sums strings.Builder
	for {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("%w: it ends before its check sums", ErrDamaged)
		}
		if err != nil {
			return nil, err
		}
		sum := sha256.New()
		in := io.TeeReader(t, sum)
		switch h.Name {
		case manifestName:
			err = u.parse(in)
		case databaseName:
			err = u.save(ctx, in, to, h.Size, progress)
		case keysName:
			u.keys, err = small(in)
		case sumsName:
			return u, u.complete(in, sums.String())
		default:
			err = fmt.Errorf("%w: it holds a file %q", ErrDamaged, h.Name)
		}
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&sums, "%s  %s\n", hex.EncodeToString(sum.Sum(nil)), h.Name)
	}
}

// parse reads the manifest.
func (u *unpacked) parse(r io.Reader) error {
	data, err := small(r)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, &u.Manifest); err != nil {
		return fmt.Errorf("%w: its manifest cannot be read", ErrDamaged)
	}
	if u.Format != format {
		return fmt.Errorf("the backup has form %d and this program knows %d; install a newer imd: %w", u.Format, format, store.ErrSchema)
	}
	return nil
}

// save writes the database of the archive into a file of its own.
func (u *unpacked) save(ctx context.Context, r io.Reader, to string, size int64, progress Progress) error {
	if size != u.Bytes || u.Format == 0 {
		return fmt.Errorf("%w: its manifest does not fit", ErrDamaged)
	}
	f, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, &meter{ctx: ctx, r: r, all: size, progress: progress})
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// complete compares the sums at the end with those of what was read.
func (u *unpacked) complete(r io.Reader, have string) error {
	want, err := small(r)
	if err != nil {
		return err
	}
	if !bytes.Equal(want, []byte(have)) || !strings.Contains(have, "  "+databaseName+"\n") {
		return fmt.Errorf("%w: a check sum is wrong", ErrDamaged)
	}
	if u.Keys != (u.keys != nil) {
		return fmt.Errorf("%w: its manifest does not fit", ErrDamaged)
	}
	return nil
}

// small reads a file that has a bound.
func small(r io.Reader) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, smallFile+1))
	if err == nil && len(data) > smallFile {
		err = fmt.Errorf("%w: a file in it is too large", ErrDamaged)
	}
	return data, err
}

// meter tells of what is read through it, until ctx ends.
type meter struct {
	ctx       context.Context
	r         io.Reader
	done, all int64
	progress  Progress
}

// Read reads.
func (m *meter) Read(p []byte) (int, error) {
	if err := m.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := m.r.Read(p)
	if m.done += int64(n); m.progress != nil {
		m.progress(m.done, m.all)
	}
	return n, err
}
