package cmd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/imdhq/imd/pkg/config"
	"github.com/imdhq/imd/pkg/control/embedded"
	"github.com/imdhq/imd/pkg/datadir"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/module"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

func TestExitStatuses(t *testing.T) {
	reason := func(r im.Reason) error { return im.Errorf(r, "x.Y", "text") }
	refused := &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("connection refused")}
	tests := []struct {
		name string
		err  error
		want int
	}{
		{"anything", errors.New("boom"), 1},
		{"usage", usagef("no"), 2},
		{"not found", reason(clientv1.Reason_REASON_NOT_FOUND), 3},
		{"no such file", &fs.PathError{Op: "open", Path: "x", Err: fs.ErrNotExist}, 3},
		{"bad token", reason(clientv1.Reason_REASON_BAD_TOKEN), 4},
		{"forbidden", reason(clientv1.Reason_REASON_FORBIDDEN), 4},
		{"unavailable", reason(clientv1.Reason_REASON_UNAVAILABLE), 5},
		{"rate limited", reason(clientv1.Reason_REASON_RATE_LIMITED), 5},
		{"refused", fmt.Errorf("get: %w", refused), 5},
		{"too late", context.DeadlineExceeded, 5},
		{"same id, other content", reason(clientv1.Reason_REASON_ID_REUSED), 6},
		{"interrupted", context.Canceled, 130},
		{"configuration", fmt.Errorf("x: %w", config.Errorf("a", "b")), 78},
		{"module's configuration", fmt.Errorf("storage: %w", module.Configf("no")), 78},
		{"schema", fmt.Errorf("storage: %w", store.ErrSchema), 78},
		{"clock", fmt.Errorf("storage: %w", store.ErrClock), 78},
		{"damaged", fmt.Errorf("storage: %w", store.ErrCorrupt), 1},
		{"folder in use", &datadir.InUseError{Path: "/d", PID: 7}, 1},
	}
	for _, tt := range tests {
		if got := classify(tt.err); got.Exit != tt.want || got.Message == "" || got.Code == "" || got.Reason == "" {
			t.Errorf("%s: classify() = %+v; want exit status %d", tt.name, *got, tt.want)
		}
	}
}

// A second signal is one that is another one, or comes later: whoever starts
// programs passes on what they got already.
func TestASignalThatComesTwice(t *testing.T) {
	term, intr := syscall.SIGTERM, os.Interrupt
	for name, tt := range map[string]struct {
		again os.Signal
		after time.Duration
		want  bool
	}{
		"one signal":  {nil, 0, false},
		"passed on":   {term, 20 * time.Millisecond, false},
		"asked again": {term, together, true},
		"another one": {intr, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ch, done := make(chan os.Signal, 2), make(chan struct{})
				got, firsts := make(chan bool), 0
				go func() { got <- signals(ch, done, func(os.Signal) { firsts++ }) }()
				ch <- term
				if tt.again != nil {
					time.Sleep(tt.after)
					ch <- tt.again
				}
				synctest.Wait()
				if !tt.want {
					close(done)
				}
				if second := <-got; second != tt.want || firsts != 1 {
					t.Errorf("second %v, first called %d times", second, firsts)
				}
			})
		})
	}
}

// A command that goes to a database says what the database said, and no word of nodes.
func TestFailuresOfDatabases(t *testing.T) {
	refused := &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("connection refused")}
	for _, tt := range []struct {
		err  error
		exit int
		says string
	}{
		{fmt.Errorf("the database cannot be reached: %w", refused), 5, "the database cannot be reached: dial tcp: connection refused"},
		{fmt.Errorf("the database cannot be reached: %w", context.DeadlineExceeded), 5, "the database cannot be reached: context deadline exceeded"},
		{fmt.Errorf("the database cannot be reached: %w", &net.DNSError{Err: "no such host", Name: "db"}), 5, "the database cannot be reached: lookup db: no such host"},
		{fmt.Errorf("the database does not exist; create it: %w", store.ErrDSN), 78, "the database does not exist; create it"},
		{fmt.Errorf("nodes use the database: %w", store.ErrLocked), 1, "nodes use the database"},
		{errors.New("boom"), 1, "boom"},
	} {
		var got *failure
		if !errors.As(ofDatabase(tt.err), &got) || got.Exit != tt.exit || got.Message != tt.says || got.Hint != "" {
			t.Errorf("ofDatabase(%v) = %+v; want exit status %d and %q", tt.err, got, tt.exit, tt.says)
		}
	}
	if err := ofDatabase(nil); err != nil {
		t.Error(err)
	}
}

func TestBanner(t *testing.T) {
	dir, err := datadir.Open(filepath.Join(t.TempDir(), "my data"))
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	e := &engine{app: standInApp(nil, nil, nil), dir: dir, cfg: &loaded{roles: []string{"gateway", "state"}}}
	p := datadir.Endpoints{Version: "0.1.0", Public: "0.0.0.0:8420", Ops: "127.0.0.1:8421"}
	got := e.banner(p, 700*time.Millisecond)
	for _, want := range []string{
		"roles gateway, state, ready in 0.7 s", "http://127.0.0.1:8420/\n", "http://127.0.0.1:8421/readyz",
		"imd token mint --user alice --data-dir '" + dir.Path() + "'",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("the banner lacks %q:\n%s", want, got)
		}
	}
	e.demo = &demo{users: []string{"ann", "ben"}, throwaway: true}
	p.Public = "127.0.0.1:8420"
	if secure := (datadir.Endpoints{Public: p.Public, PublicTLS: true}); publicURL(secure) != "https://127.0.0.1:8420/" {
		t.Errorf("with TLS it is at %s", publicURL(secure))
	}
	got = e.banner(p, time.Second)
	for _, want := range []string{
		"not for production", "http://127.0.0.1:8420/#user=ann\n", "http://127.0.0.1:8420/#user=ben\n", "(thrown away at the end)",
		"imd chat --as ann --data-dir '" + dir.Path() + "'",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("the banner lacks %q:\n%s", want, got)
		}
	}
}

func TestWebURL(t *testing.T) {
	for in, want := range map[string]string{
		"127.0.0.1:1": "http://127.0.0.1:1/", "0.0.0.0:1": "http://127.0.0.1:1/", "[::]:1": "http://127.0.0.1:1/", ":1": "http://127.0.0.1:1/",
		"[::1]:1": "http://[::1]:1/", "chat.example:1": "http://chat.example:1/", "": "",
	} {
		if got := webURL("http://", in); got != want {
			t.Errorf("webURL(%q) = %q; want %q", in, got, want)
		}
	}
}

func TestSpan(t *testing.T) {
	for d, want := range map[time.Duration]string{
		4 * time.Second: "4s", -3*time.Minute - 5*time.Second: "3m05s", 90 * time.Minute: "1h30m", 73 * time.Hour: "3 days",
	} {
		if got := span(d); got != want {
			t.Errorf("span(%v) = %s; want %s", d, got, want)
		}
	}
}

// Every key of the program can be set by the file, by its variable and by a
// flag.
func TestEveryKeyOfTheProgram(t *testing.T) {
	sch, err := schema(specs())
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range sch.Leaves() {
		value := strings.Trim(config.Text(l.Default), "[]")
		inputs := map[string]config.Inputs{"env": {Environ: []string{l.Env + "=" + value}}}
		if !l.Secret {
			inputs["flag"] = config.Inputs{Flags: []config.Assign{{Key: l.Key, Value: value, Flag: "--set"}}}
		}
		for name, in := range inputs {
			if l.Twin != "" {
				continue // its value is a file
			}
			v, err := sch.Load(in)
			if err != nil {
				t.Errorf("%s by %s: %v", l.Key, name, err)
				continue
			}
			if !v.Set(l.Key) || v.Text(l.Key) != config.Text(l.Default) {
				t.Errorf("%s by %s = %q; want %q", l.Key, name, v.Text(l.Key), config.Text(l.Default))
			}
		}
	}
	example, err := os.ReadFile("../config.example.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range sch.Leaves() {
		last := l.Key[strings.LastIndexByte(l.Key, '.')+1:]
		if !bytes.Contains(example, []byte(last+": ")) {
			t.Errorf("%s is not in config.example.yaml", l.Key)
		}
	}
}

// A name with a password never stands on a command line.
func TestWithoutPassword(t *testing.T) {
	for dsn, want := range map[string]bool{
		"postgres://imd@h/d": true, "postgres:///d?host=/run/postgresql": true, "postgres://imd:x@h/d": false, "postgres://imd:@h/d": false,
		"postgres://h/d?user=imd&password=x": false, "postgres://h/d?password=%zz": false, "postgres://h/d?sslpassword=x": false,
		"host=h password=x": false, "": false, "postgres://imd:x%zz@h/d": false,
	} {
		if got := withoutPassword(dsn); got != want {
			t.Errorf("%s: %v", dsn, got)
		}
	}
}

// A wrong value of imd etcd is a wrong configuration, and all are named at once.
func TestEtcdFlagsAreJudged(t *testing.T) {
	m := embedded.DefaultMember()
	m.Dir, m.Clients, m.Quota, m.Heartbeat, m.History = t.TempDir(), "nowhere", -1, time.Millisecond, time.Second
	var f *failure
	if err := standInApp(nil, nil, nil).member(t.Context(), m); !errors.As(err, &f) || f.Exit != exitConfig {
		t.Fatalf("member() = %v; want exit status %d", err, exitConfig)
	}
	for _, want := range []string{"listen-client", "heartbeat", "election", "quota", "history"} {
		if !strings.Contains(f.Message, want) {
			t.Errorf("%q does not name %s", f.Message, want)
		}
	}
	good := embedded.DefaultMember()
	if err := good.Check(); err != nil {
		t.Errorf("the defaults are refused: %v", err)
	}
}

// A command that finds no token tells that no node runs where that is so, and else
// what is wrong with the data folder.
func TestNoTokenForAServer(t *testing.T) {
	dir := t.TempDir()
	f := &serverFlags{app: standInApp(nil, nil, []string{"IMD_DATA_DIR=" + dir}), server: "http://127.0.0.1:1"}
	var told *failure
	if _, err := f.credential(); !errors.As(err, &told) || told.Exit != exitNotAllowed || told.Reason != "no_key" {
		t.Errorf("without a node: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "endpoints.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := f.credential(); err == nil || errors.As(err, &told) || !strings.Contains(err.Error(), "endpoints.json") {
		t.Errorf("with endpoints that cannot be read: %v", err)
	}
}
