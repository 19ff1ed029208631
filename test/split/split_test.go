package split

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/imdhq/imd/pkg/peer"
	"github.com/imdhq/imd/pkg/peer/pipe"
	"github.com/imdhq/imd/pkg/testenv"
	_ "github.com/imdhq/imd/proto/gen/adminv1" // so that all services are known here
	_ "github.com/imdhq/imd/proto/gen/internalv1"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	_ "github.com/imdhq/imd/sdk/go/gen/imdv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

func start(t *testing.T, args ...string) *testenv.Node {
	t.Helper()
	n := &testenv.Node{Dir: t.TempDir() + "/data", Args: args, Layout: testenv.Split}
	n.Begin(t)
	return n
}

// procedures lists all methods of the program by package.
func procedures() map[string][]string {
	out := map[string][]string{}
	protoregistry.GlobalFiles.RangeFiles(func(f protoreflect.FileDescriptor) bool {
		for i := range f.Services().Len() {
			s := f.Services().Get(i)
			for j := range s.Methods().Len() {
				out[string(f.Package())] = append(out[string(f.Package())], fmt.Sprintf("/%s/%s", s.FullName(), s.Methods().Get(j).Name()))
			}
		}
		return true
	})
	return out
}

// post calls a method without any proof, as JSON, and returns the status.
func post(t *testing.T, c *http.Client, url string) int {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // only ends what would hang
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader([]byte("{}")))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	res, err := c.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	_, _ = io.Copy(io.Discard, res.Body)
	return res.StatusCode
}

// Services between roles are on the internal listener only, each where its role
// is, and nothing else is there. Nobody is answered without a proof.
func TestServicesStayOnTheirListeners(t *testing.T) {
	n := start(t)
	h2c := &http.Transport{Protocols: &http.Protocols{}}
	h2c.Protocols.SetUnencryptedHTTP2(true)
	internal, plain := &http.Client{Transport: h2c}, &http.Client{}
	defer internal.CloseIdleConnections()
	front, back := "http://"+n.Endpoints().Internal, "http://"+n.Back().Endpoints().Internal
	here := map[string]string{"StateService": back, "DirectoryService": back, "PushService": front, "GatewayService": front}
	all := procedures()
	for _, pkg := range []string{"imd.v1", "imd.admin.v1", "imd.internal.v1"} {
		if len(all[pkg]) == 0 {
			t.Fatalf("no methods of %s are known", pkg)
		}
	}
	for name, at := range map[string]string{"public": n.URL(), "ops": n.OpsURL()} {
		if got := post(t, plain, at+pipe.Path); got != http.StatusNotFound && got != http.StatusMethodNotAllowed {
			t.Errorf("%s listener, pipes: %d", name, got)
		}
	}
	for _, at := range []string{front, back} {
		if got := post(t, plain, at+pipe.Path); got != http.StatusUpgradeRequired {
			t.Errorf("internal listener, pipes: %d", got)
		}
	}
	for pkg, methods := range all {
		for _, m := range methods {
			service := strings.TrimPrefix(strings.Split(m, "/")[1], pkg+".")
			for _, at := range []string{front, back} {
				want := http.StatusNotFound
				if pkg == "imd.internal.v1" && (here[service] == at || service == "PeerService") {
					want = http.StatusUnauthorized
				}
				if got := post(t, internal, at+m); got != want {
					t.Errorf("internal listener, %s: %d, want %d", m, got, want)
				}
			}
			if pkg == "imd.internal.v1" {
				for name, at := range map[string]string{"public": n.URL(), "ops": n.OpsURL()} {
					if name == "ops" && service == "RelayService" {
						continue // the registry's own; it asks for the cluster's secret
					}
					if got := post(t, plain, at+m); got != http.StatusNotFound && got != http.StatusMethodNotAllowed {
						t.Errorf("%s listener, %s: %d", name, m, got)
					}
				}
			}
		}
	}
}

// Two processes cannot both own what is kept in one.
func TestASecondOwnerIsRefused(t *testing.T) {
	n := start(t)
	for roles, says := range map[string]string{"state,scheduler": "messages in SQLite", "gateway,push": "routes in the memory of one process"} {
		second := n.Beside(roles)
		if err := second.Try(t); err != nil {
			t.Fatal(err)
		}
		if code := second.Wait(testenv.ReadyIn); code != 78 || !strings.Contains(second.Log(), says) {
			t.Errorf("%s: exit %d\n%s", roles, code, second.Log())
		}
	}
}

// While the process with the state role is away, sends are answered "try again";
// when it is back they are stored, once and in order.
func TestMessagesOutliveTheStateProcess(t *testing.T) {
	n := start(t)
	a, b := testenv.Login(t, n.URL(), protocol.Proto, n.Token("ann"), "d"), testenv.Login(t, n.URL(), protocol.Proto, n.Token("bob"), "d")
	first := a.MustSend(testenv.ToUser("bob", "0"))
	sends := make([]*clientv1.Send, 60)
	for i := range sends {
		sends[i] = testenv.ToUser("bob", fmt.Sprint(i+1))
	}
	done := make(chan []int64)
	go func() { done <- a.SendAll(sends[:20]) }()
	<-done
	n.Back().Kill()
	go func() { done <- a.SendAll(sends[20:]) }()
	n.Back().Start()
	seqs := <-done
	for i := 1; i < len(seqs); i++ {
		if seqs[i] <= seqs[i-1] {
			t.Errorf("send %d has seq %d, the one before it %d", i, seqs[i], seqs[i-1])
		}
	}
	entries, _ := b.Walk(first.ConversationId, 100, false)
	if len(entries) != 61 {
		t.Fatalf("%d of 61 messages are there", len(entries))
	}
	for i, e := range entries {
		if e.Content.GetText() != fmt.Sprint(i) {
			t.Errorf("message %d is %q", i, e.Content.GetText())
		}
	}
}

// The pages tell what a process knows of the others, and the command line reads
// them.
func TestPagesAndRing(t *testing.T) {
	n := start(t)
	until(t, "the process knows the other one", func() bool {
		code, text := fetch(t, n.OpsURL()+"/statusz/peers", "*/*")
		var rep peer.Report
		err := json.Unmarshal([]byte(text), &rep)
		return code == http.StatusOK && err == nil && len(rep.Peers) == 1 && rep.Peers[0].Address == n.Back().Endpoints().Internal
	})
	out, errOut, code := n.Command("ring", "explain", "g_1")
	if back := string(n.Back().Endpoints().Node); code != 0 || !strings.Contains(out, back) {
		t.Errorf("exit %d: %s%s", code, out, errOut)
	}
	var r peer.RingReport
	for end := time.Now().Add(testenv.Patience); len(r.Nodes) == 0 && time.Now().Before(end); { // its own record comes a moment after it serves
		out, _, code = n.Command("ring", "show", "--role", "push", "-o", "json")
		if err := json.Unmarshal([]byte(out), &r); err != nil || code != 0 {
			t.Fatalf("exit %d, %v: %s", code, err, out)
		}
	}
	if len(r.Nodes) != 1 || r.Nodes[0].Share < 0.999 {
		t.Errorf("%s", out)
	}
}
