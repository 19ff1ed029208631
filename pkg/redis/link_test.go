package redis

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/circuit"
	"github.com/imdhq/imd/pkg/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// open opens a link and waits until it answers.
func open(t *testing.T, url string, calls int) *Link {
	t.Helper()
	l, err := Open(Config{URL: url}, Use{Name: "the test", Calls: calls, Pipeline: 8}, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	for end := time.Now().Add(testenv.ReadyIn); l.Away(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the server is not reached")
		}
	}
	return l
}

func ping(l *Link) error {
	_, err := l.Do(context.Background(), CallTime, func(b rueidis.Builder) rueidis.Commands { return rueidis.Commands{b.Ping().Build()} })
	return err
}

func TestCallsAreBounded(t *testing.T) {
	l := open(t, testenv.StartRedis(t).URL(), 2)
	l.slot <- struct{}{}
	l.slot <- struct{}{}
	if err := ping(l); circuit.ClassOf(err) != circuit.Busy {
		t.Fatalf("error %v", err)
	}
	<-l.slot
	<-l.slot
	if err := ping(l); err != nil {
		t.Fatal(err)
	}
}

func TestURLs(t *testing.T) {
	for url, good := range map[string]bool{
		"redis://h:1/0": true, "rediss://u:p@h:1": true, "unix:///run/redis.sock": true, "redis://h:1?addr=h2:1": true,
		"http://h": false, "redis://h/x": false, "redis://u:secret@h/x": false, "://": false,
	} {
		_, err := options(Config{URL: url})
		if good != (err == nil) {
			t.Errorf("%s: %v", url, err)
		}
		if err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("the error repeats the password: %v", err)
		}
	}
}

func TestClasses(t *testing.T) {
	if ClassOf(nil) != "" || ClassOf(errors.New("x")) != circuit.Connection || ClassOf(context.DeadlineExceeded) != circuit.Timeout ||
		ClassOf(rueidis.ErrClosing) != circuit.Connection {
		t.Error("errors that are not the server's")
	}
	r := testenv.StartRedis(t)
	c := open(t, r.URL(), 1)
	for text, want := range map[string]circuit.Class{
		"MOVED 1 127.0.0.1:1": circuit.Moved, "CLUSTERDOWN Hash slot not served": circuit.Moved, "OOM command not allowed": circuit.Full,
		"LOADING Redis is loading": circuit.Other, "NOPERM no": circuit.Refused, "MISCONF no": circuit.ReadOnly, "ERR x": circuit.Other,
	} {
		cl := *c.client.Load()
		err := cl.Do(t.Context(), cl.B().Eval().Script("return redis.error_reply(ARGV[1])").Numkeys(0).Arg(text).Build()).Error()
		if got := ClassOf(err); got != want {
			t.Errorf("%q (%v) is of class %s, want %s", text, err, got, want)
		}
	}
}
