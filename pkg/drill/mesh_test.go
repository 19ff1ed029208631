package drill

import (
	"net"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/imdhq/imd/pkg/testenv"
)

// soon is how long who is not heard is listened to.
const soon = 500 * time.Millisecond

// hears reports whether a member is heard through a front within a time.
func hears(t *testing.T, address string, within time.Duration) bool {
	t.Helper()
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write([]byte("x")); err != nil {
		return false
	}
	_ = c.SetReadDeadline(time.Now().Add(within))
	_, err = c.Read(make([]byte, 1))
	return err == nil
}

// The network knows who calls, cuts a member off, heals, and lets nobody in who
// is no member.
func TestMesh(t *testing.T) {
	var member atomic.Int32 // this process plays member 0, then nobody
	pid := func(i int) int {
		if i == int(member.Load()) {
			return os.Getpid()
		}
		return 0
	}
	m, err := newMesh([]string{"127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0"}, []string{testenv.Echo(t), testenv.Echo(t), testenv.Echo(t)}, pid)
	if err != nil {
		t.Fatal(err)
	}
	defer m.close()
	second, third := m.fronts[1].Addr().String(), m.fronts[2].Addr().String()
	if !hears(t, second, testenv.Patience) || !hears(t, third, testenv.Patience) {
		t.Fatal("a member does not hear the others")
	}
	m.isolate(1, true)
	if hears(t, second, soon) || !hears(t, third, testenv.Patience) {
		t.Error("the wrong ones are cut off")
	}
	m.isolate(1, false)
	if !hears(t, second, testenv.Patience) {
		t.Error("it does not heal")
	}
	member.Store(9)
	if hears(t, second, soon) {
		t.Error("a stranger is let in")
	}
}
