package datadir

import (
	"bytes"
	"crypto/rand"
	"encoding/base32"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/module"
)

// Names inside the folder.
const (
	lockFile      = "lock"
	nodeFile      = "node.id"
	endpointsFile = "endpoints.json"
)

// Default is the folder that is used when none is given: imd below
// $XDG_DATA_HOME or ~/.local/share. "" if there is no home.
func Default(getenv func(string) string) string {
	if base := getenv("XDG_DATA_HOME"); filepath.IsAbs(base) {
		return filepath.Join(base, "imd")
	}
	if home := getenv("HOME"); filepath.IsAbs(home) {
		return filepath.Join(home, ".local", "share", "imd")
	}
	return ""
}

// InUseError is a folder that another process works in.
type InUseError struct {
	Path string
	PID  int // 0 = unknown
}

// Error says who holds the folder.
func (e *InUseError) Error() string {
	who := "another process"
	if e.PID > 0 {
		who = fmt.Sprintf("process %d", e.PID)
	}
	return fmt.Sprintf("data folder %s is in use by %s; stop it or choose another folder with --data-dir", e.Path, who)
}

// Dir is a folder that this process holds.
type Dir struct {
	path  string
	lock  *os.File
	node  im.NodeID
	keys  []module.TokenKey
	admin string
}

// Open makes the folder if it is not there, takes its lock, and reads or makes
// its node id and keys. Close gives the lock back. Errors: *InUseError,
// *module.ConfigError for a folder or key that others can read and for a bad
// key, and what the file system says.
func Open(path string) (*Dir, error) {
	d, err := Hold(path)
	if err != nil {
		return nil, err
	}
	if err := d.load(); err != nil {
		d.lock.Close()
		return nil, err
	}
	return d, nil
}

// Hold is Open without the node id and the keys: they are neither read nor made.
func Hold(path string) (*Dir, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("data folder: %w", err)
	}
	if err := prepare(path); err != nil {
		return nil, err
	}
	d := &Dir{path: path}
	if d.lock, err = lock(path); err != nil {
		return nil, err
	}
	return d, nil
}

func (d *Dir) load() (err error) {
	if d.node, err = loadNode(d.path); err != nil {
		return err
	}
	if d.keys, err = loadTokenKeys(d.path, true); err != nil {
		return err
	}
	d.admin, err = loadAdminKey(d.path, true)
	return err
}

// Path is the folder, absolute.
func (d *Dir) Path() string { return d.path }

// Node is the id that the node got at its first start here.
func (d *Dir) Node() im.NodeID { return d.node }

// TokenKeys are the keys that sign client tokens, newest first.
func (d *Dir) TokenKeys() []module.TokenKey { return d.keys }

// AdminKey is the bearer token of the ops services.
func (d *Dir) AdminKey() string { return d.admin }

// Close gives the lock back. The files stay.
func (d *Dir) Close() error { return d.lock.Close() }

// prepare makes the folder or checks the one that is there.
func prepare(path string) error {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		if err := os.MkdirAll(path, 0o700); err != nil {
			return failure(path, err)
		}
		return nil
	}
	if err != nil {
		return failure(path, err)
	}
	if !info.IsDir() {
		return module.Configf("data folder %s is a file", path)
	}
	ours, err := known(path)
	if err != nil {
		return failure(path, err)
	}
	open := info.Mode().Perm()&0o077 != 0
	switch {
	case ours == foreign:
		return module.Configf("folder %s holds other things and no data of imd; choose an empty one with --data-dir", path)
	case open && ours == used:
		return module.Configf("data folder %s can be read by other users (mode %04o); run: chmod 700 %s", path, info.Mode().Perm(), path)
	case open:
		if err := os.Chmod(path, 0o700); err != nil {
			return failure(path, err)
		}
	}
	return nil
}

type content int

const (
	empty content = iota
	used          // by imd
	foreign
)

// known tells a folder of imd from one of somebody else, so that a slip of the
// finger does not spread files over a home folder.
func known(path string) (content, error) {
	entries, err := os.ReadDir(path)
	if err != nil {
		return foreign, err
	}
	found := empty
	for _, e := range entries {
		switch name := e.Name(); {
		case name == nodeFile || name == lockFile:
			return used, nil
		case name == "lost+found" || strings.HasPrefix(name, "."):
		case name == keyFolder && e.IsDir(): // laid there for a node that is to have the keys of another
		default:
			found = foreign
		}
	}
	return found, nil
}

// lock takes the folder for this process, or says who has it.
func lock(path string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(path, lockFile), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, failure(path, err)
	}
	switch err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); {
	case errors.Is(err, syscall.EWOULDBLOCK):
		defer f.Close()
		return nil, &InUseError{Path: path, PID: readPID(f)}
	case err != nil:
		f.Close()
		return nil, failure(path, err)
	}
	if err := writePID(f); err != nil {
		f.Close()
		return nil, failure(path, err)
	}
	return f, nil
}

func readPID(f *os.File) int {
	buf := make([]byte, 20)
	n, _ := f.ReadAt(buf, 0)
	pid, _ := strconv.Atoi(string(bytes.TrimSpace(buf[:n])))
	return pid
}

func writePID(f *os.File) error {
	if err := f.Truncate(0); err != nil {
		return err
	}
	_, err := f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	return err
}

var idLetters = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// RandomID is prefix and n random bytes as lower-case letters and digits.
func RandomID(prefix string, n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails
	return prefix + idLetters.EncodeToString(b)
}

func loadNode(path string) (im.NodeID, error) {
	file := filepath.Join(path, nodeFile)
	data, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		id := RandomID("n-", 5)
		return im.NodeID(id), writeFile(path, nodeFile, []byte(id+"\n"))
	}
	if err != nil {
		return "", failure(path, err)
	}
	id := strings.TrimSpace(string(data))
	if !ValidNode(id) {
		return "", module.Configf("%s holds no node id; remove the file and the node gets a new one", file)
	}
	return im.NodeID(id), nil
}

// ValidNode reports whether s can name a node: 1 to 64 of a-z A-Z 0-9 . _ -.
func ValidNode(s string) bool {
	if len(s) == 0 || len(s) > 64 {
		return false
	}
	for _, c := range []byte(s) {
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '.' || c == '_' || c == '-') {
			return false
		}
	}
	return true
}

// writeFile writes a file as a whole or not at all: after a crash there is the
// old one or the new one.
func writeFile(dir, name string, data []byte) error {
	err := replace(filepath.Join(dir, name), data)
	if err != nil {
		return failure(dir, err)
	}
	return nil
}

func replace(path string, data []byte) error {
	f, err := os.OpenFile(path+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		_ = os.Remove(path + ".new")
		return err
	}
	return syncDir(filepath.Dir(path))
}

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// failure says in one sentence why the folder cannot be used.
func failure(path string, err error) error {
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return fmt.Errorf("the disk of data folder %s is full; free some space: %w", path, err)
	case errors.Is(err, syscall.EROFS):
		return fmt.Errorf("data folder %s is on a read-only file system; choose another with --data-dir: %w", path, err)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("data folder %s may not be used by this user; choose another with --data-dir: %w", path, err)
	}
	return fmt.Errorf("data folder %s: %w", path, err)
}
