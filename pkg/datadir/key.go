package datadir

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/imdhq/imd/pkg/module"
)

const (
	keyFolder   = "keys"
	tokenFile   = "token.key"
	adminFile   = "admin.key"
	secretBytes = 32
	minAdmin    = 32 // characters
)

// ReadTokenKeys reads the keys that sign client tokens without taking the
// folder's lock, newest first. Errors: fs.ErrNotExist if no node ever started
// here, *module.ConfigError for a file that others can read or a bad line.
func ReadTokenKeys(path string) ([]module.TokenKey, error) { return loadTokenKeys(path, false) }

// ReadAdminKey reads the bearer token of the ops services without taking the
// folder's lock. Errors: as ReadTokenKeys.
func ReadAdminKey(path string) (string, error) { return loadAdminKey(path, false) }

// TokenKeyFile is where the keys that sign client tokens are in the folder.
func TokenKeyFile(path string) string { return filepath.Join(path, keyFolder, tokenFile) }

// WriteTokenKeys makes the key file from the text of another folder's, if there
// is none. It reports whether the folder has these keys now; false = it has
// others, which stay. Errors: *module.ConfigError for a text that holds no good
// keys, and what the file system says.
func (d *Dir) WriteTokenKeys(text []byte) (bool, error) {
	file := TokenKeyFile(d.path)
	have, err := os.ReadFile(file)
	if err == nil {
		return bytes.Equal(have, text), nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return false, failure(d.path, err)
	}
	if _, err := parseTokenKeys(file, string(text)); err != nil {
		return false, err
	}
	dir := filepath.Dir(file)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return false, failure(d.path, err)
	}
	return true, writeFile(dir, tokenFile, text)
}

func loadTokenKeys(path string, create bool) ([]module.TokenKey, error) {
	text, err := loadKeyFile(path, tokenFile, create, func() string {
		secret := make([]byte, secretBytes)
		_, _ = rand.Read(secret) // never fails
		return RandomID("k", 5) + " " + base64.RawURLEncoding.EncodeToString(secret)
	})
	if err != nil {
		return nil, err
	}
	return parseTokenKeys(TokenKeyFile(path), text)
}

// parseTokenKeys reads the text of the file.
func parseTokenKeys(file, text string) ([]module.TokenKey, error) {
	var keys []module.TokenKey
	seen := map[string]bool{}
	for i, line := range strings.Split(text, "\n") {
		if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		id, encoded, _ := strings.Cut(line, " ")
		secret, err := base64.RawURLEncoding.DecodeString(strings.TrimSpace(encoded))
		switch {
		case err != nil || encoded == "" || !ValidNode(id):
			return nil, module.Configf("%s:%d: is not \"id secret\" with the secret in base64url", file, i+1)
		case len(secret) < secretBytes:
			return nil, module.Configf("%s:%d: the secret has %d bytes, at least %d are wanted", file, i+1, len(secret), secretBytes)
		case seen[id]:
			return nil, module.Configf("%s:%d: key %s is there twice", file, i+1, id)
		}
		seen[id] = true
		keys = append(keys, module.TokenKey{ID: id, Secret: secret})
	}
	if len(keys) == 0 {
		return nil, module.Configf("%s holds no key; remove the file and the node makes a new one", file)
	}
	return keys, nil
}

func loadAdminKey(path string, create bool) (string, error) {
	text, err := loadKeyFile(path, adminFile, create, func() string { return RandomID("adm_", secretBytes) })
	if err != nil {
		return "", err
	}
	key := strings.TrimSpace(text)
	if len(key) < minAdmin || strings.ContainsAny(key, " \n\t") {
		return "", module.Configf("%s: the admin key must be one word of at least %d characters", filepath.Join(path, keyFolder, adminFile), minAdmin)
	}
	return key, nil
}

// loadKeyFile reads a key file that only its owner can read, making it first
// if it is not there and create says so.
func loadKeyFile(path, name string, create bool, fresh func() string) (string, error) {
	dir := filepath.Join(path, keyFolder)
	file := filepath.Join(dir, name)
	info, err := os.Stat(file)
	if errors.Is(err, fs.ErrNotExist) && create {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return "", failure(path, err)
		}
		text := fresh()
		return text, writeFile(dir, name, []byte(text+"\n"))
	}
	if err != nil {
		return "", fmt.Errorf("key file: %w", err)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return "", module.Configf("%s can be read by other users (mode %04o); run: chmod 600 %s", file, info.Mode().Perm(), file)
	}
	if info.Size() > 64<<10 {
		return "", module.Configf("%s is larger than 64 KiB", file)
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("key file: %w", err)
	}
	return string(data), nil
}
