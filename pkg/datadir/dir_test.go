package datadir_test

import (
	"bytes"
	"encoding/base64"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/imdhq/imd/pkg/datadir"
	"github.com/imdhq/imd/pkg/module"
)

func open(t *testing.T, path string) *datadir.Dir {
	t.Helper()
	d, err := datadir.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestFirstAndSecondStart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new", "data")
	d := open(t, path)
	if len(d.TokenKeys()) != 1 || len(d.TokenKeys()[0].Secret) != 32 || !strings.HasPrefix(d.AdminKey(), "adm_") {
		t.Errorf("keys = %v, %q", d.TokenKeys(), d.AdminKey())
	}
	for name, mode := range map[string]fs.FileMode{"": 0o700, "keys": 0o700, "keys/token.key": 0o600, "keys/admin.key": 0o600, "node.id": 0o600} {
		info, err := os.Stat(filepath.Join(path, name))
		if err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v; want %o", name, info.Mode(), err, mode)
		}
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	again := open(t, path)
	defer again.Close()
	if again.Node() != d.Node() || again.AdminKey() != d.AdminKey() || again.TokenKeys()[0].ID != d.TokenKeys()[0].ID {
		t.Error("the second start changed the node id or the keys")
	}
	keys, err := datadir.ReadTokenKeys(path)
	if err != nil || string(keys[0].Secret) != string(d.TokenKeys()[0].Secret) {
		t.Errorf("ReadTokenKeys() = %v", err)
	}
	if admin, err := datadir.ReadAdminKey(path); err != nil || admin != d.AdminKey() {
		t.Errorf("ReadAdminKey() = %v", err)
	}
}

func TestSecondProcessIsRefused(t *testing.T) {
	path := t.TempDir()
	d := open(t, path)
	defer d.Close()
	_, err := datadir.Open(path)
	var used *datadir.InUseError
	if !errors.As(err, &used) || used.PID != os.Getpid() || !strings.Contains(err.Error(), path) {
		t.Errorf("Open() = %v", err)
	}
}

func TestRefusals(t *testing.T) {
	tests := []struct {
		name  string
		spoil func(t *testing.T, path string)
		want  string
	}{
		{"open folder", func(t *testing.T, p string) { must(t, os.Chmod(p, 0o755)) }, "chmod 700"},
		{"open key", func(t *testing.T, p string) { must(t, os.Chmod(p+"/keys/token.key", 0o644)) }, "chmod 600"},
		{"open admin key", func(t *testing.T, p string) { must(t, os.Chmod(p+"/keys/admin.key", 0o640)) }, "chmod 600"},
		{"short secret", func(t *testing.T, p string) { put(t, p+"/keys/token.key", "k1 c2hvcnQ\n") }, "has 5 bytes, at least 32"},
		{"no key", func(t *testing.T, p string) { put(t, p+"/keys/token.key", "\n") }, "holds no key"},
		{"garbage", func(t *testing.T, p string) { put(t, p+"/keys/token.key", "hunter22\n") }, "token.key:1"},
		{"key twice", func(t *testing.T, p string) {
			line := "k1 " + strings.Repeat("A", 43) + "\n"
			put(t, p+"/keys/token.key", line+line)
		}, "is there twice"},
		{"short admin key", func(t *testing.T, p string) { put(t, p+"/keys/admin.key", "12345678") }, "at least 32 characters"},
		{"bad node id", func(t *testing.T, p string) { put(t, p+"/node.id", "a/b") }, "holds no node id"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "d")
			must(t, open(t, path).Close())
			tt.spoil(t, path)
			_, err := datadir.Open(path)
			var ce *module.ConfigError
			if !errors.As(err, &ce) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Open() = %v; want a configuration error with %q", err, tt.want)
			}
			if err != nil && strings.Contains(err.Error(), "hunter22") {
				t.Error("the error shows the file's content")
			}
		})
	}
}

func TestForeignFolderIsLeftAlone(t *testing.T) {
	path := t.TempDir()
	put(t, path+"/thesis.txt", "x")
	if _, err := datadir.Open(path); err == nil || !strings.Contains(err.Error(), "holds other things") {
		t.Errorf("Open() = %v", err)
	}
	file := filepath.Join(path, "thesis.txt")
	if _, err := datadir.Open(file); err == nil || !strings.Contains(err.Error(), "is a file") {
		t.Errorf("Open() = %v", err)
	}
}

// The keys of another node may be laid into a folder before its first start.
func TestKeysMayBeThereFirst(t *testing.T) {
	first := open(t, filepath.Join(t.TempDir(), "a"))
	defer first.Close()
	path := filepath.Join(t.TempDir(), "b")
	must(t, os.MkdirAll(path+"/keys", 0o700))
	line := first.TokenKeys()[0]
	put(t, path+"/keys/token.key", line.ID+" "+base64.RawURLEncoding.EncodeToString(line.Secret)+"\n")
	second := open(t, path)
	defer second.Close()
	if got := second.TokenKeys(); len(got) != 1 || got[0].ID != line.ID || !bytes.Equal(got[0].Secret, line.Secret) {
		t.Errorf("the second node has the keys %v", got)
	}
}

func TestEndpoints(t *testing.T) {
	path := t.TempDir()
	if _, err := datadir.ReadEndpoints(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("ReadEndpoints() = %v", err)
	}
	d := open(t, path)
	defer d.Close()
	want := datadir.Endpoints{Node: d.Node(), BootID: "b", PID: 7, Public: "127.0.0.1:1", Ops: "127.0.0.1:2"}
	must(t, d.WriteEndpoints(want))
	if got, err := datadir.ReadEndpoints(path); err != nil || got != want {
		t.Errorf("ReadEndpoints() = %+v, %v", got, err)
	}
	must(t, d.RemoveEndpoints())
	must(t, d.RemoveEndpoints())
	if _, err := datadir.ReadEndpoints(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("ReadEndpoints() = %v", err)
	}
}

func TestDefault(t *testing.T) {
	env := map[string]string{"HOME": "/home/ann"}
	get := func(k string) string { return env[k] }
	if got := datadir.Default(get); got != "/home/ann/.local/share/imd" {
		t.Errorf("Default() = %s", got)
	}
	env["XDG_DATA_HOME"] = "/data"
	if got := datadir.Default(get); got != "/data/imd" {
		t.Errorf("Default() = %s", got)
	}
	clear(env)
	if got := datadir.Default(get); got != "" {
		t.Errorf("Default() = %s", got)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func put(t *testing.T, path, text string) {
	t.Helper()
	must(t, os.WriteFile(path, []byte(text), 0o600))
}
