package embedded_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/imdhq/imd/pkg/control/embedded"
)

// sink collects what a server logs.
type sink struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (s *sink) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.Write(p)
}

func (s *sink) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.String()
}

func (s *sink) logger() *zap.Logger {
	return zap.New(zapcore.NewCore(zapcore.NewJSONEncoder(zap.NewProductionEncoderConfig()), zapcore.AddSync(s), zapcore.DebugLevel))
}

func TestDataSurvivesRestart(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	dir := filepath.Join(t.TempDir(), "etcd")
	var logs sink
	for round := range 3 {
		start := time.Now()
		s, err := embedded.Start(t.Context(), dir, logs.logger())
		if err != nil {
			t.Fatal(err)
		}
		ready := time.Since(start)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second) // a server that hangs, not a slow one
		got, err := s.Client().Get(ctx, "round")
		if err != nil {
			t.Fatal(err)
		}
		if round > 0 && (len(got.Kvs) != 1 || string(got.Kvs[0].Value) != fmt.Sprint(round-1)) {
			t.Errorf("round %d: found %v", round, got.Kvs)
		}
		if _, err := s.Client().Put(ctx, "round", fmt.Sprint(round)); err != nil {
			t.Fatal(err)
		}
		cancel()
		start = time.Now()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if err := s.Close(); err != nil {
			t.Errorf("a second close: %v", err)
		}
		t.Logf("ready after %v, closed after %v", ready, time.Since(start))
	}
	if logs.String() != "" {
		t.Errorf("a healthy server logged:\n%s", logs.String())
	}
}

func TestShortLeasesAreGranted(t *testing.T) {
	s, err := embedded.Start(t.Context(), t.TempDir(), zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	l, err := s.Client().Grant(t.Context(), 3)
	if err != nil || l.TTL != 3 {
		t.Errorf("Grant(3) = %+v, %v; the leader lease needs 3 s", l, err)
	}
}

func TestDamageIsOneSentence(t *testing.T) {
	tests := []struct {
		name   string
		damage func(t *testing.T, dir string)
	}{
		{"the database is garbage", func(t *testing.T, dir string) {
			garbage(t, filepath.Join(dir, "member", "snap", "db"))
		}},
		{"the log is garbage", func(t *testing.T, dir string) {
			logs, err := filepath.Glob(filepath.Join(dir, "member", "wal", "*.wal"))
			if err != nil || len(logs) == 0 {
				t.Fatal("no log found", err)
			}
			for _, l := range logs {
				garbage(t, l)
			}
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			// A server that failed in the middle of its start may still write, so
			// that the folder cannot be removed at once.
			dir, err := os.MkdirTemp("", "damaged")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = os.RemoveAll(dir) })
			s, err := embedded.Start(t.Context(), dir, zap.NewNop())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := s.Client().Put(t.Context(), "k", "v"); err != nil {
				t.Fatal(err)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			tt.damage(t, dir)
			s, err = embedded.Start(t.Context(), dir, zap.NewNop())
			if err == nil {
				s.Close()
				t.Fatal("the damaged data was opened")
			}
			t.Log(err)
			if !strings.Contains(err.Error(), dir) || strings.Contains(err.Error(), "\n") {
				t.Errorf("the error is not one sentence about %s: %v", dir, err)
			}
		})
	}
}

// garbage overwrites the beginning of a file, keeping its size.
func garbage(t *testing.T, path string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt(bytes.Repeat([]byte("garbage "), 2048), 0); err != nil {
		t.Fatal(err)
	}
}

func TestFolderThatCannotBeWritten(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if s, err := embedded.Start(t.Context(), filepath.Join(file, "etcd"), zap.NewNop()); err == nil {
		s.Close()
		t.Error("a server started below a file")
	} else {
		t.Log(err)
	}
	if s, err := embedded.Start(t.Context(), "/proc/imd-etcd", zap.NewNop()); err == nil {
		s.Close()
		t.Error("a server started in a folder that cannot be made")
	} else {
		t.Log(err)
	}
}
