package storage

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/imdhq/imd/pkg/config"
	"github.com/imdhq/imd/pkg/module"
)

func TestRedisConfig(t *testing.T) {
	for url, want := range map[string]string{
		"":                              "",
		"redis://h:6379/0":              "",
		"rediss://u:hunter22@h":         "",
		"unix:///run/redis.sock":        "",
		"unix://":                       "names no socket",
		"redis://":                      "names no host",
		"redis://h/main":                "no number of a database",
		"http://:hunter22@h":            "does not begin with",
		"redis://:hunter22@h:port":      "not of the form",
		"redis://h1?addr=h2&addr=h3:63": "",
	} {
		err := RedisConfig{URL: config.Secret(url)}.Validate()
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", url, err, want)
		}
		if err != nil && strings.Contains(err.Error(), "hunter22") {
			t.Errorf("the error repeats the password: %v", err)
		}
	}
	bad := RedisConfig{URL: "redis://h", TLS: RedisTLS{CertFile: "c"}}.Validate()
	for _, want := range []string{"key_file", "not rediss"} {
		if bad == nil || !strings.Contains(bad.Error(), want) {
			t.Errorf("%v does not say %q", bad, want)
		}
	}
}

func TestRedisTLSFiles(t *testing.T) {
	if c, err := DefaultRedisConfig().TLSConfig(); c != nil || err != nil {
		t.Errorf("without files: %v, %v", c, err)
	}
	empty := filepath.Join(t.TempDir(), "empty.pem")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tls := range []RedisTLS{{CAFile: empty}, {CAFile: "nowhere.pem"}, {CertFile: empty, KeyFile: empty}} {
		var wrong *module.ConfigError
		if _, err := (RedisConfig{TLS: tls}).TLSConfig(); !errors.As(err, &wrong) || !strings.Contains(err.Error(), "redis.tls.") {
			t.Errorf("%+v: %v", tls, err)
		}
	}
}
