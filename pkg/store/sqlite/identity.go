package sqlite

import (
	"crypto/rand"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/imdhq/imd/pkg/store"
)

// mark is what the file beside the database remembers of it.
type mark struct {
	epoch   string
	commits int64
}

// newEpoch is a new data_epoch.
func newEpoch() string { return strings.ToLower(rand.Text()[:16]) }

// judge compares a database with the mark beside it and says why the database
// needs a new data_epoch; "" = it is the one that was here. side is nil if the
// mark is missing or not readable.
func judge(db mark, side *mark) string {
	switch {
	case side == nil:
		return "the file beside the database is missing"
	case side.epoch != db.epoch:
		return "the database has another history than the one that was here"
	case side.commits > db.commits:
		return "the database is an older copy"
	}
	return ""
}

// birth tells one file from every other, also from a copy of it that was put in
// its place. The zero birth is not known.
type birth struct {
	inode uint64
	at    int64 // when the file was made, ns since 1970
}

// note is what the file beside the database says.
type note struct {
	mark
	file    birth // the file that it was written to; zero in notes of older programs
	written int64 // ms since 1970
}

// touchSlack is how much later than its note says a file may seem to have been
// changed last.
const touchSlack = 500 // ms

// copied reports whether a note was read from another file than it was written
// to, because the whole folder was put back or moved. Some file systems make up
// births anew with each mount; there the file looks unchanged since the note was
// written, and a copy does not.
func (n note) copied(file birth, changed int64) bool {
	return n.file != birth{} && file != birth{} && n.file != file && changed > n.written+touchSlack
}

// sideFile keeps a note and holds the lock on the database.
type sideFile struct {
	f    *os.File
	file birth
}

// sideSuffix makes the note's file name from the database's.
const sideSuffix = ".mark"

// openSide opens and locks the file beside the database at path. remembered is
// nil if it holds no mark, and copied says that the file is a copy.
func openSide(path string) (side *sideFile, remembered *mark, copied bool, err error) {
	f, err := os.OpenFile(path+sideSuffix, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, nil, false, fileFault(path+sideSuffix, err)
	}
	if err := lockFile(f); err != nil {
		return nil, nil, false, errors.Join(fmt.Errorf("%s is in use by a node or another command; stop that first: %w", path, store.ErrLocked), f.Close())
	}
	b, err := io.ReadAll(io.LimitReader(f, 256))
	if err != nil {
		return nil, nil, false, errors.Join(fileFault(path+sideSuffix, err), f.Close())
	}
	side = &sideFile{f: f}
	var changed int64
	side.file, changed = birthOf(f)
	n := parseNote(string(b))
	if n == nil {
		return side, nil, false, nil
	}
	return side, &n.mark, n.copied(side.file, changed), nil
}

// write replaces the note. It does not flush: after a power cut the mark may
// be older than the database, which is harmless, and never newer, because the
// database is flushed first.
func (s *sideFile) write(m mark) error {
	_, err := s.f.WriteAt([]byte(note{m, s.file, time.Now().UnixMilli()}.String()), 0)
	return err
}

// begin replaces whatever is in the file by the note, for good.
func (s *sideFile) begin(m mark) error {
	if err := s.f.Truncate(0); err != nil {
		return err
	}
	if err := s.write(m); err != nil {
		return err
	}
	return s.f.Sync() // once, so that a power cut finds a mark
}

// String has a fixed length for one data_epoch, so that it is overwritten in
// place.
func (n note) String() string {
	return summed(fmt.Sprintf("imd 2 %s %020d %020d %020d %020d", n.epoch, n.commits, n.file.inode, n.file.at, n.written))
}

// summed is a line with its check sum.
func summed(body string) string {
	return fmt.Sprintf("%s %08x\n", body, crc32.ChecksumIEEE([]byte(body)))
}

// parseNote reads what String wrote, and the form of older programs, which has
// the mark alone; nil if it is damaged.
func parseNote(s string) *note {
	var n note
	var want string
	if _, err := fmt.Sscanf(s, "imd 2 %s %d %d %d %d", &n.epoch, &n.commits, &n.file.inode, &n.file.at, &n.written); err == nil {
		want = n.String()
	} else if _, err := fmt.Sscanf(s, "imd 1 %s %d", &n.epoch, &n.commits); err == nil {
		want = summed(fmt.Sprintf("imd 1 %s %020d", n.epoch, n.commits))
		n.file, n.written = birth{}, 0
	}
	if want == "" || !strings.HasPrefix(s, want) {
		return nil
	}
	return &n
}

// fileFault turns a failure on a file into a sentence and a cause to test for.
func fileFault(path string, err error) error {
	switch {
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		return fmt.Errorf("%s cannot be written (read-only, or owned by another user): %w", path, store.ErrReadOnly)
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return fmt.Errorf("there is no space for %s: %w", path, store.ErrFull)
	}
	return err
}
