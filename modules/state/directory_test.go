package state

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/imdhq/imd/pkg/control"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

func TestRefusal(t *testing.T) {
	now := time.UnixMilli(1_800_000_000_000)
	who := login{"alice", "l1", now.UnixMilli()}
	later, before := now.Add(time.Hour), now.Add(-time.Hour)
	for name, tt := range map[string]struct {
		user store.User
		row  store.Revocation
		want string
	}{
		"nothing":                  {want: ""},
		"disabled":                 {user: store.User{Disabled: true}, want: "revoked"},
		"this login":               {row: store.Revocation{Login: "l1", Reason: clientv1.Reason_REASON_REPLACED, Until: later}, want: "replaced"},
		"another login":            {row: store.Revocation{Login: "l2", Reason: clientv1.Reason_REASON_KICKED, Until: later}},
		"no longer":                {row: store.Revocation{Login: "l1", Reason: clientv1.Reason_REASON_KICKED, Until: before}},
		"all logins until later":   {row: store.Revocation{IssuedBefore: later, Reason: clientv1.Reason_REASON_KICKED, Until: later}, want: "kicked"},
		"all logins until earlier": {row: store.Revocation{IssuedBefore: before, Reason: clientv1.Reason_REASON_KICKED, Until: later}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := refusal(tt.user, []store.Revocation{tt.row}, who, now); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func (n *node) admit(t *testing.T, user, login string) string {
	t.Helper()
	res, err := n.dir.Admit(n.ctx, &v1.AdmitRequest{UserId: user, LoginId: login, IssuedMs: time.Now().UnixMilli()})
	if err != nil || res.DataEpoch != "e1" {
		t.Fatal(res, err)
	}
	return res.RefusedReason
}

func TestAdmitMakesKnownAndRemembersForAMoment(t *testing.T) {
	serve(t, func(t *testing.T, n *node) {
		if _, err := n.dir.User(n.ctx, &v1.UserRequest{UserId: "alice"}); im.ReasonOf(err) != clientv1.Reason_REASON_NOT_FOUND {
			t.Fatal(err)
		}
		for range 3 {
			if got := n.admit(t, "alice", "l1"); got != "" {
				t.Fatal(got)
			}
		}
		if n.st.count("PutUser") != 1 || n.st.count("Callers") != 1 {
			t.Errorf("calls %v", n.st.calls)
		}
		if _, err := n.dir.User(n.ctx, &v1.UserRequest{UserId: "alice"}); err != nil {
			t.Error(err)
		}
		if _, err := n.dir.Admit(n.ctx, &v1.AdmitRequest{UserId: "?"}); im.ReasonOf(err) != clientv1.Reason_REASON_INVALID_ID {
			t.Error(err)
		}
	})
}

// Many logins are looked up in one call; each has its own answer.
func TestAdmitMany(t *testing.T) {
	serve(t, func(t *testing.T, n *node) {
		n.admit(t, "known", "l")
		if _, err := n.dir.Revoke(n.ctx, &v1.RevokeRequest{UserId: "known", LoginId: "gone", Reason: "kicked"}); err != nil {
			t.Fatal(err)
		}
		before := n.st.count("Callers")
		res, err := n.dir.AdmitMany(n.ctx, &v1.AdmitManyRequest{Requests: []*v1.AdmitRequest{
			{UserId: "known", LoginId: "l2"}, {UserId: "?"}, {UserId: "known", LoginId: "gone"}, {UserId: "new", LoginId: "l"}, {UserId: "new", LoginId: "l"},
		}})
		if err != nil || len(res.Answers) != 5 {
			t.Fatal(res, err)
		}
		for i, want := range []string{"", "invalid_id", "kicked", "", ""} {
			a := res.Answers[i]
			if got := a.GetResponse().GetRefusedReason() + a.GetError().GetReason(); got != want || (a.Error == nil) != (a.GetResponse().GetDataEpoch() == "e1") {
				t.Errorf("answer %d is %v, want %q", i, a, want)
			}
		}
		if n.st.count("Callers") != before+1 {
			t.Errorf("calls %v", n.st.calls)
		}
		if _, known := n.st.users["new"]; !known {
			t.Error("the newcomer is not known")
		}
		if _, err := n.dir.AdmitMany(n.ctx, &v1.AdmitManyRequest{Requests: make([]*v1.AdmitRequest, store.MaxCallers+1)}); im.ReasonOf(err) != clientv1.Reason_REASON_BAD_REQUEST {
			t.Error(err)
		}
	})
}

func TestRevokeRefusesAndKicksEverywhere(t *testing.T) {
	serve(t, func(t *testing.T, n *node) {
		n.view.Nodes = []control.Node{{ID: "n2", Roles: []string{"gateway"}, State: control.Draining}, {ID: "n3", Roles: []string{"push"}}}
		n.admit(t, "alice", "l1")
		if _, err := n.dir.Revoke(n.ctx, &v1.RevokeRequest{UserId: "alice", LoginId: "l1", Reason: "kicked"}); err != nil {
			t.Fatal(err)
		}
		if got := n.admit(t, "alice", "l1"); got != "kicked" {
			t.Errorf("the login: %q", got)
		}
		if got := n.admit(t, "alice", "l2"); got != "" {
			t.Errorf("another login: %q", got)
		}
		slices.Sort(n.out.nodes)
		if !slices.Equal(n.out.nodes, []im.NodeID{"n1", "n2"}) || n.out.kicks[0].LoginId != "l1" || n.out.kicks[0].Reason != "kicked" {
			t.Errorf("kicked at %v: %v", n.out.nodes, n.out.kicks)
		}
		row := n.st.revoked[0]
		if !row.IssuedBefore.IsZero() || time.Until(row.Until) != tokenLifetime {
			t.Errorf("row %+v", row)
		}
		if _, err := n.dir.Revoke(n.ctx, &v1.RevokeRequest{UserId: "alice", UntilMs: time.Now().Add(time.Hour).UnixMilli()}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Millisecond)
		if got := n.admit(t, "alice", "l3"); got != "" {
			t.Errorf("a login issued after: %q", got)
		}
		res, err := n.dir.Admit(n.ctx, &v1.AdmitRequest{UserId: "alice", LoginId: "l4"})
		if err != nil || res.RefusedReason != "revoked" {
			t.Errorf("a login without time: %v %v", res, err)
		}
		if _, err := n.dir.Revoke(n.ctx, &v1.RevokeRequest{UserId: "alice", LoginId: "l 1"}); im.ReasonOf(err) != clientv1.Reason_REASON_INVALID_ID {
			t.Error(err)
		}
		if _, err := n.dir.Revoke(n.ctx, &v1.RevokeRequest{UserId: "alice", Reason: "slow"}); im.ReasonOf(err) != clientv1.Reason_REASON_BAD_REQUEST {
			t.Error(err)
		}
	})
}

// A gateway that was restarted has another address; the news of it may be on its way.
func TestAKickIsRepeated(t *testing.T) {
	serve(t, func(t *testing.T, n *node) {
		n.view.Nodes = []control.Node{{ID: "n1", Roles: []string{"gateway"}}}
		n.out.deaf = 2
		if res, err := n.dir.Revoke(n.ctx, &v1.RevokeRequest{UserId: "alice", LoginId: "l1", Reason: "kicked"}); err != nil || res.Ended != 1 || len(res.NotTold) > 0 {
			t.Fatal(res, err)
		}
		if !slices.Equal(n.out.nodes, []im.NodeID{"n1"}) {
			t.Errorf("kicked at %v", n.out.nodes)
		}
		n.out.deaf = 1000
		began := time.Now()
		if res, err := n.dir.Revoke(n.ctx, &v1.RevokeRequest{UserId: "alice", LoginId: "l2", Reason: "kicked"}); err != nil || res.Ended != 0 || !slices.Equal(res.NotTold, []string{"n1"}) {
			t.Fatal(res, err)
		}
		if took := time.Since(began); took > kickTimeout {
			t.Errorf("a gateway that is gone holds a revocation up for %v", took)
		}
	})
}

func TestDisabledUsersAreKickedAndRefused(t *testing.T) {
	serve(t, func(t *testing.T, n *node) {
		n.admit(t, "alice", "l1")
		if _, err := n.dir.SetUser(n.ctx, &v1.SetUserRequest{UserId: "alice", Disabled: true}); err != nil {
			t.Fatal(err)
		}
		if got := n.admit(t, "alice", "l1"); got != "revoked" || len(n.out.kicks) != 1 {
			t.Errorf("%q, kicks %v", got, n.out.kicks)
		}
		if _, err := n.dir.SetUser(n.ctx, &v1.SetUserRequest{UserId: "alice"}); err != nil {
			t.Fatal(err)
		}
		if got := n.admit(t, "alice", "l1"); got != "" || len(n.out.kicks) != 1 {
			t.Errorf("%q, kicks %v", got, n.out.kicks)
		}
	})
}

func TestBlockChecks(t *testing.T) {
	serve(t, func(t *testing.T, n *node) {
		for _, tt := range []struct{ user, blocked, want string }{{"alice", "bob", ""}, {"alice", "alice", "bad_request"}, {"alice", "", "invalid_id"}} {
			_, err := n.dir.SetBlock(n.ctx, &v1.SetBlockRequest{UserId: tt.user, BlockedUserId: tt.blocked, Blocked: true})
			if im.ReasonName(im.ReasonOf(err)) != tt.want && (err != nil || tt.want != "") {
				t.Errorf("%+v: %v", tt, err)
			}
		}
	})
}

func TestMutes(t *testing.T) {
	serve(t, func(t *testing.T, n *node) {
		n.st.fault = func(op string, after bool) error { // its outcome is unknown at first
			if op == "SetMute" && after && n.st.count("SetMute") == 1 {
				return store.ErrUnknownOutcome
			}
			return nil
		}
		for _, tt := range []struct{ conv, user, want string }{{"g_1", "alice", ""}, {"", "alice", "bad_request"}, {"g_1", "a b", "invalid_id"}} {
			_, err := n.dir.SetMute(n.ctx, &v1.SetMuteRequest{ConversationId: tt.conv, UserId: tt.user, UntilMs: 5000})
			if im.ReasonName(im.ReasonOf(err)) != tt.want && (err != nil || tt.want != "") {
				t.Errorf("%+v: %v", tt, err)
			}
		}
		if n.st.count("SetMute") < 2 {
			t.Error("an unknown outcome is told as an answer")
		}
		res, err := n.dir.Mutes(n.ctx, &v1.MutesRequest{UserId: "alice", Limit: 1})
		if err != nil || len(res.Mutes) != 1 || res.Mutes[0].ConversationId != "g_1" || res.Mutes[0].UntilMs != 5000 {
			t.Errorf("%v, %v", res, err)
		}
		if res, err = n.dir.Mutes(n.ctx, &v1.MutesRequest{UserId: "alice", AfterConversationId: "g_1"}); err != nil || len(res.Mutes) != 0 {
			t.Errorf("behind the last: %v, %v", res, err)
		}
		if _, err := n.dir.Mutes(n.ctx, &v1.MutesRequest{}); im.ReasonName(im.ReasonOf(err)) != "invalid_id" {
			t.Error(err)
		}
	})
}

func TestKeysAreRememberedForAMoment(t *testing.T) {
	serve(t, func(t *testing.T, n *node) {
		key := &v1.ApiKey{KeyId: "k1", Name: "n", Scopes: []string{"send"}, SecretHash: make([]byte, 32)}
		find := func() []*v1.ApiKey {
			res, err := n.dir.Keys(n.ctx, &v1.KeysRequest{KeyId: "k1"})
			if err != nil {
				t.Fatal(err)
			}
			return res.Keys
		}
		if len(find()) != 0 || len(find()) != 0 || n.st.count("Key") != 1 {
			t.Fatalf("%d reads", n.st.count("Key"))
		}
		if _, err := n.dir.PutKey(n.ctx, &v1.PutKeyRequest{Key: key}); err != nil {
			t.Fatal(err)
		}
		if got := find(); len(got) != 1 || got[0].CreatedMs == 0 || got[0].RevokedMs != 0 || got[0].Scopes[0] != "send" {
			t.Fatalf("keys %v", got)
		}
		n.st.setFault(func(string, bool) error { return errors.New("away") })
		if len(find()) != 1 {
			t.Error("not remembered")
		}
		time.Sleep(keyTTL)
		if _, err := n.dir.Keys(n.ctx, &v1.KeysRequest{KeyId: "k1"}); im.ReasonOf(err) != clientv1.Reason_REASON_UNAVAILABLE {
			t.Error(err)
		}
		n.st.setFault(nil)
		if all, err := n.dir.Keys(n.ctx, &v1.KeysRequest{}); err != nil || len(all.Keys) != 1 {
			t.Error(all, err)
		}
		if _, err := n.dir.PutKey(n.ctx, &v1.PutKeyRequest{Key: &v1.ApiKey{KeyId: "k"}}); im.ReasonOf(err) != clientv1.Reason_REASON_BAD_REQUEST {
			t.Error(err)
		}
	})
}
