package controltest_test

import (
	"errors"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/control"
	"github.com/imdhq/imd/pkg/control/controltest"
	"github.com/imdhq/imd/pkg/control/embedded"
	"github.com/imdhq/imd/pkg/control/etcd"
	"github.com/imdhq/imd/pkg/testenv"
	"github.com/imdhq/imd/pkg/testenv/machine"
)

// A name that etcd refuses is told from an etcd that is away, also when it was
// away at the start.
func TestPassword(t *testing.T) {
	t.Parallel()
	addr, dir := testenv.FreeAddress(t, "127.0.0.1"), t.TempDir()
	s, err := embedded.Start(t.Context(), dir, zap.NewNop(), embedded.Listen(addr))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	dial := func(password string) *clientv3.Client {
		e := etcd.Endpoints{URLs: []string{"http://" + addr}, Health: etcd.NewHealth()}
		if password != "" {
			e.Username, e.Password = "root", password
		}
		c, err := etcd.Dial(e, zap.NewNop())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	admin := dial("")
	if _, err := admin.UserAdd(t.Context(), "root", "right"); err != nil {
		t.Fatal(err)
	}
	if _, err := admin.UserGrantRole(t.Context(), "root", "root"); err != nil {
		t.Fatal(err)
	}
	if _, err := admin.AuthEnable(t.Context()); err != nil {
		t.Fatal(err)
	}
	load := func(password string) error {
		o := fast(controltest.Process{Cluster: "c", Node: "a", Handle: &control.Handle{}})
		o.Close = func() error { return nil }
		return etcd.New(dial(password), o).Load(t.Context())
	}
	var away *control.AwayError
	answer := func(password string) (err error) { // of an etcd that may be busy, as a server gets it
		wait(t, "etcd answers", func() bool { err = load(password); return !errors.As(err, &away) })
		return err
	}
	if err := answer("right"); err != nil {
		t.Errorf("with the right password: %v", err)
	}
	var refused *control.RefusedError
	if err := answer("wrong"); !errors.As(err, &refused) || refused.At != "http://"+addr {
		t.Errorf("with a wrong password: %v", err)
	}
	if err := answer(""); !errors.As(err, &refused) {
		t.Errorf("without a password: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	took := machine.Took(func() { err = load("wrong") })
	if !errors.As(err, &away) || took > 4*time.Second {
		t.Errorf("without etcd: %v after %v", err, took)
	}
}
