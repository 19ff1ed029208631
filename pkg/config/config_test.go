package config_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/imdhq/imd/pkg/config"
)

type limits struct {
	Rate  float64 `mapstructure:"rate" doc:"Sends a second. Default 50."`
	Burst int     `mapstructure:"burst" doc:"Sends at once. Default 600."`
}

type key struct {
	ID   string `mapstructure:"id"`
	File string `mapstructure:"file"`
}

type gateway struct {
	Listen   string         `mapstructure:"listen" doc:"Address. Default 127.0.0.1:8420."`
	Auth     time.Duration  `mapstructure:"auth_timeout" doc:"1 s to 30 s. Default 5 s."`
	Queue    int            `mapstructure:"send_queue" doc:"Frames. Default 1024."`
	Origins  []string       `mapstructure:"allowed_origins" doc:"Origins. Default none."`
	Strict   bool           `mapstructure:"strict" doc:"Whether to be strict."`
	Proxies  []netip.Prefix `mapstructure:"proxies" doc:"Trusted proxies."`
	Limits   limits         `mapstructure:"limits"`
	Keys     []key          `mapstructure:"keys" doc:"Public keys."`
	Password config.Secret  `mapstructure:"password" doc:"A password."`
}

func (g gateway) Validate() error {
	var errs []error
	if g.Queue < 1 || g.Queue > 65536 {
		errs = append(errs, fmt.Errorf("gateway.send_queue: %d is not within 1 and 65536", g.Queue))
	}
	if g.Auth < time.Second {
		errs = append(errs, fmt.Errorf("gateway.auth_timeout: %v is not within 1s and 30s", g.Auth))
	}
	return errors.Join(errs...)
}

type top struct {
	Roles []string `mapstructure:"roles" doc:"Roles. Default all."`
}

func defaults() *gateway {
	return &gateway{Listen: "127.0.0.1:8420", Auth: 5 * time.Second, Queue: 1024, Limits: limits{50, 600}}
}

func schema(t *testing.T) *config.Schema {
	t.Helper()
	s, err := config.NewSchema([]config.Section{
		{New: func() any { return &top{Roles: []string{"all"}} }},
		{Name: "gateway", Doc: "The client listener.", New: func() any { return defaults() }},
	}, map[string]string{"gateway.port": "gateway.listen"})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "imd.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestBadInput(t *testing.T) {
	tests := []struct {
		name string
		file string
		env  []string
		flag *config.Assign
		want string // part of the error
	}{
		{name: "misspelt key", file: "gateway:\n  lisen: x\n", want: "imd.yaml:2: gateway.lisen: unknown key; did you mean gateway.listen?"},
		{name: "key in the wrong section", file: "listen: x\n", want: "imd.yaml:1: listen: unknown key; did you mean gateway.listen?"},
		{name: "unknown section", file: "gatway:\n  listen: x\n", want: "imd.yaml:1: gatway: unknown key; did you mean gateway?"},
		{name: "wrong type", file: "gateway:\n  send_queue: many\n", want: `imd.yaml:2: gateway.send_queue: "many" is not a whole number`},
		{name: "text for a list of sections", file: "gateway:\n  keys: [x]\n", want: "imd.yaml:2: gateway.keys: each item must be a section"},
		{name: "text for a list", file: "gateway:\n  keys: x\n", want: `imd.yaml:2: gateway.keys: "x" is not a list of sections`},
		{name: "text for a list by variable", env: []string{"IMD_GATEWAY_KEYS=x"}, want: "IMD_GATEWAY_KEYS: gateway.keys: is not a list in YAML or JSON"},
		{name: "unknown key in a list", file: "gateway:\n  keys:\n    - id: a\n      fiel: b\n", want: "imd.yaml:4: gateway.keys: unknown key fiel; did you mean file?"},
		{name: "list for text", file: "gateway:\n  listen: [a]\n", want: "imd.yaml:2: gateway.listen: is a list, but text is wanted"},
		{name: "section for text", file: "gateway:\n  listen: {a: 1}\n", want: "gateway.listen: is a section, but text is wanted"},
		{name: "bool for text", file: "gateway:\n  listen: true\n", want: "gateway.listen: true is not text"},
		{name: "number for bool", file: "gateway:\n  strict: 1\n", want: "gateway.strict: 1 is not true or false"},
		{name: "no value", file: "gateway:\n  listen:\n", want: "imd.yaml:2: gateway.listen: has no value"},
		{name: "duration without unit", file: "gateway:\n  auth_timeout: 30\n", want: "imd.yaml:2: gateway.auth_timeout: 30 has no unit; write 30s"},
		{name: "duplicate key", file: "gateway:\n  listen: a\n  listen: b\n", want: "imd.yaml:3: gateway.listen: is given twice, first on line 2"},
		{name: "duplicate section", file: "gateway: {}\ngateway: {}\n", want: "imd.yaml:2: gateway: is given twice"},
		{name: "bad indentation", file: "gateway:\n  listen: a\n send_queue: 3\n", want: "is not YAML"},
		{name: "not a mapping", file: "- a\n", want: "must be a section of keys"},
		{name: "two documents", file: "gateway: {}\n---\ngateway: {}\n", want: "more than one YAML document"},
		{name: "bad prefix", file: "gateway:\n  proxies: [10.0.0.0]\n", want: "gateway"},
		{name: "out of range", file: "gateway:\n  send_queue: 0\n", want: "imd.yaml:2: gateway.send_queue: 0 is not within 1 and 65536"},
		{name: "unknown variable", env: []string{"IMD_GATEWAY_LISTN=x"}, want: "IMD_GATEWAY_LISTN: unknown variable; did you mean IMD_GATEWAY_LISTEN?"},
		{name: "bad variable", env: []string{"IMD_GATEWAY_AUTH_TIMEOUT=30"}, want: "IMD_GATEWAY_AUTH_TIMEOUT: gateway.auth_timeout: 30 has no unit"},
		{name: "unknown flag key", flag: &config.Assign{Key: "gateway.lisen", Value: "x", Flag: "--set"}, want: "--set: gateway.lisen: unknown key; did you mean gateway.listen?"},
		{name: "secret as flag", flag: &config.Assign{Key: "gateway.password", Value: "hunter22", Flag: "--set"}, want: "set gateway.password_file or IMD_GATEWAY_PASSWORD"},
		{name: "secret and its twin", env: []string{"IMD_GATEWAY_PASSWORD=hunter22", "IMD_GATEWAY_PASSWORD_FILE=/x"}, want: "contradicts gateway.password"},
		{name: "secret file missing", env: []string{"IMD_GATEWAY_PASSWORD_FILE=/not/here"}, want: "/not/here: there is no such file"},
		{name: "secret of a wrong type", file: "gateway:\n  password: [hunter22]\n", want: "gateway.password: is not text"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			in := config.Inputs{Environ: tt.env}
			if tt.file != "" {
				in.File = write(t, tt.file)
			}
			if tt.flag != nil {
				in.Flags = []config.Assign{*tt.flag}
			}
			_, err := schema(t).Load(in)
			var bad *config.Error
			if !errors.As(err, &bad) {
				t.Fatalf("Load() = %v; want an *Error", err)
			}
			if !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Load() = %q; want it to contain %q", err, tt.want)
			}
			if strings.Contains(err.Error(), "hunter22") {
				t.Errorf("Load() shows the secret: %q", err)
			}
		})
	}
}

func TestMissingFile(t *testing.T) {
	_, err := schema(t).Load(config.Inputs{File: "/not/here.yaml"})
	if err == nil || !strings.Contains(err.Error(), "/not/here.yaml: there is no such file") {
		t.Errorf("Load() = %v", err)
	}
}

func TestAllProblemsAtOnce(t *testing.T) {
	_, err := schema(t).Load(config.Inputs{
		File:    write(t, "gateway:\n  send_queue: x\n  nope: 1\n"),
		Environ: []string{"IMD_ROLEZ=all"},
	})
	var bad *config.Error
	if !errors.As(err, &bad) || len(bad.Problems) != 3 {
		t.Errorf("Load() = %v; want 3 problems", err)
	}
}

func TestOrderOfSources(t *testing.T) {
	file := write(t, "gateway: {listen: 'file:1', send_queue: 7, limits: {burst: 9}}\nroles: gateway, push\n")
	v, err := schema(t).Load(config.Inputs{
		File:    file,
		Environ: []string{"IMD_GATEWAY_LISTEN=env:1", "IMD_GATEWAY_SEND_QUEUE=8", "OTHER=1", "IMD_TEST_REQUIRE=all", "IMD_CONFIG=x"},
		Flags:   []config.Assign{{Key: "gateway.listen", Value: "flag:1", Flag: "--listen"}},
		Ignore:  []string{"IMD_TEST_*", "IMD_CONFIG"},
	})
	if err != nil {
		t.Fatal(err)
	}
	g := defaults()
	if err := v.Decode("gateway", g); err != nil {
		t.Fatal(err)
	}
	if g.Listen != "flag:1" || g.Queue != 8 || g.Limits.Burst != 9 || g.Limits.Rate != 50 || g.Auth != 5*time.Second {
		t.Errorf("gateway = %+v", *g)
	}
	var r top
	if err := v.Decode("", &r); err != nil || !slices.Equal(r.Roles, []string{"gateway", "push"}) {
		t.Errorf("roles = %v, %v", r.Roles, err)
	}
	for key, want := range map[string]string{
		"gateway.listen": "--listen", "gateway.send_queue": "IMD_GATEWAY_SEND_QUEUE",
		"gateway.limits.burst": file + ":1", "gateway.limits.rate": "default",
	} {
		if got := v.Where(key); got != want {
			t.Errorf("Where(%s) = %s; want %s", key, got, want)
		}
	}
}

// Every key can be set by the file, by its variable and by a flag.
func TestEveryLeafByEverySource(t *testing.T) {
	samples := map[string]string{
		"text": "10.1.0.0/16", "duration": "7s", "whole number": "77", "number": "7.5", "true or false": "true", "list of text": "10.2.0.0/16",
		"list of sections": `[{"id":"a","file":"f"}]`, "secret": "a secret value",
	}
	s := schema(t)
	for _, l := range s.Leaves() {
		sample, ok := samples[l.Type]
		if !ok {
			t.Fatalf("no sample for type %s of %s", l.Type, l.Key)
		}
		if l.Twin != "" {
			sample = write(t, "from a file")
		}
		tree := sample
		if l.Type == "text" || l.Type == "secret" {
			tree = fmt.Sprintf("%q", sample)
		}
		parts := strings.Split(l.Key, ".")
		slices.Reverse(parts)
		for _, p := range parts {
			tree = fmt.Sprintf("{%s: %s}", p, tree)
		}
		inputs := map[string]config.Inputs{
			"file": {File: write(t, tree)},
			"env":  {Environ: []string{l.Env + "=" + sample}},
			"flag": {Flags: []config.Assign{{Key: l.Key, Value: sample, Flag: "--set"}}},
		}
		if l.Secret {
			delete(inputs, "flag")
		}
		for name, in := range inputs {
			v, err := s.Load(in)
			if err != nil {
				t.Errorf("%s by %s: %v", l.Key, name, err)
				continue
			}
			if !v.Set(l.Key) || v.Text(l.Key) == config.Text(l.Default) {
				t.Errorf("%s by %s has no effect: %s", l.Key, name, v.Text(l.Key))
			}
		}
	}
}

func TestListOfSections(t *testing.T) {
	v, err := schema(t).Load(config.Inputs{File: write(t, "gateway:\n  keys:\n    - {id: a, file: f}\n    - {id: b}\n  proxies: [10.0.0.0/8]\n")})
	if err != nil {
		t.Fatal(err)
	}
	g := defaults()
	if err := v.Decode("gateway", g); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(g.Keys, []key{{"a", "f"}, {"b", ""}}) || len(g.Proxies) != 1 || g.Proxies[0].String() != "10.0.0.0/8" {
		t.Errorf("gateway = %+v", *g)
	}
}

func TestSecretFromFile(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "pw"), []byte("hunter22\n"), 0o400); err != nil {
		t.Fatal(err)
	}
	v, err := schema(t).Load(config.Inputs{Environ: []string{"IMD_GATEWAY_PASSWORD_FILE=pw", "CREDENTIALS_DIRECTORY=" + dir}})
	if err != nil {
		t.Fatal(err)
	}
	g := defaults()
	if err := v.Decode("gateway", g); err != nil || g.Password.Reveal() != "hunter22" {
		t.Errorf("password = %q, %v", g.Password.Reveal(), err)
	}
	for _, val := range v.All() {
		if strings.Contains(val.Value, "hunter22") {
			t.Errorf("%s shows the secret", val.Key)
		}
		if val.Key == "gateway.password" && (val.Value != "(set, 8 bytes)" || val.Source != "env") {
			t.Errorf("password is shown as %+v", val)
		}
	}
}

// A file that others can read holds no secret any more.
func TestSecretsAreForTheOwnerAlone(t *testing.T) {
	for mode, want := range map[os.FileMode]bool{0o600: true, 0o400: true, 0o640: os.Getuid() == 0, 0o644: false, 0o604: false, 0o660: false} {
		file := filepath.Join(t.TempDir(), "pw")
		if err := os.WriteFile(file, []byte("hunter22\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(file, mode); err != nil {
			t.Fatal(err)
		}
		_, err := schema(t).Load(config.Inputs{Environ: []string{"IMD_GATEWAY_PASSWORD_FILE=" + file}})
		if (err == nil) != want || err != nil && !strings.Contains(err.Error(), "chmod 600") {
			t.Errorf("%04o: %v", mode, err)
		}
		if _, err := schema(t).Load(config.Inputs{Environ: []string{"IMD_GATEWAY_PASSWORD_FILE=pw", "CREDENTIALS_DIRECTORY=" + filepath.Dir(file)}}); err != nil {
			t.Errorf("a credential with %04o: %v", mode, err)
		}
	}
}

func TestSecretIsMasked(t *testing.T) {
	s := config.Secret("hunter22")
	js, err := json.Marshal(map[string]any{"s": s, "in": struct{ P config.Secret }{s}})
	if err != nil {
		t.Fatal(err)
	}
	enc := zapcore.NewJSONEncoder(zap.NewProductionEncoderConfig())
	line, err := enc.EncodeEntry(zapcore.Entry{}, []zap.Field{zap.Any("a", s), zap.Any("b", struct{ P config.Secret }{s}), zap.Stringer("c", s)})
	if err != nil {
		t.Fatal(err)
	}
	all := string(js) + line.String()
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d"} {
		all += fmt.Sprintf(verb, s) + fmt.Sprintf(verb, struct{ P config.Secret }{s})
	}
	if strings.Contains(all, "hunter22") || strings.Contains(all, fmt.Sprintf("%x", "hunter22")) {
		t.Errorf("the secret shows in %s", all)
	}
	if s.Reveal() != "hunter22" {
		t.Error("Reveal() does not reveal")
	}
}

func TestMovedKeyWarns(t *testing.T) {
	v, err := schema(t).Load(config.Inputs{File: write(t, "gateway:\n  port: 1\n")})
	if err != nil {
		t.Fatal(err)
	}
	if len(v.Warnings) != 1 || !strings.Contains(v.Warnings[0], "imd.yaml:2: gateway.port: this key was removed and has no effect; use gateway.listen") {
		t.Errorf("warnings = %q", v.Warnings)
	}
}

func TestExampleIsTheDefaults(t *testing.T) {
	s := schema(t)
	var b strings.Builder
	if err := s.WriteExample(&b); err != nil {
		t.Fatal(err)
	}
	v, err := s.Load(config.Inputs{File: write(t, b.String())})
	if err != nil {
		t.Fatalf("the example does not load: %v\n%s", err, b.String())
	}
	for _, l := range s.Leaves() {
		if got, want := v.Text(l.Key), config.Text(l.Default); got != want {
			t.Errorf("%s = %s; want %s", l.Key, got, want)
		}
		if !v.Set(l.Key) {
			t.Errorf("%s is not in the example", l.Key)
		}
	}
}

func TestSchemaRefuses(t *testing.T) {
	tests := map[string]any{
		"no tag": &struct{ A string }{},
		"no doc": &struct {
			A string `mapstructure:"a"`
		}{},
		"map": &struct {
			A map[string]string `mapstructure:"a" doc:"d"`
		}{},
		"not struct": new(int),
	}
	for name, def := range tests {
		if _, err := config.NewSchema([]config.Section{{Name: "x", New: func() any { return def }}}, nil); err == nil {
			t.Errorf("%s: NewSchema() = nil", name)
		}
	}
}
