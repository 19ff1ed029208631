package split

import (
	"strings"
	"testing"

	"github.com/imdhq/imd/pkg/testenv"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// Two nodes with all roles that share everything are one server: what is sent on
// one is delivered live on the other. With routes in memory the second one is
// refused.
func TestTwoWholeNodes(t *testing.T) {
	t.Parallel()
	common := append(testenv.SharedPostgres(t).Serve(t), "--set", "controlplane.endpoints="+testenv.StartEtcd(t, 1).Members[0].URL, "--set", "peers.listen=127.0.0.1:0")
	node := func(args ...string) *testenv.Node {
		return &testenv.Node{Dir: t.TempDir() + "/data", Args: append(append([]string{}, common...), args...), Layout: testenv.AllInOne}
	}
	alone := node()
	alone.Begin(t)
	second := node()
	if err := second.Try(t); err != nil {
		t.Fatal(err)
	}
	if status := second.Wait(testenv.ReadyIn); status != 78 || !strings.Contains(second.Log(), "routes in the memory of one process (storage.routes) cannot be shared") {
		t.Errorf("a second one with routes in memory ends with %d: %s", status, second.Log())
	}
	alone.Stop()
	one, two := node("--set", "storage.routes=etcd"), node("--set", "storage.routes=etcd")
	one.Begin(t)
	two.Begin(t)
	for _, n := range []*testenv.Node{one, two} {
		until(t, "the nodes know each other", func() bool { return n.Metric(`imd_discovery_standing{standing="listed"}`) == 2 })
	}
	ann := testenv.Login(t, one.URL(), protocol.Proto, one.Token("ann"), "d")
	bob := testenv.Login(t, two.URL(), protocol.Proto, two.Token("bob"), "d")
	m := testenv.ToUser("bob", "hi")
	ann.MustSend(m)
	got := bob.Take("a deliver", func(f *clientv1.ServerFrame) bool { return f.GetDeliver() != nil })
	if id := got.GetDeliver().Entries[0].ClientMessageId; id != m.ClientMessageId {
		t.Errorf("%v was delivered, not %s", got, m.ClientMessageId)
	}
}

// Two nodes with an etcd server each on one Postgres would not know of each other's
// users: the second is refused, while the first may be killed and come back.
func TestTwoServersOnOneDatabase(t *testing.T) {
	t.Parallel()
	common := testenv.SharedPostgres(t).Serve(t)
	first := &testenv.Node{Dir: t.TempDir() + "/data", Args: common, Layout: testenv.AllInOne}
	first.Begin(t)
	second := &testenv.Node{Dir: t.TempDir() + "/data", Args: common, Layout: testenv.AllInOne}
	if err := second.Try(t); err != nil {
		t.Fatal(err)
	}
	if status := second.Wait(testenv.ReadyIn); status != 78 || !strings.Contains(second.Log(), "another server uses the database: node ") {
		t.Errorf("the second ends with %d: %s", status, second.Log())
	}
	first.Kill()
	first.Start()
}

// Two clusters of one name, each with an etcd of its own, on one Postgres by mistake: the
// nodes of the second end, those of the first go on.
func TestTwoClustersOnOneDatabase(t *testing.T) {
	t.Parallel()
	common := testenv.SharedPostgres(t).Serve(t)
	first := &testenv.Node{Dir: t.TempDir() + "/data", Args: common, Layout: testenv.Split}
	first.Begin(t)
	second := &testenv.Node{Dir: t.TempDir() + "/data", Args: common, Layout: testenv.Split}
	if err := second.Try(t); err != nil {
		t.Fatal(err)
	}
	if status := second.Back().Wait(3 * testenv.ReadyIn); status != 78 || !strings.Contains(second.Log(), "another cluster imd, on an etcd that this node does not use") {
		t.Errorf("the second ends with %d: %s", status, second.Log())
	}
	ann := testenv.Login(t, first.URL(), protocol.Proto, first.Token("ann"), "d")
	ann.MustSend(testenv.ToUser("bob", "still here"))
	first.Back().Kill()
	first.Back().Start() // is ready again: it is of the same cluster
}
