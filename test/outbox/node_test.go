package outbox

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/imdhq/imd/pkg/testenv"
	sdk "github.com/imdhq/imd/sdk/go"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// imd runs a command on the node and returns what it prints as JSON.
func imd(t *testing.T, n *testenv.Node, args ...string) (map[string]any, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, testenv.Binary(t), append(append([]string{"webhook"}, args...), "--data-dir", n.Dir, "-o", "json")...)
	out, err := cmd.Output()
	data := map[string]any{}
	if err == nil {
		if jerr := json.Unmarshal(out, &data); jerr != nil {
			t.Fatalf("%v: %s", args, out)
		}
	}
	return data, err
}

// mutes has a user mute the conversation with ann, and go.
func mutes(t *testing.T, n *testenv.Node, user string) {
	t.Helper()
	ann := testenv.Login(t, n.URL(), protocol.JSON, n.Token("ann"), "d2")
	defer ann.Close()
	c, err := sdk.Connect(t.Context(), n.URL(), sdk.Options{Token: n.Token(user)})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ann.MustSend(testenv.ToUser(user, "hello"))
	conv := protocol.DirectID("ann", user)
	if err := c.API().Mute(t.Context(), conv, time.Time{}); err != nil {
		t.Fatal(err)
	}
	if list, err := c.API().Mutes(t.Context()); err != nil || len(list) != 1 || !list[conv].IsZero() {
		t.Errorf("mutes: %v, %v", list, err)
	}
	if err := c.API().Mute(t.Context(), protocol.DirectID("eve", "ann"), time.Time{}); err == nil {
		t.Error("who is no member mutes")
	}
}

// A node that is configured for it tells receivers and notifies users, and the
// commands show and move that.
func TestOnAWholeNode(t *testing.T) {
	hooks, users, pushes := newReceiver(t, yes), newReceiver(t, yes), newReceiver(t, yes)
	n := &testenv.Node{Dir: filepath.Join(t.TempDir(), "data"), Layout: testenv.AllInOne}
	n.Env = append(os.Environ(),
		fmt.Sprintf(`IMD_WEBHOOKS_RECEIVERS=[{"name":"shop","url":"%s/hook?secret=1","key_file":"%s"},{"name":"users","url":"%s","key_file":"%s","events":["user.online","user.offline"]}]`,
			hooks.srv.URL, keyFile(t), users.srv.URL, keyFile(t)),
		"IMD_OFFLINE_PUSH_URL="+pushes.srv.URL, "IMD_OFFLINE_PUSH_KEY_FILE="+keyFile(t))
	n.Begin(t)
	row := func() map[string]any {
		data, err := imd(t, n, "list")
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range data["receivers"].([]any) {
			if r := r.(map[string]any); r["name"] == "shop" && r["cursor"] != "-1" {
				return r
			}
		}
		return nil
	}
	for end := time.Now().Add(10 * time.Second); row() == nil; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the receiver never began")
		}
	}
	ann := testenv.Login(t, n.URL(), protocol.JSON, n.Token("ann"), "d1")
	for i := range 3 {
		ann.MustSend(testenv.ToUser("bob", fmt.Sprint("text ", i)))
	}
	if got := texts(hooks.wait(3)); strings.Join(got, ",") != "text 0,text 1,text 2" {
		t.Errorf("told %v", got)
	}
	if one := pushes.wait(1)[0]; one.UserID != "bob" || one.Type != "push" || len(one.Content) != 0 {
		t.Errorf("notice: %+v", one)
	}
	if data, err := imd(t, n, "test", "shop"); err != nil || data["taken"] != true || hooks.wait(4)[3].Type != "test" {
		t.Errorf("test: %v, %v", data, err)
	}
	if _, err := imd(t, n, "test", "nobody"); err == nil {
		t.Error("a receiver that nobody knows takes a test")
	}
	if data, err := imd(t, n, "replay", "shop", "--after", "1"); err != nil || data["after"] != "1" {
		t.Errorf("replay: %v, %v", data, err)
	}
	for end := time.Now().Add(10 * time.Second); hooks.requests() < 6; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d requests", hooks.requests())
		}
	}
	if data, err := imd(t, n, "replay", "shop", "--since", "1h"); err != nil || data["after"] != "0" {
		t.Errorf("replay: %v, %v", data, err)
	}
	for _, bad := range [][]string{{"replay", "shop", "--after", "99"}, {"replay", "nobody", "--dead"}, {"dead", "nobody"}, {"replay", "shop"}, {"remove", "nobody"}} {
		if _, err := imd(t, n, bad...); err == nil {
			t.Errorf("%v works", bad)
		}
	}
	if data, err := imd(t, n, "dead", "shop"); err != nil || len(data["letters"].([]any)) != 0 {
		t.Errorf("dead: %v, %v", data, err)
	}
	if r := row(); r["url"] != hooks.srv.URL+"/hook" || r["dead"] != 0.0 {
		t.Errorf("row: %v", r)
	}
	mutes(t, n, "dan")
	ann.MustSend(testenv.ToUser("dan", "muted"))
	ann.MustSend(testenv.ToUser("eve", "not muted"))
	var notified []string
	for _, one := range pushes.wait(2) {
		notified = append(notified, one.UserID)
	}
	if !slices.Equal(notified, []string{"bob", "eve"}) {
		t.Errorf("notified %v", notified)
	}
	if _, err := imd(t, n, "remove", "offline/now"); err != nil {
		t.Errorf("remove: %v", err)
	}
	ann.Close()
	testenv.Login(t, n.URL(), protocol.JSON, n.Token("bob"), "d1")
	came := users.wait(5) // dan came to mute, and went
	if came[0].Type != "user.online" || came[0].UserID != "ann" || came[0].ID != "e_"+came[0].Cursor {
		t.Errorf("first came %+v", came[0])
	}
	var then []string
	for _, one := range came[1:] { // of several users, so in any order
		then = append(then, one.Type+" "+one.UserID)
	}
	if slices.Sort(then); strings.Join(then, ", ") != "user.offline ann, user.offline dan, user.online bob, user.online dan" {
		t.Errorf("then %v", then)
	}
	if code := n.Stop(); code != 0 {
		t.Errorf("the node ended with %d", code)
	}
}
