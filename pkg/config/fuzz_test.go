package config_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/imdhq/imd/pkg/config"
)

// Whatever stands in a file, a variable or a flag: the load ends with values or
// with problems, and never with a panic.
func FuzzLoad(f *testing.F) {
	f.Add([]byte("gateway: {listen: a, keys: [{id: x}], proxies: [10.0.0.0/8]}\nroles: all\n"), "IMD_GATEWAY_KEYS", "[{id: a}]", "gateway.limits.rate", "1e3")
	f.Add([]byte("a: &a [*a]\ngateway: &g {limits: *g, keys: *g}\n"), "IMD_GATEWAY_AUTH_TIMEOUT", "9223372036h", "gateway.send_queue", "-1")
	f.Add([]byte("gateway:\n  ? [x]\n  : y\n  <<: {listen: b}\n"), "IMD_ROLES", ",,", "roles", "[")
	f.Add([]byte("\xff\xfe"), "IMD_", "=", "", "")
	s, err := config.NewSchema([]config.Section{
		{New: func() any { return &top{} }}, {Name: "gateway", New: func() any { return defaults() }},
	}, nil)
	if err != nil {
		f.Fatal(err)
	}
	path := filepath.Join(f.TempDir(), "f.yaml")
	f.Fuzz(func(t *testing.T, file []byte, env, value, key, flag string) {
		if err := os.WriteFile(path, file, 0o600); err != nil {
			t.Fatal(err)
		}
		v, err := s.Load(config.Inputs{
			File: path, Environ: []string{env + "=" + value}, Flags: []config.Assign{{Key: key, Value: flag, Flag: "--set"}},
		})
		var bad *config.Error
		if err != nil && !errors.As(err, &bad) {
			t.Errorf("Load() = %T %v", err, err)
		}
		if err == nil && len(v.All()) != len(s.Leaves()) {
			t.Error("a key is missing")
		}
	})
}
