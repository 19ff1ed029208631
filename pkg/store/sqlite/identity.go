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

// sideFile keeps a mark and holds the lock on the database.
type sideFile struct{ f *os.File }

// sideSuffix makes the mark's file name from the database's.
const sideSuffix = ".mark"

// openSide opens and locks the file beside the database at path. The mark is
// nil if there is none.
func openSide(path string) (*sideFile, *mark, error) {
	f, err := os.OpenFile(path+sideSuffix, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, nil, fileFault(path+sideSuffix, err)
	}
	if err := lockFile(f); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("%s is in use: %w", path, store.ErrLocked), f.Close())
	}
	b, err := io.ReadAll(io.LimitReader(f, 256))
	if err != nil {
		return nil, nil, errors.Join(fileFault(path+sideSuffix, err), f.Close())
	}
	return &sideFile{f}, parseMark(string(b)), nil
}

// write replaces the mark. It does not flush: after a power cut the mark may
// be older than the database, which is harmless, and never newer, because the
// database is flushed first.
func (s *sideFile) write(m mark) error {
	_, err := s.f.WriteAt([]byte(m.String()), 0)
	return err
}

// String has a fixed length for one data_epoch, so that it is overwritten in
// place.
func (m mark) String() string {
	body := fmt.Sprintf("imd 1 %s %020d", m.epoch, m.commits)
	return fmt.Sprintf("%s %08x\n", body, crc32.ChecksumIEEE([]byte(body)))
}

// parseMark reads what String wrote; nil if it is damaged.
func parseMark(s string) *mark {
	var m mark
	if _, err := fmt.Sscanf(s, "imd 1 %s %d", &m.epoch, &m.commits); err != nil {
		return nil
	}
	if want := m.String(); !strings.HasPrefix(s, want) {
		return nil
	}
	return &m
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
