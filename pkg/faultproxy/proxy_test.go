package faultproxy

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/imdhq/imd/pkg/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func start(t *testing.T) (*Proxy, func() net.Conn) {
	t.Helper()
	p, err := Listen("127.0.0.1:0", testenv.Echo(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p, func() net.Conn {
		c, err := net.Dial("tcp", p.Address())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
}

// say writes text and reads as much back within limit.
func say(c net.Conn, text string, limit time.Duration) (string, error) {
	if _, err := c.Write([]byte(text)); err != nil {
		return "", err
	}
	_ = c.SetReadDeadline(time.Now().Add(limit))
	buf := make([]byte, len(text))
	n, err := io.ReadFull(c, buf)
	return string(buf[:n]), err
}

func TestModes(t *testing.T) {
	p, dial := start(t)
	c := dial()
	check := func(mode Mode, text string) {
		t.Helper()
		p.Set(mode)
		if got, err := say(c, text, 5*time.Second); err != nil || got != text {
			t.Fatalf("%+v: %q, %v", mode, got, err)
		}
	}
	check(Mode{}, "hello")
	check(Mode{Delay: 20 * time.Millisecond}, "late")
	check(Mode{Bytewise: true}, "one by one")
	began := time.Now()
	check(Mode{Bandwidth: 20_000}, string(bytes.Repeat([]byte("x"), 4000)))
	if took := time.Since(began); took < 200*time.Millisecond {
		t.Errorf("4,000 bytes at 20,000 a second each way took %v", took)
	}
	dial0 := func() net.Conn { // one that is through before it goes dark
		p.Set(Mode{})
		c := dial()
		if _, err := say(c, "hi", 5*time.Second); err != nil {
			t.Fatal(err)
		}
		return c
	}
	for _, mode := range []Mode{{DropReplies: true}, {Blackhole: true}} {
		c := dial0()
		p.Set(mode)
		if got, err := say(c, "lost", 100*time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) || got != "" {
			t.Errorf("%+v: %q, %v", mode, got, err)
		}
		p.Set(Mode{})
		if got, err := say(c, "more", 5*time.Second); err == nil {
			t.Errorf("%+v: a stream with a hole goes on with %q", mode, got)
		}
	}
	c = dial()
	check(Mode{}, "back")
}

func TestBlackholeHoldsNewConnections(t *testing.T) {
	p, dial := start(t)
	p.Set(Mode{Blackhole: true})
	c := dial()
	if _, err := say(c, "anybody?", 100*time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal(err)
	}
	p.Set(Mode{})
	_ = c.SetReadDeadline(time.Now().Add(5 * time.Second))
	buf := make([]byte, 8)
	if n, err := io.ReadFull(c, buf); err != nil || string(buf) != "anybody?" {
		t.Errorf("after the hole: %q, %v", buf[:n], err)
	}
}

func TestResetAndRefuse(t *testing.T) {
	p, dial := start(t)
	c := dial()
	if _, err := say(c, "hi", time.Second); err != nil {
		t.Fatal(err)
	}
	p.Reset()
	if _, err := say(c, "hi", time.Second); !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE) && !errors.Is(err, io.EOF) {
		t.Errorf("after a reset: %v", err)
	}
	p.Set(Mode{Refuse: true})
	c, err := net.Dial("tcp", p.Address())
	if err != nil {
		return // the reset came while it was being opened
	}
	defer c.Close()
	if _, err := say(c, "hi", time.Second); err == nil {
		t.Error("a refused connection answers")
	}
}
