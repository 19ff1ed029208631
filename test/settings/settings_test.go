package settings

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connecthttp"
	"github.com/imdhq/imd/pkg/testenv"
	"github.com/imdhq/imd/proto/gen/adminv1"
	"github.com/imdhq/imd/proto/gen/adminv1/adminv1connect"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// bearer adds the admin key.
type bearer string

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+string(b))
	return http.DefaultTransport.RoundTrip(r)
}

func service(n *testenv.Node) adminv1connect.SettingsServiceClient {
	hc := &http.Client{Transport: bearer(n.AdminKey())}
	return adminv1connect.NewSettingsServiceClient(connect.NewClient(connecthttp.NewTransport(hc, n.OpsURL())))
}

func set(ctx context.Context, s adminv1connect.SettingsServiceClient, pairs ...string) (*adminv1.SetSettingsResponse, error) {
	req := &adminv1.SetSettingsRequest{By: "test"}
	for i := 0; i < len(pairs); i += 2 {
		req.Edits = append(req.Edits, &adminv1.SettingEdit{Key: pairs[i], Value: pairs[i+1]})
	}
	return s.SetSettings(ctx, req)
}

// inForce waits until the node has the change of a revision in force. It mostly has
// when the call returns that made it, but that waits for no more than a moment.
func inForce(t *testing.T, n *testenv.Node, revision int64) {
	t.Helper()
	eventually(t, fmt.Sprintf("revision %d is in force", revision), func() bool {
		res, err := service(n).ListSettings(t.Context(), &adminv1.ListSettingsRequest{Keys: []string{"rate.factor"}})
		return err == nil && max(res.GetRevision(), res.GetRefusedRevision()) >= revision
	})
}

// dial begins a session.
func dial(t *testing.T, n *testenv.Node, user string) *testenv.Client {
	t.Helper()
	return testenv.Login(t, n.URL(), protocol.Proto, n.Token(user), "d")
}

// As many changes as three writers can make, half of them wrong, while people
// send and log in: all sends are stored, no connection ends, wrong changes are
// refused one by one, and what is in force at the end is what was written last.
func TestAFloodOfChangesWhilePeopleTalk(t *testing.T) {
	t.Parallel()
	n := testenv.Start(t, testenv.NoLimits()...)
	svc := service(n)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	began, talk := time.Now(), 3*time.Second
	talking, end := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer end()
	counts, revisions := make([]int, 3), make([]int64, 3)
	for w, write := range []func(i int) []string{
		func(i int) []string {
			return []string{"gateway.ping_interval", fmt.Sprint(20+i%8, "s"), "gateway.login.multi", fmt.Sprint(20 + i%8), "gateway.redeliver_count", fmt.Sprint(1 + i%8)}
		},
		func(i int) []string { return []string{"rate.factor", fmt.Sprint(1 + i%7)} },
		func(i int) []string { return []string{"receipt.max_members", fmt.Sprint(50 + i%90)} },
	} {
		wg.Go(func() {
			for i := 1; talking.Err() == nil; i++ {
				pairs := write(i)
				if i%2 == 0 {
					if _, err := set(ctx, svc, append(pairs, pairs[0], "-1")...); err == nil {
						t.Errorf("a wrong change was taken")
						return
					}
					continue
				}
				res, err := set(ctx, svc, pairs...)
				if err != nil || res.GetConflict() {
					t.Errorf("change %d of writer %d: %v, %v", i, w, res, err)
					return
				}
				counts[w], revisions[w] = i, res.GetRevision()
			}
		})
	}
	ann, bob := dial(t, n, "ann"), dial(t, n, "bob")
	sent := 0
	for time.Since(began) < talk || sent < 100 {
		ann.MustSend(testenv.ToUser("bob", fmt.Sprint(sent)))
		if sent++; sent%50 == 0 {
			dial(t, n, fmt.Sprint("new", sent))
		}
	}
	end()
	wg.Wait()
	if ann.Closed() || bob.Closed() {
		t.Error("a connection was closed")
	}
	t.Logf("%d messages; changes up to %v in %v", sent, counts, time.Since(began).Round(time.Millisecond))
	inForce(t, n, slices.Max(revisions))
	res, err := svc.ListSettings(ctx, &adminv1.ListSettingsRequest{Keys: []string{"gateway.redeliver_count", "rate.factor", "receipt.max_members"}})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []int{1 + counts[0]%8, 1 + counts[1]%7, 50 + counts[2]%90} {
		if got := res.GetSettings()[i].GetValue(); got != fmt.Sprint(want) {
			t.Errorf("%s = %s, want %d", res.GetSettings()[i].GetKey(), got, want)
		}
	}
	if res.GetRefusedRevision() != 0 {
		t.Errorf("refused: %s", res.GetRefusedReason())
	}
	eventually(t, "the node reports the newest revision", func() bool {
		st, err := svc.ListSettingsStatus(ctx, &adminv1.ListSettingsStatusRequest{})
		return err == nil && len(st.GetNodes()) == 1 && st.GetNodes()[0].GetAppliedRevision() == res.GetRevision()
	})
}

// The order of strength is the same before and after a change and a restart,
// and a change is in force within two seconds.
func TestPrecedence(t *testing.T) {
	t.Parallel()
	n := testenv.Start(t, "--set", "gateway.ping_interval=40s") // a flag
	n.Stop()
	n.Env = append(n.Env, "IMD_GATEWAY_REDELIVER_AFTER=5s") // a variable
	n.Start()
	holds := func(key, value, source string) {
		t.Helper()
		res, err := service(n).ListSettings(t.Context(), &adminv1.ListSettingsRequest{Keys: []string{key}})
		if err != nil {
			t.Fatal(err)
		}
		if s := res.GetSettings()[0]; s.GetValue() != value || s.GetSource() != source {
			t.Errorf("%s = %s from %s, want %s from %s", key, s.GetValue(), s.GetSource(), value, source)
		}
	}
	welcome := func() uint32 { return dial(t, n, "ann").Welcome.GetPingIntervalMs() }
	holds("gateway.ping_interval", "40s", "--set")
	holds("gateway.redeliver_after", "5s", "IMD_GATEWAY_REDELIVER_AFTER")
	holds("gateway.login.multi", "10", "default")
	change := func(pairs ...string) {
		t.Helper()
		res, err := set(t.Context(), service(n), pairs...)
		if err != nil {
			t.Fatal(err)
		}
		inForce(t, n, res.GetRevision())
	}
	clock := testenv.NewClock(t)
	start := clock.Now()
	for _, pairs := range [][]string{{"gateway.login.multi", "7"}, {"gateway.ping_interval", "30s"}, {"gateway.redeliver_after", "2s"}} {
		change(pairs...)
	}
	if ms := welcome(); ms != 30_000 {
		t.Errorf("a newcomer is told %d ms", ms)
	}
	if took := clock.Since(start); took > 2*time.Second {
		t.Errorf("the changes took %v", took)
	}
	again := func() {
		t.Helper()
		holds("gateway.login.multi", "7", "setting (all)")
		holds("gateway.ping_interval", "30s", "setting (all)")
		holds("gateway.redeliver_after", "2s", "setting (all)")
	}
	again()
	n.Kill()
	n.Start()
	again()
	if ms := welcome(); ms != 30_000 {
		t.Errorf("after a crash a newcomer is told %d ms", ms)
	}
	change("gateway.ping_interval", "", "gateway.redeliver_after", "")
	holds("gateway.ping_interval", "40s", "--set")
	holds("gateway.redeliver_after", "5s", "IMD_GATEWAY_REDELIVER_AFTER")
}

func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for l := testenv.NewLimit(5 * time.Second); !cond(); time.Sleep(20 * time.Millisecond) {
		if l.Over() {
			t.Fatalf("waited in vain: %s", what)
		}
	}
}
